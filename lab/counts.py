"""The counts of a sweep's sample stores as rows that `sage-rlvr compare` reads: small enough for the repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.results.design import BASE
from sage_rlvr.results.read import Results


def rows_of(folder: Path) -> Iterator[dict[str, object]]:
    """One row per policy and problem: {"arm", "seed", "task", "temperature", "id", "n", "c"}; the base has no seed."""
    for row in Results.read(folder).table.sampled().rows:
        seed = {} if row.seed is None or row.arm == BASE else {"seed": row.seed}
        for problem, right in zip(row.problems, row.values.tolist(), strict=True):
            group = {"arm": row.arm, **seed, "task": row.task, "temperature": row.temperature}
            yield group | {"id": problem, "n": row.n, "c": int(right)}


@dataclass(frozen=True)
class Counts(Command):
    """Print the counts of a sweep or demo as JSON lines that `sage-rlvr compare` reads."""

    folder: tyro.conf.Positional[Path]
    """The folder of the sweep or demo."""

    def execute(self, session: Session) -> int:
        rows = list(rows_of(self.folder))
        if not rows:
            raise DataError(f"{self.folder}: no samples; evaluate its runs with `sage-rlvr eval RUN --samples 64` first")
        for row in rows:
            session.say(json.dumps(row))
        return 0
