"""A sweep's folder in numbers and sentences: matrix.json, the records and the metrics in, summary.json and .md out.

Every arm has its mean over training seeds with Student's interval; differences are paired by seed, the problems held fixed,
p with Holm's correction over all of them. What is not there is called "not run". No torch: a folder can be read anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.experiments.differences import between, choose, comparisons, relabelled
from sage_rlvr.experiments.endpoints import endpoints
from sage_rlvr.experiments.folder import KS, NOT_RUN, Cell, Folder, raw_kl, read_folder
from sage_rlvr.experiments.summary_text import markdown
from sage_rlvr.runs import read_metrics, write_json_atomic, write_text_atomic
from sage_rlvr.stats.frontier import best_pass1
from sage_rlvr.stats.intervals import seed_interval
from sage_rlvr.stats.support import support_change

SCHEMA = 1
EPS = 1 / 256


def summarise(path: Path) -> dict[str, Any]:
    """Everything of the folder as strict JSON can hold it."""
    folder = read_folder(path)
    facts = folder.facts
    away = {world: read_folder(path, world) for world in facts["evaluate"]["ood"]}
    found = comparisons(folder, away)
    return _plain(
        {
            "schema": SCHEMA,
            "tier": facts["tier"],
            "notes": facts["notes"],
            "matrix": facts["matrix"],
            "control": facts["control"],
            "seeds": facts["seeds"],
            "evaluate": facts["evaluate"],
            "world": facts["world"],
            "steps": facts["steps"],
            "versions": facts["versions"],
            "base": None if folder.base is None else _base_row(folder.base),
            "arms": {name: _arm_row(folder, name) for name in folder.arms},
            "away": {world: _away_rows(other) for world, other in away.items()},
            "comparisons": found,
            "endpoints": endpoints(folder),
            "relabelled": relabelled(folder),
            "choice": facts["choice"],
            "added": {arm["name"]: arm["why"] for arm in facts["arms"] if arm["why"]},
            "left_out": facts["left_out"],
            "not_run": [
                f"{folder.label(c['arm'])} s{c['seed']}: {_state(c['status'])}"
                for c in facts["cells"]
                if not c["complete"]
            ],
        }
    )


def _state(status: str) -> str:
    """The state of an incomplete cell, so that it can be read beside "not run"."""
    done, slash, steps = status.partition("/")
    if status == "trained" or (slash and done == steps):
        return "trained, not evaluated"
    return f"{done} of {steps} steps" if slash else status


def write_summary(path: Path) -> dict[str, Any]:
    """summary.json and summary.md in the folder; returns the former."""
    found = summarise(path)
    write_json_atomic(path / "summary.json", found)
    write_text_atomic(path / "summary.md", "\n".join(markdown(found)) + "\n")
    return found


def _base_row(base: Cell) -> dict[str, Any]:
    top = best_pass1(base.points)
    return {
        "pass": dict(zip(map(str, KS), base.means.tolist(), strict=True)),
        "distinct": base.distinct,
        "best": asdict(top),
        "frontier": [asdict(point) for point in base.points],
        "support": int(sum(int(np.sum(np.asarray(row) > math.log(EPS))) for row in base.record.logps[1.0])),
    }


def _arm_row(folder: Folder, name: str) -> dict[str, Any]:
    cells = folder.cells[name]
    entry = folder.arms[name]
    row: dict[str, Any] = {
        "label": entry["label"],
        "why": entry["why"],
        "recipe": entry["recipe"],
        "seeds": sorted(cells),
    }
    if not cells:
        return row
    seeds, values = sorted(cells), [cells[seed] for seed in sorted(cells)]
    means = np.stack([cell.means for cell in values])
    row["pass"] = {str(k): asdict(seed_interval(means[:, j])) for j, k in enumerate(KS)}
    row["pass_by_seed"] = {
        str(seed): dict(zip(map(str, KS), m.tolist(), strict=True)) for seed, m in zip(seeds, means, strict=True)
    }
    row["distinct"] = asdict(seed_interval([cell.distinct for cell in values]))
    row["best_pass1"] = asdict(seed_interval([best_pass1(cell.points).pass1 for cell in values]))
    row["frontier"] = [
        {
            "temperature": p[0].temperature,
            "pass1": float(np.mean([q.pass1 for q in p])),
            "passk": float(np.mean([q.passk for q in p])),
        }
        for p in zip(*(cell.points for cell in values), strict=True)
    ]
    row["frontier_by_seed"] = {
        str(seed): [asdict(p) | {"distinct": v.passk} for p, v in zip(cell.points, cell.variety, strict=True)]
        for seed, cell in zip(seeds, values, strict=True)
    }
    if folder.base is not None:
        changes = [support_change(folder.base.record.logps[1.0], cell.record.logps[1.0], EPS) for cell in values]
        row["support"] = {
            what: asdict(seed_interval([getattr(c, what) for c in changes])) for what in ("preserved", "gained", "lost")
        }
    return row | _training(folder, name, seeds)


def _training(folder: Folder, name: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Raw KL, tokens, seconds and dose of q from the metrics of these seeds; what was not logged is left out."""
    logs = [read_metrics(folder.run(name, seed)) for seed in seeds]
    row: dict[str, Any] = {
        "train_seconds": float(np.mean([sum(r["time/step_s"] for r in rows) for rows in logs])),
        "steps": max(map(len, logs)),
    }
    if all("rollout/tokens" in r for rows in logs for r in rows):
        row["tokens"] = float(np.mean([sum(r["rollout/tokens"] for r in rows) for rows in logs]))
    norms = [[r["optimizer/grad_norm"] for r in rows if "optimizer/grad_norm" in r] for rows in logs]
    if all(norms):
        row["grad_norm"] = {
            when: asdict(seed_interval([float(np.mean(_third(n, i))) for n in norms]))
            for i, when in enumerate(("early", "middle", "late"))
        }
    for what, key in (("reward", "reward/mean"), ("dead", "reward/dead_group_share")):
        values = [[r[key] for r in rows if key in r] for rows in logs]
        if all(values):
            row[what] = {
                when: asdict(seed_interval([float(np.mean(_tenth(v, last=when == "last"))) for v in values]))
                for when in ("first", "last")
            }
    kls = [raw_kl(rows) for rows in logs]
    if all(kl is not None for kl in kls):
        row["kl_raw"] = asdict(seed_interval([kl for kl in kls if kl is not None]))
    if folder.arms[name]["guided"]:
        row["dose"] = _dose(logs)
    return row


def _third(values: Sequence[float], which: int) -> Sequence[float]:
    """Early, middle or late: a third of the steps each."""
    return np.array_split(np.asarray(values), 3)[which].tolist() or list(values)


def _tenth(values: Sequence[float], *, last: bool) -> Sequence[float]:
    part = max(1, len(values) // 10)
    return values[-part:] if last else values[:part]


def _dose(logs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, float] | None:
    """Share of tokens where q is not 1, and mean q, in the first and last tenth of training; means over seeds."""
    out: dict[str, list[float]] = {}
    for log in logs:
        rows = [row for row in log if "anchor/q_mean" in row]
        if not rows:
            return None
        part = max(1, len(rows) // 10)
        for when, chosen in (("first", rows[:part]), ("last", rows[-part:])):
            for what, key in (("active", "anchor/q_active_share"), ("q", "anchor/q_mean")):
                out.setdefault(f"{what}_{when}", []).append(float(np.mean([row[key] for row in chosen])))
    return {name: float(np.mean(values)) for name, values in out.items()}


def _away_rows(folder: Folder) -> dict[str, Any]:
    rows: dict[str, Any] = {"problems": None if folder.base is None else folder.base.record.problems}
    rows["base"] = None if folder.base is None else _base_row(folder.base)
    rows["arms"] = {}
    for name, cells in folder.cells.items():
        if cells:
            means = np.stack([cells[seed].means for seed in sorted(cells)])
            best = seed_interval([best_pass1(cells[seed].points).pass1 for seed in sorted(cells)])
            passes = {str(k): asdict(seed_interval(means[:, j])) for j, k in enumerate(KS)}
            rows["arms"][name] = {"seeds": sorted(cells), "pass": passes, "best_pass1": asdict(best)}
    return rows


def _plain(value: Any) -> Any:
    """The value as strict JSON can hold it: numpy becomes lists and numbers, NaN and infinities None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


__all__ = [
    "NOT_RUN",
    "Cell",
    "Folder",
    "between",
    "choose",
    "markdown",
    "raw_kl",
    "read_folder",
    "relabelled",
    "summarise",
    "write_summary",
]
