"""The verdicts of a task as a reward function of TRL's trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sage_rlvr.tasks.abilities import ClassifiesStates
from sage_rlvr.tasks.base import NO_ANSWER, Response, Task, reference, verdicts
from sage_rlvr.tasks.jsonl import RewardTask
from sage_rlvr.tasks.unanswered import elsewhere_of, read_at
from sage_rlvr.verifiers.rewards import log_reasons, text_of


@dataclass(frozen=True)
class TaskReward:
    """A task's verdicts as a reward function of TRL, on rows whose column `problem` is a place in `problems`.

    ends: tokens that end a completion; one that ended by none of them carries `NO_ANSWER`, as on the loop engine.
    """

    task: Task
    problems: Sequence[Any]
    ends: tuple[int, ...]

    @property
    def __name__(self) -> str:
        """The name of the reward in TRL's metrics: the user's function, if there is one."""
        return self.task.reward.rpartition(":")[2] if isinstance(self.task, RewardTask) else "reward"

    @property
    def verifier_hash(self) -> str:
        """`Task.verifier_hash`, for the model card."""
        return self.task.verifier_hash

    def answer_key(self, row: Mapping[str, Any], text: str) -> str | None:
        """The answer of a completion of a row, as the task reads it; for methods that compare answers."""
        turns = text if row.get("said") is None else tuple(row["said"])
        return self.task.answer_key(self.problems[row["problem"]], turns)

    @property
    def state_class(self) -> Callable[[str], str] | None:
        """The task's `state_class`, for the guide `Place`; None for a task without classes of states."""
        return self.task.state_class if isinstance(self.task, ClassifiesStates) else None

    def reference_answer(self, row: Mapping[str, Any], text: str) -> tuple[str, tuple[int, int] | None]:
        """The right answer of a row's problem, and the place of a completion's own; for rewards without a verifier."""
        problem = self.problems[row["problem"]]
        return reference(self.task, problem), self.task.answer_span(problem, text)

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], problem: Sequence[int], **columns: Any
    ) -> list[float]:
        """`Verdict.reward` of each completion, or of an episode, whose turns are in the column `said`; their reasons go to TRL's
        `log_metric` and to the watch (`log_reasons`)."""
        said_by: Sequence[Response] = [tuple(turns) for turns in columns.get("said") or ()] or [
            text_of(answer) + ("" if len(ids) and ids[-1] in self.ends else NO_ANSWER)
            for answer, ids in zip(completions, completion_ids, strict=True)
        ]
        pairs = [(self.problems[i], answer) for i, answer in zip(problem, said_by, strict=True)]
        judged = verdicts(self.task, pairs)
        cut = [("".join(answer)).endswith(NO_ANSWER) for answer in said_by]
        log_reasons(judged, columns, read_at(self.task), lambda: elsewhere_of(self.task, pairs, judged), cut)
        return [verdict.reward for verdict in judged]
