"""The table of measurements: one row per policy, training seed, task and temperature, read once.

    table.where(arm="GRPO", task="")        the rows with these fields, a table again
    table.by_arm()                          arm -> its rows; policies(): (arm, task, temperature) -> the rows of all seeds
    table.exact(), table.sampled()          the rows from exact records, the rows from samples
    table.scores()                          the rows of one policy stacked over training seeds
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.design import BASE, Design
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.metric import REFERENCE
from sage_rlvr.verdicts.readers import CountTable
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.sources import Store
from sage_rlvr.verdicts.stats.arrays import Floats, Ints

if TYPE_CHECKING:
    from sage_rlvr.verdicts.stats.frontier import FrontierPoint  # of exact rows

MIXTURE = "mixture"
"""Key among the facts of a store, for a policy with mixed weights: share, layers, and the revisions of policy and base."""
PolicyKey = tuple[str, str, float]
"""Arm, task and temperature: a policy, the same for all of its training seeds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """One policy on the problems of a task at one temperature.

    seed: the training seed, None if unknown
    task: "" for the main task of exact records
    values (N,): the probability of a right completion of each problem (`n` None), or the number of right samples among n
    sizes (N,): samples of each problem, if problems differ; n is then the smallest number on the task
    for_all_seeds: whether this is the base, whose row is paired with every seed
    cluster (N,): labels of problems that belong together, () if each is independent
    table: the rows of a file"""

    arm: str
    seed: int | None
    task: str
    temperature: float
    problems: tuple[str, ...]
    values: np.ndarray
    n: int | None = None
    sizes: Ints | None = None
    for_all_seeds: bool = False
    cluster: tuple[str, ...] = ()
    table: CountTable | None = None

    @property
    def policy_key(self) -> PolicyKey:
        """Arm, task and temperature."""
        return self.arm, self.task, self.temperature

    @property
    def name(self) -> str:
        """The arm with its training seed, if known."""
        return self.arm if self.seed is None else f"{self.arm}, seed {self.seed}"

    @property
    def is_main(self) -> bool:
        """Return whether this is an evaluation of a sweep's main task, or from samples."""
        return not self.task or self.n is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactMeasurement(Measurement):
    """A measurement from an exact record, with numbers that samples cannot give.

    logps: log-probs of every right completion of each problem
    point: pass@1 and pass@k, means over problems, at the k of the results
    distinct: the expected number of distinct right completions in k samples, mean over problems"""

    seed: int
    logps: Sequence[Floats]
    point: FrontierPoint
    distinct: float


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledMeasurement(Measurement):
    """A measurement from a sample store or a file of rows.

    store: None for a file
    identity: the settings of a store
    reasons: (label, reason, whether it met the length limit, None if unknown) -> samples
    failed: reasons why more than half of the samples failed, a sentence each
    chance: the chance floor of a store
    kls: revision of a base -> the exact KL to it in the store, nats per token
    mixture: the fact `MIXTURE` of the store, {} for policies without mixed weights"""

    n: int
    path: Path
    reasons: Mapping[tuple[str, str, bool | None], int] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    failed: Sequence[str] = ()
    store: Store | None = None
    chance: Chance | None = None
    kls: Mapping[str, float] = field(default_factory=dict)
    mixture: Mapping[str, Any] = field(default_factory=dict)


M = TypeVar("M", bound=Measurement, covariant=True)
Key = TypeVar("Key")


@dataclass(frozen=True, eq=False)
class Measurements(Generic[M]):
    """A table of measurements, or a selection of its rows. Exact rows come first, by seed and temperature."""

    rows: tuple[M, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows)

    # ---- selections

    def where(
        self, *, arm: str | None = None, seed: int | None = None, task: str | None = None, temperature: float | None = None
    ) -> Self:
        """The rows with these fields; None selects all."""
        return type(self)(tuple(
            row for row in self.rows
            if arm in (None, row.arm) and seed in (None, row.seed)
            and task in (None, row.task) and temperature in (None, row.temperature)
        ))  # fmt: skip

    def exact(self) -> ExactMeasurements:
        """The rows from exact records."""
        return ExactMeasurements(tuple(row for row in self.rows if isinstance(row, ExactMeasurement)))

    def sampled(self) -> Measurements[SampledMeasurement]:
        """The rows from samples."""
        return Measurements(tuple(row for row in self.rows if isinstance(row, SampledMeasurement)))

    def by_arm(self) -> dict[str, Self]:
        """Arm -> its rows, in order of appearance."""
        return self._by(lambda row: row.arm)

    def policies(self) -> dict[PolicyKey, Self]:
        """(Arm, task, temperature) -> the rows of all training seeds, in order of appearance."""
        return self._by(lambda row: row.policy_key)

    def _by(self, key: Callable[[Measurement], Key]) -> dict[Key, Self]:
        return {name: type(self)(tuple(rows)) for name, rows in grouped(self.rows, key).items()}

    # ---- what a selection has

    @property
    def seeds(self) -> tuple[int, ...]:
        """Known training seeds, in order."""
        return tuple(sorted({row.seed for row in self.rows if row.seed is not None}))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks in order of appearance."""
        return tuple(dict.fromkeys(row.task for row in self.rows))

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperatures of an arm on a task, coldest first; of exact rows only those that every training seed has."""
        by_run = [{row.temperature for row in run.rows} for run in self.exact().runs.values()]
        if not by_run:
            by_run = [{row.temperature for row in self.rows}]
        return tuple(sorted(set.intersection(*by_run)))

    @property
    def for_all_seeds(self) -> bool:
        """Return whether these are the rows of the base, which are paired with every training seed."""
        return any(row.for_all_seeds for row in self.rows)

    def scores(self) -> ProblemScores | None:
        """The rows of one arm, task and temperature stacked over training seeds; None without a row. Exact rows come before
        samples."""
        rows: Sequence[Measurement] = self.exact().rows or self.rows
        if not rows:
            return None
        first, sizes = rows[0], None
        if any(row.sizes is not None for row in rows):
            sizes = np.stack([np.full(row.values.shape, row.n) if row.sizes is None else row.sizes for row in rows])
        seeds = tuple(i if row.seed is None else row.seed for i, row in enumerate(rows))
        tables = tuple(row.table for row in rows if row.table is not None)
        return ProblemScores(
            arm=first.arm, task=first.task, temperature=first.temperature, seeds=seeds, problems=first.problems,
            values=np.stack([row.values for row in rows]), n=first.n, sizes=sizes, cluster=first.cluster,
            tables=tables if len(tables) == len(rows) else (),
        )  # fmt: skip

    def only_scores(self, arm: str, task: str) -> ProblemScores:
        """Scores of an arm on a task at the reference temperature, or at its only temperature; DataError otherwise."""
        rows = self.where(arm=arm, task=task)
        known = rows.temperatures
        scores = rows.where(temperature=known[0] if len(known) == 1 else REFERENCE).scores()
        if scores is None:
            raise DataError(f"{arm}: no evaluation at temperature 1; evaluate it with --temperatures 1.0")
        return scores


@dataclass(frozen=True, eq=False)
class ExactMeasurements(Measurements[ExactMeasurement]):
    """Rows from exact records: of one run (arm, training seed and task), coldest first, or of an arm or table."""

    @property
    def runs(self) -> dict[int, ExactMeasurements]:
        """Training seed -> the rows of the run, of one arm and task."""
        return {seed: self.where(seed=seed) for seed in self.seeds}

    @property
    def p(self) -> dict[float, Floats]:
        """Temperature -> probability of a right completion, (N,), of one run."""
        return {row.temperature: row.values for row in self.rows}

    @property
    def points(self) -> tuple[FrontierPoint, ...]:
        """The temperature frontier of a run: pass@1 and pass@k at the k of the results."""
        return tuple(row.point for row in self.rows)

    @property
    def distinct_points(self) -> tuple[FrontierPoint, ...]:
        """The frontier of a run with distinct right completions instead of pass@k."""
        return tuple(replace(row.point, passk=row.distinct) for row in self.rows)

    @property
    def logps(self) -> Sequence[Floats]:
        """Log-probs of the right completions of each problem at the reference temperature, of one run."""
        return next(row.logps for row in self.rows if row.temperature == REFERENCE)

    def line(self, metric: str) -> tuple[FrontierPoint, ...]:
        """The frontier of a run in a metric: "distinct" or "pass"."""
        return self.distinct_points if metric == "distinct" else self.points


def in_order(design: Design, policy: PolicyKey) -> tuple[int, float]:
    """A key to sort policies: the base first, hot before cold, then the arms of the design."""
    names, (name, _, temperature) = (BASE, *design.names), policy
    return (names.index(name) if name in names else len(names)), -temperature if name == BASE else 0.0


__all__ = [
    "ExactMeasurement", "ExactMeasurements", "Measurement", "Measurements", "PolicyKey", "SampledMeasurement", "in_order",
]  # fmt: skip
