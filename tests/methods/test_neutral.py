"""What each method adds to GRPO, on losses and gradients: neutral settings give GRPO's, the rest is worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.core import Batch, FixedBudget, SequenceMean, Signals, advantages_of, objective
from sage_rlvr.methods import bnpo, dapo, dr_grpo, forward_kl, grpo, grpo_token_mean, no_kl

P, G, T = 4, 4, 6
seeds = st.integers(0, 2**31 - 1)
PLAIN = {"clip_high": 0.2, "dual": None}


def world(seed: int, equal_lengths: bool = False, spread: float = 0.5):
    """(logps, Signals, rewards): a policy that has moved by up to `spread` nats since the rollout, rewards 0 and 1."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.full((P * G, 1), T) if equal_lengths else torch.randint(1, T + 1, (P * G, 1), generator=drawn)
    mask = torch.arange(T)[None] < lengths
    old = -3 * torch.rand(P * G, T, generator=drawn)
    ref = old + torch.rand(P * G, T, generator=drawn) - 0.5
    logps = old + spread * (2 * torch.rand(P * G, T, generator=drawn) - 1)
    return logps, Signals(old, ref, mask, torch.arange(P * G)), torch.randint(0, 2, (P, G), generator=drawn).float()


def gradient(method, world_, rows=slice(None), budget=None) -> torch.Tensor:
    logps, signals, rewards = world_
    leaf = logps.clone().requires_grad_(True)
    advantages = advantages_of(method, rewards, signals)
    parts = (part[rows] for part in (leaf, signals.old_logps, signals.ref_logps, signals.mask, advantages))
    loss, _ = objective(method, Batch(*parts, max_tokens=T), 0, 1, budget)
    return torch.autograd.grad(loss, leaf)[0]


def loss_of(method, logps, old, mask, advantages) -> tuple[float, torch.Tensor]:
    leaf = logps.clone().requires_grad_(True)
    loss, _ = objective(method, Batch(leaf, old, old, mask, advantages, max_tokens=logps.shape[1]), 0, 1)
    return float(loss.detach()), torch.autograd.grad(loss, leaf)[0]


# ---- DAPO


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_dapo_with_every_part_of_its_own_off_has_grpos_gradient(seed):
    """At one length the mean over tokens is the mean over rows of the mean over a row's tokens."""
    off, same = dapo(**PLAIN, dynamic_sampling=False), world(seed, equal_lengths=True)
    assert torch.allclose(gradient(off, same), gradient(no_kl(), same), rtol=1e-5, atol=1e-9)
    assert torch.allclose(gradient(replace(off, reduction=SequenceMean()), world(seed)), gradient(no_kl(), world(seed)))
    leashed = dapo(beta=0.05, **PLAIN, dynamic_sampling=False)
    assert torch.allclose(gradient(leashed, same), gradient(grpo(), same), rtol=1e-5, atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_the_signed_reward_alone_cancels_under_the_groups_std(seed):
    """A buffer that no completion reaches: only -1/+1 for 0/1 is left, and with it half of eps."""
    same = world(seed)
    signed = dapo(overlong_buffer=1, max_tokens=10 * T)
    assert torch.allclose(gradient(signed, same), gradient(dapo(), same), rtol=2e-4, atol=1e-8)


@settings(max_examples=10, deadline=None)
@given(seed=seeds, low=st.floats(0.0, 1.0), high=st.floats(0.0, 2.0))
def test_on_policy_no_clip_can_act(seed, low, high):
    same = world(seed, spread=0.0)
    assert torch.equal(gradient(dapo(clip_low=low, clip_high=high, dual=1.1), same), gradient(dapo(), same))


def test_token_mean_and_sequence_mean_disagree_by_hand():
    """Lengths 2 and 8, A = +1 and -1, rho = 1: J = (2 - 8) / 10 = -.6 over tokens and 0 over rows."""
    mask = torch.arange(8)[None] < torch.tensor([[2], [8]])
    old, advantages = torch.full((2, 8), -1.0), torch.tensor([1.0, -1.0])
    assert loss_of(dapo(), old, old, mask, advantages)[0] == pytest.approx(0.6)
    assert loss_of(no_kl(), old, old, mask, advantages)[0] == pytest.approx(0.0)
    assert loss_of(bnpo(), old, old, mask, advantages)[0] == pytest.approx((8 - 2) / 2)


@pytest.mark.parametrize(
    ("ratio", "advantage", "flows"), [(1.25, 1.0, True), (1.29, 1.0, False), (0.75, -1.0, False), (0.81, -1.0, True)]
)
def test_clip_higher_by_hand(ratio, advantage, flows):
    old, mask = torch.zeros(1, 1), torch.ones(1, 1).bool()
    moved = torch.tensor([[math.log(ratio)]])
    for method in (dapo(), bnpo()):
        assert bool(loss_of(method, moved, old, mask, torch.tensor([advantage]))[1].any()) == flows
    narrow = loss_of(grpo(beta=0.0), moved, old, mask, torch.tensor([advantage]))[1]
    assert bool(narrow.any()) == (flows and ratio < 1.2)


def test_the_recipes_dual_clip_by_hand():
    """rho = 11 and A = -1: the loss is 10 and flat; GRPO's is 11 and steep."""
    old, mask, advantages = torch.zeros(1, 1), torch.ones(1, 1).bool(), torch.tensor([-1.0])
    moved = torch.tensor([[math.log(11.0)]])
    for method in (dapo(), bnpo()):
        loss, slope = loss_of(method, moved, old, mask, advantages)
        assert loss == pytest.approx(10.0) and not slope.any()
    assert loss_of(no_kl(), moved, old, mask, advantages)[0] == pytest.approx(11.0)


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_dropping_dead_groups_changes_the_length_of_the_gradient_and_not_its_direction(seed):
    """Their advantages are 0; the divisor alone counted their tokens."""
    logps, signals, rewards = world(seed)
    rewards[0], rewards[1] = 1.0, torch.tensor([1.0, 0.0, 0.0, 1.0])
    kept = dapo().rollout.keeps(rewards).repeat_interleave(G)
    assert not kept[:G].any() and kept[G : 2 * G].all()
    whole, alone = gradient(dapo(), (logps, signals, rewards)), gradient(dapo(), (logps, signals, rewards), kept)
    tokens = float(signals.mask.sum()) / float(signals.mask[kept].sum())
    assert torch.allclose(alone, tokens * whole, rtol=1e-4, atol=1e-8) and not whole[~kept].any()


@pytest.mark.parametrize("method", [dapo(beta=0.05), bnpo(beta=0.05), grpo_token_mean()], ids=lambda m: m.name)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_micro_batches_add_up_to_the_same_gradient(method, parts):
    """The divisor is that of the update; one of each micro-batch would depend on how the batch was cut."""
    same = world(3)
    mask = same[1].mask
    budget = method.reduction.budget(mask, T)
    size = P * G // parts
    summed = sum(gradient(method, same, slice(i * size, (i + 1) * size), budget) for i in range(parts))
    assert torch.allclose(summed, gradient(method, same), rtol=1e-5, atol=1e-9)
    if parts == 4 and method.reduction.divisor == "batch":
        local = sum(gradient(method, same, slice(i * size, (i + 1) * size)) for i in range(parts)) / parts
        assert not torch.allclose(local, gradient(method, same), rtol=1e-2)


# ---- grpo_token_mean


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_grpo_token_mean_is_the_sum_over_tokens_by_their_number(seed):
    """TRL's loss_type="bnpo" on one process without accumulation, written out."""
    logps, signals, rewards = world(seed)
    leaf = logps.clone().requires_grad_(True)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)
    ratios, log_ratio = torch.exp(leaf - signals.old_logps), leaf - signals.ref_logps
    surrogate = -torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
    per_token = surrogate + 0.05 * (torch.exp(-log_ratio) - 1 + log_ratio)
    loss = (per_token * signals.mask).sum() / signals.mask.sum()
    (wanted,) = torch.autograd.grad(loss, leaf)
    assert torch.allclose(gradient(grpo_token_mean(), (logps, signals, rewards)), wanted, rtol=1e-4, atol=1e-8)
    same = world(seed, equal_lengths=True)
    assert torch.allclose(gradient(grpo_token_mean(), same), gradient(grpo(), same), rtol=1e-5, atol=1e-9)


# ---- BNPO


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_bnpo_of_one_prompt_is_dr_grpo_up_to_the_constant(seed):
    """One prompt has no variance, so f_N = 1; BNPO divides by B and Dr. GRPO by B L."""
    logps, signals, rewards = world(seed)
    one = Signals(signals.old_logps[:G], signals.ref_logps[:G], signals.mask[:G], torch.arange(G))
    own = (logps[:G], one, rewards[:1])
    assert torch.allclose(gradient(bnpo(**PLAIN), own), T * gradient(dr_grpo(), own), rtol=1e-5)


def test_bnpo_weights_whole_prompts():
    """Row by row its gradient is Dr. GRPO's times the weight of the prompt."""
    logps, signals, _ = world(5)
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    weights = bnpo().advantage.weights(rewards).repeat_interleave(G)[:, None]
    assert (weights[: 3 * G] - 1).abs().max() > 0.01
    constant = replace(dr_grpo(), reduction=FixedBudget(1))
    wanted = weights * gradient(constant, (logps, signals, rewards))
    assert torch.allclose(gradient(bnpo(**PLAIN), (logps, signals, rewards)), wanted, rtol=1e-5)


def test_bnpo_with_the_kl_in_the_reward_shrinks_it_like_the_reward():
    """Both subtract the whole group's mean: the penalty is the one of dr_grpo, (G - 1) / G, and not weighted."""
    _, signals, rewards = world(6)
    settings_ = {"beta": 0.5, "estimator": "k1", "placement": "reward"}
    penalties = [
        advantages_of(method, rewards, signals) - method.advantage(rewards).reshape(-1, 1)
        for method in (bnpo(**settings_), dr_grpo(**settings_))
    ]
    assert torch.allclose(*penalties, atol=1e-6) and penalties[0].abs().max() > 0.1


# ---- forward_kl


def distributions(seed: int, vocabulary: int = 5):
    """Logits of policy and reference, (B, T, V), and the tokens drawn from the policy, (B, T)."""
    drawn = torch.Generator().manual_seed(seed)
    logits, ref = (torch.randn(P * G, T, vocabulary, generator=drawn) for _ in range(2))
    tokens = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=drawn).reshape(P * G, T)
    return logits, torch.log_softmax(ref, -1), tokens


def exact_gradient(method, logits, ref, tokens, mask, advantages, log_q=None):
    leaf = logits.clone().requires_grad_(True)
    log_probs = torch.log_softmax(leaf, -1)
    logps, ref_logps = (values.gather(-1, tokens[..., None])[..., 0] for values in (log_probs, ref))
    batch = Batch(
        logps, logps.detach(), ref_logps, mask, advantages, log_q, max_tokens=T, log_probs=log_probs, ref_log_probs=ref
    )
    loss, metrics = objective(method, batch, 0, 1)
    return torch.autograd.grad(loss, leaf)[0], metrics


def test_forward_kl_pulls_by_pi_less_pi_ref_at_every_counted_state():
    """Without advantages the gradient on the logits is beta / (B |y|) (pi - pi_ref), and with q in front with Branch."""
    logits, ref, tokens = distributions(0)
    mask = world(0)[1].mask
    q = torch.linspace(1.0, 1.4, P * G * T).reshape(P * G, T)
    scale = 0.05 * mask / (P * G * mask.sum(1, keepdim=True))
    pull = scale[..., None] * (logits.softmax(-1) - ref.exp())
    for log_q, wanted in ((None, pull), (q.log(), q[..., None] * pull)):
        found = exact_gradient(forward_kl(), logits, ref, tokens, mask, torch.zeros(P * G), log_q)[0]
        assert torch.allclose(found, wanted, atol=1e-8, rtol=1e-4)


def test_forward_kl_is_what_grpos_k3_is_on_average():
    """The mean of k3's gradient over the tokens of a state, drawn by the policy, is the exact one."""
    logits, ref, tokens = distributions(1)
    mask, none = world(1)[1].mask, torch.zeros(P * G)
    exact = exact_gradient(forward_kl(), logits, ref, tokens, mask, none)[0]
    probs, mean = logits.softmax(-1), torch.zeros_like(logits)
    for token in range(logits.shape[-1]):
        drawn = torch.full_like(tokens, token)
        mean += probs[..., token, None] * exact_gradient(grpo(), logits, ref, drawn, mask, none)[0]
    assert torch.allclose(exact, mean, atol=1e-7)
    assert not torch.allclose(exact, exact_gradient(grpo(), logits, ref, tokens, mask, none)[0], atol=1e-4)


def test_at_its_reference_forward_kl_is_no_kl_bit_for_bit():
    """Value 0 and gradient 0 exactly, not up to rounding."""
    logits, _, tokens = distributions(2)
    mask, advantages = world(2)[1].mask, torch.linspace(-1, 1, P * G)
    ref = torch.log_softmax(logits, -1)
    found, _ = exact_gradient(forward_kl(), logits, ref, tokens, mask, advantages)
    wanted, _ = exact_gradient(no_kl(), logits, ref, tokens, mask, advantages)
    assert torch.equal(found, wanted)


def test_beta_zero_is_no_kl_for_every_method():
    for method in (forward_kl(beta=0.0), grpo_token_mean(beta=0.0), dapo(), bnpo()):
        assert method.anchor is None and method.needs == frozenset()
