"""`python -m lab base-again`: problems gained and lost on fresh samples of the base, by the protocol in README.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.studies.pages import remade
from lab.unlocked import Counts, pairs, strata_table
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.runs import write_text_atomic
from sage_rlvr.verdicts.stats.strata import Strata, stratified

FOLDER = Path("lab/base_again")
CHOOSE, TRIES = 32, 16
ENDPOINTS = ("little room: GRPO, k3", "much room: GRPO, k3")
OF_ONE = 0.9
"""Simultaneous level over the four strata at which the interval of one has 97.5 %."""


def fresh_counts(file: Path) -> Iterator[tuple[str, int, Counts]]:
    """Room, samples of each problem, and the right ones, (1, N), by the sorted ids of the problems.

    Raises:
        DataError: There is no such file: the base is not sampled yet.
    """
    if not file.is_file():
        raise DataError(f"{file}: no such file; draw the samples by {file.parent / 'draw'} FOLDER, and copy its counts.jsonl")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for room in dict.fromkeys(row["room"] for row in rows):
        here = sorted((row["id"], row["n"], row["c"]) for row in rows if row["room"] == room)
        yield room, here[0][1], np.array([[right for *_, right in here]])


def found(root: Path = Path(), level: float = 0.95) -> Iterator[tuple[str, Strata, Strata]]:
    """Room and arm, gained and lost: the stored arm beside the fresh base. level: of all strata at once."""
    for room, n, base in fresh_counts(root / FOLDER / "counts.jsonl"):
        for pair in pairs(root):
            if pair.name.startswith(f"{room}: "):
                fresh, arm = (np.full_like(base, n), base), (np.full_like(pair.arm, pair.n), pair.arm)
                gained = stratified(*fresh, *arm, TRIES, half=CHOOSE, cluster=pair.cluster, level=level)
                lost = stratified(*arm, *fresh, TRIES, half=CHOOSE, cluster=pair.cluster, level=level)
                yield pair.name, gained, lost


def never(strata: Strata) -> Strata:
    """The stratum without a right sample alone."""
    return replace(strata, strata=tuple(one for one in strata.strata if one.high == 0))


@dataclass(frozen=True)
class BaseAgain(Command):
    """Problems gained and lost by the stored runs of both rooms, beside fresh samples of the base."""

    docs: bool = False
    """Fill the tables of lab/base_again/README.md."""

    def execute(self, session: Session) -> int:
        every = list(found())
        ends = {name: never(gained) for name, gained, _ in found(level=OF_ONE)}
        made = {
            "endpoints": strata_table([(name, ends[name]) for name in ENDPOINTS]).markdown(),
            "gained": strata_table([(name, gained) for name, gained, _ in every]).markdown(),
            "lost": strata_table([(name, lost) for name, _, lost in every]).markdown(),
        }
        for name, table in made.items():
            session.say(f"{name}:", "", table, "")
        if self.docs:
            where, page = remade(FOLDER, "README.md", made)
            write_text_atomic(where, page)
        return 0


__all__ = ["BaseAgain", "found", "fresh_counts"]
