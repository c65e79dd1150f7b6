"""Truncated sampling: what top-k, top-p and min-p leave of a next-token distribution, exactly.

    top-k   the k most likely tokens                                           (Fan et al. 2018, arXiv 1805.04833)
    top-p   the shortest list of most likely tokens that together reach p      (Holtzman et al. 2020, arXiv 1904.09751)
    min-p   the tokens with at least min_p times the chance of the likeliest   (Nguyen et al. 2024, arXiv 2407.01082)

One after the other in this order, each on what the one before left, as in transformers; ties are kept by the smaller id
(top-k, top-p). What is left is renormalized: the log-probs that a sampler reports are then those it draws with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_rlvr.core.keys import widest_float
from sage_rlvr.errors import ConfigError


@dataclass(frozen=True)
class Truncation:
    """top_k 0, top_p 1 and min_p 0 each mean "off". Called on log-probs (B, V): those that are left, -inf elsewhere."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p < 1:
            raise ConfigError(
                f"top_k = {self.top_k}, top_p = {self.top_p}, min_p = {self.min_p}: top_k counts from 1 on (0 is off), "
                "top_p lies in (0, 1] (1 is off), min_p in [0, 1) (0 is off)"
            )

    @property
    def off(self) -> bool:
        """Whether nothing is cut."""
        return self == Truncation()

    def __call__(self, log_probs: Tensor) -> Tensor:
        kept = torch.ones_like(log_probs, dtype=torch.bool)
        if self.top_k or self.top_p < 1:
            kept = self._by_rank(log_probs)
        if self.min_p:
            # The likeliest token is always left, and renormalizing moves it and the others alike.
            kept &= log_probs >= log_probs.amax(-1, keepdim=True) + math.log(self.min_p)
        return torch.log_softmax(log_probs.masked_fill(~kept, -math.inf), -1)

    def _by_rank(self, log_probs: Tensor) -> Tensor:
        ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
        if self.top_k:
            ordered, order = ordered[:, : self.top_k], order[:, : self.top_k]
        kept = torch.ones_like(ordered, dtype=torch.bool)
        if self.top_p < 1:
            probs = torch.softmax(ordered.to(widest_float(ordered.device)), -1)
            kept = probs.cumsum(-1) - probs < self.top_p  # what stands before it does not reach p yet
        return torch.zeros_like(log_probs, dtype=torch.bool).scatter_(1, order, kept)
