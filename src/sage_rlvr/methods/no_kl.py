"""GRPO without a KL: the first column of SAGE's Table 1."""

from __future__ import annotations

from dataclasses import replace

from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.methods.grpo import grpo


@METHODS.register(label="no KL", about="GRPO without a KL term")
def no_kl(*, clip_low: float = 0.2, clip_high: float = 0.2) -> Method:
    """L = (1/B) sum_i (1/|y_i|) sum_t -min(rho A, clip(rho, 1 - low, 1 + high) A): grpo(beta=0) under its own name."""
    return replace(grpo(beta=0.0, clip_low=clip_low, clip_high=clip_high), name="no_kl")
