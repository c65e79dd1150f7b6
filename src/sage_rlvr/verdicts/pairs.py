"""Pairs of arms: which arms are compared with which, and the scores of both at their common training seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sage_rlvr.verdicts.design import BASE, Design, Why
from sage_rlvr.verdicts.measurements import ExactMeasurements, Measurement, Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import REFERENCE, Metric
from sage_rlvr.verdicts.row import Estimate
from sage_rlvr.verdicts.scores import ProblemScores

Arms = Mapping[str, ExactMeasurements]
"""Arm -> its exact rows of one task."""
Sides = tuple[ProblemScores, ProblemScores]


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmPair:
    """Two arms with their rows of one task, all training seeds and temperatures. paired: training seed by training seed; samples
    of the base and of arms passed as separate paths are not paired."""

    a: str
    b: str
    why: Why
    left: Measurements[Measurement]
    right: Measurements[Measurement]
    paired: bool = True
    task: str = ""

    @property
    def runs(self) -> list[tuple[ExactMeasurements, ExactMeasurements]]:
        """The exact rows of both arms at every common training seed."""
        left, right = self.left.exact(), self.right.exact()
        return [(run_at(left, seed), run_at(right, seed)) for seed in common_seeds(left, right)]

    def sides(self, temperature: float = REFERENCE) -> Sides | None:
        """Scores of both arms at their common training seeds. None if an arm has no evaluation at this temperature, if only one of
        the two is exact, or if a common training seed has no evaluation there."""
        one, two = (side.where(temperature=temperature).scores() for side in (self.left, self.right))
        if one is None or two is None or (one.n is None) != (two.n is None) or self.lacking(temperature):
            return None
        if one.n is not None and not self.paired:
            return one, two
        seeds = common_seeds(self.left.exact(), self.right.exact()) if one.n is None else sorted({*one.seeds} & {*two.seeds})
        return (one.only(seeds), two.only(seeds)) if seeds else None

    def by_temperature(self, temperatures: Iterable[float]) -> dict[float, Sides]:
        """`sides` at each of these temperatures that both arms have."""
        both = {t: self.sides(t) for t in temperatures}
        return {t: sides for t, sides in both.items() if sides is not None}

    def lacking(self, temperature: float) -> dict[str, list[int]]:
        """Arm -> the common training seeds without an exact evaluation at this temperature, if both arms have it for others."""
        exact = self.left.exact(), self.right.exact()
        here = [side.where(temperature=temperature) for side in exact]
        if not all(here):
            return {}
        missing = {side.rows[0].arm: sorted({*common_seeds(*exact)} - {*side.seeds}) for side in here if not side.for_all_seeds}
        return {arm: seeds for arm, seeds in missing.items() if seeds}


Estimator = Callable[[ArmPair, Metric], Estimate | None]
"""Compares a pair in a metric; None if the pair has no such comparison."""
Line = tuple[Sequence[ArmPair], Sequence[Metric], Estimator]
"""Each of these pairs, compared in each of these metrics."""
Plan = Sequence[Line]
"""All comparisons as data, in the order of their rows: of_records.py and of_samples.py write the lines, `compare` runs them."""


def common_seeds(a: ExactMeasurements, b: ExactMeasurements) -> list[int]:
    """Training seeds of both arms. The base counts for every seed."""
    if a.for_all_seeds or b.for_all_seeds:
        return list(a.seeds if b.for_all_seeds else b.seeds)
    return sorted({*a.seeds} & {*b.seeds})


def run_at(arm: ExactMeasurements, seed: int) -> ExactMeasurements:
    """The rows of an arm at a training seed; the base has one run for all."""
    return arm if arm.for_all_seeds else arm.where(seed=seed)


# ------------------------------------------------------------------------------------------------------------------
# the pairs of a design


def exact_pairs(design: Design, arms: Arms) -> list[ArmPair]:
    """The pairs of the design that have exact rows."""
    return [ArmPair(a=a, b=b, why=why, left=arms[a], right=arms[b]) for a, b, why in design.pairs() if a in arms and b in arms]


def base_pairs(design: Design, arms: Arms) -> list[ArmPair]:
    """Every arm with exact rows against the base; none if all arms are paired anyway."""
    base = design.base
    if base is None or base not in arms or design.every:
        return []
    names = [name for name in design.names if name in arms and name != base]
    return [ArmPair(a=name, b=base, why="base", left=arms[name], right=arms[base]) for name in names]


def matched_pairs(
    design: Design, arms: Mapping[str, Measurements[Measurement]], task: str = "", exact: Container[str] = ()
) -> list[ArmPair]:
    """Every arm that has `matched` controls, with the method that is interpolated between their betas: for a guided arm the same
    method without its guide. arms: their rows of one task; exact: arms with exact rows, by which they are compared instead if the
    arm and all its controls have them."""
    pairs = []
    for arm in design.arms:
        names = (arm.name, *arm.matched)
        if arm.matched and all(name in arms for name in names) and not all(name in exact for name in names):
            rival = arm.plain or arm.matched[0]
            left, right = arms[arm.name], arms.get(rival, Measurements())
            pairs.append(ArmPair(a=arm.name, b=rival, why="matched", left=left, right=right, task=task))
    return pairs


def sampled_pairs(
    design: Design, here: Measurements[Measurement], arms: Collection[str], control: str, exact: Container[str]
) -> list[ArmPair]:
    """Every arm with samples against the control; in a sweep with samples of the base also each pair of the design. here: the rows
    of the task; arms: those with samples; exact: arms whose pairs are compared by their exact rows."""
    why: Why = "base" if control == design.base != design.control else "control"
    names: list[tuple[str, str, Why]] = [(name, control, why) for name in arms if name != control]
    if design.facts and control == BASE:
        names += [(a, b, why) for a, b, why in design.pairs() if a in arms and b in arms]
    return [pair_on(design, a, b, why, here) for a, b, why in names if not (a in exact and b in exact)]


def control_of(design: Design, here: Measurements[SampledMeasurement]) -> str:
    """The arm that others are compared with on a task. here: the samples of the task."""
    arms = list(here.by_arm())
    first = (design.control,) if design.every else (BASE, design.control)
    return next((name for name in first if name in arms), arms[0])


def pair_on(design: Design, a: str, b: str, why: Why, here: Measurements[Measurement]) -> ArmPair:
    """Two arms on a task, exact or from samples; here: the rows of the task."""
    paired, task = bool(design.facts) and BASE not in (a, b), here.rows[0].task if here else ""
    return ArmPair(a=a, b=b, why=why, left=here.where(arm=a), right=here.where(arm=b), task=task, paired=paired)


def other_tasks(design: Design, table: ExactMeasurements) -> list[ArmPair]:
    """The pairs of an arm and the control on the tasks besides the main task."""
    main, others = exact_pairs(design, table.where(task="").by_arm()), list[ArmPair]()
    for task in sorted({*table.tasks} - {""}):
        here = table.where(task=task)
        pairs = [pair_on(design, pair.a, pair.b, "control", here) for pair in main if pair.why == "control"]
        others += [pair for pair in pairs if pair.left]
    return others
