"""Strata: against all halves by hand, the same policy drawn again, and the shipped pair."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.passk import pass_at_k
from sage_rlvr.verdicts.stats.strata import largest_k, stratified

DEEPSCALER = Path(__file__).parents[3] / "examples" / "deepscaler"


def counts_of(name: str) -> np.ndarray:
    rows = {row["id"]: row["c"] for row in map(json.loads, (DEEPSCALER / f"{name}.jsonl").read_text().splitlines())}
    return np.array([rows[key] for key in sorted(rows)])


def test_all_halves_are_averaged_over():
    n, k = 6, 2
    c, other = np.array([0, 1, 2, 5]), np.array([1, 0, 3, 6])
    wanted: dict[int, list[float]] = {}
    for right, there in zip(c.tolist(), other.tolist(), strict=True):
        for half in itertools.combinations(range(n), 3):
            a = sum(i < right for i in half)
            row = wanted.setdefault(0 if a == 0 else 1 if a < 3 else 2, [0.0] * 4)
            row[0] += 1
            row[1] += float(pass_at_k(n, there, k))
            row[2] += float(pass_at_k(3, right - a, k))
            row[3] += float(pass_at_k(3, a, k))
    found = stratified(np.full(4, n), c, np.full(4, n), other, k)
    assert [(one.low, one.high) for one in found.strata] == [(0, 0), (1, 2), (3, 3)]
    for number, one in enumerate(found.strata):
        weight, of_other, again, same = wanted[number]
        assert one.share == pytest.approx(weight / 80)
        assert [one.other, one.again, one.same] == pytest.approx([of_other / weight, again / weight, same / weight])
        assert one.difference.value == pytest.approx(one.other - one.again)
        assert one.difference.low == -math.inf  # four problems


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
def test_the_same_policy_drawn_again_gains_nothing_in_expectation(p: float):
    """The numerator of every stratum, summed over all counts of both sides by their binomial probabilities."""
    n, k = 8, 2
    total = np.zeros(3)
    for c, r in itertools.product(range(n + 1), repeat=2):
        found = stratified([n], [c], [n], [r], k)
        for one in found.strata:
            place = {0: 0, 1: 1, 3: 2}[one.low]
            total[place] += binom.pmf(c, n, p) * binom.pmf(r, n, p) * one.share * one.difference.value
    assert total == pytest.approx(0, abs=1e-12)


def test_the_shipped_pair_unlocks_no_more_than_the_base_drawn_again():
    base, rl = counts_of("base"), counts_of("rl")
    n = np.full(len(base), 128)
    found = stratified(n, base, n, rl)
    never = found.strata[0]
    assert (found.half, found.k, never.low, never.high) == (64, 32, 0, 0)
    assert never.share == pytest.approx(0.13, abs=0.005) and never.same == 0
    assert never.other == pytest.approx(0.09, abs=0.001) and never.again == pytest.approx(0.095, abs=0.001)
    assert never.outcome == "cannot be told" and -0.05 < never.difference.low < never.difference.high < 0.04
    lost = stratified(n, rl, n, base).strata[0]
    assert lost.outcome == "higher" and lost.difference.value == pytest.approx(0.083, abs=0.001)


def test_all_halves_at_once_agree_with_halves_drawn_at_random():
    """The shipped pair, 400 halves of the base's samples drawn without replacement."""
    base, rl, n, half, k = counts_of("base"), counts_of("rl"), 128, 64, 32
    drawn = np.random.default_rng(1).hypergeometric(base, n - base, half, size=(400, len(base)))
    of_half, other = np.asarray(pass_at_k(half, np.arange(half + 1), k)), np.asarray(pass_at_k(n, rl, k))
    for one in stratified(np.full(len(base), n), base, np.full(len(base), n), rl).strata:
        inside = (drawn >= one.low) & (drawn <= one.high)
        same, again = ((inside * (other - of_half[side])).sum() / inside.sum() for side in (drawn, base - drawn))
        assert one.share == pytest.approx(inside.mean(), abs=0.001)
        assert [one.other - one.same, one.difference.value] == pytest.approx([same, again], abs=0.004)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "seeds", "kind"), [(128, 1, "base"), (64, 3, "base"), (16, 1, "few"), (64, 1, "hard"), (64, 1, "zero")]
)
def test_redraws_are_seldom_told_to_unlock(n: int, seeds: int, kind: str):
    rng = np.random.default_rng(11)
    p = counts_of("base") / 128
    p = {"base": p, "few": p[:120], "hard": np.full(400, 0.005), "zero": np.zeros(100)}[kind]
    told = 0
    for _ in range(200):
        b, r = rng.binomial(n, p)[None], rng.binomial(n, np.broadcast_to(p, (seeds, len(p))))
        found = stratified(np.full(b.shape, n), b, np.full(r.shape, n), r)
        told += any(one.outcome != "cannot be told" for one in found.strata)
    assert told <= 0.05 * 200 + 3 * math.sqrt(200 * 0.05 * 0.95)


@pytest.mark.slow
def test_a_real_gain_on_unsolved_problems_is_told():
    rng = np.random.default_rng(12)
    p = np.concatenate([np.full(150, 0.004), rng.beta(2, 2, 150)])
    found = [
        stratified(np.full(300, 64), rng.binomial(64, p), np.full(300, 64), rng.binomial(64, np.maximum(p, 0.03))).strata[0]
        for _ in range(50)
    ]
    assert np.mean([one.outcome == "higher" for one in found]) > 0.9


def test_copies_in_clusters_are_one_problem():
    rng = np.random.default_rng(13)
    b, r = rng.binomial(16, rng.beta(0.5, 1, (2, 60)))
    alone = stratified(np.full(60, 16), b, np.full(60, 16), r)
    of = [str(i) for i in np.repeat(np.arange(60), 3)]
    copied = stratified(np.full(180, 16), b.repeat(3), np.full(180, 16), r.repeat(3), cluster=of)
    for one, two in zip(alone.strata, copied.strata, strict=True):
        assert (one.difference.low, one.difference.high) == pytest.approx((two.difference.low, two.difference.high))


def test_problems_with_more_samples_than_others_give_halves_of_one_size():
    n = np.array([8, 20] * 10)
    found = stratified(n, n // 2, n, n // 4)
    assert (found.half, found.k) == (4, 2) and sum(one.share for one in found.strata) == pytest.approx(1)


def test_too_few_samples_and_unequal_shapes_are_named():
    assert [largest_k(n) for n in (3, 4, 8, 63, 64, 128)] == [0, 1, 2, 8, 16, 32]
    with pytest.raises(DataError, match="3 samples of a problem"):
        stratified([3, 3], [1, 0], [3, 3], [1, 1])
    with pytest.raises(DataError, match="draw at least 10"):
        stratified([8, 8], [1, 0], [8, 8], [1, 1], k=5)
    with pytest.raises(DataError, match="shapes"):
        stratified([8, 8], [1, 0], [8], [1])
    with pytest.raises(DataError, match="2 and 3 training seeds"):
        stratified(np.full((2, 4), 8), np.ones((2, 4)), np.full((3, 4), 8), np.ones((3, 4)))
