"""Types of the trainer attributes that the other modules read: TRL's own, and those that `SageTrainer` adds.

`SageTrainer` has all of them without deriving from a class here; the modules import the types, and never the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor
from transformers import PreTrainedModel, TrainerState

from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.method import Method
from sage_rlvr.core.state import State
from sage_rlvr.models.answer_substitution import Span

Inputs = dict[str, Any]
"""A batch of TRL by its own names, and this package's additions under names that begin with sage_."""
ReferenceAnswer = Callable[[Mapping[str, Any], str], tuple[str, Span | None]]
"""A row of the data and a completion's text -> the right answer, and the place of the completion's own (None: it has none)."""


class TrlTrainer(Protocol):
    """Attributes of any of TRL's online trainers after construction.

    Its libraries declare no types for those that are `Any` here.
    """

    model: Any
    """The policy, wrapped by accelerate; `accelerator.unwrap_model` gives the `PreTrainedModel` or the `PeftModel`."""
    ref_model: Any
    processing_class: Any
    """The tokenizer, or a processor that contains it."""
    train_dataset: Any
    reward_funcs: list[Any]
    reward_func_names: list[str]
    accelerator: Any
    args: Any
    """The `GRPOConfig`."""
    state: TrainerState
    temperature: float
    num_generations: int
    max_completion_length: int
    is_deepspeed_enabled: bool
    is_fsdp_enabled: bool
    _metrics: dict[str, dict[str, list[float]]]
    """"train" and "eval" -> metric -> the values that the next line of the log is the mean of."""

    def is_world_process_zero(self) -> bool:
        """Return True on the first process."""

    def add_callback(self, callback: Any) -> None:
        """Call `callback` at the trainer's events."""

    def _remove_unused_columns(self, dataset: Any) -> Any: ...

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]: ...


class PolicyTrainer(TrlTrainer, Protocol):
    """Attributes that `SageTrainer` adds."""

    method: Method | None
    anchor: Anchor | None
    """The KL term; None without one."""
    parts: State
    """The running state of the method's parts, equal on all ranks."""
    initial: PreTrainedModel | None
    """The policy as the trainer was given it, where the method's reward source asks for it."""
    objective_may_change: bool
    changed_in: dict[str, str]
    """Keyword of `Setting` -> where a user changes that setting."""
    tell: Callable[[str, int, str], None]
    """Warn: kind, step, sentence."""
    note: Callable[[str], None]
    """Print a line of the opening."""
    _reference_answer: ReferenceAnswer | None

    @property
    def reference_description(self) -> str:
        """One line: what the reference is and where it was loaded from."""

    def _draw(self, inputs: list[dict[str, Any]]) -> tuple[Inputs, Tensor]: ...
