"""The rows of a recipe's `data` as a Dataset, as TRL trains on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sage_rlvr.config import DataConfig
from sage_rlvr.tasks.chat import dry_render, fit_tokenizer, render
from sage_rlvr.tasks.datasets import examples, worked_solutions
from sage_rlvr.tasks.golds import check_golds
from sage_rlvr.tasks.prompts import FORMATS
from sage_rlvr.tasks.rows import DataSource, Say, tell
from sage_rlvr.tasks.rows import facts as facts_of

if TYPE_CHECKING:
    from datasets import Dataset


def facts(data: DataConfig) -> dict[str, str]:
    """What a resume must find unchanged: the SHA-256 of local files, of the Hub's the revision."""
    return facts_of(DataSource.of(data))


def load(
    data: DataConfig,
    *,
    solutions: bool = False,
    check: bool = True,
    allow_unverifiable: bool = False,
    say: Say = tell,
) -> Dataset:
    """The rows of `data` as a Dataset with the columns prompt (messages of the format), answer (text) and id.

    solutions: also a column solution, for fine-tuning; a set without worked solutions is refused. (Without it there is
    none, because reward functions would take it for a second gold.) check: see `check_golds`.
    Raises ConfigError for paths and columns, DataError for rows, all with their places (`sage_rlvr.tasks.datasets`).
    """
    from datasets import Dataset

    source, form = DataSource.of(data), FORMATS[data.prompt]
    found = examples(source, prompts_first=data.prompt == "as_is", asked=form.messages)
    rows = [{"id": one.problem_id, "prompt": one.problem, "answer": one.answer} for one in found.examples]
    if solutions:
        worked = worked_solutions(source, found)
        rows = [row | {"solution": text} for row, text in zip(rows, worked, strict=True)]
    if check:
        tolerant = allow_unverifiable or data.allow_unverifiable
        check_golds(found.rows, [row["answer"] for row in rows], allow_unverifiable=tolerant, say=say)
    say(f"{found}; prompt format: {data.prompt}")
    return Dataset.from_list(rows)


__all__ = ["Say", "check_golds", "dry_render", "facts", "fit_tokenizer", "load", "render", "tell"]
