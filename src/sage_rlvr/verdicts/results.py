"""Results: the measurements of all paths in one table, with the other data that comparisons need. Data only: `results.read_results`
opens run folders, stores and records, and `files.read_files` opens files of rows.

    results.table.where(arm="GRPO", task="")   the measurements: arm, training seed, task, temperature, problems
    findings = findings_of(results)            rows (every comparison, corrected once in two families), verdicts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sage_rlvr.safe_io import understood
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.design import Design
from sage_rlvr.verdicts.measurements import Measurement, Measurements
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.sources import GivenRows, Runs

K = 256  # the largest k by default
NOTHING: Measurements[Measurement] = Measurements()


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """All results of the paths, read once.

    table: the measurements
    records: (arm, training seed, task) -> exact record; the main task is "", the base has seed 0
    runs: training runs by (arm, seed)
    given: files of rows
    chances: task -> its chance floor
    fixed: whether claims about methods are restricted to these problems
    starts: arm -> the arms whose runs were all trained from its weights
    k: the largest k
    samples: the number of samples per problem that were read, if limited
    stored, stored_in: the summary.json of a folder without other results, and its path
    failed: warnings that precede any result, such as why more than half of a policy's samples failed
    notes: what was left out and why, a sentence each
    sources: the words that were passed, PATH or NAME=PATH; () for objects in memory"""

    design: Design
    table: Measurements[Measurement] = NOTHING
    records: Mapping[tuple[str, int, str], Record] = field(default_factory=dict)
    runs: Runs = field(default_factory=dict)
    given: Sequence[GivenRows] = ()
    chances: Mapping[str, Chance | None] = field(default_factory=dict)
    starts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    k: int = K
    samples: int | None = None
    stored: Mapping[str, Any] | None = None
    stored_in: Path | None = None
    failed: Sequence[str] = ()
    notes: Sequence[str] = ()
    sources: Sequence[str] = ()
    fixed: bool = False

    def believed(self) -> AbstractContextManager[None]:
        """Context manager for code that reads a stored summary: a missing key or a wrong type in that file raises DataError with
        its path. Without a stored summary nothing is caught."""
        return nullcontext() if self.stored_in is None else understood(self.stored_in)

    @property
    def home(self) -> str | None:
        """The name of the base, if it has an exact record of the main task."""
        return None if self.base_record is None else self.design.base

    @property
    def base_record(self) -> Record | None:
        """The exact record of the base on the main task."""
        return self.records.get((self.design.base or "", 0, ""))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks with exact records, the main task "" first, then tasks of samples."""
        return tuple(dict.fromkeys([*sorted(self.table.exact().tasks), *self.table.sampled().tasks]))

    @property
    def several(self) -> bool:
        """Return whether an arm has several training seeds; comparisons are then about methods."""
        exact, sampled = self.table.exact().policies(), self.table.sampled().policies()
        return any(len(rows.rows) > 1 for rows in (*exact.values(), *sampled.values()))

    @property
    def sampled_only(self) -> bool:
        """Return whether arms that were passed separately are compared by samples only, so that `verdict` has the answer."""
        arms = {row.arm for row in self.table.rows}
        return self.design.every and not self.records and self.stored is None and len(arms) > 1

    @property
    def of_files(self) -> bool:
        """`sampled_only`, and all samples are those of files of rows."""
        return self.sampled_only and all(row.store is None for row in self.table.sampled().rows)
