"""The rows of a recipe's `data` as a Dataset, as TRL trains on it."""

from __future__ import annotations

from datasets import Dataset

from sage_rlvr.config import DataConfig
from sage_rlvr.tasks.datasets import examples, worked_solutions
from sage_rlvr.tasks.golds import check_golds
from sage_rlvr.tasks.prompts import FORMATS
from sage_rlvr.tasks.rows import DataSource, Say, tell


def load(data: DataConfig, *, solutions: bool = False, say: Say = tell) -> Dataset:
    """The rows of `data` as a Dataset with the columns prompt (messages of the format), answer (text) and id.

    solutions: for fine-tuning, with a column solution, which reward functions would take for a second gold; a set without
    worked solutions is refused, and golds are not checked, because no verifier reads them (else: see `check_golds`).
    Raises ConfigError for paths and columns, DataError for rows, all with their places (`sage_rlvr.tasks.datasets`).
    """
    source, form = DataSource.of(data), FORMATS[data.prompt]
    found = examples(source, prompts_first=data.prompt == "as_is", asked=form.messages)
    columns = {
        "id": [one.problem_id for one in found.examples],
        "prompt": [one.problem for one in found.examples],
        "answer": [one.answer for one in found.examples],
    }
    if solutions:
        columns["solution"] = list(worked_solutions(source, found))
    else:
        check_golds(found.rows, columns["answer"], allow_unverifiable=data.allow_unverifiable, say=say)
    say(f"{found}; prompt format: {data.prompt}")
    return Dataset.from_dict(columns)
