"""Curves, frontiers and differences of scores for the template: exact, stored or from samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sage_rlvr.errors import suggest
from sage_rlvr.evaluation.record import Record
from sage_rlvr.results import summary_io, tables
from sage_rlvr.results.design import Design
from sage_rlvr.results.measurements import Measurement, Measurements
from sage_rlvr.results.metric import PAPER, REFERENCE
from sage_rlvr.results.pairs import ArmPair, Arms
from sage_rlvr.results.tables import Columns, Table, base_row, cell, chance_in, table
from sage_rlvr.results.verdict import CurveVerdict
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.curves import CurveComparison, seed_ks
from sage_rlvr.stats.frontier import FrontierPoint, GapCurve, at_temperature, gap_curve
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.stats.passk import powers
from sage_rlvr.tasks.chance import Chance

MOST_GAPS = 12  # panels
Band = tuple[Sequence[int], ArrayLike, ArrayLike, ArrayLike]
"""(ks, mean, low, high), each (K,)."""
Line = tuple[Sequence[int], Sequence[float]]
"""(ks, values), each (K,)."""


@dataclass(frozen=True, kw_only=True)
class PolicyScores:
    """passes: k -> mean with its interval. frontiers: training seed -> temperature frontier; `frontier`: their mean. support: right
    completions (kept, gained, lost), means over seeds."""

    name: str
    passes: Mapping[int, Interval]
    frontier: tuple[FrontierPoint, ...] = ()
    frontiers: Mapping[int, tuple[FrontierPoint, ...]] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    best: Interval | None = None
    support: tuple[float, ...] = ()

    @property
    def marks(self) -> list[tuple[float, float]]:
        """pass@1 and pass@k of each seed at temperature 1."""
        marks = []
        for frontier in self.frontiers.values():
            point = at_temperature(frontier)
            if point is not None:
                marks.append((point.pass1, point.passk))
        return marks


def scores_of(
    summary: Mapping[str, Any], them: Mapping[str, PolicyScores], base: str, differences: Sequence[Mapping[str, Any]], *,
    control: str | None, record: Record | None, swept: bool, stored: bool,
) -> dict[str, Any]:  # fmt: skip
    """The values of the template's sections on scores, from a summary and its policies. differences: of `exact_differences` or
    `sampled_differences`; record: of the base outside of a design; swept: whether there is a design; stored: whether the summary is
    read from a file."""
    k, power = max(summary["ks"]), summary["power"]
    chance = tables.chance_in(summary)
    apart = sampled_apart(summary, them)
    shown = tables.samples(summary, apart)
    if them or (swept and not summary.get("sampled")):
        shown.insert(0, ("", tables.scores(summary)))
    return {
        "tables": shown,
        "away": [(world, tables.scores(summary, world)) for world in summary["away"]],
        "power": _power_table(power["points"], k, chance) if power else None,
        "cold": _cold_table(summary, k) if summary["cold"] else None,
        "cold_temperature": PAPER,
        "support": _support(them, summary),
        "frontier": frontier_of(them, base, k, power, chance) or sampled_frontier(summary, base),
        "passk": passk_lines(summary, them) if them else None,
        "chance": chance_line(summary),
        "sampled_curves": sampled_curves(summary, apart),
        "differences": differences,
        "gaps": gaps(them, control, base),
        "no_gaps": no_gaps(them, record, stored),
    }


def sampled_apart(summary: Mapping[str, Any], them: Mapping[str, PolicyScores]) -> dict[str, list[Mapping[str, Any]]]:
    """Task -> its sampled policies, for every task with a policy that has no exact scores."""
    sampled = summary.get("sampled", ())  # a stored summary may have none
    tasks = dict.fromkeys(row["task"] for row in sampled if row["policy"] not in them)
    return {task: [row for row in sampled if row["task"] == task] for task in tasks}


def policies(summary: Mapping[str, Any]) -> dict[str, PolicyScores]:
    """Every evaluated policy, the base first."""
    rows = [row for row in summary["arms"].values() if row["seeds"]]
    if summary["base"] is not None:
        rows.insert(0, base_row(summary["base"]) | {"frontier_by_seed": {"0": summary["base"]["frontier"]}})
    return {row["label"]: _policy(row) for row in rows}


def _policy(row: Mapping[str, Any]) -> PolicyScores:
    frontiers = row.get("frontier_by_seed", {})
    support: tuple[float, ...] = ()
    if counts := row.get("support"):
        support = tuple(counts[name]["value"] for name in ("preserved", "gained", "lost"))
    return PolicyScores(
        name=row["label"],
        seeds=tuple(row["seeds"]),
        passes={int(k): drawn(value) for k, value in row["pass"].items()},
        frontier=_points(row["frontier"]),
        best=drawn(row["best_pass1"]),
        frontiers={int(seed): _points(points) for seed, points in frontiers.items()},
        support=support,
    )


def _points(rows: Sequence[Mapping[str, float]]) -> tuple[FrontierPoint, ...]:
    points = []
    for row in rows:
        points.append(FrontierPoint(temperature=row["temperature"], pass1=row["pass1"], passk=row["passk"]))
    return tuple(points)


def drawn(estimate: Mapping[str, Any] | Interval | float) -> Interval:
    """An interval for drawing: zero width without an interval, and for fewer than three training seeds."""
    if isinstance(estimate, float):
        return Interval(value=estimate, low=estimate, high=estimate, level=0.95, over="problems", n=1)
    interval = summary_io.interval(estimate) if isinstance(estimate, Mapping) else estimate
    too_few = interval.over == "training seeds" and interval.n < FEWEST_SEEDS
    if too_few or not np.isfinite(interval.width):
        return drawn(float(interval.value))
    return interval


# ------------------------------------------------------------------------------------------------------------------
# curves


def band(estimates: Mapping[Any, Interval | Mapping[str, Any]]) -> Band:
    """Arrays for a figure from k -> interval."""
    ks = [int(k) for k in estimates]
    intervals = [drawn(interval) for interval in estimates.values()]
    low, high = [i.low for i in intervals], [i.high for i in intervals]
    return ks, [i.value for i in intervals], low, high


def passk_lines(summary: Mapping[str, Any], them: Mapping[str, PolicyScores]) -> dict[str, Band]:
    """pass@k of every policy with its band at powers of two, or at the k of a stored summary."""
    curves = summary.get("curves") or {}
    lines = {}
    for name, policy in them.items():
        lines[name] = band(curves[name]["pass"] if name in curves else policy.passes)
    return lines


def chance_line(summary: Mapping[str, Any], task: str = "") -> Line | None:
    """The chance floor of a task over k up to the largest of a summary; None where none is known."""
    chance = chance_in(summary, task)
    if chance is None:
        return None
    samples = [row["n"] for row in summary.get("sampled", ()) if row["task"] == task]
    ks = powers(max(samples or summary["ks"]))
    return ks, [chance.at(k) for k in ks]


def frontier_of(
    them: Mapping[str, PolicyScores], base: str, k: int, power: Mapping[str, Any] | None, chance: Chance | None = None
) -> dict[str, Any] | None:
    """The values of the frontier figure; None if the base has a single temperature."""
    curves = {name: p.frontier for name, p in them.items() if len(p.frontier) > 1}
    if base not in curves:
        return None
    arms = {name: (p.passes[1], p.passes[k]) for name, p in them.items() if name != base}
    seeds = {name: p.marks for name, p in them.items() if len(p.marks) > 1}
    points = power["points"] if power else []
    known = [(point["pass1"], point["passk"]) for point in points if point["known"]]
    floor = None if chance is None else chance.at(k)
    return {"curves": curves, "arms": arms, "k": k, "seeds": seeds, "power": known, "chance": floor}


def sampled_frontier(summary: Mapping[str, Any], base: str) -> dict[str, Any] | None:
    """`frontier_of` from samples: the base at all temperatures at which it was sampled, and the arms; None for one temperature."""
    rows = summary.get("sampled") or ()
    of_base = [row for row in rows if row["policy"] == base]
    of_base = [row for row in of_base if row["task"] == of_base[0]["task"]]
    if len(of_base) < 2:
        return None
    task, k = of_base[0]["task"], min(row["n"] for row in of_base)
    scores = {}
    for row in rows:
        if row["task"] == task:
            scores[row["label"]] = drawn(row["pass"]["1"]), drawn(row["pass"][str(k)])
    points = []
    for row in of_base:
        pass1, passk = scores[row["label"]]
        points.append(FrontierPoint(temperature=row["temperature"], pass1=pass1.value, passk=passk.value))
    base_labels = {row["label"] for row in of_base}
    arms = {label: both for label, both in scores.items() if label not in base_labels}
    chance = chance_in(summary, task)
    floor = None if chance is None else chance.at(k)
    return {"curves": {base: points}, "arms": arms, "k": k, "seeds": {}, "power": (), "chance": floor}


# ------------------------------------------------------------------------------------------------------------------
# tables


def _cold_table(summary: Mapping[str, Any], k: int) -> Table:
    """pass@1 and pass@k at T = 0.3 and T = 1."""
    cold = summary["cold"]
    policies = []  # name, scores at T = 0.3, scores at T = 1
    if cold["base"]:
        policies.append(("base", cold["base"], summary["base"]["pass"]))
    for key, row in cold["arms"].items():
        policies.append((row["label"], row, summary["arms"][key]["pass"]))
    chance = tables.chance_in(summary)
    rows = []
    for name, at_paper, at_reference in policies:
        cells = []
        for n in (1, k):
            cells += [tables.passed({"pass": scores}, n, chance) for scores in (at_paper, at_reference)]
        rows.append((name, *cells))
    ks = {}
    for n in (1, k):
        ks |= {f"pass@{n}\nT = {temperature:g}": n for temperature in (PAPER, REFERENCE)}
    return tables.with_chance(Table(header=("arm", *ks), rows=tuple(rows)), chance, ks)


def _power_table(points: Sequence[Mapping[str, Any]], k: int, chance: Chance | None) -> Table:
    """Power, pass@1 and pass@k, each with the bound of the error of the normalizer."""

    def known(point: Mapping[str, Any], n: int, value: float, bound: float) -> str:
        if not point["known"]:
            return "not available"
        shown, *mark = tables.passed({"pass": {str(n): value}}, n, chance).split("\n")
        return "\n".join([shown, f"± {bound:.1g}", *mark])

    rows = []
    for point in points:
        pass1 = known(point, 1, point["pass1"], point["bound1"])
        passk = known(point, k, point["passk"], point["boundk"])
        rows.append((f"{point['power']:g}", pass1, passk))
    ks = {f"pass@{n}": n for n in (1, k)}
    return tables.with_chance(Table(header=("power", *ks), rows=tuple(rows)), chance, ks)


def _support(them: Mapping[str, PolicyScores], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Right completions kept, gained and lost relative to the base (Definition 4.1)."""
    rows = [row for row in summary["arms"].values() if "support" in row]
    if not rows or summary["base"] is None:
        return None
    changes = {name: policy.support for name, policy in them.items() if policy.support}
    of_base = summary["base"]["support"]
    cells = {}
    for row in rows:
        cells[row["label"]] = [cell(row["support"][name], 0) for name in ("preserved", "gained", "lost")]
    body = [("base", f"{of_base:,}", "–", "–", "–")]
    for name, (kept, _, lost) in changes.items():
        kept_share = kept / max(kept + lost, 1)
        body.append((name, *cells[name], f"{kept_share:.1%}"))
    table = Table(header=("arm", "kept", "gained", "lost", "share kept"), rows=tuple(body))
    return {"kept": changes, "base": of_base, "table": table}


# ------------------------------------------------------------------------------------------------------------------
# differences


def exact_differences(design: Design, arms: Arms, base: str, k: int, several: bool) -> list[dict[str, Any]]:
    """Paired differences over k with simultaneous bands, from exact records of the main task."""
    pairs = dict.fromkeys([(a, b) for a, b, _ in design.pairs()])
    pairs |= dict.fromkeys((a, base) for a in design.names if a != base)
    by_pair: dict[tuple[str, str], CurveComparison] = {}
    ks = seed_ks(k)
    for a, b in pairs:
        if a not in arms or b not in arms:
            continue
        sides = ArmPair(a=a, b=b, why="pair", left=arms[a], right=arms[b]).sides()
        curve = None if sides is None else sides[0].band(sides[1], k, several=several, ks=ks)
        if curve is not None:
            by_pair[a, b] = curve
    if not by_pair:
        return []
    who = "training seeds" if several else "problems"
    about = f"Paired differences, simultaneous 95 % band over {who}; a band that excludes zero is a significant difference."
    return [_differences("", about, by_pair)]


def sampled_differences(
    table: Measurements[Measurement], sampled: Mapping[str, Sequence[Mapping[str, Any]]], k: int
) -> list[dict[str, Any]]:
    """Differences over k with simultaneous bands from samples, task by task. sampled: the policies of each task of a summary, the
    first being the control; of several training seeds the first of each is drawn."""
    policies, out = table.policies(), []
    for task, (first, *others) in sampled.items():
        control = policies.get((first["policy"], task, first["temperature"]), Measurements()).scores()
        by_pair: dict[tuple[str, str], CurveComparison] = {}
        for row in others:
            scores = policies.get((row["policy"], task, row["temperature"]), Measurements()).scores()
            if scores is None or control is None:
                continue
            if (scores.problems, scores.n) != (control.problems, control.n):
                continue
            curve = scores.band(control, k, several=False)
            if curve:
                by_pair[row["label"], first["label"]] = curve
        if by_pair:
            about = f"{task}: simultaneous 95 % band over {next(iter(by_pair.values())).over}."
            out.append(_differences(f"-{slug(task)}", about, by_pair))
    return out


def _differences(key: str, about: str, by_pair: Mapping[tuple[str, str], CurveComparison]) -> dict[str, Any]:
    curves = list(by_pair.values())
    columns: Columns = {"pair": " − ".join}
    for i, k in enumerate(curves[0].ks):
        columns[f"k = {k}"] = lambda pair, i=i: _band_cell(by_pair[pair], i)  # type: ignore[misc]
    limits = limits_of(curves)
    return {"slug": key, "about": about, "found": by_pair, "limits": limits, "table": table(columns, by_pair)}


def _band_cell(c: CurveComparison, i: int) -> str:
    text = f"{c.difference[i]:+.3f}\n{c.low[i]:+.3f} to {c.high[i]:+.3f}"
    return text.replace("-", "−")


def limits_of(curves: Sequence[CurveComparison | GapCurve]) -> tuple[float, float]:
    """A common scale for all differences that includes zero."""
    values = np.concatenate([np.concatenate([c.low, c.high, c.difference]) for c in curves])
    known = values[np.isfinite(values)]
    low = min(0.0, float(known.min(initial=0.0)))
    high = max(0.0, float(known.max(initial=0.0)))
    margin = 0.06 * (high - low) or 0.01
    return low - margin, high + margin


def gaps(them: Mapping[str, PolicyScores], control: str | None, base: str) -> dict[str, Any] | None:
    """Every arm along the frontier of its control, and the control along the frontier of the base, for at least three training
    seeds."""
    control = control or next((name for name in them if name != base), "")
    pairs = [(name, control) for name in them if name not in (base, control)]
    pairs.append((control, base))
    by_pair = {}
    for a, b in pairs[:MOST_GAPS]:
        if a not in them or b not in them:
            continue
        left, right = them[a].frontiers, them[b].frontiers
        if b == base and right:  # the base has one frontier, which every seed is compared with
            right = dict.fromkeys(left, right[0])
        shared = [seed for seed in left if seed in right]
        if len(shared) < FEWEST_SEEDS:
            continue
        curve = gap_curve([left[seed] for seed in shared], [right[seed] for seed in shared])
        if curve is not None:
            by_pair[a, b] = curve
    if not by_pair:
        return None
    return {"found": by_pair, "limits": limits_of(list(by_pair.values()))}


def no_gaps(them: Mapping[str, PolicyScores], record: Record | None, stored: bool) -> str:
    """The reason for missing curves of gaps between frontiers. record: of the base outside of a design, to evaluate it at
    more temperatures; stored: whether the scores are of a stored summary."""
    if not them:
        return "there is no exact evaluation, so each policy has a single temperature."
    if not any(len(p.frontier) > 1 for p in them.values()):
        return f"the base was evaluated at a single temperature, so it has no frontier. {_colder(record)}"
    if max(len(p.seeds) for p in them.values()) < FEWEST_SEEDS:
        return f"curves of gaps between frontiers need {FEWEST_SEEDS} training seeds."
    if stored and not any(len(p.frontiers) > 1 for p in them.values()):
        return "a summary has no frontiers of single training seeds."
    return "no two of these policies have a common range of pass@1 in all training seeds."


def _colder(record: Record | None) -> str:
    """The next step for evaluating the base at more temperatures."""
    if record is None:
        return "Remove evaluate.temperatures from the design, or list more temperatures, and run the same command again."
    return f"Evaluate it at more with: {suggest('eval', record.meta['model'], '--frontier')}"


# ------------------------------------------------------------------------------------------------------------------
# from samples


def sampled_curves(summary: Mapping[str, Any], sampled: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """pass@k over k of each policy of a summary, task by task."""
    curves = []
    for task, rows in sampled.items():
        lines = {row["label"]: band(row["pass"]) for row in rows}
        curves.append({"task": task, "slug": slug(task), "lines": lines, "chance": chance_line(summary, task)})
    return curves


def verdict_of(verdict: CurveVerdict, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the figure of a verdict: both curves, the difference with its band, and the set that holds the first lost k."""
    ks = powers(verdict.a.n or 1)
    lines = {}
    for side in (verdict.b, verdict.a):
        lines[side.arm] = band({k: side.interval(k) for k in ks})
    return {
        "pair": (verdict.a.arm, verdict.b.arm),
        "lines": lines,
        "curve": verdict.curve,
        "first_loss": verdict.crossing.first_loss,
        "chance": chance_line(summary, verdict.a.task),
    }


def slug(text: str) -> str:
    """A name as part of a file name."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in text)
    return plain[:40].strip("-") or "task"
