"""verl: generations of validation (`trainer.validation_data_dir`) and of rollouts (`trainer.rollout_data_dir`), <step>.jsonl.

A row is one completion; a problem is its prompt (`input`). Besides `score`, other numbers of the reward function may be used as the
score.
"""

from __future__ import annotations

from sage_rlvr.verdicts.readers.fields import Fields
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows, candidates, reader, value_of

OWN = ("input", "output", "gts", "step", "data_source")


@reader("verl", ("input", "output", "score", "step"), about="verl, validation and rollout dumps")
def verl(file: RowFile, choice: Choice) -> FileRows:
    """Completions with `score`, or with another number of the reward function."""
    kept = list(file.rows())
    columns = candidates((tree for _, tree in kept), OWN, file.path)
    name = choice.of(columns, file.path, columns=columns)
    for number, tree in kept:
        row = Fields(file, number, tree)
        yield number, {
            "id": row.id("input"), "score": value_of(tree, name), "text": row.get("output", str), "gold": tree.get("gts"),
            "step": row.get("step", float), "task": row.get("data_source", str),
        }  # fmt: skip
