"""EvalPlus: eval_results.json, a document with the list of samples of every task."""

from __future__ import annotations

from sage_rlvr.verdicts.readers.fields import Fields
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows

PASS = "pass"


def evalplus(file: RowFile, choice: Choice) -> FileRows:
    """Samples with "base" (the tests of the benchmark), or with "plus", for which the tests that EvalPlus added pass too."""
    tasks = Fields(file, 1, file.document()).inner("eval")
    kept = [
        (task, Fields(file, 1, sample, f"eval.{task}[{index}]."))
        for task in tasks.tree
        for index, sample in enumerate(tasks.list_of(task, dict))
    ]
    plus = any(sample.tree.get("plus_status") is not None for _, sample in kept)
    name = choice.of(["base", "plus"] if plus else ["base"], file.path)
    for task, sample in kept:
        names = ("base_status", "plus_status") if name == "plus" else ("base_status",)
        yield 1, {
            "id": task, "text": sample.get("solution", str), "correct": all(sample.need(one, str) == PASS for one in names),
        }  # fmt: skip
