"""Export of a task's problems in verl's format: `sage-rlvr export verl TASK`. Works without verl.

    FOLDER/train.parquet, val.parquet   one row per problem: prompt (messages), data_source, reward_model, extra_info
    FOLDER/task.json                    the task and the identity of its problems, for the reward manager (reward.py)

`reward_model.ground_truth` is the gold, as everywhere in verl (one right answer of a task that has many, "" of one that names
none), and the number of the problem is `extra_info.index`. The reward manager judges by the number, with the verifier of the
task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from sage_rlvr.config import TrainConfig, decode, dump, load_config, task_named, task_of
from sage_rlvr.errors import ConfigError, DataError, suggest
from sage_rlvr.runs import write_json_atomic, writing
from sage_rlvr.safe_io import read_json
from sage_rlvr.tasks.abilities import Conversational, Referenced
from sage_rlvr.tasks.base import Task, problems_of, ready
from sage_rlvr.tasks.rows import Say, tell

RECORD = "task.json"
SPLITS = {"train": "train.parquet", "validation": "val.parquet"}
SEED = 1  # of validation problems that are drawn
ECHO = "{% for m in messages %}{{ m.content }}{% endfor %}"
"""A chat template that repeats its messages, for policies that continue text: actor_rollout_ref.model.custom_chat_template."""


@runtime_checkable
class HasGold(Protocol):
    """A problem that contains its gold, as the rows of data sets do."""

    answer: str


@dataclass(frozen=True)
class Named:
    """Source from which a task is rebuilt: `word` with its prompt format, or the recipe `config` (as `config.dump`)."""

    word: str | None = None
    template: str = "boxed"
    config: dict[str, Any] | None = None

    @classmethod
    def of(cls, word: str, template: str = "boxed") -> Named:
        """A word of the command line, or a recipe file."""
        if word.endswith((".yaml", ".yml")):
            return cls(config=dump(load_config(TrainConfig, word)))
        return cls(word, template)

    def task(self) -> Task:
        """The task itself. ConfigError if it cannot be made here, as of a plugin that is not loaded."""
        if self.config is not None:
            return task_of(decode(TrainConfig, self.config))
        return task_named(str(self.word), self.template)


def chosen(task: Task, take: int | None = None, say: Say = tell, splits: Sequence[str] = tuple(SPLITS)) -> dict[str, list[Any]]:
    """The problems to export by split, of each only the first `take`. ConfigError if the task has no training problems."""
    by_split = {}
    for split in splits:
        ready(task, say, split)
        by_split[split] = problems_of(task, split, SEED, take)
        if split == "train" and not by_split[split]:
            raise ConfigError(f"task {task.name} has no training problems to export")
    return by_split


def export(named: Named, folder: Path, problems: Mapping[str, Sequence[Any]], *, talks: bool) -> dict[str, int]:
    """Write the problems of a task (`chosen`); rows by split. talks: prompts are the task's messages (else its plain text, one
    message). ConfigError if the task has no messages to talk in.
    """
    task = named.task()
    if talks and not isinstance(task, Conversational):
        raise ConfigError(
            f"task {task.name}: its prompts are plain text without messages; export it with --plain, and pass the "
            "printed chat template to verl"
        )
    prints, counts = {}, {}
    for split, some in problems.items():
        file = SPLITS[split]
        rows = [_row(task, split, number, problem, talks) for number, problem in enumerate(some)]
        if rows:
            with writing("problems", folder / file, 1 << 20):
                folder.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_pylist(rows), folder / file)
        prints[split], counts[split] = task.fingerprint(some), len(some)
    record = {"word": named.word, "template": named.template, "config": named.config, "counts": counts, "problems": prints}
    write_json_atomic(folder / RECORD, record)
    return counts


def _row(task: Task, split: str, number: int, problem: Any, talks: bool) -> dict[str, Any]:
    plain = [{"role": "user", "content": task.prompt(problem)}]
    prompt = task.messages(problem) if talks and isinstance(task, Conversational) else plain
    return {
        "data_source": task.name,
        "prompt": prompt,
        "ability": task.name,
        "reward_model": {"style": "rule", "ground_truth": _gold(task, problem)},
        "extra_info": {"index": number, "split": split, "problem": str(problem.problem_id)},
    }


def _gold(task: Task, problem: Any) -> str:
    """The gold of a problem, or one right answer; "" for a task that has neither."""
    gold = problem.answer if isinstance(problem, HasGold) else ""
    return str(gold or (task.reference(problem) if isinstance(task, Referenced) else ""))


def exported(folder: Path) -> tuple[Task, dict[str, Sequence[Any]]]:
    """The task of an exported folder and its problems by split. DataError if they are not those that were exported."""
    again = f"export the task again: {suggest('export', 'verl', 'TASK', '--out', folder)}"
    record = read_json(folder / RECORD, error=DataError, advice=again)
    task = Named(record["word"], record["template"], record["config"]).task()
    by_split: dict[str, Sequence[Any]] = {}
    for split, count in record["counts"].items():
        problems = problems_of(task, split, SEED, count)
        if task.fingerprint(problems) != record["problems"][split]:
            raise DataError(
                f"{folder}: the {split} problems of {task.name} have changed since the export; export them again"
            )
        by_split[split] = problems
    return task, by_split


__all__ = ["ECHO", "RECORD", "SPLITS", "Named", "chosen", "export", "exported"]
