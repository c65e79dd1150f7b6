"""A teacher that samples a policy from a folder or the Hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.generation import Decoding, Request, SamplerGenerator
from sage_rlvr.models.policy import PromptRenderer, load_policy, weights_hash
from sage_rlvr.tasks.abilities import Locating
from sage_rlvr.tasks.base import Task
from sage_rlvr.tasks.teachers import TEACHERS
from sage_rlvr.verifiers import Verdict


@TEACHERS.register(name="policy")
@dataclass(frozen=True)
class PolicyTeacher:
    """The place at which a stronger policy, sampled greedily without guidance, would act on the same problem, but not its action.

    model: its folder or Hub id. whole: return its full completion, which is dropped if it contains the reference answer, unless
    leak. The place is that of the task's where(problem, text).
    """

    model: str
    whole: bool = False
    leak: bool = False

    @property
    def sha256(self) -> str:
        """Hash of its weights."""
        return weights_hash(self.model)

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """The policy's hint on one problem. Raises ConfigError for a task without where(problem, text)."""
        locating = isinstance(task, Locating)
        if not locating and not self.whole:
            raise ConfigError(
                f"task {task.name}: {type(task).__name__} has no where(problem, text), which returns where a "
                "completion acts without showing how; add it to the task, or let the hint be the whole answer (whole: "
                "true)"
            )
        asking, generator = _load_generator(self.model, task)
        ids = asking(problem).ids
        text = generator.generate([Request(ids, (0,))])[0][0].text
        return text if self.whole or not isinstance(task, Locating) else task.where(problem, text)


@lru_cache(maxsize=2)
def _load_generator(model: str, task: Task) -> tuple[PromptRenderer, SamplerGenerator]:
    policy, tokens = load_policy(model)
    limit = task.max_new_tokens
    decoding = Decoding("greedy", temperature=0.0, max_new_tokens=limit)
    return PromptRenderer.of(task, tokens), SamplerGenerator(policy, tokens, decoding)


__all__ = ["PolicyTeacher"]
