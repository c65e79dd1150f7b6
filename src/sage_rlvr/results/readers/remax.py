"""remax-rl: `verified_samples_completed_cohort.jsonl.gz`, one row per training run with its completions before and after.

The first row is a manifest. `checkpoints[step].prompts[hash].draws` are requests of eight completions, each the canonical key of a
correct answer or null. Arms are a method and what was there before; tasks are model/domain/level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.results.readers.registry import Choice, FileRows, reader


@reader("remax", ("record_kind", "protocol", "primary", "parent_cache"), about="released samples of remax-rl")
def remax(file: RowFile, choice: Choice) -> FileRows:
    """Every completion of every run; null is incorrect."""
    choice.used = "an answer key that is not null"
    for number, tree in file.rows():
        if "checkpoints" in tree and {*choice.picks} <= {tree["method"], f"{tree['method']}, before", _task(tree)}:
            yield from ((number, row) for row in _completions(tree))


def _task(tree: Mapping[str, Any]) -> str:
    return f"{tree['scale']}/{tree['domain']}/{tree['level']}"


def _completions(tree: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    task = _task(tree)
    for step, checkpoint in tree["checkpoints"].items():
        arm = f"{tree['method']}, before" if step == "0" else str(tree["method"])
        shared = {"arm": arm, "task": task, "seed": tree["seed"]}
        for problem, prompt in checkpoint["prompts"].items():
            for request, draws in enumerate(prompt["draws"]):
                for key in draws:
                    yield shared | {"id": problem, "correct": key is not None, "answer": key, "request": request}
