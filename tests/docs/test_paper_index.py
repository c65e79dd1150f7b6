"""The paper index: every recipe on it resolves to the method it stands under, every method is on it, with its paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "methods" / "index.md"
BASE = ROOT / "recipes" / "countdown" / "base.yaml"
SECTION = re.compile(r"^### (.+?)\n(.*?)(?=^##)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def sections() -> dict[str, str]:
    """Title -> text of every entry of the page."""
    return dict(SECTION.findall(PAGE.read_text(encoding="utf-8") + "\n##"))


BLOCKS = [
    (title, n, block)
    for title, text in [*sections().items(), ("whole page", PAGE.read_text(encoding="utf-8").split("## Combining parts")[1])]
    for n, block in enumerate(BLOCK.findall(text))
]


@pytest.mark.parametrize(("title", "n", "block"), BLOCKS, ids=[f"{title}-{n}" for title, n, _ in BLOCKS])
def test_a_recipe_of_the_page_resolves(title: str, n: int, block: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"base: {BASE}\n{block}", encoding="utf-8")
    config = load_config(TrainConfig, file)
    name = re.search(r"name: (\w+)", block)
    assert name is not None
    title_of = "compose" if name[1] == "compose" else name[1]
    assert title_of in METHODS and config.method.describe()


def test_every_method_is_on_the_page_with_its_paper() -> None:
    page = PAGE.read_text(encoding="utf-8")
    used = {name for _, _, block in BLOCKS for name in re.findall(r"name: (\w+)", block)}
    named = used | set(re.findall(r"`(\w+)`", page))
    assert set(METHODS) <= named
    for name in METHODS:
        for number in re.findall(r"arXiv\s+(\d{4}\.\d{5})", METHODS[name].__doc__ or ""):
            assert f"https://arxiv.org/abs/{number}" in page, f"{name}: {number}"


def test_every_entry_has_a_recipe_and_every_number_of_it_is_explained_or_a_default() -> None:
    """A line that sets rollout, updates or optimizer to another value than the base recipe's names its source."""
    for title, text in sections().items():
        assert BLOCK.findall(text) or "```sh" in text, title
        for block in BLOCK.findall(text):
            for line in block.splitlines():
                if re.match(r"(rollout|optimizer):", line):
                    assert "#" in line, f"{title}: {line}"
