"""remax-rl: `verified_samples_completed_cohort.jsonl.gz`, one row per training run with its completions before and after.

The first row is a manifest. `checkpoints[step].prompts[hash].draws` are requests of eight completions, each the canonical key of a
correct answer or null. Arms are a method and the model before it; tasks are model/domain/level.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sage_rlvr.verdicts.readers.fields import Fields
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows


def remax(file: RowFile, choice: Choice) -> FileRows:
    """Every completion of every run; null is incorrect."""
    choice.of(["correct"], file.path)
    choice.words = "an answer key that is not null"
    for number, tree in file.rows():
        run = Fields(file, number, tree)
        if "checkpoints" in tree and {*choice.picks} <= {(method := run.need("method", str)), f"{method}, before", _task(run)}:
            yield from ((number, row) for row in _completions(run))


def _task(run: Fields) -> str:
    return "/".join(run.need(name, str) for name in ("scale", "domain", "level"))


def _completions(run: Fields) -> Iterator[dict[str, Any]]:
    task, method, seed, checkpoints = _task(run), run.need("method", str), run.need("seed", int), run.inner("checkpoints")
    for step in checkpoints.tree:
        shared = {"arm": f"{method}, before" if step == "0" else method, "task": task, "seed": seed}
        prompts = checkpoints.inner(step).inner("prompts")
        for problem in prompts.tree:
            for request, draws in enumerate(prompts.inner(problem).need("draws", list)):
                if not isinstance(draws, list):
                    raise prompts.error(f"{problem}.draws", f"has {draws!r:.60}: lists of answer keys are expected")
                for key in draws:
                    yield shared | {"id": problem, "correct": key is not None, "answer": key, "request": request}
