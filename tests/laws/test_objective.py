"""Laws of the whole: Flat is the base, micro-batches add up, nothing off the mask leaks, beta 0 is no KL."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.contrib.methods.clip_cov import KlCov
from sage_rlvr.contrib.methods.pacs import pacs
from sage_rlvr.contrib.methods.steer import steer
from sage_rlvr.core import (
    Anchor,
    Batch,
    Flat,
    Key,
    Linear,
    Signals,
    Token,
    TokenMean,
    advantages_of,
    credit,
    objective,
    reward_kl,
    shape,
)
from sage_rlvr.core import method as method_module
from sage_rlvr.core.extras import EntropyBonus
from sage_rlvr.methods import METHODS, bnpo, dapo, dr_grpo, forward_kl, grpo, grpo_token_mean, no_kl, rloo, sage
from sage_rlvr.testing import holed, unholed

P, G, T = 3, 4, 7
BASES = {
    "grpo": grpo(),
    "grpo k3_is": grpo(estimator="k3_is"),
    "grpo k2": grpo(estimator="k2", beta=Linear(0.1, 0.01)),
    "dr_grpo": dr_grpo(beta=0.05),
    "dr_grpo reward": dr_grpo(beta=0.05, estimator="k1", placement="reward"),
    "rloo": rloo(beta=0.05),
    "token mean": replace(grpo(estimator="straight_through"), reduction=TokenMean()),
    "grpo_token_mean": grpo_token_mean(),
    "dapo": dapo(beta=0.05, dynamic_sampling=False),
    "bnpo": bnpo(beta=0.05, dual=1.5),
    "forward_kl": forward_kl(),
}
ALL = BASES | {
    "no_kl": no_kl(),
    "dr_grpo without kl": dr_grpo(),
    "dapo overlong": dapo(overlong_buffer=4, max_tokens=T),
    "bnpo without kl": bnpo(),
    "bnpo reward": bnpo(beta=0.05, estimator="k1", placement="reward"),
    "sage": sage(),
    "sage rloo": sage(rloo(beta=0.05), Token()),
    "sage token": sage(dr_grpo(beta=0.05), Token(norm="rank")),
    "sage forward_kl": sage(forward_kl()),
}
LATER = set(METHODS) - {name.split()[0] for name in ALL} - {"compose", "grpo"}
"""Objectives whose formulas tests/core works by hand; the laws hold for them too."""
ALL |= {name: METHODS[name](**({"k": 4} if name == "distinct" else {})) for name in sorted(LATER)}
ALL |= {"all terms": replace(rloo(beta=0.05), extras=(KlCov(0.2, 0.5),)), "bonus": replace(grpo(), extras=(EntropyBonus(0.1),))}
ALL |= {"steer exact": steer(form="exact"), "pacs of the paper": pacs(reference="anchor", terms=2)}
seeds = st.integers(0, 2**31 - 1)


def world(seed: int, junk: float = 0.0) -> tuple[torch.Tensor, Signals, torch.Tensor]:
    """(current logps, signals of the rollout, rewards); `junk` stands wherever the mask is 0."""
    drawn = torch.Generator().manual_seed(seed)
    mask = torch.arange(T)[None] < torch.randint(0, T + 1, (P * G, 1), generator=drawn)

    def draw(scale: float) -> torch.Tensor:
        return torch.where(mask, scale * torch.rand(P * G, T, generator=drawn), junk)

    old = -draw(3.0)
    signals = Signals(
        old, old + draw(1.0) - draw(1.0), mask, torch.arange(P * G), entropies=draw(3.0), entropy_drift=draw(0.5),
        answers=torch.randint(0, 3, (P * G,), generator=drawn),
        problems=torch.arange(P).repeat_interleave(G),
        hidden=torch.where(mask[:, :, None], torch.randn(P * G, T, 5, generator=drawn), junk),
        base_counts=torch.tensor([[0, 9], [4, 9], [9, 9]])[torch.arange(P) % 3].repeat_interleave(G, 0),
    )  # fmt: skip
    return old + draw(0.6) - draw(0.6), signals, torch.randint(0, 2, (P, G), generator=drawn).float()


def distributions_of(method, logps, signals, rows=slice(None)) -> dict[str, torch.Tensor]:
    """Where the method asks for them: over two tokens, a function of the log-prob of the sampled one, (B, T, 2)."""
    if "distributions" not in method.needs:
        return {}
    pairs = (torch.where(signals.mask, values.float(), 0.0) for values in (logps, signals.ref_logps))
    found = (torch.log_softmax(torch.stack([v, torch.zeros_like(v)], -1), -1)[rows] for v in pairs)
    return dict(zip(("log_probs", "ref_log_probs"), found, strict=True))


def batch_of(method, logps, signals, rewards, rows=slice(None)) -> Batch:
    log_q = shape(method, signals, 3, 10, Key(5))
    worth = credit(method, rewards, signals, log_q, 3, 10, Key(5))
    return Batch(
        logps[rows], signals.old_logps[rows], signals.ref_logps[rows], signals.mask[rows], worth.advantages[rows],
        log_q[rows], signals.entropies[rows], T, **distributions_of(method, logps, signals, rows),
        group_size=G, loss_weights={slot: weight[rows] for slot, weight in worth.loss_weights.items()},
        kl_weights=None if worth.kl_weights is None else worth.kl_weights[rows],
    )  # fmt: skip


def loss_and_gradient(method, world_, rows=slice(None), budget=None):
    logps, signals, rewards = world_
    leaf = logps.clone().requires_grad_(True)
    loss, metrics = objective(method, batch_of(method, leaf, signals, rewards, rows), 3, 10, budget)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient, metrics


# ---- the neutral guide: against the base without any q, and against the papers' losses written out here

# advantage, estimator, beta at step 3 of 10, placement, reduction
STOCK = {
    "grpo": ("normalized", "k3", 0.05, "loss", "rows"),
    "grpo k3_is": ("normalized", "k3_is", 0.05, "loss", "rows"),
    "grpo k2": ("normalized", "k2", (1 - 3 / 9) * 0.1 + 3 / 9 * 0.01, "loss", "rows"),
    "dr_grpo": ("centered", "k3", 0.05, "loss", "constant"),
    "dr_grpo reward": ("centered", "k1", 0.05, "reward", "constant"),
    "rloo": ("leave one out", "k1", 0.05, "reward", "constant"),
    "token mean": ("normalized", "straight_through", 0.05, "loss", "tokens"),
    "grpo_token_mean": ("normalized", "k3", 0.05, "loss", "tokens"),
    "dapo": ("normalized", "k3", 0.05, "loss", "tokens"),
    "bnpo": ("beta", "k3", 0.05, "loss", "sums"),
    "forward_kl": ("normalized", "exact", 0.05, "loss", "rows"),
}
CLIPS = {"dapo": (1.28, 10.0), "bnpo": (1.28, 1.5)}  # upper bound and dual clip where not GRPO's


def stock_advantages(kind, rewards):
    others = (rewards.sum(1, keepdim=True) - rewards) / (G - 1)
    centered = rewards - rewards.mean(1, keepdim=True)
    scaled = centered / (rewards.std(1, keepdim=True) + 1e-4)
    made = {"normalized": scaled, "centered": centered, "leave one out": rewards - others, "beta": stock_bnpo(rewards)}
    return made[kind].flatten()[:, None]


def stock_bnpo(rewards):
    """(r - p) / f_N(p) with torch's own Beta distribution, which is infinite or 0 where the method says 0."""
    p = rewards.double().mean(1, keepdim=True)
    common = p.mean() * (1 - p.mean()) / p.var().clamp(min=1 / (P * G**2)) - 1
    alpha, beta = ((1 + share * common / 3).clamp(min=1.0) for share in (p.mean(), 1 - p.mean()))
    density = torch.distributions.Beta(alpha, beta).log_prob(p.clamp(1e-3, 1 - 1e-3)).exp()
    return ((rewards - p) / density).float()


def stock_kl(estimator, logps, old, ref):
    log_ratio, weight = logps - ref, torch.exp(logps - old)
    k2, k3 = 0.5 * log_ratio.square(), torch.expm1(-log_ratio) + log_ratio
    new_pair, ref_pair = (torch.stack([v, torch.zeros_like(v)], -1).log_softmax(-1) for v in (logps, ref))
    exact = (ref_pair.exp() * (ref_pair - new_pair)).sum(-1)
    made = {
        "k2": k2,
        "k3": k3,
        "k3_is": weight * k3,
        "straight_through": k2 + (log_ratio - k2).detach(),
        "exact": exact,
    }
    return made[estimator]


def stock_reward_penalty(old, ref, mask, share):
    """K_t minus the mean over the other rows of the group that count at t, one entry after the other."""
    k1 = torch.where(mask, old - ref, 0.0)
    penalty = torch.zeros_like(k1)
    for row, t in mask.nonzero().tolist():
        group = range(row // G * G, row // G * G + G)
        others = [float(k1[i, t:].sum()) for i in group if i != row and mask[i, t]]
        penalty[row, t] = share * (float(k1[row, t:].sum()) - sum(others) / max(1, len(others)))
    return penalty


def stock_loss(name, logps, signals, rewards):
    kind, estimator, beta, placement, reduction = STOCK[name]
    mask = signals.mask
    new, old, ref = (torch.where(mask, v, 0.0) for v in (logps, signals.old_logps, signals.ref_logps))
    advantages = stock_advantages(kind, rewards)
    if placement == "reward":
        share = (G - 1) / G if kind == "centered" else 1.0
        advantages = advantages - beta * stock_reward_penalty(old, ref, mask, share)
    ratios = torch.exp(new - old)
    high, dual = CLIPS.get(name, (1.2, math.inf))
    per_token = -torch.minimum(ratios * advantages, ratios.clamp(0.8, high) * advantages)
    per_token = torch.where((advantages < 0) & (ratios > dual), -dual * advantages, per_token)
    if placement == "loss":
        per_token = per_token + beta * stock_kl(estimator, new, old, ref)
    sums = torch.where(mask, per_token, 0.0).sum(1)
    if reduction == "rows":
        return (sums / mask.sum(1).clamp(min=1)).sum() / (P * G)
    if reduction == "sums":
        return sums.sum() / (P * G)
    return torch.where(mask, per_token, 0.0).sum() / (P * G * T if reduction == "constant" else max(1, int(mask.sum())))


@pytest.mark.parametrize("name", BASES)
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_flat_is_the_base_without_any_q_bit_for_bit(name, seed):
    """The base never sees a guide: no `shape`, and `log_q` is None in the batch and in the advantages."""
    base, (logps, signals, rewards) = BASES[name], world(seed)
    flat = loss_and_gradient(sage(base, Flat()), (logps, signals, rewards))
    leaf = logps.clone().requires_grad_(True)
    advantages = advantages_of(base, rewards, signals, None, 3, 10)
    exact = distributions_of(base, leaf, signals)
    batch = Batch(
        leaf, signals.old_logps, signals.ref_logps, signals.mask, advantages, None, signals.entropies, T, **exact
    )
    loss, metrics = objective(base, batch, 3, 10)
    assert torch.equal(loss.detach(), flat[0]) and torch.equal(torch.autograd.grad(loss, leaf)[0], flat[1])
    assert metrics == flat[2]


@pytest.mark.parametrize("name", BASES)
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_flat_is_the_papers_loss(name, seed):
    """Bit for bit with a sampled KL in the loss; else, and with BNPO's density, up to the order of sums."""
    logps, signals, rewards = world(seed)
    loss, gradient, _ = loss_and_gradient(sage(BASES[name], Flat()), (logps, signals, rewards))
    leaf = logps.clone().requires_grad_(True)
    stock = stock_loss(name, leaf, signals, rewards)
    (wanted,) = torch.autograd.grad(stock, leaf)
    if STOCK[name][3] == "loss" and name not in ("bnpo", "forward_kl"):
        assert torch.equal(loss, stock.detach()) and torch.equal(gradient, wanted)
    else:
        assert torch.allclose(loss, stock.detach(), atol=1e-6) and torch.allclose(gradient, wanted, atol=1e-7)


@pytest.mark.parametrize("name", BASES)
def test_a_shift_of_the_flat_anchor_would_break_the_law(name, monkeypatch):
    """The two laws above can fail: an anchor that adds .05 wherever it is given a log q is no longer the base."""
    inner = method_module.anchor_logps
    for module in (method_module, reward_kl):  # the KL in the loss, and that in the reward
        monkeypatch.setattr(
            module,
            "anchor_logps",
            lambda ref, log_q: inner(ref, log_q) if log_q is None else inner(ref, log_q) + 0.05,
        )
    exact = method_module._exact_term  # it adds log q to whole distributions by itself
    monkeypatch.setattr(
        method_module,
        "_exact_term",
        lambda anchor, batch, log_q, mask: exact(anchor, batch, None if log_q is None else log_q + 0.05, mask),
    )
    for law in (test_flat_is_the_base_without_any_q_bit_for_bit, test_flat_is_the_papers_loss):
        with pytest.raises(AssertionError):
            law.hypothesis.inner_test(name, 7)


def test_every_published_method_with_an_anchor_is_among_the_bases():
    assert {name.split()[0] for name in BASES} >= set(METHODS) - LATER - {"sage", "no_kl", "compose"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL.values(), ids=ALL.keys())
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
def test_micro_batches_add_up(method, seed):
    data = world(seed)
    budget = method.reduction.budget(data[1].mask, T)
    loss, gradient, _ = loss_and_gradient(method, data)
    size = G if getattr(method.surrogate, "sees_batch", False) else 5  # whole groups where the loss compares them
    parts = [loss_and_gradient(method, data, slice(i, i + size), budget) for i in range(0, P * G, size)]
    assert torch.allclose(sum(part[0] for part in parts), loss, atol=1e-6)
    assert torch.allclose(sum(part[1] for part in parts), gradient, atol=1e-7, rtol=1e-5)


def in_turns(world_):
    """The same completions with what an environment says behind their second token: columns that do not count."""
    logps, signals, rewards = world_
    names = ("old_logps", "ref_logps", "mask", "entropies", "entropy_drift", "hidden")
    return holed(logps), replace(signals, **{name: holed(getattr(signals, name)) for name in names}), rewards


@pytest.mark.parametrize("method", ALL.values(), ids=ALL.keys())
@pytest.mark.parametrize("junk", [math.nan, math.inf, -1e30])
def test_nothing_off_the_mask_leaks(method, junk):
    clean, dirty = (loss_and_gradient(method, world(9, value)) for value in (0.0, junk))
    loss, gradient, metrics = loss_and_gradient(method, in_turns(world(9, junk)))
    assert torch.allclose(loss, clean[0], atol=1e-6) and torch.allclose(unholed(gradient), clean[1], atol=1e-6)
    assert metrics == pytest.approx(clean[2], abs=1e-5)
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1]) and not dirty[1][~world(9)[1].mask].any()
    assert clean[2] == dirty[2] and all(map(math.isfinite, dirty[2].values()))


@pytest.mark.parametrize("method", ALL.values(), ids=ALL.keys())
def test_a_batch_without_counted_tokens_is_zero(method):
    logps, signals, rewards = world(1)
    empty = replace(signals, mask=torch.zeros(P * G, T))
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
