"""Claims on the support statement of the Invisible Leash (arXiv 2507.14843), with the constant worked out.

The update is plain descent on the mean over N completions of sum_t -A_i log pi(y_t | s_t), |A_i| <= 1, on a table of logits:

    z_v(s) += (eta / N) sum_i 1[i passes s] A_i (1[y_i takes v] - pi_v),       pi = pi(.|s).

log pi_v(s) then rises by dz_v - log sum_u pi_u e^{dz_u} <= dz_v - sum_u pi_u dz_u (Jensen), which is the mean over i of
eta A_i (1[y_i takes v] - pi_v - pi_{y_i} + |pi|^2). The bracket is at most 1 in size where y_i does not take v, and at most
2 (1 - pi_v)^2 where it does. Hence for every completion of T tokens, drawn or not,

    pi_K(y) <= pi_0(y) e^{2 eta T K},     and with one logit per completion (T = 1) and y never drawn,     pi_0(y) e^{eta K}.
"""

from __future__ import annotations

from functools import cache

import torch

from lab.theory.claims.claim import Claim, numbers
from lab.theory.claims.lab import RAGGED, RAGGED_REWARDS, Steps, many_bandits, method_of, table, train
from lab.theory.optima import reverse_kl_optimum
from lab.theory.tree import TokenTree
from sage_rlvr.core.advantages import GroupCentered

RATES, STEPS, GROUP = (0.05, 0.5), 60, 6


@cache
def _trainings() -> tuple[tuple[float, Steps], ...]:
    """(rate, training by the loop's own steps on the ragged tree), two rates and two seeds; |A| <= 1 by 0/1 rewards."""
    ref = table(RAGGED, 6)
    return tuple(
        (rate, train(RAGGED, method_of(None, GroupCentered()), ref, RAGGED_REWARDS, rate=rate, steps=STEPS, group=GROUP, seed=seed))
        for rate in RATES
        for seed in (0, 1)
    )  # fmt: skip


def steepest(rate: float, steps: Steps, tree: TokenTree) -> float:
    """Largest log(pi_k / pi_0) / (eta T k) over completions and k, in units that the bound says are at most 2."""
    k = torch.arange(1, len(steps.probs), dtype=torch.float64)[:, None]
    return float(((steps.probs[1:] / steps.probs[0]).log() / (rate * tree.lengths * k)).max())


def zero_stays_zero() -> list[Claim]:
    """(i): what the reference cannot say, no on-policy update teaches."""
    start = torch.tensor([0.0, 0.01, 0.59, 0.4], dtype=torch.float64)
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    probs, _ = many_bandits(start, rewards, runs=50, rate=0.5, steps=200, group=8, seed=7)
    return [
        Claim(
            "leash/zero", "Invisible Leash (i)",
            "the largest mass of a right y with ref(y) = 0 after 50 trainings of 200 steps = 0",
            float(probs[:, 0].max()), 0.0,
            note=f"Its right neighbor, ref .01, ends with {float(probs[:, 1].mean()):.3f} on average.",
        ),
        Claim(
            "leash/zero-optimum", "Invisible Leash (i), SAGE Eq. (4)",
            "and at the optimum of Eq. (6), whatever q(y): q(y) = 1e6 gives 0",
            float(reverse_kl_optimum(start, rewards, 0.05, (1e6, 1.0, 1.0, 1.0))[0]), 0.0,
            note="The theoretical support does not change: a guide multiplies, and 0 stays 0.",
        ),
    ]  # fmt: skip


def bounded_rise() -> list[Claim]:
    """(ii): the exact constant against the loop's own sampled steps, and that it cannot be lowered."""
    rises = [steepest(rate, steps, RAGGED) for rate, steps in _trainings()]
    rate, eps, steps = 0.5, 5e-5, 100
    start = torch.cat([torch.tensor([eps]), torch.full((9,), (1 - eps) / 9)]).double()
    rewards = torch.tensor([1.0] + [1.0, 0.0, 0.0] * 3).double()
    probs, draws = many_bandits(start, rewards, runs=500, rate=rate, steps=steps, group=8, seed=8)
    unseen = probs[draws[:, 0] == 0, 0]
    return [
        Claim(
            "leash/bound", "Invisible Leash (ii)",
            "log(pi_k(y) / pi_0(y)) / (eta T k), largest over y, k, two rates, two seeds <= 2",
            max(rises), 2.0, "<=",
            note="A ragged tree, 60 steps of the loop in groups of 6, A = r - mean, every completion, drawn or "
            "not. The bound is far from what happens: advantages sum to 0 and probabilities saturate.",
        ),
        Claim(
            "leash/bound-undrawn", "Invisible Leash (ii)",
            "one logit per completion, y never drawn: log(pi_K / pi_0) / (eta K) <= 1",
            float((unseen / eps).log().max()) / (rate * steps), 1.0, "<=",
            note=f"{len(unseen)} of 500 trainings of {steps} steps never drew it.",
        ),
        Claim(
            "leash/constant", "Invisible Leash (ii)",
            "worst single update, log(pi_1 / pi_0) / eta at eta = .001, y drawn and not drawn = 2 and 1",
            (_worst_update(1e-3, drawn=True), _worst_update(1e-3, drawn=False)), (2.0, 1.0), "=", 0.01,
            note="pi_0(y) = 1e-6, another completion has nearly all the rest, and every draw of the group is "
            "y, or a third one of 1e-6, with A = 1. No smaller constants hold for all draws; typical "
            "draws stay far below.",
        ),
    ]  # fmt: skip


def _worst_update(eta: float, drawn: bool) -> float:
    """log(pi_1(y) / pi_0(y)) / eta after one update, y = completion 0, in which completion 0 or else 1 was all that was drawn."""
    start = torch.tensor([1e-6, 1e-6, 1 - 2e-6], dtype=torch.float64).log()
    logits = start.clone().requires_grad_(True)
    loss = -torch.log_softmax(logits, 0)[0 if drawn else 1]
    moved = start - eta * torch.autograd.grad(loss, logits)[0]
    return float(torch.log_softmax(moved, 0)[0] - start[0]) / eta


def without_a_leash() -> list[Claim]:
    """(iii): the limit of Eq. (2) for beta -> 0 is the reference on the right completions, and where the loop comes to it."""
    ref = RAGGED.probs(table(RAGGED, 6))
    kept = torch.where(RAGGED_REWARDS.bool(), ref, 0.0)
    kept = kept / kept.sum()
    return [
        Claim(
            "leash/limit", "Invisible Leash (iii), SAGE Eq. (2)",
            "Eq. (2) at beta = .02 = ref restricted to right completions, divided by its sum",
            numbers(reverse_kl_optimum(ref, RAGGED_REWARDS, 0.02)), numbers(kept), "=", 1e-9,
        ),
        Claim(
            "leash/no-kl", "Invisible Leash (iii)",
            "where plain expected gradients without a KL go from ref = that limit",
            _without_kl(), numbers(kept), "=", 0.02, expected=False,
            note="beta -> 0 and beta = 0 differ: without a KL the frequent right completion grows faster "
            "than the rare one.",
        ),
    ]  # fmt: skip


def _without_kl() -> tuple[float, ...]:
    """400 steps of plain descent on the expected loss without a KL, learning rate 1."""
    ref = table(RAGGED, 6)
    logits, method = ref.clone(), method_of(None)
    for _ in range(400):
        logits = logits - RAGGED.expected_gradient(method, logits, ref, RAGGED_REWARDS)
    return numbers(RAGGED.probs(logits))
