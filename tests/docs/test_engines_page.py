"""docs/reference/engines.md is what `python -m lab engines --docs docs/reference` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.__main__ import main
from lab.engines import page, write_docs
from sage_rlvr.errors import DataError

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def test_the_page_is_made_by_its_command(tmp_path: Path) -> None:
    assert (DOCS / "engines.md").read_text(encoding="utf-8") == page(), "run: python -m lab engines --docs docs/reference"
    with pytest.raises(DataError, match=r"name the folder that holds engines\.md"):
        write_docs(tmp_path)
    (tmp_path / "engines.md").write_text("old", encoding="utf-8")
    assert main(["engines", "--docs", str(tmp_path)]) == 0
    assert (tmp_path / "engines.md").read_text(encoding="utf-8") == page()
