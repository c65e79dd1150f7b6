"""Rewards that the policy computes: worked by hand, ranked by brute force, detached; and the filter by their spread."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sage_rlvr.contrib.self_reward.rlpr import ReferenceProbability, StdFilter, rlpr, std_of
from sage_rlvr.core.extras.source import Substituted, most_repeated, rank_metrics
from sage_rlvr.core.rollout_plans import kept_by, learned_by
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import METHODS, compose
from sage_rlvr.schema import build
from sage_rlvr.testing import check_extra

HALF = [[0.5, 0.5]]


def said(probs: list[list[float]], before: list[list[float]] | None = HALF, repeated: int = 0) -> Substituted:
    """Rows of token probabilities; an empty one is a completion without an answer. `before` stands for every row."""
    mask = torch.tensor([[i < len(row) for i in range(2)] for row in probs])
    rows = torch.tensor([[*row, math.nan, math.nan][:2] for row in probs])
    bare = None if before is None else torch.tensor(before).log().expand(len(probs), 2)
    return Substituted(rows.log(), mask, bare, mask.any(dim=1), torch.full((len(probs),), repeated))


@pytest.mark.parametrize(
    ("part", "probs", "repeated", "support", "reward"),
    [
        (ReferenceProbability(), [0.9, 0.4], 0, 0.15, 0.9 * 0.15 + 0.1),  # .65 - .5
        (ReferenceProbability(), [0.3, 0.4], 0, 0.0, 0.1),  # less than without reasoning: never negative
        (ReferenceProbability(), [], 0, 0.0, 0.0),  # cut off or ill-formed: no format credit either
        (ReferenceProbability(), [], 10, 0.0, -1.0),  # and no shelter from the penalty
        (ReferenceProbability(), [0.9, 0.4], 10, 0.15, 0.235 - 1.0),
        (ReferenceProbability(), [0.9, 0.4], 9, 0.15, 0.235),
        (ReferenceProbability(format_weight=0.0, repetition=0.0), [0.9, 0.4], 99, 0.15, 0.15),
        (ReferenceProbability(clip=0.1), [0.9, 0.4], 0, 0.1, 0.19),
        (ReferenceProbability(debias="none"), [0.9, 0.4], 0, 0.65, 0.685),
        (ReferenceProbability(debias="none"), [0.8], 0, 0.8, 0.82),  # M = 1: the mean is over what is there
        (ReferenceProbability("product", debias="none"), [0.9, 0.4], 0, 0.36, 0.424),
        (ReferenceProbability("product"), [0.9, 0.4], 0, 0.11, 0.199),  # .36 - .25
        (ReferenceProbability("geometric", debias="none"), [0.9, 0.4], 0, 0.6, 0.64),
        (ReferenceProbability("geometric"), [0.9, 0.4], 0, 0.1, 0.19),
    ],
)
def test_by_hand(part: ReferenceProbability, probs: list[float], repeated: int, support: float, reward: float) -> None:
    paid = part.rewards_of(said([probs, [0.2, 0.7]], repeated=repeated))
    assert float(paid.support[0]) == pytest.approx(support, abs=1e-6)
    assert float(paid.rewards[0]) == pytest.approx(reward, abs=1e-6)
    alone = part.rewards_of(said([probs], repeated=repeated))
    assert float(paid.rewards[0]) == pytest.approx(float(alone.rewards[0]))


def test_no_gradient_passes_and_a_part_that_lets_one_pass_is_caught() -> None:
    given = said([[0.9, 0.4], []])
    leaf = torch.nan_to_num(given.logps).requires_grad_(True)
    paid = ReferenceProbability().rewards_of(Substituted(leaf, given.mask, given.before, given.formed, given.repeated))
    assert not paid.rewards.requires_grad and not paid.support.requires_grad
    for part in (ReferenceProbability(), ReferenceProbability("product", debias="none", given=0.5)):
        check_extra(part)

    class Leaks(ReferenceProbability):
        def rewards_of(self, seen: Substituted) -> Any:
            paid = super().rewards_of(seen)
            return type(paid)(paid.rewards + seen.logps.nansum() * 0, paid.support)

    with pytest.raises(AssertionError, match="a reward must have no gradient"):
        check_extra(Leaks())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"form": "median"}, "form = 'median'; set one of mean, product, geometric"),
        ({"debias": "base"}, "debias = 'base'; set one of initial, current, none"),
        ({"format_weight": 1.0}, "format_weight = 1.0 is a fraction"),
        ({"given": -0.1}, "given = -0.1 is a fraction"),
        ({"clip": 0.0}, "clip = 0.0 bounds a probability"),
        ({"repetition": math.inf}, "repetition = inf"),
        ({"ngram": 0}, "ngram = 0; set a whole number"),
        ({"times": True}, "times = True; set a whole number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ReferenceProbability(**change)


def test_a_row_that_is_formed_counts_tokens_and_no_other_does() -> None:
    given = said([[0.9, 0.4], []])
    with pytest.raises(DataError, match="row 0 counts 2 reference tokens, but formed is False"):
        Substituted(given.logps, given.mask, None, ~given.formed, given.repeated)


def test_what_cannot_go_together_is_refused() -> None:
    source = ReferenceProbability()
    with pytest.raises(ConfigError, match="ReferenceProbability replaces the verifier, but Likelihood stores right answers"):
        compose(extras=(build("extra", "likelihood"), source))
    with pytest.raises(ConfigError, match="ReferenceProbability is one of two reward sources"):
        compose(extras=(source, ReferenceProbability("product")))
    with pytest.raises(ConfigError, match="ReferenceProbability changes what Pacs reads as labels"):
        compose(surrogate=build("surrogate", "pacs"), advantage=build("advantage", "signed"), extras=(source,))


def test_the_most_frequent_n_gram_is_counted_where_tokens_count() -> None:
    tokens = torch.tensor([[1, 2, 1, 2, 1, 2, 9, 9], [5, 5, 5, 5, 5, 5, 5, 5], [1, 2, 3, 4, 5, 6, 7, 8], [1, 1, 1, 1, 1, 1, 1, 1]])
    mask = torch.arange(8) < torch.tensor([[6], [8], [8], [1]])
    assert most_repeated(tokens, mask, 2).tolist() == [3, 7, 1, 0]
    assert most_repeated(tokens, mask, 1).tolist() == [3, 8, 1, 1]


def pairs(rewards: torch.Tensor, right: torch.Tensor) -> list[float]:
    """One for each pair of a right and a wrong completion of a row: 1, 0, or 1/2 in a tie."""
    found = []
    for values, marks in zip(rewards.tolist(), right.tolist(), strict=True):
        mine, other = ([v for v, m in zip(values, marks, strict=True) if m is side] for side in (True, False))
        found += [1.0 if a > b else 0.5 if a == b else 0.0 for a in mine for b in other]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_auc_is_a_count_of_pairs(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rewards, right = torch.randint(0, 4, (5, 6), generator=draw) / 4, torch.rand(5, 6, generator=draw) < 0.4
    right[0], right[1] = True, False
    found = rank_metrics(rewards, right)
    within, over = pairs(rewards, right), pairs(rewards.reshape(1, -1), right.reshape(1, -1))
    assert found["reward/auc_in_groups"] == pytest.approx(sum(within) / len(within))
    assert found["reward/auc"] == pytest.approx(sum(over) / len(over))


def test_without_a_pair_there_is_no_auc() -> None:
    rewards = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    assert rank_metrics(rewards, torch.ones(2, 2, dtype=torch.bool)) == {}
    assert rank_metrics(rewards, torch.tensor([[True, True], [False, False]])) == {"reward/auc": 0.0}


# ---- the filter


def of_stds(*stds: float) -> torch.Tensor:
    """(P, 2) whose groups have these standard deviations."""
    return torch.tensor([[0.5 - std, 0.5 + std] for std in stds])


def test_the_running_mean_by_hand() -> None:
    plan = StdFilter(ratio=0.5, decay=0.9, skip=1, collect=2)
    state = {"rollout": plan.start()}
    means, kept = [], []
    for first, second in [(0.4, 0.4), (0.1, 0.3), (0.3, 0.5), (0.1, 0.2), (math.nan, 0.1), (0.0, 0.0), (0.13, 0.15)]:
        rewards = of_stds(first, second)
        kept.append(kept_by(plan, rewards, state).tolist())
        state = dict(learned_by(plan, rewards, state))
        means.append(float(state["rollout"]["std_mean"]))
    # nothing of step 1; the plain mean of .2 and .4; then a tenth of .15, no number, 0 and .14
    assert means == pytest.approx([0, 0.2, 0.3, 0.285, 0.285, 0.2565, 0.9 * 0.2565 + 0.1 * 0.14])
    assert kept[:3] == [[True, True]] * 3  # all, until there is a bar: half of .3
    assert kept[3:] == [[False, True], [False, False], [False, False], [True, True]]  # and half of .285, .285, .2565
    assert int(state["rollout"]["steps"]) == 7


def test_equal_rewards_are_dropped_and_ratio_zero_keeps_all() -> None:
    """r = r' for all completions: std 0 is below any bar; 0 is no bar."""
    state = {"std_mean": torch.tensor(0.01), "steps": torch.tensor(10)}
    assert StdFilter().keeps(of_stds(0.0, 0.006, 0.004), state).tolist() == [False, True, False]
    assert StdFilter(ratio=0.0).keeps(of_stds(0.0, 0.1), state).tolist() == [True, True]
    torch.testing.assert_close(std_of(torch.tensor([[0.0, 0.0, 0.0, 1.0]])), torch.tensor([math.sqrt(3) / 4]))


@pytest.mark.parametrize(
    ("change", "words"),
    [({"ratio": -1.0}, "ratio = -1"), ({"decay": 1.0}, "decay = 1"), ({"collect": 0}, "collect = 0"), ({"skip": 0.5}, "skip = .")],
)
def test_a_filter_that_means_nothing_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        StdFilter(**change)


@pytest.mark.parametrize("name", ["rlpr", "verifree"])
def test_a_description_says_that_no_verifier_is_asked(name: str) -> None:
    text = METHODS[name]().describe()
    assert "only used for metrics" in text and "without a gradient through r" in text and "y* the reference answer" in text
    assert "r = " in text and "verifier's" not in text.split("no verifier")[0]


def test_arguments_reach_their_parts() -> None:
    found = rlpr(debias="current", format_weight=0.2, repetition=0.5, given=0.25, ratio=0.9, max_refills=2)
    assert found.reward_source == ReferenceProbability("mean", "current", 0.2, repetition=0.5, given=0.25)
    assert found.rollout == StdFilter(0.9, max_refills=2) and rlpr(std_filter=False).rollout is None
    assert "own answer tokens, and after the prompt only to nothing" in found.describe()
    assert "to nothing" not in METHODS["verifree"](given=0.5).describe() + METHODS["rlpr"]().describe()
