"""The protocol of loss terms: a differentiable value per token, times a weight fixed at the rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.signals import Batch, check_equation
from sage_rlvr.registry import Registry

PerToken = Float[Tensor, "B T"]


@runtime_checkable
class LossTerm(Protocol):
    """The loss of a token gains w_t v_t, under the method's own reduction; beside any surrogate and any KL.

    Called with (signals, step, total_steps), once per rollout from the policy that generated it, it gives w (B, T), without a
    gradient; one with a running state (core/state.py) gives w and its new state. `values(batch)`, once per update, gives v (B, T)
    in the graph. `equation` is w_t v_t as one line. Optional attributes: `legend`, what its symbols mean; `ascends`, what the term
    does in expectation; `depends_on`, "batch" for one whose weight compares the tokens of the rollout; `needs`, optional
    signals, of which "entropy_gradient" puts `Batch.entropies` into the graph, and "advantages" is `Signals.advantages`.
    """

    @property
    def equation(self) -> str:
        """w_t v_t as one line of text."""

    @property
    def __call__(self) -> Callable[..., Any]: ...

    def values(self, batch: Batch) -> PerToken:
        """v, (B, T), in the graph of the policy's log-probs or entropies."""


LOSS_TERMS: Registry[Any] = Registry("loss_term", check=check_equation("the loss of a token"))
