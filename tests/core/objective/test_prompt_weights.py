"""Prompt weights by hand, and the laws of the advantage that they multiply and of its placebo."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta as beta_law

from sage_rlvr.contrib.methods.bbg import bbg, zero_success
from sage_rlvr.contrib.methods.dars import dars
from sage_rlvr.contrib.methods.f_grpo import f_grpo
from sage_rlvr.contrib.methods.w_reinforce import Signed
from sage_rlvr.core import Anchor, Clip, FixedBudget, Method
from sage_rlvr.core.advantages import GroupNormalized, GroupSignals
from sage_rlvr.core.advantages.prompts import Focal, PlaceboPrompts, Posterior, PromptGate, PromptWeighted
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import advantages_of, credit, objective
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import grpo
from sage_rlvr.testing import check_advantage

KEY = Key(5)
GROUPS = st.integers(2, 6).flatmap(
    lambda size: st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=size, max_size=size), min_size=1, max_size=7)
)


def signals(prompts: int, size: int, counts: list[tuple[int, int]] | None = None) -> Signals:
    rows = prompts * size
    known = None if counts is None else torch.tensor(counts).repeat_interleave(size, 0)
    logps = torch.full((rows, 2), -0.5)
    return Signals(logps, logps - 0.1, torch.ones(rows, 2, dtype=torch.bool), torch.arange(rows), base_counts=known)


def weights(weight, right: list[int], tried: list[int]) -> list[float]:
    return weight.weigh(torch.tensor(right).double(), torch.tensor(tried).double()).tolist()


# ---- weights


def test_focal_by_hand():
    assert weights(Focal(2.0), [0, 1, 2, 4], [4] * 4) == [1.0, 0.5625, 0.25, 0.0]
    assert weights(Focal(0.0), [0, 4], [4, 4]) == [1.0, 1.0]


def test_posterior_by_hand():
    # k B(1 + c, n - c + k) / B(1 + c, 1 + n - c): n = 2, k = 3, c = 0: 3 B(1, 5) / B(1, 3) = 3 (1/5) / (1/3) = 9/5
    # c = 1: 3 B(2, 4) / B(2, 2) = 3 (1/20) / (1/6) = 9/10; c = 2: 3 B(3, 3) / B(3, 1) = 3 (1/30) / (1/3) = 3/10
    assert weights(Posterior(3), [0, 1, 2], [2, 2, 2]) == pytest.approx([1.8, 0.9, 0.3])
    assert weights(Posterior(1), [0, 5], [8, 8]) == pytest.approx([1.0, 1.0])


@given(st.integers(1, 12), st.data(), st.integers(1, 300))
def test_posterior_is_the_mean_of_the_derivative_of_pass_at_k(n: int, data: st.DataObject, k: int):
    c = data.draw(st.integers(0, n))
    law = beta_law(1 + c, 1 + n - c)
    wanted, _ = quad(lambda p: law.pdf(p) * k * (1 - p) ** (k - 1), 0, 1, points=[1 / k, 5 / k] if k > 5 else None, limit=400)
    assert weights(Posterior(k), [c], [n])[0] == pytest.approx(wanted, rel=1e-6, abs=1e-10)


def test_gate_by_hand():
    assert weights(PromptGate(at_most=0), [0, 1], [8, 8]) == [1.0, 0.0]
    assert weights(PromptGate(below=0.1), [0, 1, 2], [10, 10, 10]) == [1.0, 0.0, 0.0]
    assert weights(PromptGate(at_most=0.1), [0, 1, 2], [10, 10, 10]) == [1.0, 1.0, 0.0]
    # unbiased pass@2 of n = 4: 1 - C(4 - c, 2) / 6 = 0, 1/2, 5/6, 1, 1
    assert weights(PromptGate(k=2, above=0.5), [0, 1, 2, 3, 4], [4] * 5) == [0.0, 0.0, 1.0, 1.0, 1.0]


@given(st.integers(1, 10), st.data(), st.integers(1, 20))
def test_pass_at_k_is_unbiased_where_samples_suffice_and_the_posterior_mean_elsewhere(n: int, data: st.DataObject, k: int):
    c = data.draw(st.integers(0, n))
    got = PromptGate(k=k).pass_at_k(torch.tensor([float(c)]).double(), torch.tensor([float(n)]).double()).item()
    if n >= k:
        wanted = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    else:  # E[(1 - p)^k] = prod_{i < k} (1 + n - c + i) / (2 + n + i)
        wanted = 1 - math.prod((Fraction(1 + n - c + i, 2 + n + i) for i in range(k)), start=Fraction(1))
    assert got == pytest.approx(float(wanted), abs=1e-9)


def test_with_64_samples_a_uniform_prior_calls_every_problem_solvable_in_256():
    assert weights(PromptGate(k=256, above=0.4), [0], [64]) == [1.0]  # 256 / 321 = 0.80
    assert weights(PromptGate(k=256, above=0.4), [0, 1], [256, 256]) == [0.0, 1.0]


# ---- the advantage


@given(GROUPS)
def test_gamma_0_is_grpo_bit_for_bit(rows: list[list[float]]):
    rewards = torch.tensor(rows)
    given_signals = signals(*rewards.shape)
    assert torch.equal(advantages_of(f_grpo(gamma=0.0), rewards, given_signals), advantages_of(grpo(), rewards))


def test_a_solved_group_weighs_0_and_the_others_their_focal_weight():
    rewards = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    own = advantages_of(grpo(), rewards).reshape(3, 4)
    got = advantages_of(f_grpo(gamma=2.0), rewards, signals(3, 4)).reshape(3, 4)
    assert torch.equal(got, own * torch.tensor([[0.0], [0.5625], [0.0625]]))


def test_zero_success_pays_minus_one_where_nothing_is_right_and_nothing_elsewhere():
    rewards = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    got = advantages_of(zero_success(), rewards, signals(3, 3))
    assert got.tolist() == [-1.0] * 3 + [0.0] * 6


@pytest.mark.parametrize("size", [2, 3, 5])
def test_zero_success_ascends_pass_at_the_group_size(size: int):
    """E[mean_i A_i d log pi(y_i) / dP] over all groups equals (1 - P)^(G-1), the derivative of pass@G over G."""
    chance = Fraction(3, 10)
    total = Fraction(0)
    for group in itertools.product((0, 1), repeat=size):
        advantages = advantages_of(zero_success(), torch.tensor([group]).float(), signals(1, size)).tolist()
        law = math.prod(chance if right else 1 - chance for right in group)
        score = [1 / chance if right else -1 / (1 - chance) for right in group]
        total += law * sum(Fraction(a) * s for a, s in zip(advantages, score, strict=True)) / size
    assert total == (1 - chance) ** (size - 1)
    assert "(1/G) grad pass@G" in zero_success().describe()


def test_stored_counts_weigh_prompts_whatever_the_group_says():
    method = bbg(k=3, of="base")
    rewards = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    got = advantages_of(method, rewards, signals(2, 2, [(0, 2), (2, 2)])).reshape(2, 2)
    assert got.flatten().tolist() == pytest.approx([1.8, -1.8, 0.3, -0.3])
    with pytest.raises(DataError, match="base_counts"):
        advantages_of(method, rewards, signals(2, 2))


def test_the_weight_counts_verdicts_and_not_what_extras_make_of_them():
    verdicts = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    seen = GroupSignals(torch.ones(1, 4), torch.zeros(1, 4), rows=torch.arange(4)[None], verdicts=verdicts)
    part = PromptWeighted(GroupNormalized(), Focal(1.0))
    shaped = torch.tensor([[0.5, 0.0, 0.0, 0.0]])
    assert torch.equal(part(shaped, seen), GroupNormalized()(shaped) * 0.75)


# ---- the placebo


@given(GROUPS, st.integers(0, 5))
def test_a_permutation_keeps_the_weights_of_a_step_and_their_mean(rows: list[list[float]], step: int):
    rewards = torch.tensor(rows)
    seen = GroupSignals(torch.ones(rewards.shape), rewards, rows=torch.arange(rewards.numel()).reshape(rewards.shape))
    own, permuted = Focal(1.5)(rewards, seen), PlaceboPrompts(Focal(1.5))(rewards, seen, step, KEY)
    assert torch.equal(own.sort().values, permuted.sort().values)
    again = PlaceboPrompts(Focal(1.5))(rewards, seen, step, KEY)
    assert torch.equal(permuted, again)
    turned = replace(seen, rows=seen.rows.flip(0), lengths=seen.lengths, policy=seen.policy)
    assert torch.equal(PlaceboPrompts(Focal(1.5))(rewards.flip(0), turned, step, KEY).flip(0), permuted)


def test_every_prompt_gets_every_weight_equally_often():
    rewards = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    seen = GroupSignals(torch.ones(3, 2), rewards, rows=torch.arange(6).reshape(3, 2))
    drawn = torch.stack([PlaceboPrompts(Focal(1.0))(rewards, seen, step, KEY) for step in range(900)])
    for weight in (0.0, 0.5, 1.0):
        assert (drawn == weight).float().mean(dim=0).tolist() == pytest.approx([1 / 3] * 3, abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        PromptWeighted(GroupNormalized(), Focal(2.0)),
        PromptWeighted(Signed(1, 1), PromptGate(at_most=0)),
        PromptWeighted(Signed(1, 0.5), Posterior(4)),
        PromptWeighted(Signed(1, 1), Posterior(8, of="base")),
        PromptWeighted(GroupNormalized(), PlaceboPrompts(Focal(1.0))),
        PromptWeighted(Signed(1, 1), PlaceboPrompts(PromptGate(at_most=0))),
    ],
    ids=str,
)
def test_the_laws_of_an_advantage_hold(part: PromptWeighted):
    for seed in range(3):
        check_advantage(part, seed)


# ---- the KL


@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_the_kl_of_a_prompt_of_weight_0_does_not_act(placement: str):
    gate = PromptGate(below=0.1, of="base")
    kind = {"loss": "k3", "reward": "k1"}[placement]
    with_kl = Method("m", GroupNormalized(), Clip(), Anchor(0.5, estimator=kind, placement=placement, prompts=gate), FixedBudget(2))
    rewards, known = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), signals(2, 2, [(0, 20), (10, 20)])
    known = replace(known, ref_logps=torch.linspace(-2, -0.1, 8).reshape(4, 2))
    gradients = []
    for method in (
        with_kl,
        replace(with_kl, anchor=None),
        replace(with_kl, anchor=replace(with_kl.anchor, prompts=None)),
    ):
        credited = credit(method, rewards, known)
        logps = (known.old_logps + 0.0).requires_grad_(True)
        batch = Batch(logps, known.old_logps, known.ref_logps, known.mask, credited.advantages, kl_weights=credited.kl_weights)
        objective(method, batch, 0, 1)[0].backward()
        gradients.append(logps.grad)
    gated, none, every = gradients
    assert torch.equal(gated[:2], every[:2]) and torch.equal(gated[2:], none[2:])
    assert not torch.equal(every[2:], none[2:]) and not torch.equal(every[:2], none[:2])
    assert f"v_x = {gate.equation}" in with_kl.describe() and "0.5 * v_x *" in with_kl.describe()


def test_a_permuted_kl_keeps_the_mean_beta():
    gate = PlaceboPrompts(PromptGate(below=0.1, of="base"))
    method = replace(grpo(), anchor=Anchor(0.5, prompts=gate))
    known = signals(4, 2, [(0, 20), (10, 20), (10, 20), (0, 20)])
    found = set()
    for step in range(20):
        weights_of_rows = credit(method, torch.tensor([[1.0, 0.0]] * 4), known, step=step, key=KEY).kl_weights
        assert weights_of_rows.mean() == 0.5
        found.add(tuple(weights_of_rows[::2].tolist()))
    assert len(found) == 6


# ---- refusals


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Focal(-1.0), "gamma = -1.0"),
        (lambda: Focal(of="store"), "of = 'store'"),
        (lambda: Posterior(0), "k = 0"),
        (lambda: Posterior(right=0.0), "right = 0.0"),
        (lambda: PromptGate(above=0.4), "above = 0.4"),
        (lambda: PromptGate(below=0.0), "below = 0.0"),
        (lambda: PlaceboPrompts(GroupNormalized()), "GroupNormalized"),
        (lambda: PromptWeighted(GroupNormalized(), GroupNormalized()), "no prompt weight"),
        (lambda: PromptWeighted(GroupNormalized(), PromptGate(at_most=0)), "no prompt would count"),
        (lambda: Anchor(0.1, prompts=0.5), "prompts = 0.5"),
        (
            lambda: replace(dars(), advantage=PromptWeighted(GroupNormalized(), PlaceboPrompts(Focal()))),
            "PromptWeighted",
        ),
    ],
)
def test_what_means_nothing_is_refused(make, named: str):
    with pytest.raises(ConfigError) as error:
        make()
    assert named in str(error.value)


def test_rewards_without_right_and_wrong_are_refused():
    with pytest.raises(DataError, match=r"reward of prompt 0, completion 1 is 0\.5"):
        advantages_of(f_grpo(), torch.tensor([[1.0, 0.5]]), signals(1, 2))
