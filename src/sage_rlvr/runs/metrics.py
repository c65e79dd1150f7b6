"""metrics.jsonl: one strict-JSON line per step; keys under "time/" are exempt from bitwise equality."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError


def comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a metrics row that two equal runs share bit for bit: everything but the timings under "time/"."""
    return {key: value for key, value in row.items() if not key.startswith("time/")}


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl (or of the run directory that holds it); a last line without its end is left out.

    Non-finite numbers come as the texts "nan", "inf", "-inf". Raises DataError that names a damaged line.
    """
    path = Path(path)
    path = path / "metrics.jsonl" if path.is_dir() else path
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                raise ValueError("not a mapping with a step")
        except ValueError as error:
            raise DataError(f"{path}:{number}: damaged line ({error}); delete that line to go on without it") from error
        rows.append(row)
    return rows
