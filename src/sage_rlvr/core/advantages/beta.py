"""BNPO's advantage: rewards over a fitted Beta density."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.advantages.base import ADVANTAGES, Advantage, Groups, centered, require_binary, silent_of_labels
from sage_rlvr.core.keys import widest_float

LARGEST_WEIGHT = 1e6


@ADVANTAGES.register
@dataclass(frozen=True)
class BetaNormalized(Advantage):
    """(r - p) / f_N(p), p the group's mean of 0/1 rewards, f_N the density of Beta(alpha, beta) (BNPO, arXiv 2506.02864).

    alpha = max(1, 1 + a/3) and beta = max(1, 1 + b/3), where Beta(a, b) has the mean and the unbiased variance of p over
    the prompts of the step: of all Beta densities the one that minimizes E_{p ~ Beta(a, b)}[p (1 - p) / f_N(p)^2], the
    variance of the gradient in the paper's model. 1/f_N is clamped to [0, 1e6]; a group with p = 0 or 1 gets exactly 0.

    Small batches: with one prompt there is no variance and every weight is 1 (as in the authors' code). Prompts of equal p
    would make the density a spike, so the variance is at least 1 / (P G^2), the smallest positive variance that P groups of
    G completions can have. A variance above m (1 - m) gives a, b < 0, hence weights of 1. A reward other than 0 and 1 raises
    DataError. Compute it over all prompts of the step: a part of them has other weights.
    """

    equation: ClassVar[str] = "(r - p) / f_N(p)"
    dead = silent_of_labels
    legend: ClassVar[str] = (
        "p = mean_group r,  f_N = density of Beta(max(1, 1 + a/3), max(1, 1 + b/3)),  Beta(a, b) fitted to p over the "
        "step's prompts"
    )
    ascends: ClassVar[str] = (
        "(1/f_N(P)) grad P, P = P(right), each prompt by its own weight, for large G: grad P at alpha = beta = 1, "
        "(pi/4) grad arcsin sqrt(P) at 3/2"
    )
    against_kl: ClassVar[str] = (
        "the reward is weighted by 1/f_N(p), the KL is not: against the raw reward beta acts as beta * f_N(p)"
    )
    couples_prompts: ClassVar[bool] = True
    takes_group_mean: ClassVar[bool] = True

    def __call__(self, rewards: Groups) -> Groups:
        values = centered(rewards, 2, "BetaNormalized")
        return values * self.weights(rewards)[:, None]

    def weights(self, rewards: Groups) -> Float[Tensor, " P"]:
        """Return 1 / f_N(p) of each prompt, float32; 1 for p = 0 and p = 1, whose advantages are 0 whatever the weight."""
        require_binary(rewards, "BetaNormalized")
        shares = rewards.detach().to(widest_float(rewards.device)).mean(dim=1)
        alpha, beta = beta_parameters(shares, rewards.shape[1])
        log_beta = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)
        log_weights = log_beta - (alpha - 1.0) * shares.log() - (beta - 1.0) * torch.log1p(-shares)
        mixed = (shares > 0) & (shares < 1)  # elsewhere infinite, or NaN where alpha or beta is 1
        return torch.where(mixed, log_weights.exp().clamp(max=LARGEST_WEIGHT), 1.0).float()


def beta_parameters(shares: Float[Tensor, " P"], group_size: int) -> tuple[float, float]:
    """Return (alpha, beta) of BNPO's f_N, each at least 1, from the fraction of correct completions of each prompt.

    (1, 1) is f_N = 1. See `BetaNormalized` for the formula and for small batches.
    """
    prompts = shares.numel()
    mean = float(shares.mean())
    if prompts < 2 or not 0 < mean < 1:
        return 1.0, 1.0
    variance = max(float(shares.var()), 1.0 / (prompts * group_size**2))
    total = mean * (1.0 - mean) / variance - 1.0
    return max(1.0, 1.0 + mean * total / 3.0), max(1.0, 1.0 + (1.0 - mean) * total / 3.0)
