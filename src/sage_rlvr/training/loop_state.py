"""`Loop`, the state of a training run on plain torch: what `train_step` and the functions that it calls read and move.

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
from sage_rlvr.models.policy import Asking, Tokens
from sage_rlvr.tasks.base import Task, answer_id
from sage_rlvr.training.optimizer import Optimizer
from sage_rlvr.verifiers.reasons import ReasonWatch


@dataclass
class Loop:
    """The state of a training run: policy and reference, method, task with its training problems, optimizer.

    `loop.build` makes it from a recipe.
    """

    config: TrainConfig
    method: Method
    policy: PreTrainedModel
    reference: PreTrainedModel | None
    tokens: Tokens
    task: Task
    ask: Asking
    problems: list[Any]
    optimizer: Optimizer
    key: Key
    reference_step: int = 0
    """Steps after which the policy became the reference; 0 for one from files."""
    parts: State = field(default_factory=dict)
    """The running state of the method's parts, after the last step that was done."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Id of a training problem -> its number, where the method has a buffer."""
    initial: PreTrainedModel | None = None
    """The policy as the run began with it, where the method's reward source asks for it."""
    solved: dict[tuple[int, str], float] = field(default_factory=dict)
    """(reference_step, id of a problem) -> log P(right) under the reference, where the method reads it."""
    reasons: ReasonWatch = field(default_factory=ReasonWatch)
    """Warns where most completions earn nothing for a reason that can be named."""

    @cached_property
    def problem_ids(self) -> Tensor:
        """(N,) int64, the ids of the training problems, as `Groups.problem_ids` has them."""
        return torch.tensor([answer_id(str(problem.problem_id)) for problem in self.problems])
