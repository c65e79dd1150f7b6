"""Exact divergences between full distributions over the next token: sums over the vocabulary, nothing sampled.

Arguments are log-probabilities (..., V): `log_probs` of the policy in the graph, `anchor_log_probs` of the anchor f,
never in the graph. f = q ref may be unnormalized; it is a measure with f(v) >= 0. Results are (...,), nats, float32.
An impossible token has -inf in both and adds 0. With u = p / f each is a sum of f times a function of u that is 0 and
flat at u = 1, so p = f has value 0 and gradient 0, bit for bit (Csiszar's f-divergences; the generators are those of
DPH-RL, arXiv 2509.07430). Elsewhere "never negative" holds up to rounding, about 1e-7. The exception is `pseudo_kl` (Eq. (5)
of SAGE, arXiv 2605.18864), which lacks the terms of total mass: its gradient at p = f is 0 up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.errors import ConfigError

Divergence = Literal["reverse", "forward", "js", "alpha"]
LogProbs = Float[Tensor, "*B V"]
Values = Float[Tensor, "*B"]

_NOTHING = -1e4  # exp(_NOTHING) is 0 in float32, and a difference of two of them is 0 and not NaN


def _pair(log_probs: LogProbs, anchor_log_probs: LogProbs) -> tuple[LogProbs, LogProbs]:
    """Return float32 log p and log f, -inf replaced so that 0 * log 0 is 0; if only f is 0, log p - log f stays huge."""
    return log_probs.float().clamp(min=_NOTHING), anchor_log_probs.detach().float().clamp(min=_NOTHING)


def pseudo_kl(log_probs: LogProbs, anchor_log_probs: LogProbs) -> Values:
    """D(p || f) = sum_v p (log p - log f): Eq. (5), defined for any positive f; may be negative if f's mass exceeds 1.

    *estimates* nothing: it is the sum. *its gradient descends* the reverse KL to f / sum f. *assumes* f > 0 wherever
    p > 0: if f is 0 the value is about 1e4 p instead of infinity. D(p || q ref) = KL(p || ref) - E_p[log q], Eq. (8).
    """
    log_p, log_f = _pair(log_probs, anchor_log_probs)
    return (log_p.exp() * (log_p - log_f)).sum(-1)


def unnormalized_kl(log_probs: LogProbs, anchor_log_probs: LogProbs) -> Values:
    """sum_v [ p log(p / f) - p + f ]: the KL of two measures, never negative, 0 only at p = f.

    *its gradient descends* the same divergence as that of `pseudo_kl` while p is normalized: the two then differ by sum f - 1,
    which does not depend on p. k3 estimates this one. *assumes* f > 0 wherever p > 0.
    """
    log_p, log_f = _pair(log_probs, anchor_log_probs)
    p, f = log_p.exp(), log_f.exp()
    return (p * (log_p - log_f) - p + f).sum(-1)


def forward_kl(log_probs: LogProbs, anchor_log_probs: LogProbs) -> Values:
    """sum_v [ f log(f / p) - f + p ]: KL(f || p) of measures, never negative.

    *its gradient descends* the forward KL to f: on the logits it is (sum f) p - f, which is p - f for a normalized f;
    a factor of f that is the same for all v scales the pull and does not move its target. *assumes* p > 0 wherever f > 0.
    """
    log_p, log_f = _pair(log_probs, anchor_log_probs)
    p, f = log_p.exp(), log_f.exp()
    return (f * (log_f - log_p) - f + p).sum(-1)


def js_divergence(log_probs: LogProbs, anchor_log_probs: LogProbs) -> Values:
    """sum_v [ p log p + f log f - (p + f) log((p + f) / 2) ] = 2 JS(p, f), in [0, 2 log 2] for a normalized f.

    *its gradient descends* 2 JS(p, f): sum_v log(2p / (p + f)) grad p, bounded however small p is. *assumes* nothing
    about supports. A factor of f that is the same for all v does not drop out of the gradient and does not scale it.
    """
    log_p, log_f = _pair(log_probs, anchor_log_probs)
    above_p, above_f = _log_middle(log_f - log_p), _log_middle(log_p - log_f)
    return -(log_p.exp() * above_p + log_f.exp() * above_f).sum(-1)


def _log_middle(log_ratio: LogProbs) -> LogProbs:
    """Return log((1 + e^x) / 2), the log of the mean of two numbers over the first; exactly 0 at x = 0, finite for huge x."""
    return log_ratio.clamp(min=0.0) + torch.log1p(0.5 * torch.expm1(-log_ratio.abs()))


def alpha_divergence(log_probs: LogProbs, anchor_log_probs: LogProbs, alpha: float = 0.2) -> Values:
    """sum_v [ f^alpha p^(1-alpha) - (1 - alpha) p - alpha f ] / (alpha (alpha - 1)), never negative, alpha in (0, 1).

    *its gradient descends* itself: -(1/alpha) sum_v (f/p)^alpha grad p; alpha -> 1 is the forward KL, alpha -> 0 the
    reverse. A factor q of f that is the same for all v scales the pull by q^alpha. *assumes* nothing about supports.
    ConfigError for an alpha outside (0, 1).
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha_divergence: alpha = {alpha!r}; set 0 < alpha < 1, or use the reverse or forward KL.")
    log_p, log_f = _pair(log_probs, anchor_log_probs)
    below = log_p.exp() * _alpha_gap(log_f, log_p, alpha)  # where f < p; 0 elsewhere
    above = log_f.exp() * _alpha_gap(log_p, log_f, 1.0 - alpha)  # where p < f; 0 elsewhere
    return ((below + above) / (alpha * (alpha - 1.0))).sum(-1)


def _alpha_gap(log_small: LogProbs, log_large: LogProbs, power: float) -> LogProbs:
    """Return v^power - (1 - power) - power v for v = small / large below 1, else 0: a power minus its tangent at v = 1.

    The result is of second order near v = 1 and is later divided by power or 1 - power, which may be tiny. So each of its two terms
    is computed at that scale, and no precision is lost when they are subtracted.
    """
    log_v = (log_small - log_large).clamp(max=0.0)
    if power <= 0.5:
        log_v = torch.where(log_small <= _NOTHING, -math.inf, log_v)
        return torch.expm1(power * log_v) - power * torch.expm1(log_v)
    log_v = log_v.clamp(min=-80.0)  # v expm1(...) is 0 long before, and must not become 0 * inf
    return log_v.exp() * torch.expm1((power - 1.0) * log_v) + (1.0 - power) * torch.expm1(log_v)


_PLAIN: dict[str, Callable[[LogProbs, LogProbs], Values]] = {
    "reverse": unnormalized_kl,
    "forward": forward_kl,
    "js": js_divergence,
}
DIVERGENCES: tuple[str, ...] = (*_PLAIN, "alpha")


def divergence(name: Divergence, log_probs: LogProbs, anchor_log_probs: LogProbs, alpha: float | None = None) -> Values:
    """The divergence called `name` at each position, (...,) nats; `alpha` is read by "alpha" only.

    ConfigError for a name that is not in `DIVERGENCES`.
    """
    if name not in DIVERGENCES:
        raise ConfigError(f"divergence: name = {name!r}; choose one of {', '.join(DIVERGENCES)}.")
    if name == "alpha":
        return alpha_divergence(log_probs, anchor_log_probs, 0.2 if alpha is None else alpha)
    return _PLAIN[name](log_probs, anchor_log_probs)
