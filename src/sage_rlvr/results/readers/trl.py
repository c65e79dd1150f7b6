"""TRL: completions_<step>.parquet of `log_completions=True`, one row per completion, a column per reward function.

A problem is its prompt. The completions of training are of the policy at that step, on the prompts of that step: to compare two
policies, both need the same prompts, for example those of an evaluation.
"""

from __future__ import annotations

import json
from typing import Any

from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.results.readers.registry import Choice, FileRows, reader

OTHERS = ("step", "advantage")


@reader("trl", ("step", "prompt", "completion", "advantage"), about="TRL, logged completions")
def trl(file: RowFile, choice: Choice) -> FileRows:
    """Completions with one of the rewards."""
    name = ""
    for number, tree in file.rows():
        if not name:
            names = [key for key, value in tree.items() if isinstance(value, (int, float)) and key not in OTHERS]
            name = choice.of(names, file.path, "rewards")
        yield number, {
            "id": _text(tree["prompt"]), "score": tree.get(name), "text": _text(tree["completion"]), "step": tree["step"],
            "gold": tree.get("solution"),
        }  # fmt: skip


def _text(value: Any) -> str | None:
    """Text, or the contents of messages."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, dict) and isinstance(one.get("content"), str) for one in value):
        return "\n".join(one["content"] for one in value)
    return json.dumps(value, ensure_ascii=False, default=str)
