"""The training problems of a recipe, and the files that must be unchanged when a run is resumed; the same on all engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig, task_of
from sage_rlvr.core.method import Method
from sage_rlvr.errors import ConfigError
from sage_rlvr.paths import not_in
from sage_rlvr.tasks.base import (
    NO_ANSWER,
    PromptedTask,
    Response,
    Task,
    ready,
    reference,
    turns_of,
    verdicts,
)
from sage_rlvr.tasks.jsonl import RewardTask
from sage_rlvr.tasks.rows import Say, sha256_of, tell
from sage_rlvr.tasks.unanswered import elsewhere_of, read_at
from sage_rlvr.verifiers.rewards import log_reasons, text_of


def training_problems(config: TrainConfig, say: Say = tell) -> tuple[Task, list[Any]]:
    """The task of a recipe and its training problems. ConfigError if they are fewer than a step takes, or the method cannot read
    its episodes; DataError for a row without the reference answer that the method reads."""
    task = task_of(config)
    check_turns(config.method, task)
    ready(task, say, "train")
    problems, wanted = list(task.problems("train")), config.rollout.prompts_per_step
    if len(problems) < wanted:
        raise ConfigError(
            f"rollout.prompts_per_step = {wanted}: more prompts per step than the {len(problems)} training problems of "
            f"the task {task.name}; lower rollout.prompts_per_step, or give the task more problems"
        )
    if config.method.reward_source is not None:  # of rows all, so that the run does not meet one without a gold on its way
        for problem in problems if isinstance(task, PromptedTask) else problems[:1]:
            reference(task, problem)
    return task, problems


def check_turns(method: Method, task: Task) -> None:
    """ConfigError for a part of the method that knows completions of one text only, where the task has turns."""
    right = method.advantage if "ref_right" in method.needs else None
    parts = (
        (method.buffer, "stores each answer as one text"),
        (method.reward_source, "needs the probability of a reference answer, which an episode does not have"),
        (right, "reads the probability of all correct answers, each as one text"),
    )
    unfit = next((part for part in parts if part[0] is not None), None)
    if turns_of(task) > 1 and unfit is not None:
        raise ConfigError(
            f"method {method.name}: {type(unfit[0]).__name__} {unfit[1]}, and task {task.name} has episodes of up to "
            f"{turns_of(task)} turns; set turns: 1 for the task, or use a method without that part, such as grpo"
        )


def unkeyed(method: Method, task: Task) -> str:
    """What a method that counts distinct answers has to know of a task without answer_key; empty for one with it."""
    if not ("answers" in method.needs or method.buffer is not None) or task.keyed:
        return ""
    return (
        f"{type(task).__name__} has no answer_key, so two completions count as the same answer only if their texts "
        "agree up to spaces; add answer_key(problem, text) to the task for a method that counts distinct answers"
    )


def unverified(method: Method) -> str:
    """What is to be known of a method whose rewards are not the verifier's; empty for any other."""
    if method.reward_source is None:
        return ""
    return (
        f"rewards are computed by the policy ({type(method.reward_source).__name__}): verifier verdicts are only "
        "computed for metrics. If the reward rises while verifier/right_frac does not, or reward/auc is near 0.5, the "
        "reward is being exploited or is uninformative"
    )


def files_of(config: TrainConfig) -> dict[str, str]:
    """Name -> SHA-256 of the files that the run is made of: the task's rows, a reward of the user's, what extras read.

    ConfigError for a file of an extra that is not there.
    """
    files = task_of(config).files()
    for extra in config.method.extras:
        for file in extra.files:
            if not Path(file).is_file():
                what = f"a file of {extra.file_contents}" if extra.file_contents else "a file that is there"
                raise ConfigError(
                    f"{type(extra).__name__}: file = {file!r}: no such file in {not_in(Path(file))}; pass the path of {what}"
                )
            files = files | {file: sha256_of(Path(file))}
    return files


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
        """What TRL calls the reward in its metrics: the user's function, where there is one."""
        return self.task.reward.rpartition(":")[2] if isinstance(self.task, RewardTask) else "reward"

    @property
    def verifier_hash(self) -> str:
        """`Task.verifier_hash`, for the model card."""
        return self.task.verifier_hash

    def answer_key(self, row: Mapping[str, Any], text: str) -> str | None:
        """What a completion of a row answers, as the task says it; for methods that compare answers."""
        turns = text if row.get("said") is None else tuple(row["said"])
        return self.task.answer_key(self.problems[row["problem"]], turns)

    def reference_answer(self, row: Mapping[str, Any], text: str) -> tuple[str, tuple[int, int] | None]:
        """The right answer of a row's problem, and where a completion's own stands; for rewards without a verifier."""
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


__all__ = ["TaskReward", "files_of", "training_problems"]
