"""TRL: completions_<step>.parquet of `log_completions=True`, one row per completion, a column per reward function.

A problem is its prompt. The completions of training are of the policy at that step, on the prompts of that step: to compare two
policies, both need the same prompts, for example those of an evaluation. A reward function that returned None has null.
"""

from __future__ import annotations

import json
from typing import Any

from sage_rlvr.verdicts.readers.fields import Fields, messages_text
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows, candidates, reader, value_of

OWN = ("step", "prompt", "completion", "advantage", "solution")


@reader("trl", ("step", "prompt", "completion", "advantage"), about="TRL, logged completions")
def trl(file: RowFile, choice: Choice) -> FileRows:
    """Completions with one of the rewards."""
    kept = list(file.rows())
    columns = candidates((tree for _, tree in kept), OWN, file.path)
    name = choice.of(columns, file.path, "rewards", columns=columns)
    for number, tree in kept:
        yield number, {
            "id": _text(tree.get("prompt")), "score": value_of(tree, name), "text": _text(tree.get("completion")),
            "step": Fields(file, number, tree).get("step", float), "gold": tree.get("solution"),
        }  # fmt: skip


def _text(value: Any) -> str | None:
    """Text, or the contents of messages; anything else as JSON."""
    if value is None or (text := messages_text(value)) is not None:
        return None if value is None else text
    return json.dumps(value, ensure_ascii=False, default=str)
