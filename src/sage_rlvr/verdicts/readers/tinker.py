"""tinker-cookbook: eval_*_rollout_summaries.jsonl, one row per trajectory. A problem is the number of its group in the data set."""

from __future__ import annotations

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.fields import Fields
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows, candidates, value_of

OWN = (
    "schema_version", "split", "iteration", "group_idx", "traj_idx", "tags", "sampling_client_step", "steps", "final_ob_len",
)  # fmt: skip


def tinker(file: RowFile, choice: Choice) -> FileRows:
    """Trajectories with `total_reward`, `final_reward` or a metric. Raises DataError for training batches, whose group numbers
    are places in a batch."""
    kept = [Fields(file, number, tree) for number, tree in file.rows()]
    columns = candidates((row.tree for row in kept), OWN, file.path)
    name = choice.of(columns, file.path, columns=columns)
    for row in kept:
        if row.need("split", str) == "train":
            raise DataError(
                f"{file.location(row.number)}: split = 'train': a training batch, whose groups have no number that means a "
                "problem; pass eval_*_rollout_summaries.jsonl"
            )
        yield row.number, {
            "id": row.id("group_idx"), "step": row.get("iteration", int), "task": row.need("split", str),
            "score": value_of(row.tree, name),
        }  # fmt: skip
