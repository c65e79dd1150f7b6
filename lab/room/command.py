"""`python -m lab room`: the room law on the released runs of remax-rl and on our own worlds."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.room.cohort import installed, printed_table, read_cohort
from lab.room.report import tables_of
from lab.room.study import Effort, study
from lab.studies.pages import remade
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import require
from sage_rlvr.safe_io import read_text

PAGE, STORED, RUNS, PICTURE = "room.md", "room.json", "room_runs.csv", "room"
LAB_PAGES = Path(__file__).parents[1] / "pages"


@dataclass(frozen=True)
class Room(Command):
    """Does the room that a base leaves predict whether RL widens or narrows? On the released runs of remax-rl 0.1.1."""

    cohort: Path | None = None
    """verified_samples_completed_cohort.jsonl.gz; default: the one of the installed remax-rl."""
    stored: bool = False
    """Print the tables of the stored results, without the package."""
    docs: Path | None = None
    """Fill the page results/room.md under this folder, with its picture, room.json and room_runs.csv."""
    resamples: int = 400
    """Bootstrap resamples of problems and seeds."""
    splits: int = 200
    """Random halves of draws and problems."""
    simulations: int = 200
    """Simulated cohorts of each null."""

    def execute(self, session: Session) -> int:
        for name in ("resamples", "splits", "simulations"):
            require(getattr(self, name) > 1, f"--{name}", getattr(self, name), "must be above 1")
        found = read_stored() if self.stored else self._measured(session)
        tables = tables_of(found)
        for name, table in tables.items():
            session.say(f"## {name}", "", table, "")
        if self.docs is not None:
            write(self.docs, found, tables)
        return 0

    def _measured(self, session: Session) -> dict[str, Any]:
        file = installed() if self.cohort is None else self.cohort
        try:
            printed = printed_table()
        except importlib.metadata.PackageNotFoundError:
            printed = {}
            session.note("remax-rl is not installed: its printed table is not compared")
        effort = Effort(resamples=self.resamples, splits=self.splits, simulations=self.simulations)
        # rounded before it is printed, so that the stored file prints the same tables
        found: dict[str, Any] = rounded(study(read_cohort(file), printed, effort))
        return found


def read_stored() -> dict[str, Any]:
    """lab/pages/results/room.json."""
    found: dict[str, Any] = json.loads(read_text(LAB_PAGES / "results" / STORED))
    return found


def write(docs: Path, found: dict[str, Any], tables: Mapping[str, str]) -> None:
    """The page, the numbers, one row a run where they were read, and the picture."""
    from lab.room.picture import draw

    results, images = docs / "results", docs / "images"
    where, text = remade(results, PAGE, tables)
    where.write_text(text, encoding="utf-8")
    if "runs" in found:
        (results / RUNS).write_text(csv_of(found["runs"]), encoding="utf-8")
    kept = {name: value for name, value in found.items() if name != "runs"}
    (results / STORED).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    images.mkdir(exist_ok=True)
    draw(kept, images / f"{PICTURE}.svg", images / f"{PICTURE}.png")


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Comma-separated rows with a header."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def rounded(value: Any) -> Any:
    """Floats to six decimals, NaN as null, so that the stored file is small and valid JSON."""
    if isinstance(value, float):
        return None if value != value else round(value, 6)
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value
