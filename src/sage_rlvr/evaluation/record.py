"""One policy's exact evaluation as a file: log-probs of every right completion, from which all else is recomputed."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.runs.files import replacing

FORMAT = 1
# What two records must share to be compared problem by problem.
PAIRED = ("world", "split", "seed", "draw", "problem_ids")


@dataclass(frozen=True)
class Record:
    """meta: name, model, world, split, seed, problem_ids (N), versions, ... as strict JSON.

    logps: {temperature: [float64 log-probs of the right completions, one array per problem]}, nats, end token included.
    norms: {power: (N, 2) float64 bounds on log sum_y pi(y)^power over all completions}; empty where the policy was not tempered
    over whole completions (`evaluation.tempered`).
    """

    meta: Mapping[str, Any]
    logps: Mapping[float, Sequence[np.ndarray]]
    norms: Mapping[float, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def problems(self) -> int:
        """How many problems it holds."""
        return len(self.meta["problem_ids"])

    def only(self, temperatures: Collection[float] | None) -> Record:
        """The same without temperatures that are not asked for, so that policies are compared at the same ones; None: all."""
        return replace(self, logps={t: rows for t, rows in self.logps.items() if temperatures is None or t in temperatures})


def save_record(record: Record, path: str | Path) -> Path:
    """Write one .npz without pickle, replaced whole."""
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
    """Inverse of `save_record`. `DataError` names the file where it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as data:
            meta = json.loads(str(data["meta"]))
            offsets = data["offsets"]
            logps = {
                float(t): np.split(row, offsets[1:-1])
                for t, row in zip(data["temperatures"], data["logps"], strict=True)
            }
            powers = data.get("powers", ())  # older records have none
            norms = dict(zip(map(float, powers), data["norms"], strict=True)) if len(powers) else {}
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such evaluation; make it with: {_made_by(path)}") from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is not a readable evaluation ({error}); make it again with: {_made_by(path)}"
        ) from error
    if meta.pop("format", None) != FORMAT:
        raise DataError(f"{path}: written in another format than {FORMAT}; make it again with: {_made_by(path)}")
    return Record(meta, logps, norms)


def record_path(out: Path, name: str, suffix: str = "") -> Path:
    """Where a demo or sweep in the folder `out` keeps the exact evaluation of a policy; name: its run directory's, or "base";
    suffix: "validation" or the name of another world."""
    return out / "evaluations" / f"{name}{'-' if suffix else ''}{suffix}.npz"


EMBEDDED = "embedded"  # the name of the shipped base policy


def embedded_record(split: str) -> Path:
    """Where `eval embedded` keeps its record."""
    return Path("runs") / "evaluations" / f"base-{split}.npz"


def _made_by(path: str | Path) -> str:
    """The command that makes a record; of the run that it lies in, as far as its place tells."""
    run = Path(path).parent
    if Path(path) in map(embedded_record, ("test", "validation")):
        return suggest("eval", EMBEDDED)
    return suggest("eval", run if (run / "run.json").is_file() else "RUN")


def check_paired(records: Sequence[Record]) -> None:
    """Refuse records that were not made on the same problems of the same world: their difference would mean nothing."""
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
