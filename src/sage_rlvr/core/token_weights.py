"""Token weights: signals become a factor on the advantage of each token. None is built in; register your own."""

from __future__ import annotations

from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.signals import Signals
from sage_rlvr.registry import Registry


class TokenWeight(Protocol):
    """Signals become a factor (B, T) on the advantage. `equation` and `needs` as in `RewardTransform`."""

    def __call__(self, signals: Signals, /) -> Float[Tensor, "B T"]: ...


TOKEN_WEIGHTS: Registry[Any] = Registry("token_weight")
