"""The page of metrics names every metric that the code writes, and none that it does not."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
BY_FORMAT = {f"pairs/{who}_{what}" for who in ("winner", "loser") for what in ("logp", "shift")}  # training/offline.py


def on_the_page() -> set[str]:
    return set(re.findall(r"`([a-z_]+/[a-z_0-9]+)`", PAGE.read_text(encoding="utf-8")))


def in_the_code(families: set[str]) -> set[str]:
    """Literals `family/name` of the package whose family is one of the page's; names of random streams are no metrics."""
    found = set()
    package = ROOT / "src" / "sage_rlvr"
    for path in set(package.rglob("*.py")) - {package / "symptoms" / "logs" / "names.py"}:  # which has those of TRL and verl
        for line in path.read_text(encoding="utf-8").splitlines():
            if ".fold(" not in line:
                found |= {name for name in re.findall(r'"([a-z_]+/[a-z_0-9]+)"', line) if name.split("/")[0] in families}
    return found


def test_the_page_and_the_code_name_the_same_metrics() -> None:
    page = on_the_page()
    code = in_the_code({name.split("/")[0] for name in page})
    assert len(page) > 50
    assert code - page == set(), "metrics that the page does not name"
    assert page - code - BY_FORMAT == set(), "names on the page that the code does not write"
