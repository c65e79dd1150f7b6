"""The table of measurements: selections by fields, groups, scores of a selection, and pairs of selections."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.design import Design
from sage_rlvr.verdicts.measurements import ExactMeasurement, ExactMeasurements, Measurement, Measurements
from sage_rlvr.verdicts.pairs import ArmPair, common_seeds
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.stats.frontier import FrontierPoint


def exact(arm: str, seed: int, t: float, p: float, *, base: bool = False) -> ExactMeasurement:
    return ExactMeasurement(
        arm=arm, seed=seed, task="", temperature=t, problems=("a", "b"), values=np.array([p, p]), for_all_seeds=base,
        logps=[np.log([p]), np.log([p])], point=FrontierPoint(temperature=t, pass1=p, passk=1 - (1 - p) ** 8), distinct=8 * p,
    )  # fmt: skip


def sampled(arm: str, t: float, right: tuple[int, int], n: int = 8, sizes: tuple[int, int] | None = None) -> Measurement:
    return Measurement(
        arm=arm, seed=None, task="sums", temperature=t, problems=("a", "b"), values=np.array(right), n=n,
        sizes=None if sizes is None else np.array(sizes),
    )  # fmt: skip


GRPO = [exact("GRPO", seed, t, 0.1 * (seed + 1)) for seed in (0, 1) for t in (0.5, 1.0)] + [exact("GRPO", 2, 1.0, 0.3)]
BASE = [exact("base", 0, t, 0.2, base=True) for t in (0.5, 1.0)]
SAMPLES = [sampled("GRPO", 1.0, (1, 2)), sampled("GRPO", 1.0, (3, 4), sizes=(8, 9)), sampled("GRPO", 0.5, (5, 6))]
TABLE: Measurements[Measurement] = Measurements((*GRPO, *BASE, *SAMPLES))


def test_a_selection_has_the_rows_with_all_of_the_fields() -> None:
    assert TABLE.where(arm="GRPO", task="", temperature=0.5).seeds == (0, 1)
    assert [row.values.tolist() for row in TABLE.where(task="sums", temperature=0.5).rows] == [[5, 6]]
    assert not TABLE.where(arm="GRPO", task="", seed=3) and TABLE.where().rows == TABLE.rows
    assert isinstance(TABLE.exact().where(arm="base"), ExactMeasurements)
    assert list(TABLE.by_arm()) == ["GRPO", "base"] and list(TABLE.sampled().rows) == []  # plain rows are of no kind
    assert [len(rows.rows) for rows in TABLE.policies().values()] == [2, 3, 1, 1, 2, 1]


def test_scores_stack_the_rows_of_a_policy_and_exact_rows_come_before_samples() -> None:
    found = TABLE.where(arm="GRPO", task="", temperature=1.0).scores()
    assert found is not None and found.n is None and found.seeds == (0, 1, 2) and found.values[:, 0].tolist() == [0.1, 0.2, 0.3]
    counts = TABLE.where(arm="GRPO", task="sums", temperature=1.0).scores()
    assert counts is not None and counts.n == 8 and counts.seeds == (0, 1) and counts.samples.tolist() == [[8, 8], [8, 9]]
    both: Measurements[Measurement] = Measurements((*SAMPLES[:1], *BASE[1:]))
    mixed = both.scores()
    assert mixed is not None and mixed.n is None and Measurements().scores() is None


def test_temperatures_are_those_of_every_seed_and_the_only_scores_need_one() -> None:
    assert TABLE.where(arm="GRPO", task="").temperatures == (1.0,)  # seed 2 has no other
    assert TABLE.where(arm="GRPO", task="sums").temperatures == (0.5, 1.0)
    assert TABLE.only_scores("GRPO", "").temperature == 1.0
    cold: Measurements[Measurement] = Measurements((sampled("A", 0.6, (1, 1)),))
    assert cold.only_scores("A", "sums").temperature == 0.6
    with pytest.raises(DataError, match="A: no evaluation at temperature 1"):
        Measurements((*cold.rows, sampled("A", 0.3, (1, 1)))).only_scores("A", "sums")


def test_a_run_has_its_frontier_and_the_base_is_paired_with_every_seed() -> None:
    arm, base = TABLE.where(arm="GRPO", task="").exact(), TABLE.where(arm="base").exact()
    run = arm.runs[1]
    assert [point.passk for point in run.line("distinct")] == pytest.approx([1.6, 1.6]) and run.line("pass") == run.points
    assert list(run.p) == [0.5, 1.0] and len(run.logps) == 2
    assert common_seeds(arm, base) == common_seeds(base, arm) == [0, 1, 2] and common_seeds(arm, arm) == [0, 1, 2]
    pair = ArmPair(a="GRPO", b="base", why="base", left=arm, right=base)
    assert [two.rows for _, two in pair.runs] == [base.rows] * 3
    assert pair.sides(1.0) is not None and pair.sides(0.5) is None and pair.lacking(0.5) == {"GRPO": [2]}


def test_results_do_not_change_after_reading() -> None:
    results = Results(design=Design(arms=()), table=TABLE)
    with pytest.raises(FrozenInstanceError):
        results.k = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        results.table.rows = ()  # type: ignore[misc]
    assert results.several and not results.sampled_only
