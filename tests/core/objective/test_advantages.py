"""Advantages by hand: rewards (1, 0, 0, 1) and (1, 0, 0, 0); BNPO's Beta density against its own optimality."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta as beta_law

from sage_rlvr.core import BetaNormalized, GroupCentered, GroupNormalized, LeaveOneOut
from sage_rlvr.core.advantages import beta as module
from sage_rlvr.core.advantages import beta_parameters
from sage_rlvr.errors import ConfigError, DataError

KINDS = [GroupNormalized, GroupCentered, LeaveOneOut]
REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])


def test_group_centered():
    assert GroupCentered()(REWARDS).tolist() == [[0.5, -0.5, -0.5, 0.5], [0.75, -0.25, -0.25, -0.25]]


def test_leave_one_out_by_brute_force():
    wanted = [row[i] - (sum(row) - row[i]) / 3 for row in REWARDS.tolist() for i in range(4)]
    assert LeaveOneOut()(REWARDS).flatten().tolist() == pytest.approx(wanted)


def test_group_normalized_divides_by_the_sample_std():
    """std of (1,0,0,1) with 3 in the denominator = sqrt(1/3); of (1,0,0,0) = sqrt(.75/3) = .5."""
    found = GroupNormalized()(REWARDS)
    assert found[0].tolist() == pytest.approx([s * 0.5 / (math.sqrt(1 / 3) + 1e-4) for s in (1, -1, -1, 1)])
    assert found[1].tolist() == pytest.approx([0.75 / 0.5001] + [-0.25 / 0.5001] * 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3, -7.3])
def test_equal_rewards_give_exactly_zero(kind, reward):
    assert not kind()(torch.full((2, 7), reward)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_groups_do_not_mix_and_order_follows(kind):
    advantages, order = kind()(REWARDS), torch.tensor([2, 0, 3, 1])
    assert torch.allclose(kind()(REWARDS[:, order]), advantages[:, order])
    assert torch.allclose(kind()(REWARDS[1:]), advantages[1:])
    assert torch.allclose(advantages.sum(dim=1), torch.zeros(2), atol=1e-6)


def test_refusals():
    with pytest.raises(DataError, match="completions per prompt"):
        GroupCentered()(REWARDS[0])
    for kind in (GroupNormalized, LeaveOneOut):
        with pytest.raises(DataError, match="at least 2"):
            kind()(torch.ones(3, 1))
    with pytest.raises(ConfigError, match="eps"):
        GroupNormalized(eps=0.0)


# ---- BNPO

SHARES = (0.1, 0.3, 0.5, 0.9)


def groups(shares=SHARES, size: int = 10) -> torch.Tensor:
    """Rewards (P, G), in each group first the right ones."""
    right = [round(share * size) for share in shares]
    return torch.tensor([[1.0] * n + [0.0] * (size - n) for n in right])


def beta_is(monkeypatch, alpha: float, beta: float) -> None:
    monkeypatch.setattr(module, "beta_parameters", lambda shares, group_size: (alpha, beta))


def test_beta_parameters_by_hand():
    """m = .45, v = .35 / 3 = .116667, m (1 - m) / v - 1 = 1.121429: a = .504643, b = .616786."""
    alpha, beta = beta_parameters(torch.tensor(SHARES, dtype=torch.float64), 10)
    assert (alpha, beta) == pytest.approx((1.168214, 1.205595), abs=1e-6)
    assert ((alpha - 1) * 3, (beta - 1) * 3) == pytest.approx((0.504643, 0.616786), abs=1e-6)


def test_beta_normalized_by_hand():
    found = BetaNormalized()(groups())
    assert BetaNormalized().weights(groups()).tolist() == pytest.approx(
        [1.047642, 0.917052, 0.901819, 1.137322], abs=2e-6
    )
    assert found[:, 0].tolist() == pytest.approx([0.942878, 0.641937, 0.450909, 0.113732], abs=2e-6)
    assert found[:, -1].tolist() == pytest.approx([-0.104764, -0.275116, -0.450909, -1.023590], abs=2e-6)
    assert torch.allclose(found.sum(dim=1), torch.zeros(4), atol=1e-6)


def test_beta_of_one_is_dr_grpo(monkeypatch):
    beta_is(monkeypatch, 1.0, 1.0)
    assert torch.equal(BetaNormalized()(groups()), GroupCentered()(groups()))


def test_beta_of_three_halves_is_grpo_times_pi_over_eight(monkeypatch):
    """1 / f_N = (pi / 8) / sqrt(p (1 - p)), and sqrt(p (1 - p)) is the population's standard deviation."""
    beta_is(monkeypatch, 1.5, 1.5)
    shares = torch.tensor(SHARES)
    assert torch.allclose(
        BetaNormalized().weights(groups()) * (shares * (1 - shares)).sqrt(), torch.tensor(math.pi / 8)
    )
    sample_std = (shares * (1 - shares) * 10 / 9).sqrt()[:, None]
    grpo = GroupNormalized(eps=1e-9)(groups()) * (10 / 9) ** 0.5
    assert torch.allclose(grpo, GroupCentered()(groups()) / sample_std * (10 / 9) ** 0.5)
    assert torch.allclose(BetaNormalized()(groups()), math.pi / 8 * grpo, atol=1e-6)


def variance_model(alpha: float, beta: float, a: float, b: float) -> float:
    """E_{p ~ Beta(a, b)}[p (1 - p) / f_N(p; alpha, beta)^2] by quadrature: what the choice of alpha and beta minimizes."""

    def integrand(p: float) -> float:
        return p * (1 - p) / beta_law.pdf(p, alpha, beta) ** 2 * beta_law.pdf(p, a, b)

    return quad(integrand, 0.0, 1.0, limit=200)[0]


@pytest.mark.slow
def test_alpha_and_beta_are_the_best_for_their_beta():
    """a = 1.2, b = 2: the least value .14063 is at (1 + a/3, 1 + b/3) = (1.4, 1.6667)."""
    at = {
        (1.4, 5 / 3): 0.14063,
        (1.3, 1.6): 0.14192,
        (1.5, 1.7): 0.14258,
        (1.5, 1.5): 0.15421,
        (1.0, 1.0): 0.17857,
    }
    for (alpha, beta), value in at.items():
        assert variance_model(alpha, beta, 1.2, 2.0) == pytest.approx(value, abs=1e-5)
    nearby = [(1.4 + i, 5 / 3 + j) for i in (-0.02, 0.0, 0.02) for j in (-0.02, 0.0, 0.02) if (i, j) != (0.0, 0.0)]
    assert min(variance_model(*point, 1.2, 2.0) for point in nearby) > variance_model(1.4, 5 / 3, 1.2, 2.0)


def test_the_weights_are_those_of_scipys_density():
    shares = torch.tensor(SHARES, dtype=torch.float64)
    wanted = 1 / beta_law.pdf(shares.numpy(), *beta_parameters(shares, 10))
    assert BetaNormalized().weights(groups()).tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


@pytest.mark.parametrize("parameters", [(1.0, 1.0), (1.7, 1.2), (40.0, 300.0)])
def test_dead_groups_are_exactly_zero(monkeypatch, parameters):
    """p = 0 or 1 with f_N = 0 there would be 0 * infinity."""
    beta_is(monkeypatch, *parameters)
    found = BetaNormalized()(groups((0.0, 0.5, 1.0)))
    assert not found[[0, 2]].any() and found[1].abs().min() > 0 and found.isfinite().all()
    assert not BetaNormalized()(groups((0.0, 1.0))).any()


def test_one_prompt_has_no_variance_and_the_weight_one():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a variance over one number, so it is not taken
        found = BetaNormalized()(groups((0.3,)))
    assert torch.equal(found, GroupCentered()(groups((0.3,))))


def test_a_variance_beyond_bernoullis_gives_the_weight_one():
    """v against m (1 - m): .5 > .25 and .3025 > .249375, so c < 0; for (0, 1, 1, .5) .229167 < .234375."""
    assert beta_parameters(torch.tensor([0.0, 1.0], dtype=torch.float64), 10) == (1.0, 1.0)
    assert beta_parameters(torch.tensor([0.0, 1.0, 1.0, 0.1], dtype=torch.float64), 10) == (1.0, 1.0)
    assert beta_parameters(torch.tensor([0.0, 1.0, 1.0, 0.5], dtype=torch.float64), 10)[0] > 1.0


def test_equal_shares_meet_the_floor_of_the_variance():
    """v = 1 / (P G^2) = .0025 at P = 4, G = 10 and p = .3: c = .21 / .0025 - 1 = 83, alpha = 9.3, beta = 20.366667."""
    equal = torch.full((4,), 0.3, dtype=torch.float64)
    assert beta_parameters(equal, 10) == pytest.approx((9.3, 1 + 0.7 * 83 / 3))
    weights = BetaNormalized().weights(groups((0.3,) * 4))
    assert weights.tolist() == pytest.approx([1 / beta_law.pdf(0.3, 9.3, 1 + 0.7 * 83 / 3)] * 4, rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(places=st.lists(st.integers(1, 11), min_size=2, max_size=8, unique=True))
def test_the_floor_never_touches_prompts_that_differ(places):
    """The smallest variance above 0 is one right completion in one prompt; any real one is at least that."""
    shares = torch.tensor(places, dtype=torch.float64) / 12
    least = torch.tensor([0.0] * (len(places) - 1) + [1 / 12], dtype=torch.float64).var()
    assert float(least) == pytest.approx(1 / (len(places) * 12**2)) and float(shares.var()) >= float(least) * (1 - 1e-9)


def test_the_weight_has_a_ceiling(monkeypatch):
    beta_is(monkeypatch, 200.0, 200.0)
    assert float(BetaNormalized().weights(groups((0.1, 0.5)))[0]) == 1e6


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 8), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_order_follows_and_groups_sum_to_zero(counts, seed):
    rewards = groups([n / 8 for n in counts], 8)
    drawn = torch.Generator().manual_seed(seed)
    prompts, members = torch.randperm(len(counts), generator=drawn), torch.randperm(8, generator=drawn)
    found = BetaNormalized()(rewards)
    assert torch.allclose(BetaNormalized()(rewards[prompts][:, members]), found[prompts][:, members], rtol=1e-5)
    assert found.isfinite().all() and found.sum(dim=1).abs().max() <= 1e-5 * max(1.0, float(found.abs().max()))


def test_beta_normalized_couples_prompts_and_says_so():
    alone, beside = BetaNormalized()(groups()[:2])[0], BetaNormalized()(groups())[0]
    assert not torch.allclose(alone, beside)
    assert BetaNormalized().couples_prompts and not any(kind().couples_prompts for kind in KINDS)


@pytest.mark.parametrize("reward", [0.5, -1.0, 2.0, math.nan])
def test_rewards_of_bnpo_are_zero_or_one(reward):
    rewards = groups()
    rewards[2, 3] = reward
    with pytest.raises(DataError, match=rf"prompt 2, completion 3 is {reward:g}.*0 or 1.*GroupNormalized"):
        BetaNormalized()(rewards)
    with pytest.raises(DataError, match="at least 2"):
        BetaNormalized()(torch.ones(3, 1))
