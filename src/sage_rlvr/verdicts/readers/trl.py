"""TRL: completions_<step>.parquet of `log_completions=True`, one row per completion, a column per reward function; or their folder.

A problem is its prompt. The completions of training are of the policy at that step, on the prompts of that step. A reward function
that returned None has null.
"""

from __future__ import annotations

from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.named import rows_with
from sage_rlvr.verdicts.readers.registry import Choice, FileRows

NOTE = (
    "{}: completions of training batches, sampled while the policy changed, and no held-out set. `PassAtK` of `sage_rlvr.trl` "
    "samples one during training."
)


def trl(file: RowFile, choice: Choice) -> FileRows:
    """Completions with one of the rewards. Those of a folder are joined by prompt over all steps, unless `@STEP` selects one."""
    choice.notes.append(NOTE.format(file.path))
    columns = {"id": "prompt", "text": "completion", "gold": "solution"}
    if not file.path.is_dir() or choice.picks:
        columns["step"] = "step"
    return rows_with(columns, file, choice, own=("advantage", "step"))
