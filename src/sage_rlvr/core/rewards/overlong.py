"""DAPO's length penalty."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.advantages.base import Dead
from sage_rlvr.core.rewards.base import REWARD_TRANSFORMS
from sage_rlvr.errors import ConfigError, DataError


@REWARD_TRANSFORMS.register
@dataclass(frozen=True)
class OverlongShaping:
    """r = 2 R - 1 - factor * min(1, max(0, |y| - (max_tokens - buffer)) / buffer): DAPO's soft overlong
    punishment, arXiv 2503.14476.

    The penalty is 0 up to max_tokens - buffer tokens and rises linearly to `factor` at max_tokens. `signed` maps the
    verifier's R of 0/1 to -1/+1, as DAPO does; otherwise R is unchanged. `max_tokens` is the limit of sampling, end
    token included, as lengths are; an engine checks that it is its own.

    Called with rewards (P, G) and lengths (P, G) in tokens, returns (P, G) float32. DataError for shapes that differ,
    and where `signed` meets a reward outside [0, 1].

    max_tokens: the limit of sampling. buffer: tokens before the limit over which the penalty rises. factor: the full penalty.
    """

    max_tokens: int
    buffer: int
    factor: float = 1.0
    signed: bool = True

    def __post_init__(self) -> None:
        for name in ("max_tokens", "buffer"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"OverlongShaping: {name} = {value!r}; it counts tokens, so set a whole number >= 1."
                )
        if self.buffer > self.max_tokens:
            raise ConfigError(
                f"OverlongShaping: buffer = {self.buffer} is longer than max_tokens = {self.max_tokens}; the penalty "
                "starts at max_tokens - buffer tokens, so set a buffer of at most max_tokens (DAPO: 4096 of 20480)."
            )
        if not 0 <= self.factor < math.inf:
            raise ConfigError(
                f"OverlongShaping: factor = {self.factor!r} is the penalty of a completion at the limit; set a finite "
                "number >= 0, for example DAPO's 1.0."
            )

    @property
    def equation(self) -> str:
        reward = "2 R - 1" if self.signed else "R"
        price = f"min(1, max(0, |y| - {self.max_tokens - self.buffer}) / {self.buffer})"
        return f"{reward} - {price}" if self.factor == 1 else f"{reward} - {self.factor:g} * {price}"

    def dead(self, size: int) -> Dead:
        """What the verifier said, as long as lengths cost nothing."""
        return Dead("compared", "compared") if self.factor else Dead(1.0, -1.0 if self.signed else 0.0)

    @torch.no_grad()
    def __call__(self, rewards: Float[Tensor, "P G"], lengths: Int[Tensor, "P G"]) -> Float[Tensor, "P G"]:
        if rewards.shape != lengths.shape:
            raise DataError(
                f"OverlongShaping: rewards have shape {tuple(rewards.shape)} and lengths {tuple(lengths.shape)}; pass "
                "one length per reward, (prompts, completions per prompt)."
            )
        values = rewards.float()
        if self.signed:
            self._require_share(values)
            values = 2.0 * values - 1.0
        over = (lengths - (self.max_tokens - self.buffer)).float() / self.buffer
        return values - self.factor * over.clamp(0.0, 1.0)

    def _require_share(self, rewards: Float[Tensor, "P G"]) -> None:
        wrong = (~((rewards >= 0) & (rewards <= 1))).nonzero()
        if len(wrong):
            place = tuple(wrong[0].tolist())
            raise DataError(
                f"OverlongShaping: the reward at {place} (prompt, completion) is {float(rewards[place]):g}; "
                "signed=True maps 0..1 to -1..+1 and would map it outside of that: pass the verifier's 0 and 1, or "
                "set signed=False."
            )
