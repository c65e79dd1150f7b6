"""A sweep's folder, read: matrix.json, the exact records of the base and of every arm and seed, and the metrics beside them.

No torch: a folder can be read anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.evaluation.record import Record, check_paired, load_record, record_path
from sage_rlvr.stats.frontier import FrontierPoint, frontier, variety
from sage_rlvr.stats.passk import curve
from sage_rlvr.stats.support import reachable, success_probability

Floats = NDArray[np.float64]

KS = (1, 8, 64, 256)
K = 256
NOT_RUN = "not run"
ANY_TEMPERATURE = " at any temperature"  # after the names in comparisons of frontiers


@dataclass(frozen=True)
class Cell:
    """One evaluated policy: pass@k a problem (N, K) over `KS`, frontier, distinct right ones in 256; variety: its frontier with
    the expected number of distinct right ones in 256 samples in the place of pass@k."""

    record: Record
    passes: Floats
    points: tuple[FrontierPoint, ...]
    distinct: float
    variety: tuple[FrontierPoint, ...]

    @classmethod
    def of(cls, record: Record) -> Cell:
        p = {t: success_probability(rows) for t, rows in record.logps.items()}
        distinct = {t: float(np.mean(reachable(rows, K))) for t, rows in record.logps.items()}
        points = frontier(p, K)
        return cls(record, np.asarray(curve(p[1.0], KS)), points, distinct[1.0], variety(points, distinct))

    @property
    def means(self) -> Floats:
        """Mean over problems of pass@k, (K,)."""
        return np.asarray(self.passes.mean(axis=0))


@dataclass(frozen=True)
class Folder:
    """A sweep's folder, read: its matrix.json, the base's cell, and those of arm -> seed that are evaluated."""

    path: Path
    facts: dict[str, Any]
    base: Cell | None
    cells: dict[str, dict[int, Cell]]

    @property
    def arms(self) -> dict[str, dict[str, Any]]:
        """name -> its entry in matrix.json, in order."""
        return {arm["name"]: arm for arm in self.facts["arms"]}

    def label(self, name: str) -> str:
        """The arm's name in sentences."""
        return str(self.arms[name]["label"])

    def run(self, arm: str, seed: int) -> Path:
        """The run directory of a cell."""
        return self.path / "runs" / f"{arm}-s{seed}"

    def shared(self, a: str, b: str) -> list[int]:
        """Seeds that both arms are evaluated with."""
        return sorted(set(self.cells.get(a, {})) & set(self.cells.get(b, {})))


def read_folder(path: Path, world: str = "") -> Folder:
    """The folder of a sweep. world: its out-of-distribution records of that name, or "" for the main ones, which are taken
    where matrix.json says that they are evaluated (a record of other weights is no result)."""
    try:
        facts = json.loads((path / "matrix.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path / 'matrix.json'}: no sweep was started here ({error}); start one: {suggest('sweep', 'MATRIX')}"
        ) from error
    asked = facts["evaluate"].get("ood_temperatures" if world else "temperatures")

    def read(name: str) -> Cell:
        return Cell.of(load_record(record_path(path, name, world)).only(asked))

    known = {(cell["arm"], cell["seed"]) for cell in facts["cells"] if world in cell["evaluated"]}
    cells: dict[str, dict[int, Cell]] = {arm["name"]: {} for arm in facts["arms"]}
    for arm, seed in sorted(known):
        cells[arm][seed] = read(f"{arm}-s{seed}")
    base = read("base") if world in facts["base_evaluated"] else None
    records = [cell.record for seeds in cells.values() for cell in seeds.values()]
    if records:
        check_paired([*([base.record] if base else []), *records])
    return Folder(path, facts, base, cells)


def raw_kl(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Realised raw KL at the end, nats a token: its mean over the last tenth of the steps that had an update."""
    values = [row["anchor/kl_raw"] for row in rows if "anchor/kl_raw" in row]
    return float(np.mean(values[-max(1, len(values) // 10) :])) if values else None


__all__ = ["ANY_TEMPERATURE", "KS", "NOT_RUN", "Cell", "Folder", "K", "raw_kl", "read_folder"]
