"""verl: generations of validation (`trainer.validation_data_dir`) and of rollouts (`trainer.rollout_data_dir`), <step>.jsonl.

A row is one completion; a problem is its prompt (`input`). Besides `score`, other numbers of the reward function may stand for
correct.
"""

from __future__ import annotations

from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.results.readers.registry import Choice, FileRows, reader


@reader("verl", ("input", "output", "score", "step"), about="verl, validation and rollout dumps")
def verl(file: RowFile, choice: Choice) -> FileRows:
    """Completions with `score`, or with another number of the reward function."""
    name = ""
    for number, tree in file.rows():
        if not name:
            numbers = [key for key, value in tree.items() if isinstance(value, (bool, int, float)) and key != "step"]
            name = choice.of(["score", *(key for key in numbers if key != "score")], file.path, default="score")
        yield number, {
            "id": tree.get("input"), "score": tree.get(name), "text": tree.get("output"), "gold": tree.get("gts"),
            "step": tree.get("step"), "task": tree.get("data_source"),
        }  # fmt: skip
