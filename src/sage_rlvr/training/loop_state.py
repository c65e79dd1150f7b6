"""`TrainState`, the state of a training run on plain torch, which `train_step` and the functions that it calls read and update.

Nothing here samples, scores or updates. The modules that do (rollouts.py, scores.py, reference.py, samplers.py, buffer.py,
state.py) import the type from here, and loop.py builds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.config import TrainConfig
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method
from sage_rlvr.core.state import State
from sage_rlvr.models.policy import PromptRenderer, Tokens
from sage_rlvr.tasks.base import Task, answer_id
from sage_rlvr.training.base_samples import BaseSamples
from sage_rlvr.training.optimizer import Optimizer
from sage_rlvr.verifiers.reasons import ReasonWatch


@dataclass
class TrainState:
    """The state of a training run: policy and reference, method, task with its training problems, optimizer.

    `loop.build` makes it from a recipe.
    """

    config: TrainConfig
    method: Method
    policy: PreTrainedModel
    reference: PreTrainedModel | None
    tokens: Tokens
    task: Task
    ask: PromptRenderer
    problems: list[Any]
    optimizer: Optimizer
    key: Key
    reference_step: int = 0
    """Steps after which the policy became the reference; 0 for a reference from files."""
    parts: State = field(default_factory=dict)
    """The running state of the method's parts, after the last step that was done."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Id of a training problem -> its number, if the method has a buffer."""
    base: BaseSamples | None = None
    """The base model's stored samples, if the method reads them."""
    initial: PreTrainedModel | None = None
    """The policy at the start of the run, if the method's reward source reads it."""
    solved: dict[tuple[int, str], float] = field(default_factory=dict)
    """(reference_step, id of a problem) -> log P(right) under the reference, if the method reads it."""
    reasons: ReasonWatch = field(default_factory=ReasonWatch)
    """Watch that warns if most completions get no reward for a reason that can be named."""

    @cached_property
    def problem_ids(self) -> Tensor:
        """Ids of the training problems, (N,) int64, as in `Groups.problem_ids`."""
        return torch.tensor([answer_id(str(problem.problem_id)) for problem in self.problems])
