"""Curves, frontiers and differences of scores, exact, stored or from samples, as the template takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sage_rlvr.report.figures import Band, limits_of
from sage_rlvr.report.samples import SampleSet, by_arm, by_task, first_of_each
from sage_rlvr.results import Results, stored
from sage_rlvr.results.tables import Table, base_row, cell
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.curves import CurveComparison, paired_count_curve, paired_curve, seed_ks, seeds_curve
from sage_rlvr.stats.frontier import FrontierPoint, gap_curve
from sage_rlvr.stats.intervals import Interval, passk_interval, seed_interval

MOST_GAPS = 12  # panels
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


# ------------------------------------------------------------------------------------------------------------------
# curves


def band(ks: Sequence[int], found: Iterable[Interval]) -> Band:
    """Intervals over k as a figure takes them."""
    shown = [drawn(i) for i in found]
    return ks, [i.value for i in shown], [i.low for i in shown], [i.high for i in shown]


def passk_lines(results: Results, them: Mapping[str, Policy]) -> dict[str, Band]:
    """pass@k of every policy with its band: at powers of two where there are records, else at the stored k."""
    out = {}
    for name, p in them.items():
        scores = results.scores(name)
        if scores is None or scores.n is not None:
            out[name] = band(list(p.passes), p.passes.values())
        else:
            ks = ks_of(results.k)
            out[name] = band(ks, (scores.interval(k, several=results.several) for k in ks))
    return out


def frontier_of(
    them: Mapping[str, Policy], base: str, k: int, power: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """What the frontier's figure takes; None where the base has one temperature alone."""
    curves = {name: p.frontier for name, p in them.items() if len(p.frontier) > 1}
    if base not in curves:
        return None
    arms = {name: (p.passes[1], p.passes[k]) for name, p in them.items() if name != base}
    seeds = {name: p.marks for name, p in them.items() if len(p.marks) > 1}
    known = [(p["pass1"], p["passk"]) for p in (power or {"points": []})["points"] if p["known"]]
    return {"curves": curves, "arms": arms, "k": k, "seeds": seeds, "power": known}


# ------------------------------------------------------------------------------------------------------------------
# differences


def differences(results: Results, base: str | None, samples: Sequence[SampleSet]) -> list[dict[str, Any]]:
    """Paired differences over k with bands that hold at all k at once: of exact records, else of samples, task by task."""
    found: dict[tuple[str, str], CurveComparison] = {}
    pairs = [(a, b) for a, b, _ in results.design.pairs()]
    if base is not None:
        pairs += [(a, base) for a in results.design.names if a != base and (a, base) not in pairs]
    for a, b in pairs:
        one = _difference(results, a, b)
        if one is not None:
            found[a, b] = one
    if found:
        who = "training seeds" if results.several else "problems"
        about = f"Paired differences. The band holds at all k at once (95 %, over {who}): where it leaves zero, the two differ."
        return [_differences("", about, found)]
    out = []
    for task, sets in by_task(samples).items():
        first, *others = first_of_each(sets)
        counted = {
            (s.arm, first.arm): paired_count_curve(s.n, s.right, first.right)
            for s in others
            if s.problems == first.problems and s.n == first.n
        }
        if counted:
            about = f"{task}: the band holds at all k at once (95 %, over problems and their samples)."
            out.append(_differences(f"-{slug(task)}", about, counted))
    return out


def _difference(results: Results, a: str, b: str) -> CurveComparison | None:
    left, right = results.scores(a), results.scores(b)
    if left is None or right is None or left.n is not None or right.n is not None:
        return None
    ks = seed_ks(results.k)
    if not results.several:
        return paired_curve(left.passes(ks)[0], right.passes(ks)[0], ks)
    alone = len(right.values) == 1
    shared = [s for s in left.seeds if alone or s in right.seeds]
    if len(shared) < FEWEST_SEEDS or len(left.values) == 1:
        return None
    x, y = left.only(shared).passes(ks), right.only(shared).passes(ks)
    return seeds_curve(x, np.repeat(y, len(x), axis=0) if alone else y, ks)


def _differences(key: str, about: str, found: Mapping[tuple[str, str], CurveComparison]) -> dict[str, Any]:
    rows = tuple((f"{a} − {b}", *_band_cells(c)) for (a, b), c in found.items())
    table = Table(header=("pair", *(f"k = {k}" for k in next(iter(found.values())).ks)), rows=rows)
    return {"slug": key, "about": about, "found": found, "limits": limits_of(list(found.values())), "table": table}


def _band_cells(c: CurveComparison) -> list[str]:
    ends = zip(c.difference, c.low, c.high, strict=True)
    return [f"{d:+.3f}\n{low:+.3f} to {high:+.3f}".replace("-", "−") for d, low, high in ends]


def gaps(results: Results, them: Mapping[str, Policy], base: str | None) -> dict[str, Any] | None:
    """Every arm along its control's frontier and the control along the base's, over three training seeds or more."""
    control = results.design.control or next((n for n in them if n != base), None)
    pairs = [(name, control) for name in them if name not in (base, control)] + [(control, base)]
    found = {}
    for a, b in pairs[:MOST_GAPS]:
        if a in them and b in them and len(them[a].by_seed) >= FEWEST_SEEDS:
            left = dict(zip(them[a].seeds, them[a].by_seed, strict=True))
            right = dict(zip(them[b].seeds, them[b].by_seed, strict=True))
            shared = [s for s in left if s in right or b == base]
            rivals = [right[s] if b != base else them[b].by_seed[0] for s in shared]
            curve = gap_curve([left[s] for s in shared], rivals) if len(shared) >= FEWEST_SEEDS else None
            if curve is not None:
                found[a, b] = curve
    return {"found": found, "limits": limits_of(list(found.values()))} if found else None


# ------------------------------------------------------------------------------------------------------------------
# from samples


def sampled_tables(results: Results, samples: Sequence[SampleSet]) -> list[dict[str, Any]]:
    """Sampled pass@1 and pass@k: a table a task with one row an arm, and folded the stores one by one where that is more."""
    out: list[dict[str, Any]] = []
    for task, sets in by_task(samples).items():
        ks = tuple(dict.fromkeys((1, min(s.n for s in sets))))
        header = ("arm", "problems × samples", *(f"pass@{k}" for k in ks))
        single = tuple((s.name, *_counted(s), *(cell(passk_interval(s.n, s.right, k)) for k in ks)) for s in sets)
        rows = tuple(_arm_row(results, arm, mine, ks) for arm, mine in by_arm(sets).items())
        over_seeds = "over training seeds where an arm has several, else " if len(rows) < len(single) else ""
        note = f"From samples; beneath each number its 95 % interval {over_seeds}over problems and their samples."
        out.append(
            {"title": f"From samples: {task}", "table": Table(header=header, rows=rows, notes=(note,)), "fold": ""}
        )
        if over_seeds:
            line = f"pass@k on {task}, every training seed by itself ({len(single)} rows)"
            out.append({"title": "", "table": Table(header=header, rows=single), "fold": line})
    return out


def _counted(s: SampleSet, seeds: int = 1) -> tuple[str]:
    return (f"{len(s.problems)} × {s.n}" + (f", {seeds} seeds" if seeds > 1 else ""),)


def _arm_row(results: Results, arm: str, mine: Sequence[SampleSet], ks: Sequence[int]) -> tuple[str, ...]:
    """One row over the training seeds."""
    found = results.scores(mine[0].policy, mine[0].task, mine[0].temperature)
    cells = ["–" if found is None else cell(found.interval(k)) for k in ks]
    return (arm, *_counted(mine[0], len(mine)), *cells)


def sampled_curves(samples: Iterable[SampleSet]) -> list[dict[str, Any]]:
    """pass@k over k of the first store of each arm, task by task."""
    out = []
    for task, sets in by_task(samples).items():
        lines = {}
        for s in first_of_each(sets):
            ks = [*(2**i for i in range(s.n.bit_length()) if 2**i < s.n), s.n]
            lines[s.arm] = band(ks, (passk_interval(s.n, s.right, k) for k in ks))
        out.append({"task": task, "slug": slug(task), "lines": lines})
    return out


def slug(text: str) -> str:
    """A name as part of a file's."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text)[:40].strip("-") or "task"
