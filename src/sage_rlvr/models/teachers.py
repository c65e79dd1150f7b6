"""The teachers of `sage_rlvr.tasks.teachers`, and one that asks a policy of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sage_rlvr.config import build, dump
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.generation import Decoding, Request, SamplerGenerator
from sage_rlvr.models.policy import Asking, load_policy, weights_hash
from sage_rlvr.recipes import parse_yaml
from sage_rlvr.tasks.abilities import Locating
from sage_rlvr.tasks.base import Task
from sage_rlvr.tasks.teachers import TEACHERS, Teacher
from sage_rlvr.verifiers import Verdict


@TEACHERS.register
@dataclass(frozen=True)
class Policy:
    """Where a stronger policy would act on the same problem, asked without guidance and greedily; what it would do stays unsaid.

    model: its folder or Hub id. whole: say all of its completion, which is dropped where that holds the reference answer, unless
    leak. By the task's where(problem, text).
    """

    model: str
    whole: bool = False
    leak: bool = False

    @property
    def sha256(self) -> str:
        """Of its weights."""
        return weights_hash(self.model)

    def teach(self, task: Task, problem: Any, said: Sequence[str], verdict: Verdict) -> str:
        """What it says of one problem. ConfigError for a task without where(problem, text)."""
        locating = isinstance(task, Locating)
        if not locating and not self.whole:
            raise ConfigError(
                f"task {task.name}: {type(task).__name__} has no where(problem, text), which returns where a "
                "completion acts without showing how; add it to the task, or let the hint be the whole answer (whole: "
                "true)"
            )
        asking, generator = _asked(self.model, task)
        ids = asking(problem).ids
        text = generator.generate([Request(ids, (0,))])[0][0].text
        return text if self.whole or not isinstance(task, Locating) else task.where(problem, text)


@lru_cache(maxsize=2)
def _asked(model: str, task: Task) -> tuple[Asking, SamplerGenerator]:
    policy, tokens = load_policy(model)
    limit = task.max_new_tokens
    return Asking.of(task, tokens), SamplerGenerator(policy, tokens, Decoding("greedy", temperature=0.0, max_new_tokens=limit))


def teacher_named(words: str) -> Teacher:
    """A teacher of the command line: a name, {name: policy, model: FOLDER}, or FILE.py:FUNCTION. ConfigError for others."""
    if words.lstrip().startswith("{"):
        tree: Any = parse_yaml(words, "--hints")
    else:
        tree = {"name": "function", "function": words} if ".py:" in words else words
    made: Teacher = build("teacher", tree)
    return made


def words_of(teacher: Teacher) -> str:
    """A teacher in one line for a store's identity: name and settings, and the hash of code or weights that it brings."""
    tree, more = dump(teacher), str(getattr(teacher, "sha256", ""))
    settings = ", ".join(f"{name}: {value}" for name, value in tree.items() if name != "name")
    return tree["name"] + (f" ({settings})" if settings else "") + (f" {more[:16]}" if more else "")


__all__ = ["TEACHERS", "Policy", "Teacher", "teacher_named", "words_of"]
