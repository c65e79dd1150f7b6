"""Rewards of a group become advantages: frozen callables (P, G) -> (P, G) float32, no gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.keys import widest_float
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.registry import Registry

Groups = Float[Tensor, "P G"]


@runtime_checkable
class Advantage(Protocol):
    """Maps the rewards of P groups of G completions to advantages of the same shape.

    `equation` is A as one line of text. Optional attributes, read with getattr: `legend`, a line that says what the
    symbols of `equation` mean; `ascends`, what the expected gradient of the reward term ascends at on-policy samples
    (`describe` prints both); `couples_prompts`, True where the advantages of a prompt depend on the rewards of the
    other prompts of the step, so that a batch must not be cut before they are computed.
    """

    @property
    def equation(self) -> str: ...

    def __call__(self, rewards: Groups) -> Groups: ...


ADVANTAGES: Registry[type] = Registry("advantage")


def _centered(rewards: Groups, smallest_group: int, who: str) -> Groups:
    """Rewards minus their group mean; exactly 0 in a group whose rewards are all equal."""
    if rewards.dim() != 2:
        raise DataError(f"{who}: rewards have shape {tuple(rewards.shape)}; give (prompts, completions per prompt).")
    if rewards.shape[1] < smallest_group:
        raise DataError(f"{who}: group_size is {rewards.shape[1]}; it needs at least {smallest_group} a prompt.")
    values = rewards.detach().float()
    equal = values.amax(dim=1, keepdim=True) == values.amin(dim=1, keepdim=True)
    return torch.where(equal, 0.0, values - values.mean(dim=1, keepdim=True))


@ADVANTAGES.register
@dataclass(frozen=True)
class GroupNormalized:
    """(r - mean) / (std + eps), std with G - 1 in the denominator (GRPO, arXiv 2402.03300, as TRL computes it)."""

    eps: float = 1e-4
    equation: ClassVar[str] = "(r - mean_group r) / (std_group r + eps)"
    ascends: ClassVar[str] = (
        "(1/std_group) grad E[r], each prompt by its own std: for rewards 0 and 1 and large G, grad 2 arcsin sqrt(P(right))"
    )

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ConfigError(f"GroupNormalized: eps = {self.eps!r} must be positive; the paper's scale is 1e-4.")

    def __call__(self, rewards: Groups) -> Groups:
        centered = _centered(rewards, 2, "GroupNormalized")
        return centered / (rewards.detach().float().std(dim=1, keepdim=True) + self.eps)


@ADVANTAGES.register
@dataclass(frozen=True)
class GroupCentered:
    """r - mean (Dr. GRPO, arXiv 2503.20783): no division by the group's std."""

    equation: ClassVar[str] = "r - mean_group r"
    ascends: ClassVar[str] = "(G-1)/G grad E[r], the same for every prompt"

    def __call__(self, rewards: Groups) -> Groups:
        return _centered(rewards, 1, "GroupCentered")


@ADVANTAGES.register
@dataclass(frozen=True)
class LeaveOneOut:
    """r minus the mean of the other rewards of the group (RLOO, arXiv 2402.14740) = (r - mean) * G / (G - 1)."""

    equation: ClassVar[str] = "r - mean_others r"
    ascends: ClassVar[str] = "grad E[r], the same for every prompt"

    def __call__(self, rewards: Groups) -> Groups:
        centered = _centered(rewards, 2, "LeaveOneOut")
        return centered * (rewards.shape[1] / (rewards.shape[1] - 1))


LARGEST_WEIGHT = 1e6


@ADVANTAGES.register
@dataclass(frozen=True)
class BetaNormalized:
    """(r - p) / f_N(p), p the group's mean of 0/1 rewards, f_N the density of Beta(alpha, beta) (BNPO, arXiv 2506.02864).

    alpha = max(1, 1 + a/3) and beta = max(1, 1 + b/3), where Beta(a, b) has the mean and the unbiased variance of p over
    the prompts of the step: of all Beta densities the one that minimizes E_{p ~ Beta(a, b)}[p (1 - p) / f_N(p)^2], the
    variance of the gradient in the paper's model. 1/f_N is held in [0, 1e6]; a group with p = 0 or 1 gets exactly 0.

    Where the batch is too small for that: with one prompt there is no variance and every weight is 1 (as the authors'
    code does it); prompts of equal p would make the density a spike, so the variance is at least 1 / (P G^2), the
    smallest one above 0 that P groups of G can show; a variance above m (1 - m) gives a, b < 0, hence weights of 1.
    DataError for a reward other than 0 and 1. Compute it over the whole step: a part of it has other weights.
    """

    equation: ClassVar[str] = "(r - p) / f_N(p)"
    legend: ClassVar[str] = (
        "p = mean_group r,  f_N = density of Beta(max(1, 1 + a/3), max(1, 1 + b/3)),  Beta(a, b) fitted to p over the "
        "step's prompts"
    )
    ascends: ClassVar[str] = (
        "(1/f_N(P)) grad P, P = P(right), each prompt by its own weight, for large G: grad P at alpha = beta = 1, "
        "(pi/4) grad arcsin sqrt(P) at 3/2"
    )
    couples_prompts: ClassVar[bool] = True

    def __call__(self, rewards: Groups) -> Groups:
        centered = _centered(rewards, 2, "BetaNormalized")
        return centered * self.weights(rewards)[:, None]

    def weights(self, rewards: Groups) -> Float[Tensor, " P"]:
        """1 / f_N(p) of each prompt, float32; 1 for p = 0 and p = 1, whose advantages are 0 whatever the weight."""
        _require_binary(rewards, "BetaNormalized")
        shares = rewards.detach().to(widest_float(rewards.device)).mean(dim=1)
        alpha, beta = beta_parameters(shares, rewards.shape[1])
        log_beta = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)
        log_weights = log_beta - (alpha - 1.0) * shares.log() - (beta - 1.0) * torch.log1p(-shares)
        mixed = (shares > 0) & (shares < 1)  # elsewhere infinite, or NaN where alpha or beta is 1
        return torch.where(mixed, log_weights.exp().clamp(max=LARGEST_WEIGHT), 1.0).float()


def beta_parameters(shares: Float[Tensor, " P"], group_size: int) -> tuple[float, float]:
    """(alpha, beta) of BNPO's f_N from the share of right completions of each prompt, each at least 1; (1, 1) is f_N = 1.

    See `BetaNormalized` for the formula and for what happens in small batches.
    """
    prompts = shares.numel()
    mean = float(shares.mean())
    if prompts < 2 or not 0 < mean < 1:
        return 1.0, 1.0
    variance = max(float(shares.var()), 1.0 / (prompts * group_size**2))
    total = mean * (1.0 - mean) / variance - 1.0
    return max(1.0, 1.0 + mean * total / 3.0), max(1.0, 1.0 + (1.0 - mean) * total / 3.0)


def _require_binary(rewards: Groups, who: str) -> None:
    """DataError that names the first reward which is neither 0 nor 1, and its place."""
    wrong = ((rewards != 0) & (rewards != 1)).nonzero()
    if len(wrong):
        prompt, member = wrong[0].tolist()
        raise DataError(
            f"{who}: the reward of prompt {prompt}, completion {member} is {float(rewards[prompt, member]):g}; the mean of "
            "a group is read as its share of right completions, so rewards must be 0 or 1: drop the reward transform, or "
            "use GroupNormalized or GroupCentered, which take any reward."
        )
