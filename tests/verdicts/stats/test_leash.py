"""Invisible-Leash counts: the paper's rows, unbiasedness by exact sums and enumeration, what noise alone would show."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lab.stress.interval_coverage import DISCOVERIES, coverage_discoveries
from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.leash import (
    LeashCounts,
    detectable_probability,
    expected_cells,
    leash_at_k,
    leash_counts,
    leash_discoveries,
    leash_exact,
    leash_expected,
    leash_intervals,
    leash_noise_floor,
    leash_sampling_error,
    mcnemar_p,
    rate_intervals,
)
from sage_rlvr.verdicts.stats.support import exact_cells

amounts = st.integers(0, 500)


@pytest.mark.parametrize(
    ("counts", "srr", "ndr", "sds", "nscr"),
    [  # arXiv 2507.14843, ProRL-v1 against its base: AIME24, AIME25, all
        ((25, 0, 3, 2), 0.8929, 0.0, 0.0, -0.1071),
        ((20, 2, 4, 4), 0.8333, 0.0909, 0.1639, -0.0769),
        ((2400, 36, 163, 805), 0.9364, 0.0148, 0.0291, -0.0489),
    ],
)
def test_rates_of_the_paper(counts, srr, ndr, sds, nscr):
    found = LeashCounts(*counts)
    assert list(found.rates.values()) == pytest.approx([srr, ndr, sds, nscr], abs=5e-5)
    p, e, s, _ = counts
    assert found.sds == pytest.approx(2 * p * e / (p**2 + 2 * p * e + e * s))


@given(amounts, amounts, amounts, amounts)
def test_rates_stay_in_range_and_swapping_the_models_turns_the_sign(p, e, s, o):
    found, swapped = LeashCounts(p, e, s, o), LeashCounts(p, s, e, o)
    assert swapped.nscr == pytest.approx(-found.nscr)
    assert swapped.srr == pytest.approx(1 - found.ndr if p + e else 0.0)
    assert all(0 <= r <= 1 for r in (found.srr, found.ndr, found.sds)) and -1 <= found.nscr <= 1
    assert min(found.srr, found.ndr) - 1e-12 <= found.sds <= max(found.srr, found.ndr) + 1e-12
    assert found.total == p + e + s + o


def test_nothing_over_nothing_is_nothing():
    assert list(LeashCounts(0, 0, 0, 5).rates.values()) == [0.0] * 4


def test_counts_by_hand():
    assert leash_counts([1, 1, 0, 0, 1], [1, 0, 1, 0, 1]) == LeashCounts(2, 1, 1, 1)
    full = leash_at_k(4, [0, 2, 4, 0], 4, [1, 0, 3, 0], 4)
    assert full == LeashCounts(1, 1, 1, 1)
    one = leash_at_k(4, [1], 4, [2], 1)
    assert (one.preserved, one.expanded, one.shrunk, one.outside) == pytest.approx((1 / 8, 3 / 8, 1 / 8, 3 / 8))


def test_expected_counts_are_the_mean_over_all_pairs_of_subsets():
    base, policy, k = [1, 0, 0, 0], [1, 1, 0, 0, 0], 2
    cells = [
        leash_counts([any(x)], [any(y)]) for x in combinations(base, k) for y in combinations(policy, k)
    ]  # fmt: skip
    found = leash_at_k(4, [1], 5, [2], k)
    for name in ("preserved", "expanded", "shrunk", "outside"):
        assert getattr(found, name) == pytest.approx(np.mean([getattr(c, name) for c in cells]))


def test_expected_counts_are_unbiased_for_those_of_known_probabilities():
    n, k, pb, pp = 5, 2, 0.2, 0.4
    binomial = lambda p, c: math.comb(n, c) * p**c * (1 - p) ** (n - c)  # noqa: E731
    weights = [(binomial(pb, b) * binomial(pp, c), leash_at_k(n, [b], n, [c], k)) for b in range(6) for c in range(6)]
    exact = leash_expected([pb], [pp], k)
    for name in ("preserved", "expanded", "shrunk", "outside"):
        assert sum(w * getattr(counts, name) for w, counts in weights) == pytest.approx(getattr(exact, name))
    assert exact.expanded == pytest.approx((1 - pb) ** k * (1 - (1 - pp) ** k))


def test_definition_4_1_where_completions_are_listed():
    base = [np.log([0.5, 0.001]), np.log([0.2]), np.log([0.001, 0.0001]), np.array([])]
    policy = [np.log([0.4, 0.1]), np.log([0.002]), np.log([0.002, 0.3]), np.array([])]
    completions, problems = leash_exact(base, policy, 0.01)
    assert completions == LeashCounts(1, 2, 1, 1) and problems == LeashCounts(1, 1, 1, 1)
    assert completions.srr == pytest.approx(0.5) and problems.ndr == pytest.approx(0.5)


def test_what_k_misses_leave_plausible():
    assert detectable_probability(8192) == pytest.approx(3.656e-4, abs=5e-8)
    assert (1 - detectable_probability(256, 0.01)) ** 256 == pytest.approx(0.01)
    for k, zeta in ((0, 0.05), (8, 0.0), (8, 1.0)):
        with pytest.raises(DataError, match=f"k = {k}"):
            detectable_probability(k, zeta)


def test_noise_floor_is_the_mean_over_all_deals_of_the_pooled_samples():
    pooled, k = [1, 1, 0, 0, 0, 0], 2
    cells = []
    for first in combinations(range(6), k):
        rest = [i for i in range(6) if i not in first]
        cells += [leash_counts([any(pooled[i] for i in first)], [any(pooled[i] for i in second)])
                  for second in combinations(rest, k)]  # fmt: skip
    found = leash_noise_floor(3, [0], 3, [2], k)
    assert found.expanded == found.shrunk == pytest.approx(np.mean([c.expanded for c in cells]))
    assert found.preserved == pytest.approx(np.mean([c.preserved for c in cells]))
    assert found.total == pytest.approx(1.0)


def test_one_model_against_itself_shows_its_noise_floor():
    rng, n = np.random.default_rng(0), 32
    p = rng.beta(0.2, 2.0, 400)
    expected = leash_expected(p, p, n)
    seen, floors = [], []
    for _ in range(60):
        a, b = rng.binomial(n, p), rng.binomial(n, p)
        seen.append(leash_at_k(n, a, n, b, n).expanded)
        floors.append(leash_noise_floor(n, a, n, b, n).expanded)
    assert np.mean(floors) == pytest.approx(expected.expanded, rel=0.05)
    assert np.mean(seen) == pytest.approx(expected.expanded, rel=0.1)
    assert np.std(floors) < np.std(seen)


@pytest.mark.slow
def test_sampling_error_is_the_spread_of_fresh_evaluations():
    rng, n, k = np.random.default_rng(1), 64, 16
    pb, pp = rng.beta(0.2, 1.5, 60), rng.beta(0.3, 1.5, 60)
    fresh = [leash_at_k(k, rng.binomial(k, pb), k, rng.binomial(k, pp), k) for _ in range(1000)]
    told = [leash_sampling_error(n, rng.binomial(n, pb), n, rng.binomial(n, pp), k, splits=60) for _ in range(15)]
    for name in ("preserved", "expanded", "shrunk", "outside"):
        variance = np.mean([t[name] ** 2 for t in told])
        assert variance == pytest.approx(np.var([getattr(f, name) for f in fresh]), rel=0.2)
    assert np.mean([t["NSCR"] ** 2 for t in told]) == pytest.approx(np.var([f.nscr for f in fresh]), rel=0.25)
    with pytest.raises(DataError, match="2 k samples"):
        leash_sampling_error(64, [1, 2], 31, [1, 2], 16)


def test_intervals_never_claim_that_what_was_not_seen_cannot_be():
    hits = np.array([16] * 25 + [4] * 3 + [0] * 2)
    found = leash_intervals(16, hits, 16, np.where(np.arange(30) < 25, 16, 0), 16)  # the row 25, 0, 3, 2
    assert found["SRR"].value == pytest.approx(25 / 28) and found["SRR"].contains(0.8) and found["SRR"].high < 1
    assert found["NDR"].value == 0.0 and 0.05 < found["NDR"].high < 0.3
    assert found["SDS"].low == 0.0 and found["SDS"].high > 0.05
    assert found["NSCR"].low < -0.1 < 0.0 < found["NSCR"].high
    assert set(leash_intervals(16, [0, 0], 16, [3, 0], 16)) == {"NDR", "NSCR"}  # SRR is 0 / 0
    assert leash_intervals(16, [0, 0], 16, [0, 0], 16) == {}


def test_intervals_of_a_plain_gain():
    rng = np.random.default_rng(2)
    found = leash_intervals(64, rng.binomial(64, rng.beta(0.2, 2, 500)), 64, rng.binomial(64, rng.beta(1, 2, 500)), 32)
    assert found["NSCR"].low > 0.2 and found["NDR"].low > 0.2
    for interval in found.values():
        assert interval.low < interval.value < interval.high and interval.n > 100


def test_mcnemar():
    assert mcnemar_p(0, 3) == pytest.approx(0.25) and mcnemar_p(3, 0) == mcnemar_p(0, 3)
    assert mcnemar_p(0, 6) == pytest.approx(2 / 64) and mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(36, 163) < 1e-15
    for pair in ((0.5, 2), (-1, 2)):
        with pytest.raises(DataError, match="whole counts"):
            mcnemar_p(*pair)


def lone(hits: int, n: int = 64) -> float:
    """Two-sided p of all hits on one of two sides, n samples each, from factorials."""
    return 2 * math.comb(n, hits) / math.comb(2 * n, hits)


def test_one_hit_is_no_discovery_and_many_are():
    base, policy = [0, 0, 0, 5, 64, 0], [1, 5, 20, 0, 64, 0]
    found = leash_discoveries(64, base, 64, policy)
    assert found.p_new[:3] == pytest.approx([1.0, lone(5), lone(20)])
    assert found.p_lost[3] == pytest.approx(lone(5)) and found.p_new[3:].tolist() == [1, 1, 1]
    # pooled counts 1, 5, 20, 5, 128, 0: a lone solver of 20 is seen with chance lone(20), one of 5 on either of two problems
    assert found.adjusted == pytest.approx([1.0, lone(20) + 2 * lone(5), lone(20), lone(20) + 2 * lone(5), 1.0, 1.0])
    assert found.new.tolist() == [False, False, True, False, False, False]
    assert not found.lost.any()
    assert [leash_discoveries(64, [0], 64, [hits]).new[0] for hits in (5, 6)] == [False, True]  # 0.055 and 0.027
    mirrored = leash_discoveries(64, policy, 64, base)
    assert mirrored.lost.tolist() == found.new.tolist() and mirrored.p_lost == pytest.approx(found.p_new)
    assert found.base_below[0] == pytest.approx(1 - 0.05 ** (1 / 64)) and found.base_below[4] == 1.0


def test_unequal_n_is_no_discovery():
    """One sample of the base and 64 of the policy: that the base has no hit says nothing. The other way round it says much."""
    one = leash_discoveries(1, [0], 64, [20])
    assert one.p_new[0] == pytest.approx(1.0) and not one.new.any()
    other = leash_discoveries(16, [3], 256, [0])
    assert other.p_lost[0] == pytest.approx(math.comb(16, 3) / math.comb(272, 3)) and other.lost.all()
    assert other.p_lost[0] == pytest.approx(stats.fisher_exact([[3, 13], [0, 256]])[1])


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_what_is_asked_of_a_discovery_depends_on_pooled_counts_alone(seed):
    """The right samples of all other problems dealt anew: the first problem's value stays, whoever has no hits elsewhere."""
    rng = np.random.default_rng(seed)
    n_b, n_p = rng.integers(4, 40, 2)
    pooled = rng.integers(0, min(12, n_b + n_p + 1), 9)
    pooled[0] = rng.integers(1, n_p + 1)
    values = []
    for _ in range(3):
        policy = rng.hypergeometric(pooled, n_b + n_p - pooled, n_p)
        policy[0] = pooled[0]
        if np.any(pooled - policy > n_b):
            return
        values.append(leash_discoveries(n_b, pooled - policy, n_p, policy).adjusted[0])
    assert values == pytest.approx([values[0]] * 3)


@pytest.mark.slow
@pytest.mark.parametrize(("n_b", "n_p", "pooled"), [(8, 8, (6, 7, 5)), (6, 10, (5, 6, 4)), (7, 7, (7, 7))])
def test_the_chance_of_even_one_false_discovery_by_enumeration(n_b, n_p, pooled):
    """Every way to deal the right samples of three problems, weighed by its chance among equal models: 5 % at most, not 0."""
    ways = [range(max(0, c - n_b), min(c, n_p) + 1) for c in pooled]
    total = false = 0.0
    for policy in product(*ways):
        chance = math.prod(stats.hypergeom.pmf(x, n_b + n_p, c, n_p) for x, c in zip(policy, pooled, strict=True))
        found = leash_discoveries(n_b, np.subtract(pooled, policy), n_p, policy)
        total, false = total + chance, false + chance * bool(found.new.any() or found.lost.any())
    assert total == pytest.approx(1.0) and 0 < false <= 0.05


@pytest.mark.parametrize(
    ("worlds", "times"), [(DISCOVERIES[1:2], 60), pytest.param(DISCOVERIES, 400, marks=pytest.mark.slow)]
)
def test_discoveries_by_luck_are_as_rare_as_promised_and_real_ones_are_found(worlds, times):
    """Equal policies on narrow and broad worlds: at most 5 % and two standard errors of the simulation call any problem new.

    Holm over the problems that one alone had solved, one-sided, does so in three draws of four in the first world and in two of
    five in the second."""
    for world, (false, hits, picked) in coverage_discoveries(times, worlds).items():
        assert false <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / times), (world, false)
        assert hits >= 0.5, (world, hits)
        assert picked > 0.3 or "near" not in world[0], (world, picked)


def test_refusals():
    with pytest.raises(DataError, match="same problems"):
        leash_counts([1, 0], [1])
    with pytest.raises(DataError, match="same problems"):
        leash_counts([2.0], [1.0])
    with pytest.raises(DataError, match="fewer than k"):
        leash_at_k(4, [1], 4, [1], 5)
    with pytest.raises(DataError, match="fewer than k"):
        leash_noise_floor(4, [1], 4, [1], 5)


def test_exact_cells_add_up_to_the_exact_counts():
    """Two problems: completions kept, found and lost in the first, none in support in the second."""
    base = [np.log([0.5, 0.3, 0.001]), np.log([0.001])]
    policy = [np.log([0.6, 0.001, 0.2]), np.log([0.002])]
    completions, problems = exact_cells(base, policy, 1 / 256)
    assert completions.tolist() == [[1, 1, 1, 0], [0, 0, 0, 1]] and problems.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    for cells, counts in zip((completions, problems), leash_exact(base, policy, 1 / 256), strict=True):
        assert LeashCounts(*cells.sum(axis=0).tolist()) == counts
    chances = expected_cells([0.5, 0.0], [0.25, 0.5], 2)
    assert chances[0].tolist() == pytest.approx([0.75 * 0.4375, 0.25 * 0.4375, 0.75 * 0.5625, 0.25 * 0.5625])
    assert LeashCounts(*chances.sum(axis=0).tolist()) == leash_expected([0.5, 0.0], [0.25, 0.5], 2)


@given(st.integers(0, 10_000), st.integers(6, 40))
@settings(max_examples=15, deadline=None)
def test_rates_of_exact_counts_have_intervals_around_them(seed, n):
    rng = np.random.default_rng(seed)
    base, policy = ([np.log(rng.random(5) * 0.01) for _ in range(n)] for _ in range(2))
    cells, _ = exact_cells(base, policy, 1 / 256)
    rates = LeashCounts(*cells.sum(axis=0).tolist()).rates
    for name, found in rate_intervals(cells, resamples=200).items():
        assert found.value == pytest.approx(rates[name]) and found.low <= found.value <= found.high and found.n <= n
