"""DAPO's length penalty."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sage_rlvr.core.advantages.base import Groups, GroupSignals, ZeroVariance
from sage_rlvr.core.extras.base import EXTRAS, Extra
from sage_rlvr.core.state import PartState
from sage_rlvr.errors import ConfigError, DataError


@EXTRAS.register
@dataclass(frozen=True)
class OverlongShaping(Extra):
    """r = 2 R - 1 - factor * min(1, max(0, |y| - (max_tokens - buffer)) / buffer): DAPO's soft overlong
    punishment, arXiv 2503.14476.

    The penalty is 0 up to max_tokens - buffer tokens and rises linearly to `factor` at max_tokens. `signed` maps the
    verifier's R of 0/1 to -1/+1, as DAPO does; otherwise R is unchanged. `max_tokens` is the limit of sampling, end
    token included, as lengths are; an engine checks that it equals its own limit.

    Raises DataError if `signed` and a reward is outside [0, 1].

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

    def dead(self, size: int) -> ZeroVariance:
        """Return the rewards in zero-variance groups, as long as no completion is penalized."""
        return ZeroVariance("compared", "compared") if self.factor else ZeroVariance(1.0, -1.0 if self.signed else 0.0)

    @property
    def made_for(self) -> int | None:
        return self.max_tokens

    def after_rewards(self, rewards: Groups, seen: GroupSignals, state: PartState) -> Groups:
        values = rewards.detach().float()
        if self.signed:
            self._require_share(values)
            values = 2.0 * values - 1.0
        over = (seen.lengths - (self.max_tokens - self.buffer)).float() / self.buffer
        return values - self.factor * over.clamp(0.0, 1.0)

    def _require_share(self, rewards: Groups) -> None:
        wrong = (~((rewards >= 0) & (rewards <= 1))).nonzero()
        if len(wrong):
            index = tuple(wrong[0].tolist())
            raise DataError(
                f"OverlongShaping: the reward at {index} (prompt, completion) is {float(rewards[index]):g}; "
                "signed=True maps 0..1 to -1..+1 and would map it outside of that: pass the verifier's 0 and 1, or "
                "set signed=False."
            )
