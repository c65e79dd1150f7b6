"""`python -m lab unlocked`: which problems RL unlocked, by how often the base solves them, on all counts of this repository.

Problems are put in strata by one half of the base's samples, and the base is read from the other half: drawn again. Next to it is
the naive reading from the half that chose (sage_rlvr/verdicts/stats/strata.py has the arithmetic). The same for problems lost, by
halves of the arm's samples. Much room and little room: all training seeds; copies of a problem are one cluster.

The released runs of remax-rl are a control in which RL does unlock problems (`released_table`), and released counts of Sharpening
Tax are read from a file that the user names (`cells_table`).
"""

from __future__ import annotations

import csv
import gzip
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.primaries import ARM, BASE, RIVALS
from lab.room.cohort import FAMILIES, Cohort, independent, installed, read_cohort
from lab.room.exploratory import repeated
from lab.room.smollm2 import ROOMS
from lab.room.worlds import EXPERIMENTS
from lab.studies.pages import percent, remade
from lab.study import rooms_of
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.results.tables import Table, strata
from sage_rlvr.runs import write_text_atomic
from sage_rlvr.verdicts.readers import read_evaluation
from sage_rlvr.verdicts.stats.intervals import seed_interval
from sage_rlvr.verdicts.stats.paired import signed
from sage_rlvr.verdicts.stats.passk import pass_at_k
from sage_rlvr.verdicts.stats.strata import Strata, bounds_of, largest_k, stratified

SHIPPED = Path("examples/deepscaler")
PAGE = "results/unlocked.md"
CELLS = ("benchmark", "pair", "arm", "task_id", "n", "c")
"""Columns of the released counts of Sharpening Tax (arXiv 2610.01509, data/outcomes_42cells.csv.gz, CC BY-NC 4.0)."""
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pair:
    """Counts of a base and of an arm on the same problems.

    n: Samples of every problem on both sides.
    base: Right ones of the base, (1, N).
    arm: Right ones of the arm, (S, N), one row per training seed.
    cluster: Labels of problems that are copies of each other, (N,); () if there are none.
    """

    name: str
    n: int
    base: Counts
    arm: Counts
    cluster: tuple[str, ...] = ()

    def gained(self) -> Strata:
        """The arm less the base, by halves of the base's samples."""
        return stratified(*self._side(self.base), *self._side(self.arm), cluster=self.cluster)

    def lost(self) -> Strata:
        """The base less the arm, by halves of the arm's samples."""
        return stratified(*self._side(self.arm), *self._side(self.base), cluster=self.cluster)

    def _side(self, right: Counts) -> tuple[Counts, Counts]:
        return np.full_like(right, self.n), right


def pairs(root: Path = Path()) -> Iterator[Pair]:
    """The shipped pair, and every arm of both rooms with all its training seeds."""
    (base,), (arm,) = (read_evaluation(root / SHIPPED / f"{name}.jsonl").tables for name in ("base", "rl"))
    order = sorted(base.problems)
    yield Pair("DeepScaleR-1.5B", int(base.n[0]), base.ordered(order).c[None], arm.ordered(order).c[None])
    rooms = rooms_of(root / EXPERIMENTS)
    whole = {name: rooms[name] for name in ROOMS if name in rooms} | repeated(rooms)
    for name, room in whole.items():
        of_base = room.counts[BASE, None, 1.0]
        cluster = tuple(problem.split(" #")[0] for problem in of_base.problems)
        for label in (ARM, *RIVALS):
            counts = np.stack([run.c for run in room.runs(label)])
            yield Pair(f"{name}: {label}", int(of_base.n[0]), of_base.c[None], counts, cluster)


def strata_table(found: Sequence[tuple[str, Strata]]) -> Table:
    """One row per pair and stratum."""
    return strata((name, asdict(one)) for name, one in found)


# ------------------------------------------------------------------------------------------------------------------
# released runs


def released_table(cohort: Cohort) -> Table:
    """The released runs of remax-rl, all together and with and without replay, means over the cells of level, model and domain.

    Answer i of a problem has one seed for all policies, so that answers before and after RL are not independent: both policies
    are read from the answers whose seeds did not choose the stratum. All halves of the answers are averaged over. The seeds are
    also those of all problems, so intervals are over cells (Student's t), not over problems.
    """
    sums, half, k = _sums(cohort)
    rows = []
    for name, methods in {"all": tuple(m for some in FAMILIES.values() for m in some), **FAMILIES}.items():
        cells = [[i for i in places if cohort.runs[i].method in methods] for places in cohort.cells().values()]
        cells = [places for places in cells if places]
        for s, (low, high) in enumerate(bounds_of(half) if cells else ()):
            shares, *means = np.array([_ratios(sums[:, places, s]) for places in cells]).T
            other, again, same = (mean[shares > 0] for mean in means)
            gap = seed_interval(other - again, over="cells")
            right = str(low) if low == high else f"{low} to {high}"
            cell = f"{signed(gap.value)} ({signed(gap.low)} to {signed(gap.high)})"
            scores = (f"{one.mean():.3f}" for one in (other, same))
            naive = signed(float((other - same).mean()))
            about = (name, str(len(other)), f"{right} of {half}", f"{shares.mean():.2f}", str(k))
            rows.append((*about, *scores, naive, f"{again.mean():.3f}", cell))
    head = ("runs", "cells", "right in the half", "share", "k", "RL", "same half", "naive difference")
    return Table(header=(*head, "drawn again", "difference"), rows=tuple(rows))


def _sums(cohort: Cohort) -> tuple[NDArray[np.float64], int, int]:
    """(4, runs, strata): share of the problems, and pass@k of the arm, of the base's other answers and of the half that chose,
    times the share; the size of the half, and k."""
    base, arm = (independent(answers) > 0 for answers in (cohort.before, cohort.after))
    n, problems = base.shape[-1], base.shape[1]
    half, k = n // 2, largest_k(n)
    bounds, halves = bounds_of(half), list(combinations(range(n), half))
    of_half, of_rest = (np.asarray(pass_at_k(size, np.arange(size + 1), k)) for size in (half, n - half))
    every, total = base.sum(axis=-1), arm.sum(axis=-1)
    out = np.zeros((4, len(base), len(bounds)))
    for chosen in halves:
        right = base[..., chosen].sum(axis=-1)
        scores = of_rest[total - arm[..., chosen].sum(axis=-1)], of_rest[every - right], of_half[right]
        for s, (low, high) in enumerate(bounds):
            inside = (right >= low) & (right <= high)
            out[:, :, s] += inside.sum(axis=-1), *((inside * score).sum(axis=-1) for score in scores)
    return out / (problems * len(halves)), half, k


def _ratios(sums: NDArray[np.float64]) -> list[float]:
    """Share of the problems, and the three scores, of the runs (4, R) of a cell in one stratum; NaN without a problem."""
    share, *scores = sums.mean(axis=1)
    return [share, *(float(score / share) if share > 0 else np.nan for score in scores)]


def cells_table(file: Path) -> Table:
    """The problems that the base never solved in half of its samples, one row per benchmark and pair of a table of counts, as
    Sharpening Tax releases it. Its rollouts of a task may have the same seeds before and after RL."""
    found = []
    for name, sides in _cells(file).items():
        if not {"base", "rl"} <= set(sides):
            continue
        base, arm = sides["base"], sides["rl"]
        order = sorted(set(base) & set(arm))
        if set(base) != set(arm) or len({n for side in (base, arm) for n, _ in side.values()}) > 1:
            raise DataError(f"{file}: {name}: base and rl have different tasks or numbers of samples; give both on the same tasks")
        (n,) = {n for n, _ in base.values()}
        right = [np.array([[side[task][1] for task in order]]) for side in (base, arm)]
        gained = Pair(name, n, right[0], right[1]).gained()
        found.append((name, Strata(gained.half, gained.k, tuple(one for one in gained.strata if one.high == 0))))
    return strata_table(found)


def _cells(file: Path) -> dict[str, dict[str, dict[str, tuple[int, int]]]]:
    """Benchmark and pair -> arm -> task -> (n, c)."""
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        rows = csv.DictReader(io.StringIO(data.decode()))
        if missing := [name for name in CELLS if name not in (rows.fieldnames or ())]:
            raise DataError(f"{file}: no column {missing[0]!r}; give a table with the columns {', '.join(CELLS)}")
        cells: dict[str, dict[str, dict[str, tuple[int, int]]]] = defaultdict(lambda: defaultdict(dict))
        for number, row in enumerate(rows, 2):
            cells[f"{row['benchmark']}, {row['pair']}"][row["arm"]][row["task_id"]] = _count(row, f"{file}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as a table of counts ({error}); give data/outcomes_42cells.csv.gz") from error
    return cells


def _count(row: dict[str, Any], where: str) -> tuple[int, int]:
    try:
        n, c = int(row["n"]), int(row["c"])
    except (TypeError, ValueError):
        raise DataError(f"{where}: n = {row['n']!r}, c = {row['c']!r}; give whole numbers") from None
    if not 0 <= c <= n:
        raise DataError(f"{where}: c = {c} of n = {n} samples; c must be from 0 to n")
    return n, c


# ------------------------------------------------------------------------------------------------------------------
# redraws


def false_table(times: int, root: Path = Path()) -> Table:
    """How often a base that is drawn again is told to gain or lose in some stratum; problems keep their share of right samples."""
    rows = []
    for number, (name, shares, n, seeds) in enumerate(designs(root)):
        rng = np.random.default_rng([11, number])
        gains = losses = 0
        for _ in range(times):
            base = rng.binomial(n, shares)[None]
            pair = Pair(name, n, base, rng.binomial(n, np.broadcast_to(shares, (seeds, len(shares)))))
            ends = [one.outcome for one in pair.gained().strata]
            gains, losses = gains + ("higher" in ends), losses + ("lower" in ends)
        rows.append((name, str(len(shares)), str(n), str(seeds), percent(gains, times), percent(losses, times)))
    return Table(header=("base drawn again as the arm", "problems", "samples", "seeds", "unlocks", "loses"), rows=tuple(rows))


def designs(root: Path = Path()) -> Iterator[tuple[str, NDArray[np.float64], int, int]]:
    """Name, share of right samples of each problem, samples, training seeds."""
    for pair in pairs(root):
        if pair.name == "DeepScaleR-1.5B" or pair.name.endswith(f": {ARM}"):
            name = pair.name.partition(":")[0]
            yield name, pair.base[0] / pair.n, pair.n, len(pair.arm)
            yield f"{name}, one run, 16 samples", pair.base[0] / pair.n, 16, 1
    yield "all problems at 0.005", np.full(400, 0.005), 64, 1
    yield "half impossible, half certain", np.repeat([0.0, 1.0], 100), 64, 1
    yield "30 problems at 0.5", np.full(30, 0.5), 16, 3
    yield "all wrong", np.zeros(100), 8, 1
    yield "one in a hundred problems is possible", np.where(np.arange(400) % 100, 0.0, 0.5), 64, 1
    yield "1,000 problems at 0.02, 4 samples", np.full(1000, 0.02), 4, 1


@dataclass(frozen=True)
class Unlocked(Command):
    """Problems gained and lost by how often the base, or the arm, solves them, on all stored counts."""

    cohort: Path | None = None
    """verified_samples_completed_cohort.jsonl.gz of remax-rl 0.1.1; default: the one of the installed package, else left out."""
    cells: Path | None = None
    """Released counts of Sharpening Tax, data/outcomes_42cells.csv.gz; not in this repository."""
    docs: Path | None = None
    """Folder of pages: fill the tables of results/unlocked.md."""

    def execute(self, session: Session) -> int:
        cells = None if self.cells is None else cells_table(self.cells)
        made = tables()
        try:
            made["released"] = released_table(read_cohort(installed() if self.cohort is None else self.cohort)).markdown()
        except DataError as error:
            if self.cohort is not None:
                raise
            session.note(f"released runs left out: {error}")
        for name, table in made.items():
            session.say(f"{name}:", "", table, "")
        if cells is not None:
            session.say("cells:", "", cells.markdown(), "")
        if self.docs is not None:
            where, page = remade(self.docs, PAGE, made)
            write_text_atomic(where, page)
        return 0


def tables() -> dict[str, str]:
    """The tables of stored counts by their marks."""
    every = list(pairs())
    return {
        "gained": strata_table([(pair.name, pair.gained()) for pair in every]).markdown(),
        "lost": strata_table([(pair.name, pair.lost()) for pair in every]).markdown(),
    }


__all__ = ["Pair", "Unlocked", "cells_table", "designs", "false_table", "pairs", "released_table", "strata_table", "tables"]
