"""The placebo of advantages: the right completions of a group keep what they earn together, and which one gets what is drawn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.theory.utility import values
from sage_rlvr import recipes
from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.contrib.methods.alpha_dpg import Filtered
from sage_rlvr.contrib.methods.distinct import DistinctRight
from sage_rlvr.contrib.methods.ds_grpo import DifferentialSmoothing
from sage_rlvr.contrib.methods.outcomes import OutcomeRepeats
from sage_rlvr.contrib.methods.pkpo import PassAtKAdvantage
from sage_rlvr.contrib.methods.right_entropy import RightEntropy
from sage_rlvr.contrib.methods.ucpo import UniformRight
from sage_rlvr.contrib.methods.unlikeliness import Unlikeliness, unlikeliness
from sage_rlvr.core.advantages import GroupNormalized, GroupSignals, LeaveOneOut, PowerNormalized, ZeroVariance, sees
from sage_rlvr.core.advantages.placebo import PlaceboRight
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method, advantages_of, credit
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.schedules import Linear
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import compose
from sage_rlvr.testing import check_advantage, check_method

KEY = Key(3407)
TELLING = [DistinctRight(4), DistinctRight(8, 1.0), Filtered(0.0), DifferentialSmoothing(), UniformRight()]
ALIKE = [GroupNormalized(), LeaveOneOut(), PowerNormalized(), PassAtKAdvantage(4, "sloo")]
seeds, steps = st.integers(0, 10_000), st.integers(0, 1_000)


def drawn(seed: int, groups: int = 3) -> tuple[torch.Tensor, GroupSignals]:
    """Groups of 8 of any solve rate, whose completions differ in all that an advantage may see."""
    chance = torch.Generator().manual_seed(seed)
    rewards = (torch.rand(groups, 8, generator=chance) < torch.rand(groups, 1, generator=chance)).float()
    logs = -4 * torch.rand(2, groups, 8, generator=chance)
    lengths, answers = (torch.randint(1, 5, (groups, 8), generator=chance) for _ in range(2))
    rows = torch.randperm(100, generator=chance)[: 8 * groups].reshape(groups, 8)
    return rewards, GroupSignals(lengths, logs[0], logs[1], answers, rows=rows)


def take(seen: GroupSignals, groups: torch.Tensor, order: torch.Tensor) -> GroupSignals:
    found = {name: value for name, value in vars(seen).items() if value is not None}
    return GroupSignals(**{name: value[groups][:, order] for name, value in found.items()})


def own(part, rewards: torch.Tensor, seen: GroupSignals) -> torch.Tensor:
    return part(rewards, seen) if sees(part) else part(rewards)


@pytest.mark.parametrize("part", [*TELLING, *ALIKE], ids=str)
@given(seed=seeds, step=steps)
def test_the_right_ones_keep_their_advantages_together_and_the_wrong_ones_each_its_own(part, seed: int, step: int):
    rewards, seen = drawn(seed)
    wanted, found = own(part, rewards, seen), PlaceboRight(part)(rewards, seen, step, KEY)
    right = rewards == 1
    assert torch.equal(found[~right], wanted[~right])
    for mine, theirs, solved in zip(found, wanted, right, strict=True):
        assert torch.equal(mine[solved].sort().values, theirs[solved].sort().values)
    assert torch.allclose(found.sum(dim=1), wanted.sum(dim=1), atol=1e-5)
    assert torch.equal(found, PlaceboRight(part)(rewards, seen, step, KEY)) and not found.requires_grad
    if part in ALIKE:
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("part", TELLING, ids=str)
@given(seed=seeds, step=steps)
def test_neither_the_order_of_rows_nor_the_other_groups_matter(part, seed: int, step: int):
    """As where an engine shuffles rows, or computes groups of several sizes one after the other."""
    (rewards, seen), placebo = drawn(seed), PlaceboRight(part)
    found = placebo(rewards, seen, step, KEY)
    groups, order = torch.tensor([2, 0]), torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    there = placebo(rewards[groups][:, order], take(seen, groups, order), step, KEY)
    assert torch.allclose(there, found[groups][:, order], atol=1e-5)


@pytest.mark.slow
@given(seed=seeds)
def test_another_step_and_another_seed_draw_anew(seed: int):
    rewards, seen = torch.ones(1, 8), drawn(seed, 1)[1]
    part = PlaceboRight(DifferentialSmoothing())
    rewards[0, 0] = 0.0  # else all rewards are equal, and nothing is paid
    by_step = {tuple(part(rewards, seen, step, KEY)[0].tolist()) for step in range(12)}
    by_seed = {tuple(part(rewards, seen, 0, Key(n))[0].tolist()) for n in range(12)}
    assert len(by_step) > 8 and len(by_seed) > 8  # of 7! orders


def test_every_order_is_as_likely_and_every_right_completion_earns_the_same_on_average():
    """Three right of five, 20 groups in 300 steps are 6,000 draws: each of six orders within five standard deviations,
    sqrt(6000 * 5) / 6 = 29, of 1,000."""
    rewards = torch.tensor([[1.0, 0, 1, 1, 0]]).repeat(20, 1)
    rows = torch.tensor([[31, 4, 2, 77, 5]]) + 100 * torch.arange(20)[:, None]
    seen = GroupSignals(torch.ones(20, 5).long(), -torch.arange(1.0, 6).repeat(20, 1), rows=rows)
    part = DifferentialSmoothing()
    paid, placebo = part(rewards, seen)[0], PlaceboRight(part)
    draws = torch.cat([placebo(rewards, seen, step, KEY) for step in range(300)])
    orders = Counter(map(tuple, draws[:, [0, 2, 3]].tolist()))
    assert len(draws) == 6_000 and len(orders) == 6 and max(abs(n - 1_000) for n in orders.values()) < 145
    right = paid[rewards[0] == 1]
    near = 5 * float(right.std(correction=0)) / 6_000**0.5
    assert draws.mean(dim=0)[[0, 2, 3]].tolist() == pytest.approx([float(right.mean())] * 3, abs=near)
    assert placebo.expected(rewards, seen)[0, [0, 2, 3]].tolist() == pytest.approx([float(right.mean())] * 3)
    assert torch.equal(placebo.expected(rewards, seen)[0, [1, 4]], paid[[1, 4]])


@pytest.mark.parametrize("part", [*TELLING, *ALIKE], ids=str)
def test_the_laws(part):
    check_advantage(PlaceboRight(part))
    if getattr(part, "least_group", 2) == 2:  # its groups have three
        check_method(compose(title="placebo", advantage=PlaceboRight(part), beta=0.05, source="base"))
    assert PlaceboRight(DistinctRight(4)).dead(8) == ZeroVariance("compared", 0.0, "refused")


@pytest.mark.parametrize(("p", "left"), [(0.02, 0.898), (0.05, 0.761), (0.2, 0.298), (0.5, 0.020)])
def test_it_weighs_prompts_as_the_method_does_and_leaves_of_its_preference_what_groups_count_by(p: float, left: float):
    """distinct@16 in groups of 16, right answers of shares .6, .3, .1, exact over all groups: f'(P) is the same, and this share of
    E[A | rarest] - E[A | likeliest] is left. Hard prompts keep most of it: their groups have one right completion."""
    law, right = [0.6 * p, 0.3 * p, 0.1 * p, 1 - p], [True] * 3 + [False]
    method, placebo = (values(part, law, law, right, 16) for part in (DistinctRight(16), PlaceboRight(DistinctRight(16))))
    slopes = [sum(s * v for s, v in zip((0.6, 0.3, 0.1), found, strict=False)) - found[3] for found in (method, placebo)]
    assert slopes[1] == pytest.approx(slopes[0], rel=1e-6)
    assert (placebo[2] - placebo[0]) / (method[2] - method[0]) == pytest.approx(left, abs=5e-4)


# ---- in a method


def batch(seed: int) -> tuple[torch.Tensor, Signals]:
    chance = torch.Generator().manual_seed(seed)
    mask = torch.arange(6)[None] < torch.randint(1, 7, (24, 1), generator=chance)
    logps = -2 * torch.rand(24, 6, generator=chance)
    answers = torch.randint(1, 5, (24,), generator=chance)
    rewards = (torch.rand(3, 8, generator=chance) < 0.6).float()
    return rewards, Signals(logps, None, mask, torch.arange(24), answers=answers)


@pytest.mark.parametrize("transform", [Unlikeliness(), RightEntropy(), OutcomeRepeats()], ids=str)
@given(seed=seeds)
def test_the_preference_of_an_extra_on_rewards_is_permuted_away_too(transform, seed: int):
    """Right is what the verifier says: the transform's rewards are neither 0 nor 1."""
    rewards, signals = batch(seed)
    plain = Method("plain", GroupNormalized(), Clip(), None, FixedBudget(), extras=(transform,))
    placebo = replace(plain, advantage=PlaceboRight(GroupNormalized()))
    wanted = advantages_of(plain, rewards, signals).reshape(3, 8)
    found = credit(placebo, rewards, signals, step=5, key=KEY).grouped
    right = rewards == 1
    assert torch.equal(found[~right], wanted[~right])
    assert all(torch.equal(a[r].sort().values, b[r].sort().values) for a, b, r in zip(found, wanted, right, strict=True))
    assert torch.equal(found, credit(placebo, rewards, signals, step=5, key=KEY).grouped)


def test_it_says_what_it_is():
    said = load_config(TrainConfig, recipes.locate("countdown/distinct_placebo")).method.describe()
    assert "C(G - 1, 15)] permuted among the right completions of its group" in said
    assert "among right answers of a prompt: advantages permuted: no preference on average within a group" in said
    assert "with each right completion given the mean over those of its group" in said
    both = compose(advantage=PlaceboRight(GroupNormalized()), extras=(Unlikeliness(),))
    assert "by rank" in unlikeliness().describe() and "by rank" not in both.describe()


def test_the_recipe_is_that_of_distinct_but_for_the_placebo():
    method, placebo = (load_config(TrainConfig, recipes.locate(f"countdown/{name}")) for name in ("distinct", "distinct_placebo"))
    assert replace(method.method, name="distinct_placebo", advantage=PlaceboRight(method.method.advantage)) == placebo.method
    assert replace(placebo, method=method.method) == method


def test_it_takes_the_attributes_of_what_it_permutes():
    assert PlaceboRight(DistinctRight(6)).least_group == 6 and PlaceboRight(DistinctRight(6)).needs == {"answers"}
    assert PlaceboRight(GroupNormalized()).takes_group_mean and PlaceboRight(GroupNormalized()).needs == frozenset()
    annealed = PlaceboRight(PassAtKAdvantage(Linear(4, 1)))
    assert annealed.at(9, 10) == PlaceboRight(PassAtKAdvantage(1))
    assert PlaceboRight(LeaveOneOut()).at(1, 2) == PlaceboRight(LeaveOneOut())


def test_what_it_refuses():
    _, seen = drawn(0, 1)
    part = PlaceboRight(GroupNormalized())
    with pytest.raises(DataError, match=r"reward of prompt 0, completion 1 is 0\.25; .* use a verifier with right and wrong"):
        part(torch.tensor([[1.0, 0.25, 0, 0, 0, 0, 0, 0]]), seen, 0, KEY)
    with pytest.raises(DataError, match=r"completion 0 is 0\.5"):
        part(torch.ones(1, 8), replace(seen, verdicts=torch.full((1, 8), 0.5)), 0, KEY)
    with pytest.raises(DataError, match="PlaceboRight reads 'rows'"):
        part(torch.ones(1, 8), replace(seen, rows=None), 0, KEY)
    rewards, signals = batch(0)
    with pytest.raises(DataError, match=r"PlaceboRight draws at random; pass key= \(the key of the run\)"):
        credit(Method("placebo", part, Clip(), None, FixedBudget()), rewards, signals)
    with pytest.raises(ConfigError, match="is not an advantage; pass one"):
        PlaceboRight("grpo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="draws at random"):
        PlaceboRight(part)
