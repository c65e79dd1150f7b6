"""Comparisons at equal exact KL from samples, and of exact KLs, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sage_rlvr.verdicts.comparisons import answering, compare
from sage_rlvr.verdicts.design import Arm, Design, Question
from sage_rlvr.verdicts.kl import base_of
from sage_rlvr.verdicts.measurements import Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.text.notes import notes_on_bases
from sage_rlvr.verdicts.text.rows import sentence

SAME = Metric(k=1, matched="exact KL")
LOW, HIGH = [0, 1], [2, 1]  # right samples of two on two problems: pass@1 0.25 and 0.75


def measured(arm: str, seed: int, right: Sequence[int], per_token: float | None, **more: Any) -> SampledMeasurement:
    kls = {} if per_token is None else {"sft": per_token}
    return SampledMeasurement(
        arm=arm, seed=seed, task="sums", temperature=1.0, problems=("x", "y"), values=np.array(right), n=2, path=Path(arm),
        kls=kls, **more,
    )  # fmt: skip


def compared(own: Sequence[tuple[list[int], float | None]]) -> tuple[Results, list[Row]]:
    """Arm "is" with (right samples, KL) of each training seed, between "low" (KL 0.01) and "high" (KL 0.04)."""
    rows = [measured("is", seed, right, at) for seed, (right, at) in enumerate(own)]
    for seed in range(len(own)):
        rows += [measured("low", seed, LOW, 0.01), measured("high", seed, HIGH, 0.04)]
    arms = (Arm(name="low", key="low"), Arm(name="high", key="high"), Arm(name="is", key="is", matched=("low", "high")))
    design = Design(arms=arms, control="low", questions=(Question(a="is", b="high", metric=SAME),), facts={"title": "t"})
    results = Results(design=design, table=Measurements(tuple(rows)), k=2)
    return results, compare(results)


def test_counts_are_read_between_betas_at_the_arms_own_exact_kl_seed_by_seed() -> None:
    # 0.02 is halfway from 0.01 to 0.04 in the logarithm: the other method has pass@1 0.5 and pass@2 0.75 there; 0.05 is outside
    results, rows = compared([([2, 1], 0.02), ([2, 2], 0.02), ([1, 1], 0.02), ([2, 2], 0.05)])
    found = {row.metric: row for row in rows if row.why == "matched"}
    assert [*found] == [SAME, Metric(k=2, matched="exact KL")]  # no run logged a raw KL
    one = found[SAME]
    assert one.comparison.difference.value == pytest.approx((0.25 + 0.5 + 0.0) / 3) and one.comparison.difference.n == 3
    assert found[Metric(k=2, matched="exact KL")].comparison.difference.value == pytest.approx(0.25)
    assert (one.task, one.left_out, one.family) == ("sums", 1, "primary")
    assert "pass@1 at the same exact KL on sums" in sentence(one)
    assert "1 training seed whose exact KL is not within the range of these betas" in sentence(one)
    assert [[row.metric for row in some] for _, some in answering(results.design, rows)] == [[SAME]]


def test_an_arm_outside_in_every_seed_is_told_and_an_arm_without_kl_has_no_row() -> None:
    lost = [row for row in compared([([2, 2], 0.05), ([2, 2], 0.002)])[1] if row.why == "matched"]
    assert [row.left_out for row in lost] == [2, 2] and not any(row.comparison.known for row in lost)
    assert "cannot be told (its KL lies outside the range of the other's betas in every training seed)" in sentence(lost[0])
    assert not [row for row in compared([([2, 2], None), ([2, 2], None)])[1] if row.why == "matched"]


def test_a_question_from_samples_has_a_row_at_its_own_k() -> None:
    rows = [replace(measured(arm, 0, right, None), n=4) for arm, right in (("a", [2, 1]), ("b", [1, 0]))]
    arms = (Arm(name="a", key="a"), Arm(name="b", key="b"))
    for asked in ((), (Question(a="a", b="b", metric=Metric(k=2)),)):
        design = Design(arms=arms, control="b", questions=asked, facts={"title": "t"})
        found = compare(Results(design=design, table=Measurements(tuple(rows)), k=4))
        by_k = {row.metric.k: row.comparison for row in found if (row.a, row.b, row.metric.at) == ("a", "b", "temperature")}
        assert [*by_k] == ([1, 2, 4] if asked else [1, 4])
    # pass@2 of 4 samples: 1 - (2 over 2) / 6 and 1 - (3 over 2) / 6 of a, 1 - (3 over 2) / 6 and 0 of b
    assert by_k[2].difference.value == pytest.approx((5 / 6 + 1 / 2) / 2 - (1 / 2 + 0) / 2)


def test_exact_kls_are_compared_over_paired_seeds() -> None:
    rows = compared([([2, 1], 0.02), ([2, 2], 0.03), ([1, 1], 0.05)])[1]
    (found,) = (row for row in rows if row.metric == Metric(name="exact KL") and (row.a, row.b) == ("is", "low"))
    assert found.comparison.difference.value == pytest.approx((0.01 + 0.02 + 0.04) / 3)
    assert found.comparison.over == "training seeds" and found.comparison.mean_b == pytest.approx(0.01)


def test_the_base_of_exact_kls_is_the_only_one_or_the_one_that_was_sampled() -> None:
    one, two = measured("a", 0, LOW, 0.01), measured("b", 0, LOW, None)
    assert base_of(Measurements((one, two))) == "sft" and base_of(Measurements((two,))) is None
    both = measured("c", 0, LOW, None)
    object.__setattr__(both, "kls", {"sft": 0.1, "other": 0.2})
    assert base_of(Measurements((both,))) is None
    assert base_of(Measurements((both, measured("base", 0, LOW, None, identity={"revision": "other"})))) == "other"


def test_exact_kls_to_several_bases_of_which_none_was_sampled_are_told() -> None:
    both = measured("c", 0, LOW, None)
    object.__setattr__(both, "kls", {"sft": 0.1, "other": 0.2})
    (note,) = notes_on_bases(Measurements((both,)))
    assert "several bases (other, sft)" in note and "none is compared" in note
    assert not notes_on_bases(Measurements((measured("a", 0, LOW, 0.01),)))
    assert not notes_on_bases(Measurements((both, measured("base", 0, LOW, None, identity={"revision": "other"}))))
