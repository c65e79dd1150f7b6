"""Completions of files of rows that were judged again by a verifier (`compare --verify`): how it agrees with the score of the file.
`results.rejudged` judges them; text/rejudged.py has the lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A completion on which file and verifier differ. sample: its place among those of its problem, from 1. correct: by the file;
    label, reason: by the verifier."""

    name: str
    problem: str
    sample: int
    correct: bool
    label: str
    reason: str
    gold: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Rejudged:
    """The completions of one set of samples. counts: (correct in the file, label of the verifier) -> completions; pass1: pass@1 by
    the file and by the verifier, which counts undecided completions as wrong."""

    name: str
    counts: Mapping[tuple[bool, str], int]
    pass1: tuple[float, float]
    disagreements: tuple[Disagreement, ...]

    @property
    def only_file(self) -> int:
        """Completions that the file counts as correct and the verifier as wrong."""
        return self.counts[True, "wrong"]

    @property
    def only_verifier(self) -> int:
        """Completions that the verifier counts as correct and the file as wrong."""
        return self.counts[False, "right"]

    @property
    def undecided(self) -> int:
        """Completions without a verdict."""
        return self.counts[True, "undecided"] + self.counts[False, "undecided"]

    @property
    def decided(self) -> int:
        """Completions with a verdict."""
        return sum(self.counts.values()) - self.undecided

    def tree(self) -> dict[str, object]:
        """Return the tree for JSON, by docs/reference/verdict.schema.json."""
        return {
            "name": self.name, "decided": self.decided, "only_file": self.only_file, "only_verifier": self.only_verifier,
            "undecided": self.undecided, "pass1_file": self.pass1[0], "pass1_verifier": self.pass1[1],
        }  # fmt: skip
