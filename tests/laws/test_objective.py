"""Laws of the whole: Flat is the base, micro-batches add up, nothing off the mask leaks, beta 0 is no KL."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.core import Anchor, Batch, Flat, Key, Linear, Signals, Token, TokenMean, advantages_of, objective, shape
from sage_rlvr.methods import METHODS, dr_grpo, grpo, no_kl, rloo, sage

P, G, T = 3, 4, 7
BASES = {
    "grpo": grpo(),
    "grpo k3_is": grpo(estimator="k3_is"),
    "grpo k2": grpo(estimator="k2", beta=Linear(0.1, 0.01)),
    "dr_grpo": dr_grpo(beta=0.05),
    "dr_grpo reward": dr_grpo(beta=0.05, estimator="k1", placement="reward"),
    "rloo": rloo(beta=0.05),
    "token mean": replace(grpo(estimator="straight_through"), reduction=TokenMean()),
}
ALL = BASES | {
    "no_kl": no_kl(),
    "dr_grpo without kl": dr_grpo(),
    "sage": sage(),
    "sage rloo": sage(rloo(beta=0.05), Token()),
    "sage token": sage(dr_grpo(beta=0.05), Token(norm="rank")),
}
seeds = st.integers(0, 2**31 - 1)


def world(seed: int, junk: float = 0.0) -> tuple[torch.Tensor, Signals, torch.Tensor]:
    """(current logps, signals of the rollout, rewards); `junk` stands wherever the mask is 0."""
    drawn = torch.Generator().manual_seed(seed)
    mask = torch.arange(T)[None] < torch.randint(0, T + 1, (P * G, 1), generator=drawn)

    def draw(scale: float) -> torch.Tensor:
        return torch.where(mask, scale * torch.rand(P * G, T, generator=drawn), junk)

    old = -draw(3.0)
    signals = Signals(old, old + draw(1.0) - draw(1.0), mask, torch.arange(P * G), entropies=draw(3.0))
    return old + draw(0.6) - draw(0.6), signals, torch.randint(0, 2, (P, G), generator=drawn).float()


def batch_of(method, logps, signals, rewards, rows=slice(None)) -> Batch:
    log_q = shape(method, signals, 3, 10, Key(5))
    advantages = advantages_of(method, rewards, signals, log_q, 3, 10)
    return Batch(
        logps[rows], signals.old_logps[rows], signals.ref_logps[rows], signals.mask[rows], advantages[rows],
        log_q[rows], signals.entropies[rows], T,
    )  # fmt: skip


def loss_and_gradient(method, world_, rows=slice(None), budget=None):
    logps, signals, rewards = world_
    leaf = logps.clone().requires_grad_(True)
    loss, metrics = objective(method, batch_of(method, leaf, signals, rewards, rows), 3, 10, budget)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient, metrics


@pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_flat_is_the_base_bit_for_bit(base, seed):
    plain, flat = (loss_and_gradient(method, world(seed)) for method in (base, sage(base, Flat())))
    assert torch.equal(plain[0], flat[0]) and torch.equal(plain[1], flat[1])
    assert plain[2] == flat[2]


def test_every_published_method_with_an_anchor_is_among_the_bases():
    assert {"grpo", "dr_grpo", "rloo"} == set(METHODS) - {"sage", "no_kl"}
    assert {name.split()[0] for name in BASES} >= {"grpo", "dr_grpo", "rloo"}


@pytest.mark.parametrize("method", ALL.values(), ids=ALL.keys())
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
def test_micro_batches_add_up(method, seed):
    data = world(seed)
    budget = method.reduction.budget(data[1].mask, T)
    loss, gradient, _ = loss_and_gradient(method, data)
    parts = [loss_and_gradient(method, data, slice(i, i + 5), budget) for i in range(0, P * G, 5)]
    assert torch.allclose(sum(part[0] for part in parts), loss, atol=1e-6)
    assert torch.allclose(sum(part[1] for part in parts), gradient, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("method", ALL.values(), ids=ALL.keys())
@pytest.mark.parametrize("junk", [math.nan, math.inf, -1e30])
def test_nothing_off_the_mask_leaks(method, junk):
    clean, dirty = (loss_and_gradient(method, world(9, value)) for value in (0.0, junk))
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1]) and not dirty[1][~world(9)[1].mask].any()
    assert clean[2] == dirty[2] and all(map(math.isfinite, dirty[2].values()))


@pytest.mark.parametrize("method", ALL.values(), ids=ALL.keys())
def test_a_batch_without_counted_tokens_is_zero(method):
    logps, signals, rewards = world(1)
    empty = Signals(signals.old_logps, signals.ref_logps, torch.zeros(P * G, T), signals.row_ids, signals.entropies)
    loss, gradient, _ = loss_and_gradient(method, (logps, empty, rewards))
    assert float(loss) == 0.0 and not gradient.any()


@pytest.mark.parametrize("off", [grpo(beta=0.0), replace(grpo(), anchor=Anchor(0.0)),
                                 replace(grpo(), anchor=Anchor(Linear(0.0, 0.0)))])  # fmt: skip
def test_beta_zero_is_no_kl_bit_for_bit_and_never_reads_the_reference(off):
    logps, signals, rewards = world(2)
    poisoned = Signals(signals.old_logps, None, signals.mask, signals.row_ids, signals.entropies)
    results = []
    for method in (no_kl(), off):
        leaf = logps.clone().requires_grad_(True)
        advantages = advantages_of(method, rewards, poisoned)
        batch = Batch(leaf, signals.old_logps, None, signals.mask, advantages, None, max_tokens=T)
        loss, metrics = objective(method, batch, 0, 10)
        results.append((loss.detach(), torch.autograd.grad(loss, leaf)[0], metrics))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2] and off.needs == frozenset()


@pytest.mark.parametrize("method", ALL.values(), ids=ALL.keys())
def test_bf16_logps_are_computed_in_float32(method):
    logps, signals, rewards = world(3)
    halved = logps.bfloat16()
    exact, half = (
        objective(method, batch_of(method, value, signals, rewards), 3, 10)[0] for value in (halved.float(), halved)
    )
    assert half.dtype == torch.float32 and torch.equal(exact, half)


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_row_order_of_a_batch_does_not_matter(seed):
    method, (logps, signals, rewards) = grpo(), world(seed)
    order = torch.randperm(P * G, generator=torch.Generator().manual_seed(seed))
    whole = objective(method, batch_of(method, logps, signals, rewards), 0, 10)[0]
    shuffled = objective(method, batch_of(method, logps, signals, rewards, order), 0, 10)[0]
    assert torch.allclose(whole, shuffled, atol=1e-6)
