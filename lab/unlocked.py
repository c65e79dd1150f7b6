"""`python -m lab unlocked`: which problems RL unlocked, by how often the base solves them, on all counts of this repository.

Problems are put in strata by one half of the base's samples, and the base is read from the other half: drawn again. Next to it is
the naive reading from the half that chose (sage_rlvr/verdicts/stats/strata.py has the arithmetic). The same for problems lost, by
halves of the arm's samples. Much room and little room: all training seeds; copies of a problem are one cluster.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.studies.pages import remade
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.results.tables import Table
from sage_rlvr.runs import write_text_atomic
from sage_rlvr.verdicts.stats.intervals import wilson
from sage_rlvr.verdicts.stats.strata import Strata, stratified

EXPERIMENTS = Path("lab/experiments")
SHIPPED = Path("examples/deepscaler")
ROOMS = {
    "much room": ("2026-11-27_smollm2_much_room",),
    "little room": ("2026-11-27_smollm2_little_room", "2026-11-28_smollm2_little_room_rep"),
}
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
    """The shipped pair, and every arm of both rooms."""
    sides = [{row["id"]: row["c"] for row in _rows(root / SHIPPED / f"{name}.jsonl")} for name in ("base", "rl")]
    order = sorted(sides[0])
    base, arm = (np.array([[side[name] for name in order]]) for side in sides)
    yield Pair("DeepScaleR-1.5B", 128, base, arm)
    for room, folders in ROOMS.items():
        runs: dict[str, dict[int, dict[str, int]]] = defaultdict(dict)
        of_base: dict[str, int] = {}
        for number, folder in enumerate(folders):
            for row in _rows(root / EXPERIMENTS / folder / "counts.jsonl"):
                if row["arm"] != "base":
                    runs[row["arm"]].setdefault(row["seed"], {})[row["id"]] = row["c"]
                elif row["temperature"] == 1 and number == 0:
                    of_base[row["id"]] = row["c"]
        order = sorted(of_base)
        cluster = tuple(name.split(" #")[0] for name in order)
        for name, seeds in runs.items():
            counts = np.array([[seeds[seed][problem] for problem in order] for seed in sorted(seeds)])
            yield Pair(f"{room}: {name}", 64, np.array([[of_base[problem] for problem in order]]), counts, cluster)


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, file.read_text(encoding="utf-8").splitlines())


def strata_table(found: Sequence[tuple[str, Strata]]) -> Table:
    """One row per pair and stratum."""
    rows = []
    for name, strata in found:
        for one in strata.strata:
            gap = one.difference
            ends = f" ({gap.low:+.3f} to {gap.high:+.3f})" if np.isfinite(gap.width) else ""
            right = f"{one.low}" if one.low == one.high else f"{one.low} to {one.high}"
            rows.append((
                name, f"{right} of {strata.half}", f"{one.share:.2f}", str(strata.k), f"{one.other:.3f}", f"{one.same:.3f}",
                f"{one.other - one.same:+.3f}", f"{one.again:.3f}", f"{gap.value:+.3f}{ends}",
            ))  # fmt: skip
    head = ("pair", "right in the half", "share", "k", "other side", "same half", "naive difference", "drawn again", "difference")
    return Table(header=head, rows=tuple(rows))


def false_table(times: int, root: Path = Path()) -> Table:
    """How often a base that is drawn again is told to gain or lose in some stratum; problems keep their share of right samples."""
    rows = []
    for number, (name, shares, n, seeds) in enumerate(_designs(root)):
        rng = np.random.default_rng([11, number])
        gains = losses = 0
        for _ in range(times):
            base = rng.binomial(n, shares)[None]
            pair = Pair(name, n, base, rng.binomial(n, np.broadcast_to(shares, (seeds, len(shares)))))
            ends = [one.outcome for one in pair.gained().strata]
            gains, losses = gains + ("higher" in ends), losses + ("lower" in ends)
        rates = wilson(gains, times), wilson(losses, times)
        cells = (f"{100 * one.value:.1f} % ({100 * one.low:.1f} to {100 * one.high:.1f})" for one in rates)
        rows.append((name, str(len(shares)), str(n), str(seeds), *cells))
    return Table(header=("base drawn again as the arm", "problems", "samples", "seeds", "gain", "loss"), rows=tuple(rows))


def _designs(root: Path) -> Iterator[tuple[str, NDArray[np.float64], int, int]]:
    """Name, share of right samples of each problem, samples, training seeds."""
    for pair in pairs(root):
        if pair.name == "DeepScaleR-1.5B" or pair.name.endswith(": GRPO, k3"):
            name = pair.name.partition(":")[0]
            yield name, pair.base[0] / pair.n, pair.n, len(pair.arm)
            yield f"{name}, one run, 16 samples", pair.base[0] / pair.n, 16, 1
    yield "all problems at 0.005", np.full(400, 0.005), 64, 1
    yield "half impossible, half certain", np.repeat([0.0, 1.0], 100), 64, 1
    yield "30 problems at 0.5", np.full(30, 0.5), 16, 3


@dataclass(frozen=True)
class Unlocked(Command):
    """Problems gained and lost by how often the base, or the arm, solves them, on all stored counts."""

    redraws: int = 0
    """Simulated redraws of the base per design: how often a gain or loss is told that is none."""
    docs: Path | None = None
    """Folder of pages: fill the tables of results/unlocked.md."""

    def execute(self, session: Session) -> int:
        every = list(pairs())
        made = {
            "gained": strata_table([(pair.name, pair.gained()) for pair in every]).markdown(),
            "lost": strata_table([(pair.name, pair.lost()) for pair in every]).markdown(),
        }
        if self.redraws:
            made["redraws"] = false_table(self.redraws).markdown()
        for name, table in made.items():
            session.say(f"{name}:", "", table, "")
        if self.docs is not None:
            where, page = remade(self.docs, "results/unlocked.md", made)
            write_text_atomic(where, page)
        return 0


__all__ = ["Pair", "Unlocked", "false_table", "pairs", "strata_table"]
