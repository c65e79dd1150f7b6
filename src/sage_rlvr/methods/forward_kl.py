"""GRPO with the exact forward KL, summed over the vocabulary at every visited state."""

from __future__ import annotations

from dataclasses import replace

from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.methods.grpo import grpo


@METHODS.register(label="Forward-KL", about="GRPO with the exact forward KL")
def forward_kl(
    *,
    beta: float | Schedule = 0.05,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    source: str = "base",
    refresh_every: int | None = None,
) -> Method:
    """L = (1/B) sum_i (1/|y_i|) sum_t [ -min(rho A, clip(rho, 1 - low, 1 + high) A) + beta * KL(pi_ref(.|s_t) || pi(.|s_t)) ].

    A = (r - mean) / (std + 1e-4) within the group. On the logits of a visited state the KL term's gradient is
    pi - pi_ref, under a constant divisor the expectation of that of GRPO's k3: the same pull without the noise of the
    sampled token, at the price of two full distributions per position. With 1/|y_i| k3 also weights each next token by the
    lengths that follow it, and this sum does not. Other exact divergences: grpo(estimator="exact", divergence="js").
    """
    method = grpo(
        beta=beta,
        clip_low=clip_low,
        clip_high=clip_high,
        estimator="exact",
        divergence="forward",
        source=source,
        refresh_every=refresh_every,
    )
    return replace(method, name="forward_kl")
