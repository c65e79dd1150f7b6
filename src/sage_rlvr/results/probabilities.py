"""probabilities.npz beside summary.json: the probability of a right completion on every problem, from which every pass@k, at each
temperature and of each mixture, can be computed again when the records are gone.

    names       JSON: [[arm, training seed], ...] of the main task; guessers are arms at temperature 1
    places      (N,) for each evaluated problem its column, since a problem that was drawn twice is stored once
    t0, p0 ...  temperatures (T,) and probabilities (T, columns) of the first name, and so on; float16, whose rounding moves a mean
                pass@256 by about 1e-5
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.runs.files import replacing
from sage_rlvr.safe_io import read_npz, understood
from sage_rlvr.verdicts.baselines import always_allowed
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.stats.mixture import Table

NAME = "probabilities.npz"
Kept = dict[tuple[str, int], dict[float, np.ndarray]]


def save_probabilities(results: Results, folder: Path) -> Path | None:
    """Write the file for all exact records of the main task; None without one."""
    main = results.table.exact().where(task="")
    if not main:
        return None
    policies: dict[tuple[str, int], Table] = {}
    for arm, rows in sorted(main.by_arm().items()):
        policies |= {(arm, seed): run.p for seed, run in rows.runs.items()}
    base = main.where(arm=results.home or "")
    allowed = always_allowed(base, results.base_record)
    policies |= {(name, 0): table for name, table in allowed.items() if (name, 0) not in policies}
    _, columns, places = np.unique(np.array(main.rows[0].problems), return_index=True, return_inverse=True)
    arrays = {"names": np.array(json.dumps(list(policies))), "places": places.astype(np.int32)}
    for i, table in enumerate(policies.values()):
        arrays[f"t{i}"] = np.array(sorted(table))
        arrays[f"p{i}"] = np.array([np.asarray(table[t])[columns] for t in sorted(table)], dtype=np.float16)
    with replacing(folder / NAME) as temporary:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
    return folder / NAME


def load_probabilities(folder: Path) -> Kept:
    """(arm, training seed) -> temperature -> probabilities (N,). DataError where the file is missing or damaged."""
    again = f"create it again with: {suggest('sweep', 'DESIGN')}"
    if not (folder / NAME).is_file():
        raise DataError(f"{folder / NAME}: no such file; {again}")
    data = read_npz(folder / NAME, advice=again)
    with understood(folder / NAME, advice=again):
        probabilities: Kept = {}
        for i, (arm, seed) in enumerate(json.loads(str(data["names"]))):
            rows = data[f"p{i}"].astype(float)[:, data["places"]]
            probabilities[str(arm), int(seed)] = dict(zip(data[f"t{i}"].tolist(), rows, strict=True))
        return probabilities


__all__ = ["NAME", "load_probabilities", "save_probabilities"]
