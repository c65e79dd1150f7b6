"""Mixtures per completion: by hand, against mixtures per problem, from samples."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats import mixture
from sage_rlvr.verdicts.stats.frontier import frontier
from sage_rlvr.verdicts.stats.hull import AboveHull, best_line, compare_hull, on_hull
from sage_rlvr.verdicts.stats.mixture import (
    above_mixtures,
    above_mixtures_of_counts,
    best_mixture,
    mixture_pass_at_k,
    on_mixtures,
)
from sage_rlvr.verdicts.stats.passk import pass_at_k

A, B = [0.8, 0.0], [0.0, 0.8]  # each solves one of two problems


def test_two_policies_that_solve_different_problems_by_hand() -> None:
    """Half of each: p = .4 on both problems, pass@2 = 1 - .6^2 = .64. A coin per problem stays at .48, the score of either."""
    found = best_mixture([[A], [B]], 0.4, 2)
    assert found.weights == pytest.approx([0.5, 0.5], abs=1e-6) and found.height == pytest.approx(0.64)
    rivals = [[{1.0: A}], [{1.0: B}]]
    line = on_hull(0.4, [[frontier(table, 2) for table in rival] for rival in rivals])
    assert line is not None and line.height == pytest.approx(0.48)
    place = on_mixtures(0.4, rivals, 2)
    assert place is not None and place.height == pytest.approx(0.64) and {one.rival for one in place.best} == {0, 1}


def test_pass1_binds_by_hand() -> None:
    """A has (.9, .1), pass@1 .5; B has (0, .6), pass@1 .3. With weight w of A, pass@2 is 1 - ((1 - .9 w)^2 + (.4 + .5 w)^2) / 2,
    whose slope is .7 - 1.06 w."""
    table = [[[0.9, 0.1]], [[0.0, 0.6]]]
    free = best_mixture(table, 0.0, 2)
    assert free.weights == pytest.approx([0.7 / 1.06, 1 - 0.7 / 1.06], abs=1e-5) and free.price == 0
    bound = best_mixture(table, 0.46, 2)  # .3 + .2 w >= .46: w = .8, and pass@2 falls by (1.06 * .8 - .7) / .2 per pass@1
    assert bound.weights == pytest.approx([0.8, 0.2], abs=1e-6) and bound.price == pytest.approx(0.74, abs=1e-4)
    assert bound.height == pytest.approx(1 - (0.28**2 + 0.8**2) / 2)
    assert best_mixture(table, 0.6, 2).weights == pytest.approx(free.weights, abs=1e-5)  # nobody has it: the highest pass@k


@pytest.mark.parametrize(
    ("pass1", "weights", "height", "price"),
    [
        (0.30, [0, 0, 1], 0.5, 3.0),  # at the last corner the price is that of the line before it, (.8 - .5) / .1
        (0.25, [0, 0.5, 0.5], 0.65, 3.0),
        (0.20, [0, 1, 0], 0.8, 1.0),
        (0.05, [1, 0, 0], 0.9, 0.0),
        (0.40, [1, 0, 0], 0.9, 0.0),  # nobody has it: the highest
    ],
)
def test_the_price_at_a_corner_by_hand(pass1: float, weights: list[float], height: float, price: float) -> None:
    found = best_line(pass1, np.array([0.1, 0.2, 0.3]), np.array([0.9, 0.8, 0.5]))
    assert found[0] == pytest.approx(weights) and found[1:] == pytest.approx((height, price))


def test_a_capped_arm_is_held_against_the_highest_pass1_of_its_rivals_by_hand() -> None:
    """Two problems, four samples: the rival's best pass@1 is .625 at T = 0.5, the arm has .75."""
    rival = {1.0: (4, [2, 2]), 0.5: (4, [4, 1])}  # pass@1 .5 and .625, pass@2 5/6 and 3/4
    arm = [{1.0: (4, [4, 2])}]  # pass@1 .75
    free, capped = (above_mixtures_of_counts(arm, [[rival]], 2, capped=c) for c in (False, True))
    assert free is not None and capped is not None
    assert [(one.temperature, one.weight) for one in capped.mixture.best] == [(0.5, 1.0)] and capped.mixture.price > 0
    assert free.mixture.price == 0
    assert capped.pass1 == free.pass1 == (0.75,) and capped.mixed[-1].mean(axis=0) == pytest.approx([0, (1 + 5 / 6) / 2 - 3 / 4])
    assert capped.ahead[0].mean(axis=0) == pytest.approx([0.125, (1 + 5 / 6) / 2 - 3 / 4])
    assert len(capped.mixed) == len(free.mixed) + 1
    level = [{1.0: (4, [3, 1])}]  # pass@1 .5: below the highest, so that nothing is capped
    one, two = (above_mixtures_of_counts(level, [[rival]], 2, capped=c) for c in (False, True))
    assert one is not None and two is not None and one.mixture == two.mixture


def test_three_policies_can_be_better_than_every_pair() -> None:
    """Each of three policies solves one of three problems: a third of each has p = .3 everywhere, a pair leaves one problem."""
    table = (0.9 * np.eye(3))[:, None]
    assert best_mixture(table, 0.0, 8).height == pytest.approx(1 - 0.7**8)
    assert best_mixture(table[:2], 0.0, 8).height == pytest.approx(2 / 3 * (1 - 0.55**8))


probabilities = st.floats(0, 1).map(lambda x: round(x, 3))


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    """(policies, seeds, problems)."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5)))
    return np.array(draw(st.lists(probabilities, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))).reshape(shape)


@given(tables(), st.sampled_from([1, 2, 8, 64, 256]), st.floats(0, 1))
def test_laws_of_the_best_mixture(ps: np.ndarray, k: int, where: float) -> None:
    """It holds its pass@1; its height is that of its weights, at least the best per problem and within the bound of optimal;
    another rival never lowers it; k = 1 gives pass@1 and nothing for mixing."""
    ones = ps.mean(axis=(1, 2))
    pass1 = float(where * ones.max())
    found = best_mixture(ps, pass1, k)
    mixed = np.tensordot(found.weights, ps, 1)
    assert found.weights.min() >= 0 and found.weights.sum() == pytest.approx(1) and mixed.mean() >= pass1 - 1e-9
    assert found.height == pytest.approx(float((1 - (1 - mixed) ** k).mean()), abs=1e-9)
    rivals = [[{1.0: row} for row in policy] for policy in ps]
    line = on_hull(pass1, [[frontier(table, k) for table in rival] for rival in rivals])
    assert line is not None and found.height >= line.height - 1e-9
    if len(ps) > 1 and ones[:-1].max() >= pass1:
        assert found.height + found.slack >= best_mixture(ps[:-1], pass1, k).height - 1e-12
    assert found.slack <= 1e-4
    if k == 1:
        assert found.height == pytest.approx(ones.max())
    rng = np.random.default_rng(0)
    for weights in rng.dirichlet(np.ones(len(ps)), 20):
        if weights @ ones >= pass1:
            other = float((1 - (1 - np.tensordot(weights, ps, 1)) ** k).mean())
            assert other <= found.height + found.slack + 1e-9


@given(tables(), st.sampled_from([1, 8, 256]), st.integers(2, 4))
def test_identical_policies_give_equality(ps: np.ndarray, k: int, rivals: int) -> None:
    own = [{1.0: row} for row in ps[0]]
    found = above_mixtures(own, [own] * rivals, k)
    assert found is not None and found.mixture.height == pytest.approx(float(np.mean(found.arm)), abs=1e-9)
    compared = compare_hull(found)
    assert compared.difference.value == pytest.approx(0, abs=1e-9) and compared.outcome in ("tied", "unknown")


def test_an_arm_is_read_at_its_temperature_and_rivals_where_all_seeds_were() -> None:
    own = [{1.0: A, 0.3: B}] * 2
    assert above_mixtures(own, [own], 2, temperature=0.5) is None and above_mixtures([], [own], 2) is None
    assert on_mixtures(0.1, [[{1.0: A}, {0.5: A}]], 2) is None
    with pytest.raises(DataError, match="different numbers of problems"):
        on_mixtures(0.1, [[{1.0: A}], [{1.0: [0.1]}]], 2)


def random_leads(seed: int, seeds: int) -> AboveHull:
    rng = np.random.default_rng(seed)
    arms = [[{1.0: rng.uniform(0, 0.6, 12)} for _ in range(seeds)] for _ in range(4)]
    found = above_mixtures(arms[0], arms[1:], 8)
    assert found is not None
    return found


@given(st.integers(0, 2**32 - 1), st.integers(3, 6))
def test_laws_of_a_comparison_with_mixtures(seed: int, seeds: int) -> None:
    """The gap is the lead over the best mixture; the interval holds it; better means ahead of that and of every rival; what could
    have been detected is no less than the interval reaches."""
    found = random_leads(seed, seeds)
    compared = compare_hull(found)
    interval = compared.difference
    assert interval.low <= interval.value <= interval.high
    capped = interval.high >= compared.mean_a
    assert compared.mde >= min(interval.value - interval.low, math.inf if capped else interval.high - interval.value)
    least = float((found.mixed @ (found.mixture.price, 1.0)).mean(axis=1).min())
    assert interval.value <= least + 1e-12
    if compared.outcome == "better":
        every = np.concatenate([found.ahead, found.mixed]) @ (found.mixture.price, 1.0)
        assert (every.mean(axis=1) > 0).all()


# ------------------------------------------------------------------------------------------------------------------
# from samples


def test_a_mixture_from_counts_by_hand() -> None:
    """Two policies with 1 of 2 and 2 of 2 right, half of each, k = 2. Both completions of A: it misses both with 0 (one of two is
    right); one of each: A misses with 1/2, B never. So pass@2 is 1."""
    assert mixture_pass_at_k([2, 2], [[1], [2]], [0.5, 0.5], 2) == pytest.approx([1.0])
    # 1 of 4 and 0 of 4: misses (3/4)(2/3) = 1/2 of two from A, 3/4 of one, 1 of none: 1 - (1/8 + 3/8 + 1/4)
    assert mixture_pass_at_k([4, 4], [[1], [0]], [0.5, 0.5], 2) == pytest.approx([0.25])
    with pytest.raises(DataError, match="k = 3 with 2 samples"):
        mixture_pass_at_k([2, 4], [[1], [0]], [0.5, 0.5], 3)
    with pytest.raises(DataError, match="with sum 1"):
        mixture_pass_at_k([2, 4], [[1], [0]], [0.5, 0.4], 2)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(1, 12))
def test_one_policy_and_identical_halves_from_counts(right: list[int], k: int) -> None:
    assert mixture_pass_at_k([12], [right], [1.0], k) == pytest.approx(np.atleast_1d(pass_at_k(12, right, k)))
    assert mixture_pass_at_k([12, 3], [right, [0] * len(right)], [1.0, 0.0], k) == pytest.approx(
        np.atleast_1d(pass_at_k(12, right, k))
    )


def test_a_mixture_from_counts_is_unbiased() -> None:
    """The mean over all counts of three policies, each with its probability, is the mixture's exact pass@k."""
    ps, n, weights = (0.1, 0.35, 0.6), (5, 4, 6), np.array([0.5, 0.2, 0.3])
    for k in (1, 2, 4):
        mean = 0.0
        for counts in product(*(range(size + 1) for size in n)):
            law = np.prod([binom.pmf(c, size, p) for c, size, p in zip(counts, n, ps, strict=True)])
            mean += law * mixture_pass_at_k(n, np.array(counts)[:, None], weights, k)[0]
        assert mean == pytest.approx(1 - (1 - weights @ ps) ** k, abs=1e-12)


def test_a_comparison_from_counts_by_hand() -> None:
    """Two rivals with 2 of 4 right on one problem each: half of both has p = 1/4 on both. The arm has 1 of 4 on both, the same; two
    completions of the mixture miss with (1/4)(1/6) + (1/2)(1/2) + (1/4) = 13/24, of the arm with (3/4)(2/3) = 1/2."""
    own, one, two = ([{1.0: (4, right)}] * 3 for right in ([1, 1], [2, 0], [0, 2]))
    found = above_mixtures_of_counts(own, [one, two], 2)
    assert found is not None and {share.rival: share.weight for share in found.mixture.best} == pytest.approx({0: 0.5, 1: 0.5})
    assert found.mixed[:1] == pytest.approx(np.broadcast_to([0, 13 / 24 - 1 / 2], (1, 3, 2)))
    assert found.ahead[0, 0] == pytest.approx([0, 0.5 - (1 - 1 / 6) / 2])
    assert above_mixtures_of_counts(own, [one, two], 2, temperature=0.5) is None


def test_counts_come_to_the_exact_leads_with_many_samples() -> None:
    rng, n, k = np.random.default_rng(0), 4000, 8
    ps = rng.uniform(0.02, 0.3, (4, 3, 20))
    exact = [[{1.0: row} for row in arm] for arm in ps]
    counts = [[{1.0: (n, rng.binomial(n, row))} for row in arm] for arm in ps]
    true, found = above_mixtures(exact[0], exact[1:], k), above_mixtures_of_counts(counts[0], counts[1:], k)
    assert true is not None and found is not None
    assert found.mixed[0] == pytest.approx(true.mixed[0], abs=0.02) and found.ahead == pytest.approx(true.ahead, abs=0.02)
    alone = above_mixtures_of_counts(counts[0][:1], [arm[:1] for arm in counts[1:]], k)
    assert alone is not None and alone.mixed.shape == (10, 20, 2) and alone.over == "problems"
    compared = compare_hull(alone)
    assert (compared.over, compared.difference.over, compared.difference.n) == ("problems", "problems", 20)
    assert compared.difference.low <= compared.difference.value <= compared.difference.high


@pytest.mark.slow
def test_a_policy_evaluated_once_is_compared_with_every_seed_and_shares_its_noise() -> None:
    """The scatter of many evaluations of one base and a guesser is what one evaluation says that it is."""
    rng, n, k, seeds = np.random.default_rng(1), 32, 8, 3
    ps = rng.uniform(0.01, 0.3, (2, 40))
    guess = np.full(40, 0.02)
    weights = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.3, 0.2]])
    scores, told = [], []
    for _ in range(400):
        base = [{t: (n, rng.binomial(n, p)) for t, p in zip((0.5, 1.0), ps, strict=True)}]
        policies = mixture._rivals([base], seeds, [guess])
        scores.append(mixture._of_mixtures(policies, weights, k, seeds).mean(axis=2)[:, 0])
        told.append(mixture._shared_noise(policies, weights, k))
    spread = np.array([np.cov(one.T) for one in np.moveaxis(np.array(scores), 1, 0)])
    assert np.mean(told, axis=0) == pytest.approx(spread, rel=0.25, abs=1e-12) and np.mean(told, axis=0)[2] == pytest.approx(0)
    exact = weights @ np.stack([*ps, guess])
    assert np.mean(scores, axis=0)[:, 1] == pytest.approx((1 - (1 - exact) ** k).mean(axis=1), abs=0.005)


def test_one_evaluation_of_a_rival_is_its_table_in_every_seed() -> None:
    """Leads of the same counts, passed once or once per seed, are equal; passed once their noise widens the interval."""
    rng, k = np.random.default_rng(2), 8
    own = [{1.0: (32, rng.binomial(32, rng.uniform(0.02, 0.4, 50)))} for _ in range(5)]
    base = {t: (32, rng.binomial(32, rng.uniform(0.02, 0.3, 50))) for t in (0.5, 1.0)}
    once, each = (above_mixtures_of_counts(own, [[base] * m], k) for m in (1, 5))
    assert once is not None and each is not None
    assert once.ahead == pytest.approx(each.ahead) and once.mixed == pytest.approx(each.mixed)
    assert once.held_out is not None and each.held_out is None and len(each.shared) == 0
    wide, narrow = compare_hull(once), compare_hull(each)
    assert wide.difference.low < narrow.difference.low and wide.mde > narrow.mde
    assert (wide.over, wide.difference.over) == ("training seeds", "training seeds and the control's samples")
    assert above_mixtures_of_counts(own, [[base]], 20).held_out is None  # type: ignore[union-attr]  # 16 samples in a half
    with pytest.raises(DataError, match="rival 0 has 2 training seeds, the arm 5"):
        above_mixtures_of_counts(own, [[base] * 2], k)


@pytest.mark.slow
def test_rivals_are_chosen_by_one_half_of_the_samples_and_judged_by_the_other() -> None:
    """Many equal policies: the best of them by the same samples is too high, the best by a half is not, and it is the gap."""
    rng, k, same, judged = np.random.default_rng(3), 4, [], []
    p = rng.uniform(0.02, 0.3, 60)
    for _ in range(60):
        own = [{1.0: (64, rng.binomial(64, p))} for _ in range(3)]
        base = {t: (16, rng.binomial(16, p)) for t in (0.25, 0.5, 0.75, 1.0)}
        found = above_mixtures_of_counts(own, [[base]], k)
        assert found is not None and found.held_out is not None
        every = np.concatenate([found.ahead, found.mixed]) @ (found.mixture.price, 1.0)
        same.append(every.mean(axis=1).min())
        judged.append(compare_hull(found).difference.value)
        halves = found.held_out
        assert halves.scores.shape == halves.ahead.shape and halves.shared.shape == (halves.scores.shape[1], 2, 2)
    assert np.mean(same) < -0.01 < np.mean(judged) and abs(np.mean(judged)) < 0.005


def test_rivals_with_training_seeds_and_a_base_evaluated_once() -> None:
    rng, k = np.random.default_rng(4), 8
    trained = [[{1.0: (64, rng.binomial(64, rng.uniform(0.02, 0.4, 50)))} for _ in range(4)] for _ in range(3)]
    base = {t: (64, rng.binomial(64, rng.uniform(0.02, 0.3, 50))) for t in (0.5, 1.0)}
    found = above_mixtures_of_counts(trained[0], [*trained[1:], [base]], k, guessers=[np.full(50, 0.01)])
    assert found is not None and found.held_out is not None
    assert found.ahead.shape == (5, 4, 2) and found.shared.shape == (len(found.ahead) + len(found.mixed), 2, 2)
    assert (found.shared[[0, 1, 4]] == 0).all() and (found.shared[2:4, 1, 1] > 0).all()
    compared = compare_hull(found)
    assert compared.known and compared.difference.low <= compared.difference.value <= compared.difference.high
