"""KL estimators per sampled token: what each estimates, what its gradient descends, what that assumes.

Notation: y ~ pi_old, l = log pi - log ref (log pi in the graph, log ref never), r = exp(-l) = ref / pi. `ref_logps`
may be a shaped anchor log(q ref). Memory is a small multiple of (B, T); arithmetic is float32 whatever comes in. The
estimates and gradients are derived in Schulman's "Approximating KL divergence" (2020) and Zhang et al., arXiv
2505.17508.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "k3_is", "straight_through", "exact"]
PerToken = Float[Tensor, "B T"]


def _log_ratio(logps: PerToken, ref_logps: PerToken) -> PerToken:
    # detached: a policy and a reference that share weights (LoRA on one base) would train the reference too
    return logps.float() - ref_logps.detach().float()


def k1(logps: PerToken, ref_logps: PerToken) -> PerToken:
    """l, shape (B, T), nats; may be negative.

    *estimates* KL(pi || ref), without bias. *its gradient descends* nothing: E[grad log pi] = 0, so in the loss it is
    pure noise; detached in the reward, with return-to-go, it gives the gradient of KL(pi || ref). *assumes* y ~ pi.
    """
    return _log_ratio(logps, ref_logps)


def k2(logps: PerToken, ref_logps: PerToken) -> PerToken:
    """l**2 / 2, shape (B, T), nats, never negative.

    *estimates* KL(pi || ref) to second order near ref (biased). *its gradient descends* KL(pi || ref) at each visited
    state. *assumes* y ~ pi, and takes the distribution over states as fixed.
    """
    return 0.5 * _log_ratio(logps, ref_logps).square()


def k3(logps: PerToken, ref_logps: PerToken) -> PerToken:
    """r - 1 - log r = expm1(-l) + l, shape (B, T), nats, never negative; inf where ref is much larger than pi.

    *estimates* KL(pi || ref), without bias. *its gradient descends* KL(ref || pi), the forward KL, at each visited
    state: on the logits it is pi - ref. *assumes* y ~ pi, and takes the distribution over states as fixed. With an
    anchor q ref it estimates KL(pi || ref) - E[log q] + sum(q ref) - 1.
    """
    log_ratio = _log_ratio(logps, ref_logps)
    return torch.expm1(-log_ratio) + log_ratio  # exp(-l) - 1 + l is of order l**2, below float32's last digit of 1 near ref


def straight_through(logps: PerToken, ref_logps: PerToken) -> PerToken:
    """The value of k1 with the gradient of k2, shape (B, T), nats; may be negative.

    *estimates* KL(pi || ref), without bias. *its gradient descends* KL(pi || ref) at each visited state. *assumes* y
    ~ pi, and takes the distribution over states as fixed.
    """
    log_ratio = _log_ratio(logps, ref_logps)
    half_square = 0.5 * log_ratio.square()
    return half_square + (log_ratio - half_square).detach()  # the detached part moves the value and not the gradient


def k3_is(logps: PerToken, ref_logps: PerToken, old_logps: PerToken) -> PerToken:
    """w * k3 with w = exp(log pi - log pi_old) in the graph, shape (B, T), nats, never negative.

    *estimates* KL(pi || ref), without bias. *its gradient descends* KL(pi || ref) at each visited state, although plain k3
    descends the forward KL: the gradient of w stays even where w = 1. *assumes* y ~ pi_old with pi_old > 0
    where pi > 0. This is TRL's `use_bias_correction_kl` (on by default from 1.10).
    """
    # w stays in the graph: it is 1 at the first update of a rollout, but its gradient makes the descended KL the reverse one
    return torch.exp(logps.float() - old_logps.detach().float()) * k3(logps, ref_logps)


_TWO_ARGUMENTS: dict[str, Callable[[PerToken, PerToken], PerToken]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "straight_through": straight_through,
}
SAMPLED: tuple[str, ...] = (*_TWO_ARGUMENTS, "k3_is")
ESTIMATORS: tuple[str, ...] = (*SAMPLED, "exact")  # exact: divergences.py, from full distributions


def estimate(name: Estimator, logps: PerToken, ref_logps: PerToken, old_logps: PerToken) -> PerToken:
    """The sampled estimator called `name`, (B, T); only k3_is reads `old_logps`. KeyError for "exact"."""
    if name == "k3_is":
        return k3_is(logps, ref_logps, old_logps)
    return _TWO_ARGUMENTS[name](logps, ref_logps)
