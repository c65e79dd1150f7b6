"""The kind of extra that weights tokens: signals -> a factor on the advantage of each token."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.extras.base import Extra, PerToken
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import PartState, State
from sage_rlvr.errors import ConfigError, DataError


class TokenWeight(Extra):
    """An extra whose `token_weights` multiply the advantages; a method has at most one. It has no other hook.

    Each optional signal that it reads is in `needs`, including "advantages" (those of completions, which it multiplies). A subclass
    is a frozen dataclass with `equation`, the name of the factor in `describe`.
    """

    kind_name: ClassVar[str] = "token_weight"

    @property
    def random(self) -> bool:
        """True if it uses random numbers from `key`, which is then required."""
        return False

    @abstractmethod
    def token_weights(
        self, signals: Signals, step: int, total_steps: int, key: Key, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """Return the factor (B, T) on the advantages, arbitrary off the mask, and the state after it. Once per rollout, no
        gradient.

        Args:
            signals: of the policy that generated the rollout.
            step: the optimizer step, from 0.
            total_steps: steps of the run.
            key: the run's key.
            state: its own state before the rollout.
        """

    @property
    def hook(self) -> str:
        return "token_weights"

    @property
    def changes_credit(self) -> bool:
        return True


def weights_of(
    weight: TokenWeight, signals: Signals, step: int = 0, total_steps: int = 1, key: Key | None = None, state: State | None = None
) -> tuple[PerToken, State]:
    """Return the factor (B, T) of a token weight, and the state of all parts after it.

    Args:
        weight: called with signals, step and total_steps, see `TokenWeight.token_weights`.
        key: the run's key; required if the weight is random.
        state: of all parts; None = before the first step.

    Raises:
        DataError: the weight is random and `key` is None.
        ConfigError: it does not return a factor (B, T) and a state.
    """
    if key is None and weight.random:
        raise DataError(f"advantages_of: {type(weight).__name__} draws at random; pass key= (the key of the run).")
    state = {weight.slot: weight.start()} if state is None else state
    own = weight.own_state(state, signals.mask.device)
    returned: object = weight.token_weights(signals, step, total_steps, key, own)  # type: ignore[arg-type]  # None: it draws nothing
    # Checked before it is unpacked: of a lone tensor of two rows the first row would weigh every row.
    factor, moved = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    shape = tuple(signals.mask.shape)
    if not (isinstance(factor, Tensor) and tuple(factor.shape) == shape and isinstance(moved, Mapping)):
        got = f"a tensor {tuple(returned.shape)}" if isinstance(returned, Tensor) else f"{returned!r:.80}"
        raise ConfigError(
            f"{type(weight).__name__}.token_weights must return two values, a tensor {shape} and the state (the given one if it "
            f"has none), got {got}"
        )
    return factor, weight.moved(state, moved)


def token_advantages(signals: Signals) -> PerToken:
    """Return the advantage of each counted token, (B, T); 0 elsewhere."""
    return torch.where(signals.mask, signals.require("advantages", "a token weight").float()[:, None], 0.0)


def lifted(advantages: PerToken, bonus: PerToken, kappa: float) -> PerToken:
    """Return (A + min(bonus, |A| / kappa)) / A, for a bonus >= 0; 1 if A is 0. The sign of A does not change while kappa > 1."""
    size = torch.where(advantages == 0, 1.0, advantages.abs())
    return 1.0 + advantages.sign() * (bonus / size).clamp(max=1.0 / kappa)


def covariance(signals: Signals) -> PerToken:
    """Return (A_t - mean A)(log pi_old - mean log pi_old) of arXiv 2505.22617, means over counted tokens; 0 elsewhere."""
    return _deviation(token_advantages(signals), signals.mask) * _deviation(signals.old_logps, signals.mask)


def _deviation(values: PerToken, mask: Bool[Tensor, "B T"]) -> PerToken:
    """Return values minus their mean over the counted tokens; 0 elsewhere."""
    kept = torch.where(mask, values.float(), 0.0)
    return torch.where(mask, kept - kept.sum() / mask.sum().clamp(min=1), 0.0)


def entropy_drift(log_probs: Float[Tensor, "B T V"]) -> PerToken:
    """Return sum_a pi_a^2 (log pi_a + H) of each state, from its log-probs of every next token."""
    probs = log_probs.exp()
    entropies = torch.special.entr(probs).sum(-1, keepdim=True)
    drift: PerToken = (probs**2 * (log_probs.clamp(min=-1e4) + entropies)).sum(-1)
    return drift
