"""What the page shows of each policy, over its training seeds: from exact records, or from a stored summary.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sage_rlvr.results import Results
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.frontier import FrontierPoint, best_pass1
from sage_rlvr.stats.intervals import Interval, mean_interval, seed_interval, share_intervals
from sage_rlvr.stats.support import reachable, support_change

KS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
EPS = 1 / 256  # a right completion above it is in the support (Definition 4.1)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """passes: k -> mean with its interval, over problems of one training seed, over seeds of several, without width where there
    is none. by_seed: the temperature frontier of each seed, coldest first. support: (kept, gained, lost); of the base the count."""

    name: str
    seeds: tuple[int, ...]
    passes: Mapping[int, Interval]
    by_seed: tuple[tuple[FrontierPoint, ...], ...] = ()
    best: Interval | None = None
    distinct: Interval | None = None
    support: tuple[Interval, Interval, Interval] | None = None
    supported: int | None = None

    @property
    def frontier(self) -> tuple[FrontierPoint, ...]:
        """Mean over the seeds at every temperature that all of them have."""
        rows = [{p.temperature: p for p in points} for points in self.by_seed]
        shared = sorted(set.intersection(*map(set, rows))) if rows else []
        return tuple(
            FrontierPoint(
                temperature=t,
                pass1=float(np.mean([r[t].pass1 for r in rows])),
                passk=float(np.mean([r[t].passk for r in rows])),
            )
            for t in shared
        )

    @property
    def marks(self) -> list[tuple[float, float]]:
        """pass@1 and pass@k of each seed at temperature 1."""
        return [(p.pass1, p.passk) for points in self.by_seed for p in points if p.temperature == 1.0]


def policies(results: Results) -> dict[str, Policy]:
    """Every policy with exact scores, the base first."""
    if results.stored is not None:
        return {one.name: one for one in _stored(results.stored)}
    base = results.design.base
    names = [name for name in (base, *results.design.names) if name is not None and results.seeds(name)]
    return {name: _exact(results, name) for name in dict.fromkeys(names)}


def over(values: Sequence[float]) -> Interval:
    """Mean over training seeds with Student's interval; without width below three seeds, where there is none to draw."""
    found = seed_interval(values)
    if len(values) >= FEWEST_SEEDS:
        return found
    return Interval(value=found.value, low=found.value, high=found.value, level=found.level, over=found.over, n=found.n)


def ks_of(k: int) -> tuple[int, ...]:
    """Powers of two below k, and k."""
    return (*(n for n in KS if n < k), k)


def _exact(results: Results, name: str) -> Policy:
    scores = results.scores(name)
    assert scores is not None
    ks, several = ks_of(results.k), len(scores.seeds) > 1
    values = scores.passes(ks)  # (S, N, K)
    means = values.mean(axis=1)
    fixed = results.several and not several
    if several or fixed:
        cells = [over(column) for column in means.T]
    else:
        cells = share_intervals(values[0])
    found = [results.exact(name, seed) for seed in scores.seeds]
    by_seed = tuple(tuple(sorted(one.points, key=lambda p: p.temperature)) for one in found)
    tops = [best_pass1(points).pass1 for points in by_seed]
    each = reachable(found[0].record.logps[1.0], results.k)
    home = results.design.base
    changes = []
    if home is not None and name != home and results.seeds(home):
        before = results.exact(home).record.logps[1.0]
        changes = [support_change(before, one.record.logps[1.0], EPS) for one in found]
    kept = (
        [over([float(getattr(c, what)) for c in changes]) for what in ("preserved", "gained", "lost")]
        if changes
        else None
    )
    return Policy(
        name=name, seeds=scores.seeds, passes=dict(zip(ks, cells, strict=True)), by_seed=by_seed, best=over(tops),
        distinct=over([one.distinct[1.0] for one in found]) if several or fixed else mean_interval(each),
        support=None if kept is None else (kept[0], kept[1], kept[2]),
        supported=sum(int(np.sum(np.asarray(row) > math.log(EPS))) for row in found[0].record.logps[1.0]),
    )  # fmt: skip


def _stored(found: Mapping[str, Any]) -> list[Policy]:
    base, out = found["base"], []
    if base is not None:
        points = tuple(FrontierPoint(**p) for p in base["frontier"])
        out.append(
            Policy(
                name="base", seeds=(0,), passes={int(k): _fixed(v) for k, v in base["pass"].items()}, by_seed=(points,),
                best=_fixed(base["best"]["pass1"]), distinct=_fixed(base["distinct"]), supported=base["support"],
            )
        )  # fmt: skip
    for row in found["arms"].values():
        if row["seeds"]:
            seeds = row.get("frontier_by_seed", {}).values() or [row["frontier"]]
            kept = (
                [interval(row["support"][what]) for what in ("preserved", "gained", "lost")]
                if "support" in row
                else None
            )
            out.append(
                Policy(
                    name=row["label"], seeds=tuple(row["seeds"]), passes={int(k): interval(v) for k, v in row["pass"].items()},
                    by_seed=tuple(tuple(_point(p) for p in points) for points in seeds),
                    best=interval(row["best_pass1"]), distinct=interval(row["distinct"]),
                    support=None if kept is None else (kept[0], kept[1], kept[2]),
                )
            )  # fmt: skip
    return out


def interval(row: Mapping[str, Any]) -> Interval:
    """An interval of summary.json; without width where it has none."""
    ends = {end: row["value"] if row[end] is None else row[end] for end in ("low", "high")}
    return Interval(**{**row, **ends})


def _fixed(value: float) -> Interval:
    return Interval(value=value, low=value, high=value, level=0.95, over="problems", n=1)


def _point(row: Mapping[str, float]) -> FrontierPoint:
    return FrontierPoint(temperature=row["temperature"], pass1=row["pass1"], passk=row["passk"])
