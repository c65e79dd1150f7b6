"""What a page is made of: sections of sentences, tables, figures, cards and samples, drawn alike in HTML and Markdown."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from sage_rlvr.report.digest import Group
from sage_rlvr.report.tables import Table

QUIET, CAVEAT, MISSING, HEADING = "quiet", "caveat", "missing", "heading"


@dataclass(frozen=True, kw_only=True)
class Prose:
    """One paragraph. kind: "" plain, quiet (small print), caveat (set off), missing (what was not run or recorded), heading.
    strong: words before it in bold; link: (text, relative address) after it."""

    text: str
    kind: str = ""
    strong: str = ""
    link: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Said:
    """Sentences with the word that they come to: (arm whose colour it has or "", word, sentence) each."""

    lines: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with its accessible name and its caption; small ones stand beside each other. key: its file name."""

    key: str
    figure: Figure
    label: str
    caption: str = ""
    small: bool = False


@dataclass(frozen=True, kw_only=True)
class Tabular:
    """A table; `about` says what it is, for those who do not see it. folded: a long one, opened by the reader; words: the first
    line of a cell is a verdict's word."""

    table: Table
    about: str = "table"
    folded: bool = False
    words: bool = False


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Sentences that each hold several verdicts: `digest.groups_of`."""

    groups: tuple[Group, ...]


@dataclass(frozen=True, kw_only=True)
class Card:
    """One run: its name, a line of facts, its objective in words, and its configuration as text."""

    name: str
    facts: str = ""
    equation: str = ""
    config: str = ""


@dataclass(frozen=True, kw_only=True)
class Cards:
    """Run cards, and the versions that all runs share."""

    cards: tuple[Card, ...]
    versions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Links:
    """(text, relative address, what is there) each."""

    links: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Browser:
    """Samples for the script of the page: strict JSON values, see `browser.py`. count: how many samples."""

    data: dict[str, Any]
    count: int


@dataclass(frozen=True, kw_only=True)
class Fold:
    """What the reader opens, and paper has open: its line, and the parts in it."""

    line: str
    parts: tuple[Part, ...]


Part = Prose | Said | Grouped | Picture | Tabular | Cards | Links | Browser | Fold


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with what stands below it; `key` is its anchor."""

    key: str
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole report before it becomes HTML or Markdown."""

    title: str
    lead: str
    sections: tuple[Section, ...]

    def parts(self) -> Iterator[Part]:
        """Every part in order, folded ones after what they are folded in."""
        for section in self.sections:
            yield from flat(section.parts)

    def pictures(self) -> Iterator[Picture]:
        """Every figure in order."""
        yield from (part for part in self.parts() if isinstance(part, Picture))

    def sentences(self) -> list[str]:
        """Every sentence with one verdict, in order."""
        return [line for part in self.parts() if isinstance(part, Said) for _, _, line in part.lines]


def flat(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts with those that are folded in them."""
    for part in parts:
        yield part
        if isinstance(part, Fold):
            yield from flat(part.parts)


def quiet(*texts: str) -> tuple[Prose, ...]:
    """Each text as small print."""
    return tuple(Prose(text=text, kind=QUIET) for text in texts if text)


def missing(text: str) -> Prose:
    """What was not run or not recorded, in words."""
    return Prose(text=text, kind=MISSING)


def visible(text: str) -> str:
    """Text of unknown origin that cannot disturb what stands around it: control characters, marks that turn the direction of
    writing and halves of surrogate pairs are spelled out, as in "[U+202E]"; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _disturbs(c) else f"[U+{ord(c):04X}]" for c in text)


def _disturbs(character: str) -> bool:
    kind = unicodedata.category(character)
    if kind == "Cf":  # the joiners of emoji and of Indic scripts and soft hyphens do no harm
        return character not in "\u200c\u200d\u00ad"
    return kind in ("Cc", "Cs", "Zl", "Zp")


def shortened(text: str, most: int) -> tuple[str, int]:
    """The first `most` characters, and how many were left out."""
    return text[:most], max(0, len(text) - most)


def joined(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
