"""`python -m lab base-again`: problems gained and lost where the groups and the base come from fresh samples of the base.

Protocol and predictions: lab/experiments/2026-11-30_smollm2_base_again. 32 of a problem's fresh samples put it in a stratum, and
pass@16 of the base is read from the other 160 (all choices averaged over, `verdicts/stats/strata.py`); the arms' counts are those
of the rooms. As a placebo the rooms' own samples of the base are compared like an arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.primaries import ARM, BASE, RIVALS
from lab.room.exploratory import repeated
from lab.room.smollm2 import ROOMS, Room
from lab.room.worlds import EXPERIMENTS
from lab.study import FAILED, HELD, MARGIN, OPEN, rooms_of
from lab.unlocked import strata_table
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.results.tables import Table
from sage_rlvr.verdicts.readers import CountTable, read_evaluation
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.strata import Strata, stratified

FOLDER = "2026-11-30_smollm2_base_again"
SAMPLES, HALF, K = 192, 32, 16
PLACEBO = "the base's first samples"
ONE = 0.8
"""Coverage of the four intervals of a table at once at which each one separately is a 95 % interval."""
PREDICTED = {"little room": "below 0", "much room": "within 0.05 of 0"}


def fresh_counts(file: Path, room: Room) -> CountTable:
    """The fresh counts of the base in a room's order of problems. DataError unless all problems have all samples."""
    if not file.is_file():
        raise DataError(f"{file} is not there; nothing is read before both rooms are drawn (README.md beside it has the command)")
    problems = room.counts[BASE, None, 1.0].problems
    tables = read_evaluation(file).tables
    if len(tables) != 1 or sorted(tables[0].problems) != sorted(problems):
        raise DataError(f"{file}: other policies or problems than the base on those of the room; draw it on the room's problems")
    if np.any(tables[0].n != SAMPLES):
        raise DataError(f"{file}: not all problems have {SAMPLES} samples; finish the evaluation first")
    return tables[0].ordered(problems)


def found_in(room: Room, fresh: CountTable, level: float = 0.95) -> Iterator[tuple[str, Strata]]:
    """Every arm, and the placebo, against the base, by 32 of the base's fresh samples. level: as in `stratified`."""
    cluster = tuple(problem.split(" #")[0] for problem in fresh.problems)
    sides = {label: room.runs(label) for label in (ARM, *RIVALS)} | {PLACEBO: [room.counts[BASE, None, 1.0]]}
    for label, runs in sides.items():
        n, c = (np.stack([getattr(run, name) for run in runs]) for name in ("n", "c"))
        yield label, stratified(fresh.n[None], fresh.c[None], n, c, K, cluster=cluster, half=HALF, level=level)


def predictions(found: Mapping[str, Mapping[str, Strata]], single: Mapping[str, Mapping[str, Strata]]) -> Table:
    """Each prediction with its outcome. found: room -> arm -> strata, all intervals at once; single: with separate intervals."""
    rows = []
    for room, predicted in PREDICTED.items():
        gap = single[room][ARM].strata[0].difference
        judged = _below(gap) if predicted == "below 0" else _within(gap)
        rows.append((f"{room}: {ARM} less the base, 0 of {HALF}", predicted, gap, judged))
    for room in PREDICTED:
        told = [one for one in found[room][PLACEBO].strata if one.outcome != "cannot be told"]
        gap = found[room][PLACEBO].strata[0].difference
        rows.append((f"{room}: {PLACEBO}, every stratum", "not told from 0", gap, FAILED if told else HELD))
    made = tuple(
        (name, predicted, f"{gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})", end) for name, predicted, gap, end in rows
    )
    return Table(header=("difference in pass@16", "predicted", "outcome", "prediction"), rows=made)


def _below(gap: Interval) -> str:
    return HELD if gap.high < 0 else FAILED if gap.low > 0 else OPEN


def _within(gap: Interval) -> str:
    return HELD if gap.low > -MARGIN and gap.high < MARGIN else FAILED if gap.low > MARGIN or gap.high < -MARGIN else OPEN


@dataclass(frozen=True)
class BaseAgain(Command):
    """Problems gained and lost by fresh samples of the base: predictions, outcomes, and every arm."""

    experiments: Path = EXPERIMENTS
    """The folder of the experiments."""

    def execute(self, session: Session) -> int:
        rooms = rooms_of(self.experiments)
        whole = {name: rooms[name] for name in ROOMS if name in rooms} | repeated(rooms)
        fresh = {
            name: fresh_counts(self.experiments / FOLDER / f"{name.replace(' ', '_')}.jsonl", room) for name, room in whole.items()
        }
        found = {name: dict(found_in(room, fresh[name])) for name, room in whole.items()}
        single = {name: dict(found_in(room, fresh[name], ONE)) for name, room in whole.items()}
        every = [(f"{name}: {label}", one) for name, arms in found.items() for label, one in arms.items()]
        session.say(predictions(found, single).markdown(), "", strata_table(every).markdown())
        return 0


__all__ = ["BaseAgain", "found_in", "fresh_counts", "predictions"]
