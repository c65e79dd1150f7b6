"""Links between the laboratory's pages lead somewhere: files and headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LAB = Path(__file__).parents[1]
PAGES = sorted(LAB.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub and MkDocs make them from its headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    found = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        where = page.parent / file if file else page
        if not where.exists() or (anchor and where.suffix == ".md" and anchor not in headings(where)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(LAB)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken(page)


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# One *word*, two\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md) [b](there.md#one-word-two) [c](gone.md) [d](there.md#three) [e](https://x.org) [f](#none)\n")
    assert broken(page) == ["gone.md", "there.md#three", "#none"]
