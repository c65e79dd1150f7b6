"""Difference curves over every k and the probability of improvement: worked values, laws, false alarms."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.curves import (
    Crossing,
    CurveComparison,
    _moments,
    _Units,
    crossing,
    paired_count_curve,
    paired_curve,
    probability_of_improvement,
    seed_ks,
    seeds_curve,
)
from sage_rlvr.verdicts.stats.intervals import bootstrap_sees, share_difference
from sage_rlvr.verdicts.stats.paired import Reason, paired_counts
from sage_rlvr.verdicts.stats.passk import pass_at_all_k, pass_at_k
from sage_rlvr.verdicts.text.details import chance_words, curve_words


def test_a_curve_over_every_k_from_counts():
    """Two problems by hand: 1 of 3 against 0 of 3, and 2 of 3 against 2 of 3."""
    band = paired_count_curve(3, [1, 2], [0, 2])
    assert band.ks == (1, 2, 3) and band.over == "problems and their samples"
    assert band.difference == pytest.approx([1 / 6, 1 / 3, 1 / 2])  # half of 1/3, 2/3 and 1
    assert band.outcomes == ("unknown",) * 3 and band.reason is Reason.FEW_PROBLEMS


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(8, 60))
@settings(max_examples=20, deadline=None)
def test_the_band_swaps_with_the_arms_and_holds_the_pointwise_intervals(seed, n):
    rng = np.random.default_rng(seed)
    a, b = rng.binomial(16, rng.beta(0.5, 2, (2, n)))
    forth, back = paired_count_curve(16, a, b), paired_count_curve(16, b, a)
    assert forth.difference == pytest.approx(-back.difference)
    assert forth.low == pytest.approx(-back.high) and forth.high == pytest.approx(-back.low)
    for k in (1, 4, 16):
        point = paired_counts(16, a, b, k).difference
        assert point.value == pytest.approx(forth.difference[k - 1])
        assert forth.low[k - 1] <= point.low + 1e-9 and point.high - 1e-9 <= forth.high[k - 1]


def test_below_300_problems_one_factor_widens_the_pointwise_interval_at_every_k():
    rng = np.random.default_rng(0)
    a, b = rng.beta(0.5, 2, (2, 60, 4))
    band = paired_curve(a, b, (1, 2, 3, 4))
    factors = [
        (high - value) / (point.high - point.value)
        for value, high, point in zip(band.difference, band.high, map(share_difference, a.T, b.T), strict=True)
    ]
    assert factors == pytest.approx([factors[0]] * 4) and 1.1 < factors[0] < 1.6


def test_from_300_problems_on_the_band_is_the_bootstrap_alone():
    rng = np.random.default_rng(0)
    a, b = rng.beta(0.5, 2, (2, 300, 3))
    band = paired_curve(a, b, (1, 2, 3))
    gaps = a - b
    se = gaps.std(axis=0, ddof=1) / math.sqrt(300)
    c = (band.high - band.difference) / se
    assert c == pytest.approx([c[0]] * 3) and stats.t.ppf(0.975, 299) < c[0] < 3.0
    assert np.all(np.abs(band.low + band.high - 2 * band.difference) < 1e-12)


def test_equal_curves_of_one_policy_and_of_saturated_samples():
    p = np.random.default_rng(0).beta(0.5, 2, (60, 3))
    assert np.all(paired_curve(p, p, (1, 2, 3)).high == 0)
    full = paired_count_curve(4, [4] * 60, [4] * 60)  # all right in both: unseen problems may still differ
    assert full.outcomes == ("tied",) * 4 and np.all(full.high > 0.05)


def test_the_stretches_in_words():
    rng = np.random.default_rng(1)
    p = rng.beta(0.4, 2, 400)
    ks = (1, 8, 64)
    values = np.stack([1 - (1 - p) ** k for k in ks], axis=1)
    other = values + np.array([0.05, 0.0, -0.05]) + rng.normal(0, 0.02, values.shape)
    text = curve_words(paired_curve(other, values, ks), "A", "B")
    assert text.startswith("A vs B over k: higher at k = 1 (largest difference +0.0")
    assert "no significant difference at k = 8" in text and "lower at k = 64" in text
    assert text.endswith(
        "the 95 % band holds at all 3 values of k at once (and is wider than an interval at one k), over 400 problems"
    )


def by_mann_whitney(a: np.ndarray, b: np.ndarray) -> float:
    """rliable 1.2.0, metrics.probability_of_improvement (Agarwal et al. 2021, equation in section 4.3): per task the
    Mann-Whitney statistic over the number of pairs, 1/2 where all scores are equal, mean over tasks."""
    out = []
    for x, y in zip(a.T, b.T, strict=True):
        out.append(
            0.5 if np.array_equal(x, y) else stats.mannwhitneyu(x, y, alternative="greater")[0] / (len(x) * len(y))
        )
    return float(np.mean(out))


@pytest.mark.parametrize(("s", "r"), [(1, 1), (3, 3), (4, 6)])
def test_probability_of_improvement_is_that_of_rliable(s, r):
    rng = np.random.default_rng(s)
    a, b = np.round(rng.random((s, 30)), 1), np.round(rng.random((r, 30)), 1)
    ours = probability_of_improvement(a, b).interval.value
    assert ours == pytest.approx(by_mann_whitney(a, b), abs=1e-12)


def test_rliable_itself_where_it_is_installed():
    metrics = pytest.importorskip("rliable.metrics")
    rng = np.random.default_rng(0)
    a, b = np.round(rng.random((5, 30)), 1), np.round(rng.random((4, 30)), 1)
    assert probability_of_improvement(a, b).interval.value == pytest.approx(metrics.probability_of_improvement(a, b))


def test_improvement_over_problems_by_hand():
    """Six wins, two ties and two losses of ten: 0.7, Beta-Binomial limits around it."""
    found = probability_of_improvement([2] * 6 + [1] * 4, [1] * 8 + [3] * 2)
    assert found.interval.value == 0.7 and found.interval.over == "problems"
    assert found.outcome == "tied" and found.interval.low < 0.5
    assert probability_of_improvement(np.ones(60), np.zeros(60)).outcome == "better"
    assert probability_of_improvement(np.zeros(60), np.ones(60)).outcome == "worse"
    assert probability_of_improvement(np.ones(5), np.zeros(5)).outcome == "unknown"


def test_improvement_over_training_seeds_by_hand():
    """Three seeds against three on two hundred problems: pseudo-values by the jackknife's formula, seeds left out in turn."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.1, 1, (3, 200)) + rng.normal(0, 0.02, (3, 1)), rng.normal(0, 1, (3, 200))
    wins = (a[:, None] > b[None]).mean(axis=2)
    found = probability_of_improvement(a, b, over="training seeds", fixed=True)
    left_out = [np.delete(np.delete(wins, i, 0), i, 1).mean() for i in range(3)]
    pseudo = 3 * wins.mean() - 2 * np.array(left_out)
    half = 4.302652729911275 * pseudo.std(ddof=1) / math.sqrt(3)
    ends = wins.mean() - half, wins.mean() + half
    assert 0.2 < ends[0] < ends[1] < 0.8 and found.interval.value == pytest.approx(wins.mean())
    assert (found.interval.low, found.interval.high) == pytest.approx(ends)
    two = probability_of_improvement(a[:2], b[:2], over="training seeds", fixed=True)
    assert two.outcome == "unknown"
    assert "(cannot be told: 2 training seeds are too few)" in chance_words(two, "A", "B", "pass@1")
    text = chance_words(found, "A", "B", "pass@1")
    assert text.startswith(f"P(A > B), pass@1: {wins.mean():.3f} (95 % interval {ends[0]:.3f} to ")
    assert text.endswith("over 3 training seeds: above 1/2)")


def test_refusals():
    with pytest.raises(DataError, match="same problems"):
        probability_of_improvement([1.0, 2.0], [1.0])
    with pytest.raises(DataError, match="2 and 3 training seeds"):
        probability_of_improvement(np.ones((2, 4)), np.ones((3, 4)), over="training seeds")
    with pytest.raises(DataError, match="'problems' or 'training seeds'"):
        probability_of_improvement([1.0], [2.0], over="runs")
    assert pass_at_k(3, 1, 2) == pytest.approx(2 / 3)


def test_the_band_over_training_seeds_by_hand():
    """Three seeds, two ks: Student at 1 - 0.05 / 2 each, 6.2053 in place of 4.3027."""
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 3, 40, 2))
    band = seeds_curve(a, b, (1, 4), fixed=True)
    gaps = (a - b).mean(axis=1)
    half = 6.205346816570585 * gaps.std(axis=0, ddof=1) / math.sqrt(3)
    assert band.high - band.difference == pytest.approx(half) and band.difference == pytest.approx(gaps.mean(axis=0))
    assert (band.n, band.over) == (3, "training seeds")
    assert "A vs B over k: " in curve_words(band, "A", "B")
    back = seeds_curve(b, a, (1, 4), fixed=True)
    assert back.low == pytest.approx(-band.high) and back.high == pytest.approx(-band.low)


def test_seeds_that_agree_leave_what_so_many_problems_leave():
    same = np.ones((4, 50, 1))
    band = seeds_curve(same, same, (256,), fixed=True)
    assert band.high[0] == pytest.approx(-math.log(0.025) / 200) and band.outcomes == ("tied",)
    assert seeds_curve(same[:2], same[:2], (256,)).reason is Reason.TWO_SEEDS
    assert seed_ks(256) == (1, 4, 16, 64, 256) and seed_ks(10) == (1, 4, 10) and seed_ks(1) == (1,)
    with pytest.raises(DataError, match="3 values of k for curves of 1 columns"):
        seeds_curve(same, same, (1, 2, 4))


# ---- the crossing


def judged(ks, outcomes) -> CurveComparison:
    flat = np.zeros(len(ks))
    return CurveComparison(
        ks=tuple(ks), difference=flat, low=flat, high=flat, outcomes=tuple(outcomes), level=0.95, over="problems", n=60
    )


def test_a_gain_then_a_loss_and_the_set_of_the_first_loss():
    found = crossing(judged(range(1, 8), ["better"] * 2 + ["tied"] * 2 + ["worse"] * 3))
    assert found == Crossing(gain=((1, 2),), loss=((5, 7),), undecided=((3, 4),), first_loss=(3, 5), low=3)
    assert found.crosses


@pytest.mark.parametrize(
    ("ks", "outcomes", "first", "crosses"),
    [
        ((1, 2, 3), ("worse", "worse", "tied"), (1, 1), False),
        ((1, 2, 3), ("worse", "better", "better"), (1, 1), False),  # a loss before a gain
        ((1, 2, 3), ("better", "worse", "better"), (2, 2), True),
        ((1, 2, 3), ("better", "better", "tied"), None, False),
        ((1, 2, 3), ("unknown",) * 3, None, False),
        ((1, 4, 16), ("better", "better", "worse"), (2, 16), True),  # nothing is known of k = 2 and 3
        ((4, 8), ("better", "worse"), (1, 8), True),
    ],
)
def test_the_set_of_the_first_loss(ks, outcomes, first, crosses):
    found = crossing(judged(ks, outcomes))
    assert found.first_loss == first and found.crosses is crosses


@given(st.lists(st.sampled_from(["better", "worse", "tied", "unknown"]), min_size=1, max_size=30))
def test_every_k_stands_in_one_range(outcomes):
    ks = range(1, len(outcomes) + 1)
    found = crossing(judged(ks, outcomes))
    stands = [(k, kind) for kind in ("gain", "loss", "undecided") for a, b in getattr(found, kind) for k in range(a, b + 1)]
    assert sorted(k for k, _ in stands) == list(ks)
    names = {"better": "gain", "worse": "loss"}
    assert dict(stands) == {k: names.get(outcome, "undecided") for k, outcome in zip(ks, outcomes, strict=True)}
    if found.first_loss:
        low, high = found.first_loss
        assert low <= high and outcomes[high - 1] == "worse" and outcomes[: low - 1] == ["better"] * (low - 1)


def test_a_crossing_from_counts():
    """The policy solves 300 of 400 problems half of the time and the others never; the base solves all one time in ten."""
    rng = np.random.default_rng(0)
    policy, base = rng.binomial(64, np.repeat([0.5, 0.0], [300, 100])), rng.binomial(64, 0.1, 400)
    found = crossing(paired_count_curve(64, policy, base))
    assert found.crosses and found.gain[0][0] == 1 and found.loss[-1][1] == 64
    truth = 0.75 * (1 - 0.5 ** np.arange(1, 65)) - (1 - 0.9 ** np.arange(1, 65))
    first = int(np.flatnonzero(truth < 0)[0]) + 1
    assert found.first_loss[0] <= first <= found.first_loss[1]
    back = crossing(paired_count_curve(64, base, policy))
    assert (back.gain, back.loss) == (found.loss, found.gain) and back.first_loss == (1, 1)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ([4] * 5, [0] * 5, Reason.FEW_PROBLEMS),  # five problems
        ([4], [0], Reason.FEW_PROBLEMS),  # one
        ([4] * 100, [4] * 100, Reason.NONE),  # all right
        ([0] * 100, [0] * 100, Reason.NONE),  # all wrong
        ([1, 2, 3, 0] * 25, [1, 2, 3, 0] * 25, Reason.NONE),  # the same file twice
    ],
)
def test_degenerate_designs_are_undecided(a, b, reason):
    found = crossing(paired_count_curve(4, a, b))
    assert found == Crossing(gain=(), loss=(), undecided=((1, 4),), first_loss=None, reason=reason)


def test_one_sample_of_each_problem_has_one_k():
    rng = np.random.default_rng(0)
    a, b = rng.binomial(1, 0.9, 400), rng.binomial(1, 0.3, 400)
    assert crossing(paired_count_curve(1, a, b)) == Crossing(gain=((1, 1),), loss=(), undecided=(), first_loss=None, low=2)


# ---- unequal n, clusters, cost


def test_unequal_numbers_of_samples_end_at_the_smallest():
    n, n_b, a, b = [3, 8, 5], [8, 4, 9], [1, 2, 5], [0, 4, 3]
    band = paired_count_curve(n, a, b, n_b=n_b)
    assert band.ks == (1, 2, 3)
    wanted = [np.mean([pass_at_k(x, c, k) for x, c in zip(n, a, strict=True)])
              - np.mean([pass_at_k(x, c, k) for x, c in zip(n_b, b, strict=True)]) for k in (1, 2, 3)]  # fmt: skip
    assert band.difference == pytest.approx(wanted)
    with pytest.raises(DataError, match="more correct samples than samples"):
        paired_count_curve([4, 2], [1, 3], [1, 1])


@pytest.mark.parametrize(("problems", "size"), [(60, 3), (400, 2)])
def test_clusters_of_equal_problems_are_their_means(problems, size):
    """Clusters of one size give the band of the clusters' mean curves, which `paired_curve` takes as units."""
    rng = np.random.default_rng(0)
    a, b = rng.binomial(8, rng.beta(0.5, 1, (2, problems * size)))
    cluster = np.tile(np.arange(problems), size)  # not side by side
    band = paired_count_curve(8, a, b, cluster=cluster)
    means = [pass_at_all_k(8, x).reshape(size, problems, 8).mean(axis=0) for x in (a, b)]
    unit = paired_curve(*means, range(1, 9))
    assert band.difference == pytest.approx(unit.difference)
    assert band.low == pytest.approx(unit.low) and band.high == pytest.approx(unit.high)
    assert (band.n, band.over) == (problems, "clusters of problems and their samples")


def test_copies_of_problems_tell_no_more_than_the_problems():
    rng = np.random.default_rng(1)
    p, q = rng.beta(0.5, 1, (2, 40))
    a, b = rng.binomial(32, p), rng.binomial(32, q)
    once = paired_count_curve(32, a, b)
    copied = paired_count_curve(32, np.tile(a, 5), np.tile(b, 5), cluster=np.tile(np.arange(40), 5))
    assert copied.low == pytest.approx(once.low) and copied.high == pytest.approx(once.high)
    assert np.all(paired_count_curve(32, np.tile(a, 5), np.tile(b, 5)).low > once.low)  # as 200 problems: too sure


def test_clusters_of_unequal_sizes_keep_the_mean_over_problems_and_need_six():
    rng = np.random.default_rng(0)
    a, b = rng.binomial(8, rng.beta(0.5, 1, (2, 100)))
    cluster = rng.integers(12, size=100)
    band = paired_count_curve(8, a, b, cluster=cluster)
    assert band.difference == pytest.approx(paired_count_curve(8, a, b).difference) and band.n == 12
    named = paired_count_curve(8, a, b, cluster=[f"c{x}" for x in cluster])
    assert sorted(named.low) == pytest.approx(sorted(band.low), abs=0.02)
    assert paired_count_curve(8, a, b, cluster=np.arange(100) % 5).reason is Reason.FEW_PROBLEMS
    with pytest.raises(DataError, match="one label a problem"):
        paired_count_curve(8, a, b, cluster=[1, 2])


def test_a_bootstrap_sees_the_same_columns_by_sums_and_by_values():
    """Few discordant problems at large k, all differences equal, more than 300 problems and fewer: both ways agree."""
    rng = np.random.default_rng(0)
    seen = []
    for problems, discordant in ((400, 20), (400, 80), (299, 80)):
        left = np.zeros((problems, 3))
        left[:discordant, 0] = rng.random(discordant)
        left[:, 1] = 0.25
        left[:, 2] = rng.random(problems)
        right = np.zeros_like(left)
        units = _Units(left.mean(axis=0), right.mean(axis=0), problems, lambda pair=(left, right): iter([pair]), True)
        found = _moments(units).seen.tolist()
        assert found == [bootstrap_sees(column) for column in (left - right).T]
        seen.append(found)
    assert seen == [[False, False, True], [True, False, True], [False, False, False]]


def test_in_chunks_or_whole_the_band_is_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = rng.binomial(16, rng.beta(0.5, 1, (2, 150)))
    whole = paired_count_curve(16, a, b), paired_count_curve(16, a, b, cluster=np.arange(150) // 4)
    monkeypatch.setattr("sage_rlvr.verdicts.stats.curves._CHUNK", 200)
    parts = paired_count_curve(16, a, b), paired_count_curve(16, a, b, cluster=np.arange(150) // 4)
    for one, other in zip(whole, parts, strict=True):
        assert other.low == pytest.approx(one.low) and other.high == pytest.approx(one.high)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory of a process from Linux")
def test_twenty_thousand_problems_of_1024_samples_take_less_than_two_gigabytes():
    code = (
        "import re, numpy as np\n"
        "from sage_rlvr.verdicts.stats.curves import crossing, paired_count_curve\n"
        "rng = np.random.default_rng(0)\n"
        "p = rng.beta(0.3, 1.5, 20_000)\n"
        "a, b = rng.binomial(1024, p), rng.binomial(1024, p**1.2)\n"
        "crossing(paired_count_curve(1024, a, b))\n"
        # ru_maxrss of a child is at least the memory of the process that started it
        "print(re.search(r'VmHWM:\\s+([0-9]+)', open('/proc/self/status').read())[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * 2**20, done.stdout
