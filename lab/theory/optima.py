"""Closed forms: where KL-regularized objectives over the completions of one prompt have their maximum.

Everything is float64 over leaves: `ref` (L,) probabilities of the completions, `rewards` (L,), `q` (L,) the guide of whole
completions, q(y) = prod_t q_t (Eq. 7). Equation numbers are those of SAGE, arXiv 2605.18864. `ref` need not sum to 1: Eqs.
(2), (4) and (21) do not read its scale, the forward KL does. A completion with ref = 0 has probability 0 in every optimum here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy.optimize import brentq
from torch import Tensor

from sage_rlvr.errors import ConfigError, DataError

Leaves = Float[Tensor, " L"]
Values = Tensor | Sequence[float]


class ForwardOptimum(NamedTuple):
    """probs (L,) of the optimum, `lam` its multiplier, and `gap` = lam - max R, which keeps its digits where lam loses them."""

    probs: Leaves
    lam: float
    gap: float


def reverse_kl_optimum(ref: Values, rewards: Values, beta: float, q: Values | None = None) -> Leaves:
    """pi(y) = q(y) ref(y) e^{R(y) / beta} / Z: the maximum of E[R] - beta KL(pi || q ref); Eq. (4), Eq. (2) without q.

    (L,) float64, summing to 1. Assumes that pi may be any distribution over the leaves and that q does not move with pi.
    ConfigError for beta <= 0; DataError for shapes that differ, negative or non-finite entries, or q ref = 0 everywhere.
    """
    anchor, values = _anchor(ref, rewards, q)
    return torch.softmax(anchor.log() + values / _positive(beta), 0)


def entropy_optimum(ref: Values, rewards: Values, beta: float, c: float, q: Values | None = None) -> Leaves:
    """pi ∝ (q ref)^{beta / (beta + c)} e^{R / (beta + c)}: the maximum with an entropy bonus c H(pi), Eqs. (19) and (21).

    (L,) float64. c = 0 gives Eq. (4). Assumptions and errors as `reverse_kl_optimum`; ConfigError also for c < 0.
    """
    anchor, values = _anchor(ref, rewards, q)
    if not 0 <= c < math.inf:
        raise ConfigError(f"entropy_optimum: c = {c!r} is the weight of an entropy bonus; give a finite c >= 0.")
    scale = _positive(beta) + c
    return torch.softmax((beta / scale) * anchor.log() + values / scale, 0)


def forward_kl_optimum(ref: Values, rewards: Values, beta: float, q: Values | None = None) -> ForwardOptimum:
    """pi(y) = beta f(y) / (lam - R(y)), f = q ref: the maximum of E[R] - beta KL(f || pi); Eq. (27) for q = 1.

    lam > max R is the one root of sum pi = 1. With gap = lam - max R it lies in [beta f(best leaves), beta sum f], and is
    found there by Brent's method in log gap, so that beta = 1e-3 and best leaves of f = 1e-12 keep all their digits.
    Over leaves with f > 0: no sample of pi ever shows another one, though the objective itself, maximized over all
    distributions, may put mass on a leaf of ref = 0 (`forward_value` does not charge for it). Errors as `reverse_kl_optimum`.
    """
    anchor, values = _anchor(ref, rewards, q)
    possible = anchor > 0
    best = float(values[possible].max())
    short, beta = best - values, _positive(beta)
    low = beta * float(anchor[possible & (short == 0)].sum())
    high = beta * float(anchor.sum())

    def excess(log_gap: float) -> float:
        gap = math.exp(log_gap)
        return float((beta * anchor[possible] / (gap + short[possible])).sum()) - 1.0

    gap = math.exp(brentq(excess, math.log(low) - 1e-9, math.log(high) + 1e-9, xtol=1e-15, rtol=1e-15))
    return ForwardOptimum(torch.where(possible, beta * anchor / (gap + short), 0.0), best + gap, gap)


def sage_value(probs: Values, ref: Values, rewards: Values, beta: float, q: Values | None = None) -> Float[Tensor, ""]:
    """E_pi[R] - beta D(pi || q ref), D the pseudo-KL (5): Eqs. (3) and (6), and Eq. (1) without q.

    Differentiable in `probs`. -inf where pi > 0 and q ref = 0. Errors as `reverse_kl_optimum`.
    """
    anchor, values = _anchor(ref, rewards, q)
    policy = _policy(probs, anchor)
    return (policy * values).sum() - _positive(beta) * pseudo_kl(policy, anchor)


def entropy_value(
    probs: Values, ref: Values, rewards: Values, beta: float, c: float, q: Values | None = None
) -> Float[Tensor, ""]:
    """E_pi[R] - beta D(pi || q ref) + c H(pi): Eq. (19), with a guide where q is given. Differentiable in `probs`."""
    policy = _policy(probs, _row(ref, "ref"))
    entropy: Tensor = torch.special.entr(policy).sum()
    return sage_value(policy, ref, rewards, beta, q) + c * entropy


def forward_value(
    probs: Values, ref: Values, rewards: Values, beta: float, q: Values | None = None
) -> Float[Tensor, ""]:
    """E_pi[R] - beta sum_y [ f log(f / pi) - f + pi ], f = q ref: what Eq. (27) maximizes. Differentiable in `probs`."""
    anchor, values = _anchor(ref, rewards, q)
    policy = _policy(probs, anchor)
    return (policy * values).sum() - _positive(beta) * unnormalized_kl(anchor, policy)


def pseudo_kl(probs: Values, anchor: Values) -> Float[Tensor, ""]:
    """D(pi || f) = sum_y pi (log pi - log f), Eq. (5): any f >= 0, inf where f = 0 < pi, negative where f is heavy."""
    f = _row(anchor, "anchor")
    policy = _policy(probs, f)
    value: Tensor = -torch.special.entr(policy).sum() - torch.special.xlogy(policy, f).sum()
    return value


def unnormalized_kl(probs: Values, anchor: Values) -> Float[Tensor, ""]:
    """sum_y [ p log(p / f) - p + f ] of two measures: >= 0, and 0 only at p = f; `pseudo_kl` + sum f - sum p."""
    f = _row(anchor, "anchor")
    policy = _policy(probs, f)
    return pseudo_kl(policy, f) + f.sum() - policy.sum()


def total_variation(probs: Values, other: Values) -> float:
    """(1/2) sum |p - r|, in [0, 1]: the largest difference in probability that the two give to any set of completions."""
    second = _row(other, "other")
    return float(0.5 * (_policy(probs, second).detach() - second.detach()).abs().sum())


def _row(values: Values, name: str) -> Leaves:
    row = torch.as_tensor(values, dtype=torch.float64)
    if row.dim() != 1 or row.numel() == 0:
        raise DataError(f"{name} has shape {tuple(row.shape)}; give one number per completion, (L,).")
    return row


def _policy(probs: Values, like: Leaves) -> Leaves:
    row = _row(probs, "probs")
    if row.shape != like.shape:
        raise DataError(f"probs has {row.numel()} completions and the other side {like.numel()}; list the same ones.")
    return row


def _positive(beta: float) -> float:
    if not 0 < beta < math.inf:
        raise ConfigError(f"beta = {beta!r}; without a KL of finite weight there is no such optimum: give beta > 0.")
    return float(beta)


def _anchor(ref: Values, rewards: Values, q: Values | None) -> tuple[Leaves, Leaves]:
    """(q ref, rewards), checked: of one length, finite, q ref nowhere negative and somewhere positive."""
    anchor, values = _row(ref, "ref"), _row(rewards, "rewards")
    factor = torch.ones_like(anchor) if q is None else _row(q, "q")
    for name, row in (("ref", anchor), ("rewards", values), ("q", factor)):
        if row.shape != anchor.shape:
            raise DataError(f"{name} has {row.numel()} entries and ref {anchor.numel()}; give one per completion.")
        wrong = ~torch.isfinite(row) | ((row < 0) if name != "rewards" else torch.zeros_like(row, dtype=torch.bool))
        if bool(wrong.any()):
            place = int(wrong.nonzero()[0])
            raise DataError(
                f"{name}[{place}] = {float(row[place]):g}; give finite numbers, and none below 0 for {name}."
            )
    shaped = anchor * factor
    if not bool((shaped > 0).any()):
        raise DataError("q ref is 0 for every completion; an anchor needs some mass.")
    return shaped, values
