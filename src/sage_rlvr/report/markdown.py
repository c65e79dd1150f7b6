"""The report as Markdown: sentences and tables, figures as links to PNGs where these were written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from sage_rlvr.report.digest import Group
from sage_rlvr.report.parts import (
    CAVEAT,
    HEADING,
    Browser,
    Cards,
    Fold,
    Grouped,
    Links,
    Page,
    Part,
    Picture,
    Prose,
    Said,
    Tabular,
    visible,
)


def markdown(page: Page, pictures: str | None = None) -> str:
    """GitHub Markdown. pictures: the relative folder of the PNGs, None where there are none."""
    blocks = [f"# {_text(page.title)}", _text(page.lead)]
    for section in page.sections:
        blocks.append(f"## {section.title}")
        found = [block for part in section.parts for block in _blocks(part, pictures) if block]
        blocks += found or ["Figures alone: the HTML report has them, and `--png FOLDER` puts them here."]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _blocks(part: Part, pictures: str | None) -> Iterator[str]:
    if isinstance(part, Prose):
        yield from _prose(part)
    elif isinstance(part, Said):
        yield "\n".join(
            f"- **{_text(word)}** {_text(text)}" if word else f"- {_text(text)}" for _, word, text in part.lines
        )
    elif isinstance(part, Grouped):
        yield grouped_lines(part.groups)
    elif isinstance(part, Tabular):
        table = visible(part.table.markdown())
        yield from folded(part.about, [table]) if part.folded else (table,)
    elif isinstance(part, Fold):
        yield from folded(part.line, [block for one in part.parts for block in _blocks(one, pictures) if block])
    elif isinstance(part, Picture):
        if pictures is not None:
            yield f"![{_text(part.label)}]({pictures}/{part.key}.png)"
            yield _text(part.caption)
    elif isinstance(part, Cards):
        for card in part.cards:
            yield f"### {_text(card.name)}"
            yield _text(card.facts)
            yield from (_fenced(text) for text in (card.equation, card.config) if text)
        yield "\n".join(f"- {_text(name)} {_text(version)}" for name, version in part.versions)
    elif isinstance(part, Links):
        yield "\n".join(f"- [{_text(text)}]({address}): {_text(about)}" for text, address, about in part.links)
    elif isinstance(part, Browser):
        yield f"{part.count:,} samples can be browsed in the HTML report."


def grouped_lines(groups: Sequence[Group]) -> str:
    """One item a group; what they share in bold."""
    lines = [group.sentence().removeprefix(group.head) for group in groups]
    return "\n".join(f"- **{_text(group.head)}**{_text(line)}" for group, line in zip(groups, lines, strict=True))


def folded(line: str, blocks: Iterable[str]) -> list[str]:
    """Blocks that stay closed until the reader opens them, where the Markdown is shown as GitHub shows it."""
    named = visible(line).replace("&", "&amp;").replace("<", "&lt;")  # no Markdown is read inside the tag
    return [f"<details><summary>{named}</summary>", *blocks, "</details>"]


def _prose(part: Prose) -> Iterator[str]:
    if part.kind == HEADING:
        yield f"### {_text(part.text)}"
        return
    paragraphs = [_text(text) for text in part.text.split("\n")]
    if part.strong:
        paragraphs[0] = f"**{_text(part.strong)}** {paragraphs[0]}"
    if part.kind == CAVEAT:
        paragraphs = ["\n>\n".join(f"> {text}" for text in paragraphs)]
    yield from paragraphs


def _text(text: str) -> str:
    """Text in which no character of unknown origin becomes markup."""
    flat = " ".join(visible(text).split())
    return re.sub(r"([\\`*_\[\]#|])", r"\\\1", flat).replace("&", "&amp;").replace("<", "&lt;")


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{visible(text)}\n{fence}"
