"""One policy's exact evaluation as a file: log-probs of every right completion, from which all other numbers are recomputed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.runs import is_run
from sage_rlvr.runs.files import replacing
from sage_rlvr.safe_io import parse_json, read_npz, understood
from sage_rlvr.verdicts.chance import chance_of_tree
from sage_rlvr.verdicts.record import Record

FORMAT = 1
AGAIN = "create it again with:"  # and the command
ROUNDING = 1e-3  # nats by which sums of float32 log-probs may exceed 0
# Fields that two records must share to be compared problem by problem.
PAIRED = ("world", "split", "seed", "sampling", "problem_ids")


def save_record(record: Record, path: str | Path) -> Path:
    """Write one .npz without pickle, replaced atomically."""
    temperatures, powers = sorted(record.logps), sorted(record.norms)
    arrays = {
        "meta": np.array(json.dumps({"format": FORMAT, **record.meta}, allow_nan=False)),
        "temperatures": np.array(temperatures),
        "offsets": np.cumsum([0, *(len(row) for row in record.logps[temperatures[0]])]),
        "logps": np.stack([np.concatenate([*record.logps[t], np.zeros(0)]) for t in temperatures]),
    }
    if powers:
        arrays |= {"powers": np.array(powers), "norms": np.stack([record.norms[p] for p in powers])}
    with replacing(path) as temporary:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
    return Path(path)


def load_record(path: str | Path) -> Record:
    """Inverse of `save_record`. `DataError` names the file if it is missing or damaged."""
    if not Path(path).exists():
        raise DataError(f"{path}: no such evaluation; create it with: {_made_by(path)}")
    try:
        return _read(path)
    except DataError as error:
        raise DataError(f"{error} {_made_by(path)}") from error


def _read(path: str | Path) -> Record:
    data = read_npz(path, advice=AGAIN)
    with understood(path, advice=AGAIN):
        meta = parse_json(str(data["meta"]), f"{path}: meta", advice=AGAIN)
        if meta.pop("format", None) != FORMAT:
            raise DataError(f"{path}: written in another format than {FORMAT}; {AGAIN}")
        chance_of_tree(meta.get("chance"))  # a tree of another shape raises an error with the file's name
        offsets, keys = data["offsets"], data["temperatures"]
        _check(meta, offsets, data["logps"], f"{path}: not a complete evaluation; {AGAIN}")
        logps = {float(t): np.split(row, offsets[1:-1]) for t, row in zip(keys, data["logps"], strict=True)}
        powers = data.get("powers", ())  # absent without a frontier of powers
        norms = dict(zip(map(float, powers), data["norms"], strict=True)) if len(powers) else {}
        if any(norm.shape != (len(offsets) - 1, 2) or norm.dtype != np.float64 for norm in norms.values()):
            raise DataError(f"{path}: not a complete evaluation; {AGAIN}")
    return Record(meta, logps, norms, Path(path))


_META: dict[str, type | tuple[type, ...]] = {
    "name": str, "model": str, "split": str, "world": dict, "sampling": str, "seed": int, "seconds": (int, float), "weights": str,
}  # fmt: skip


def _check(meta: Mapping[str, Any], offsets: np.ndarray, logps: np.ndarray, refusal: str) -> None:
    """Raise DataError unless meta has the required fields, and every problem has its range of finite or zero probabilities."""
    ids = meta["problem_ids"]
    whole = all(isinstance(meta[name], kind) for name, kind in _META.items() if name in meta)
    whole = whole and isinstance(ids, list) and all(isinstance(one, str) for one in ids)
    whole = whole and "name" in meta and np.issubdtype(offsets.dtype, np.integer) and offsets.ndim == 1
    whole = whole and logps.dtype == np.float64 and logps.ndim == 2 and len(offsets) == len(ids) + 1 > 1
    whole = whole and (offsets[0], offsets[-1]) == (0, logps.shape[1]) and bool((np.diff(offsets) >= 0).all())
    if not whole or not (logps < ROUNDING).all():  # of NaN, too
        raise DataError(refusal)


def record_path(out: Path, name: str, suffix: str = "") -> Path:
    """Path of the exact evaluation of a policy in the folder `out` of a demo or sweep. name: its run directory's name, or
    "base"; suffix: "validation" or the name of another task."""
    return out / "evaluations" / f"{name}{'-' if suffix else ''}{suffix}.npz"


EMBEDDED = "embedded"  # the name of the shipped base policy


def embedded_record(split: str) -> Path:
    """Path of the record of `eval embedded`."""
    return Path("runs") / "evaluations" / f"base-{split}.npz"


def _made_by(path: str | Path) -> str:
    """The command that makes a record; for a record in a run's folder, of that run."""
    run = Path(path).parent
    if Path(path) in map(embedded_record, ("test", "validation")):
        return suggest("eval", EMBEDDED)
    return suggest("eval", run if is_run(run) else "RUN")


def check_paired(records: Sequence[Record]) -> None:
    """Raise DataError for records on different problems or tasks, whose differences are meaningless."""
    first = records[0]
    for other in records[1:]:
        for field in PAIRED:
            if other.meta.get(field) != first.meta.get(field):
                raise DataError(
                    f"{other.meta.get('name')} and {first.meta.get('name')} differ in {field}: "
                    f"{_short(other.meta.get(field))} against {_short(first.meta.get(field))}; "
                    "evaluate both with the same --split, --problems, --seed and world"
                )


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} problems, the last {value[-1] if value else None}"
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."
