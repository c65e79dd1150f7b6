"""What the figures take of each policy, from the tree of `results.summary`: of records, or stored long ago."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sage_rlvr.results import stored
from sage_rlvr.results.tables import base_row
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.frontier import FrontierPoint
from sage_rlvr.stats.intervals import Interval, seed_interval

KS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """passes: k -> mean with its interval. by_seed: the temperature frontier of each seed; `frontier` their mean. support: (kept,
    gained, lost) of right completions, means over seeds."""

    name: str
    seeds: tuple[int, ...]
    passes: Mapping[int, Interval]
    frontier: tuple[FrontierPoint, ...] = ()
    by_seed: tuple[tuple[FrontierPoint, ...], ...] = ()
    best: Interval | None = None
    support: tuple[float, float, float] | None = None

    @property
    def marks(self) -> list[tuple[float, float]]:
        """pass@1 and pass@k of each seed at temperature 1."""
        return [(p.pass1, p.passk) for points in self.by_seed for p in points if p.temperature == 1.0]


def policies(found: Mapping[str, Any]) -> dict[str, Policy]:
    """Every evaluated policy, the base first."""
    rows = [row for row in found["arms"].values() if row["seeds"]]
    if found["base"] is not None:
        own = found["base"]
        rows.insert(0, base_row(own) | {"frontier": own["frontier"], "frontier_by_seed": {"0": own["frontier"]}})
    return {row["label"]: _policy(row) for row in rows}


def _policy(row: Mapping[str, Any]) -> Policy:
    kept = row.get("support")
    return Policy(
        name=row["label"], seeds=tuple(row["seeds"]), passes={int(k): drawn(v) for k, v in row["pass"].items()},
        frontier=_points(row["frontier"]), by_seed=tuple(map(_points, row.get("frontier_by_seed", {}).values())),
        best=drawn(row["best_pass1"]),
        support=(kept["preserved"]["value"], kept["gained"]["value"], kept["lost"]["value"]) if kept else None,
    )  # fmt: skip


def _points(rows: Sequence[Mapping[str, float]]) -> tuple[FrontierPoint, ...]:
    return tuple(FrontierPoint(temperature=p["temperature"], pass1=p["pass1"], passk=p["passk"]) for p in rows)


def drawn(found: Mapping[str, Any] | Interval | float) -> Interval:
    """An interval that can be drawn: without width where it has none."""
    if isinstance(found, float):
        return Interval(value=found, low=found, high=found, level=0.95, over="problems", n=1)
    i = stored.interval(found) if isinstance(found, Mapping) else found
    return i if np.isfinite(i.width) else drawn(float(i.value))


def over(values: Sequence[float]) -> Interval:
    """Mean over training seeds with Student's interval; without width below three seeds."""
    return seed_interval(values) if len(values) >= FEWEST_SEEDS else drawn(float(np.mean(values)))


def ks_of(k: int) -> tuple[int, ...]:
    """Powers of two below k, and k."""
    return (*(n for n in KS if n < k), k)
