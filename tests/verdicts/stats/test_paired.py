"""Paired comparisons: exact permutation twin, two halves of one arm, verdict words and their level."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.stats.curves import paired_curve
from sage_rlvr.verdicts.stats.intervals import Interval, mean_interval, share_difference
from sage_rlvr.verdicts.stats.paired import (
    Reason,
    against_itself,
    control_error,
    excludes,
    holm,
    paired,
    paired_seed_counts,
    paired_seeds,
    sign_flip_p,
    signed,
)
from sage_rlvr.verdicts.stats.passk import curve
from sage_rlvr.verdicts.stats.power import detectable, detectable_up_to
from sage_rlvr.verdicts.text.words import detectable_text

ROOT = Path(__file__).resolve().parents[3]


def by_enumeration(gaps: list[float]) -> float:
    seen = abs(sum(gaps))
    sums = [abs(sum(s * g for s, g in zip(signs, gaps, strict=True))) for signs in product((1, -1), repeat=len(gaps))]
    return sum(s >= seen - 1e-12 for s in sums) / len(sums)


def test_sign_flip_equals_all_patterns():
    gaps = [0.3, -0.1, 0.2, 0.0, 0.25, 0.05]
    assert sign_flip_p(gaps) == pytest.approx(by_enumeration(gaps))
    assert sign_flip_p([0.0, 0.0]) == 1.0


def test_sampled_sign_flip_is_close_to_the_exact_one():
    gaps = np.random.default_rng(5).normal(0.2, 0.5, 14)
    exact = by_enumeration(gaps.tolist())
    assert sign_flip_p(gaps) == pytest.approx(exact, abs=0.02)


def test_outcomes_and_their_level():
    rng = np.random.default_rng(0)
    b = rng.beta(0.5, 2, 300)
    better = paired(b + 0.02 + rng.normal(0, 0.05, 300), b)
    assert better.outcome == "better" and better.over == "problems" and better.known
    assert paired(b, b + 0.02 + rng.normal(0, 0.05, 300)).outcome == "worse"
    tied = paired(b + rng.normal(0, 0.05, 300), b)
    assert tied.outcome == "tied" and tied.reason is Reason.NONE


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_swapping_the_arms_swaps_the_verdict(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.random((2, 30))
    a = a + rng.choice([0.0, 0.3])
    forth, back = paired(a, b, resamples=500), paired(b, a, resamples=500)
    swapped = {"better": "worse", "worse": "better", "tied": "tied"}
    assert forth.difference.value == pytest.approx(-back.difference.value)
    assert forth.p == back.p
    if abs(forth.p - 0.05) > 0.01:  # near the edge the two resamplings may fall on different sides
        assert back.outcome == swapped[forth.outcome]


@pytest.mark.slow
def test_two_halves_of_one_arm_are_mostly_tied():
    rng, called = np.random.default_rng(8), 0
    for _ in range(200):
        p = rng.beta(0.5, 2, 60)
        a, b = rng.binomial(8, p) / 8, rng.binomial(8, p) / 8
        called += paired(a, b, resamples=400).outcome != "tied"
    assert called / 200 <= 0.08


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 6])
def test_two_seed_sets_of_one_method_are_mostly_tied(seeds):
    rng = np.random.default_rng(seeds)
    runs = rng.normal(0.4, 0.02, (400, 2, seeds))
    better = sum(paired_seeds(a, b).outcome == "better" for a, b in runs)
    assert better / 400 <= 0.05


def test_seeds_by_hand():
    a = np.array([[0.5, 0.7], [0.6, 0.8], [0.4, 0.6]])
    gap = np.array([0.10, 0.12, 0.08])
    c = paired_seeds(a, a - gap[:, None], fixed=True)
    half = 4.302652729911275 * 0.02 / math.sqrt(3)
    assert c.over == "training seeds" and c.outcome == "better"
    assert (c.difference.low, c.difference.high) == pytest.approx((0.10 - half, 0.10 + half))
    assert c.difference.over == "training seeds" and c.difference.n == 3


@pytest.mark.parametrize("gap", [0.1, -0.25, 1.0])
def test_seeds_without_scatter_tell_nothing(gap):
    """(0.3, 0.4, 0.5) - 0.1 differ in the last digit, which is no scatter either."""
    b = np.array([0.3, 0.4, 0.5])
    c = paired_seeds(b + gap, b)
    assert c.outcome == "unknown" and c.reason is Reason.NO_SCATTER
    assert math.isnan(c.p) and c.mde == math.inf and not c.known
    assert "identical in all 3 training seeds" in str(c.difference)
    assert paired_seeds(b, b).p == 1.0 and paired_seeds(b, b).outcome == "tied"


def test_seeds_that_agree_on_few_problems_show_little():
    """8 problems, 3 seeds: half-width -ln(0.025) / 24 by hand; a gain of 1/32 is tied, though no seed differs from another."""
    b = np.tile([1, 2, 3, 4, 0, 0, 0, 1], (3, 1))
    a = b.copy()
    a[:, 0] += 1
    c = paired_seed_counts(4, a, b, 1, fixed=True)
    half = -math.log(0.025) / 24
    assert (c.difference.low, c.difference.high) == pytest.approx((1 / 32 - half, 1 / 32 + half))
    assert c.outcome == "tied" and c.p > 0.05 and c.mde > half
    ceiling = paired_seed_counts(4, np.full((3, 8), 4), np.full((3, 8), 4), 4, fixed=True)
    assert ceiling.outcome == "tied" and ceiling.difference.high == pytest.approx(half)


@pytest.mark.slow
def test_a_control_evaluated_once_gives_its_noise_to_all_seeds():
    """Three seeds of a method that changes nothing: with one set of the control's samples 15 % were called different."""
    rng, called, p = np.random.default_rng(3), 0, np.random.default_rng(4).beta(0.5, 1.2, 60)
    for _ in range(200):
        called += (
            paired_seed_counts(64, rng.binomial(64, p, (3, 60)), rng.binomial(64, p, (1, 60)), 16, fixed=True).outcome != "tied"
        )
    assert called <= 10
    c = paired_seed_counts(64, rng.binomial(64, p, (3, 60)), rng.binomial(64, p, (1, 60)), 1, fixed=True)
    assert c.difference.over == "training seeds and the control's samples"
    assert control_error(4, [2, 2], 1) == pytest.approx(math.sqrt(2 * 0.25 / 4) / 2)


def test_one_training_seed_cannot_tell():
    c = paired_seeds([[0.5, 0.9]], [[0.1, 0.2]])
    assert c.reason is Reason.ONE_SEED and c.mde == math.inf


def test_two_training_seeds_cannot_tell():
    c = paired_seeds([[0.5, 0.9], [0.52, 0.9]], [[0.1, 0.2], [0.1, 0.21]])
    assert math.isnan(c.p) and c.mde == math.inf and not c.known and c.reason is Reason.TWO_SEEDS and c.problems == 2
    few = paired_seeds([[0.5, 0.9]] * 2 + [[0.6, 0.9]], [[0.1, 0.2]] * 3)
    assert few.reason is Reason.FEW_PROBLEMS and math.isnan(few.p)


def test_seeds_and_problems_add_up_in_quadrature_and_p_is_where_the_interval_ends():
    """The reach of the mean over seeds is that of two checkpoints; the control's noise is in it."""
    rng = np.random.default_rng(5)
    a, b = rng.beta(2, 2, (5, 40)), rng.beta(2, 3, (1, 40))
    both, held = paired_seeds(a, np.repeat(b, 5, 0)), paired_seeds(a, np.repeat(b, 5, 0), fixed=True)
    one = share_difference(a.mean(axis=0), b[0])
    t = held.difference.width / 2
    value = both.difference.value
    assert value - both.difference.low == pytest.approx(math.hypot(t, one.value - one.low))
    assert both.difference.high - value == pytest.approx(math.hypot(t, one.high - one.value))
    assert not both.fixed and held.fixed and both.difference.over == "training seeds and problems" and both.mde > held.mde
    at = paired_seeds(a, np.repeat(b, 5, 0), level=1 - both.p).difference
    assert min(abs(at.low), abs(at.high)) == pytest.approx(0, abs=1e-6)
    assert paired_seeds(a.mean(axis=1), np.zeros(5)).fixed  # one number a seed shows no problems


@given(st.integers(2, 6), st.integers(1, 12), st.integers(0, 10**6))
def test_no_interval_of_shares_leaves_the_possible_values(seeds, problems, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, (2, seeds, problems))
    for fixed in (True, False):
        c = paired_seed_counts(4, a, b, 2, fixed=fixed)
        gap = c.difference
        assert math.isinf(gap.width) or -1 <= gap.low <= gap.value <= gap.high <= 1
        assert math.isnan(c.p) == (not c.known) and (c.known or c.mde == math.inf)


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_too_few_problems_cannot_tell(n):
    a, b = np.linspace(0.5, 0.6, n), np.linspace(0.2, 0.25, n)
    c = paired(a, b)
    if n == 6:
        assert c.outcome == "better" and c.p < 0.05
        return
    assert c.reason is Reason.FEW_PROBLEMS and c.mde == math.inf
    band = paired_curve(curve(a, (1, 2)), curve(b, (1, 2)), (1, 2))
    assert band.outcomes == ("unknown",) * 2 and band.reason is c.reason


@given(st.integers(0, 10_000), st.integers(6, 60), st.sampled_from(["normal", "skewed", "sparse"]), st.floats(0, 0.2))
@settings(max_examples=60, deadline=None)
def test_a_tie_never_could_have_seen_less_than_what_it_saw(seed, n, kind, shift):
    rng = np.random.default_rng(seed)
    gaps = {
        "normal": rng.normal(0, 0.2, n), "skewed": rng.exponential(0.2, n) - 0.2, "sparse": (rng.random(n) < 0.15) * 0.5,
    }[kind]  # fmt: skip
    c = paired(gaps + shift, np.zeros(n), resamples=500)
    if c.outcome == "tied":
        assert c.mde >= abs(c.difference.value)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.5]).tolist() == pytest.approx([1.0, 1.0]) and holm([]).tolist() == []


def test_the_band_holds_for_all_k_at_once():
    ks, rng, held = (1, 2, 4, 8, 16, 32), np.random.default_rng(4), 0
    for _ in range(150):
        z = rng.normal(size=(2, 120))
        a, b = (1 / (1 + np.exp(2 - 1.5 * z[0] - 0.4 * e)) for e in (rng.normal(size=120), rng.normal(size=120)))
        c = paired_curve(curve(a, ks), curve(b, ks), ks, resamples=300)  # the true difference is 0 at every k
        held += bool(np.all((c.low <= 0) & (c.high >= 0)))
    assert held / 150 >= 0.91


def test_the_band_contains_the_pointwise_interval_and_names_the_ks():
    rng, ks = np.random.default_rng(2), (1, 8, 64)
    p = rng.beta(0.4, 2, 200)
    a, b = curve(np.clip(p + 0.05, 0, 1), ks), curve(p, ks)
    band = paired_curve(a, b, ks)
    for j in range(3):
        point = paired(a[:, j], b[:, j])
        assert band.high[j] - band.low[j] >= 0.95 * point.difference.width
    assert band.outcomes[0] == "better" and band.over == "problems" and band.n == 200
    flat = paired_curve(a, a, ks)
    assert flat.outcomes == ("tied",) * 3 and np.all(flat.high == 0)
    with pytest.raises(DataError, match="2 values of k"):
        paired_curve(a, b, (1, 8))


def test_unpaired_shapes_are_refused():
    with pytest.raises(DataError, match=r"\(3,\) and \(2,\)"):
        paired([1, 2, 3], [1, 2])
    with pytest.raises(DataError, match="same problems"):
        paired_seeds(np.zeros((3, 4)), np.zeros((2, 4)))


def test_signed_numbers():
    assert [signed(x) for x in (0.0123, -0.003, 0.0, -0.00004, 1e-12)] == [
        "+0.012",
        "−0.003",
        "0.000",
        "−0.00004",
        "0.000",
    ]


def test_from_300_problems_on_the_discordant_ones_decide_which_interval():
    """Thirty of 400 problems differ: the interval of shares; all of them: BCa."""
    p = np.random.default_rng(0).beta(0.5, 2, 400)
    few, all_ = p.copy(), np.clip(p + np.random.default_rng(1).normal(0, 0.02, 400), 0, 1)
    few[:30] = np.clip(few[:30] + 0.1, 0, 1)
    assert paired(few, p).difference == share_difference(few, p)
    assert paired(all_, p).difference == mean_interval(all_ - p)


@pytest.mark.parametrize(("seeds", "factor"), [(3, 4.415), (6, 2.089)])
def test_the_minimum_detectable_difference_is_itself_an_estimate(seeds, factor):
    """A plug-in SD of three seeds may be 4.4 times too small at 95 % confidence (chi square tables: .1026 and 1.1455)."""
    gaps = 0.001 * np.arange(seeds) * (-1) ** np.arange(seeds)
    c = paired_seeds(gaps, np.zeros(seeds))
    assert c.outcome == "tied" and c.mde_limit == pytest.approx(factor * c.mde, rel=1e-3)
    assert f"{c.mde:.3f} (80 % power), up to {c.mde_limit:.3f} at 95 % confidence" in detectable_text(c.mde, c.mde_limit)
    assert detectable_text(0.0, 0.0).endswith("0 (80 % power)")  # no limit that equals it
    one = paired_seeds([0.1], [0.0])
    assert one.mde == one.mde_limit == math.inf


@pytest.mark.slow
def test_the_limit_of_the_minimum_detectable_difference_holds():
    """Three seeds of one normal law: at most 5 % of the limits lie below the difference that its true SD makes detectable."""
    gaps = np.random.default_rng(7).normal(0, 0.01, (2000, 3))
    truth = detectable(0.01, 3)
    found = [(detectable(row.std(ddof=1), 3), detectable_up_to(detectable(row.std(ddof=1), 3), 3)) for row in gaps]
    plug_in, high = np.array(found).T
    assert np.mean(high < truth) == pytest.approx(0.05, abs=0.015) and np.mean(plug_in < truth) > 0.5


def test_what_is_excluded_lies_outside_the_interval():
    """Six seeds around zero: the interval rules out what the plug-in calls undetected, and nothing where there is none."""
    gaps = [0.01, -0.01, 0.008, -0.008, 0.002, -0.002]
    c = paired_seeds(gaps, [0.0] * 6)
    assert excludes(c, c.difference.high + 1e-9) and excludes(c, c.difference.low - 1e-9)
    assert not any(excludes(c, x) for x in (c.difference.low, 0.0, c.difference.high))
    between = (c.difference.high + c.mde) / 2
    assert c.difference.high < between < c.mde and excludes(c, between)
    assert not excludes(paired_seeds([0.1], [0.0]), 5.0)


def test_the_published_gains_of_branch_lie_outside_the_intervals_of_table_1():
    """+.017 at pass@1 and +.015 at pass@256 in the paper's Table 1 (averages over its data sets), six seeds here."""
    stored = json.loads((ROOT / "lab" / "experiments" / "2026-11-21_table1" / "summary.json").read_text(encoding="utf-8"))["rows"]
    gains = {Metric(k=1): 0.0173, Metric(k=256): 0.0147}
    for metric, gain in gains.items():
        (row,) = [c for c in stored if (c["a"], c["b"], Metric.parse(c["metric"])) == ("SAGE-Branch", "GRPO", metric)]
        assert not Interval(**row["difference"]).contains(gain)


def test_an_arm_against_itself_on_these_problems():
    scores = {seed: np.random.default_rng(seed).beta(1, 2, 40) for seed in range(6)}
    for fixed in (False, True):
        found = against_itself(scores, fixed=fixed)
        assert len(found) == 10 and all(one.fixed == fixed for one in found)
