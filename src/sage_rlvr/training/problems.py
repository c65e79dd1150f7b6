"""The training problems of a recipe, and the files that must be unchanged when a run is resumed; the same on all engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig, task_of
from sage_rlvr.core.method import Method
from sage_rlvr.core.rollout_plans import is_spread
from sage_rlvr.errors import ConfigError
from sage_rlvr.paths import not_in
from sage_rlvr.tasks.base import PromptedTask, Task, ready, reference, turns_of
from sage_rlvr.tasks.rows import Say, sha256_of, tell


def training_problems(config: TrainConfig, say: Say = tell) -> tuple[Task, list[Any]]:
    """Return the task of a recipe and its training problems.

    Raise ConfigError if they are fewer than a step takes, or the method cannot read the task's episodes; DataError for a row
    without the reference answer that the method reads.
    """
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
    """Raise ConfigError for a part of the method that supports only completions of one text, if the task has turns."""
    right = method.advantage if "ref_right" in method.needs else None
    parts = (
        (method.buffer, "stores each answer as one text"),
        (method.reward_source, "needs the probability of a reference answer, which an episode does not have"),
        (method.rollout if is_spread(method.rollout) else None, "chooses the first token of one text"),
        (right, "reads the probability of all correct answers, each as one text"),
    )
    unfit = next((part for part in parts if part[0] is not None), None)
    if turns_of(task) > 1 and unfit is not None:
        raise ConfigError(
            f"method {method.name}: {type(unfit[0]).__name__} {unfit[1]}, and task {task.name} has episodes of up to "
            f"{turns_of(task)} turns; set turns: 1 for the task, or use a method without that part, such as grpo"
        )


def unkeyed(method: Method, task: Task) -> str:
    """Return a note on a method that counts distinct answers of a task without answer_key; empty for a task with it."""
    if not ("answers" in method.needs or method.buffer is not None) or task.keyed:
        return ""
    return (
        f"{type(task).__name__} has no answer_key, so two completions count as the same answer only if their texts "
        "agree up to spaces; add answer_key(problem, text) to the task for a method that counts distinct answers"
    )


def unverified(method: Method) -> str:
    """Return a note on a method whose rewards are not the verifier's; empty for any other."""
    if method.reward_source is None:
        return ""
    return (
        f"rewards are computed by the policy ({type(method.reward_source).__name__}): verifier verdicts are only "
        "computed for metrics. If the reward rises while verifier/right_frac does not, or reward/auc is near 0.5, the "
        "reward is being exploited or is uninformative"
    )


def files_of(config: TrainConfig) -> dict[str, str]:
    """Return name -> SHA-256 of the input files of the run: the task's rows, a user's reward, files of extras.

    Raise ConfigError for a file of an extra that does not exist.
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


__all__ = ["files_of", "training_problems"]
