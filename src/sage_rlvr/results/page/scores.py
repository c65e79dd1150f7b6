"""Curves, frontiers, differences and tables of scores for the template and its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sage_rlvr.errors import suggest
from sage_rlvr.results import tables
from sage_rlvr.results.tables import Columns, Table, cell, chance_in, sampled_apart, table
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.metric import FEW, PAPER, REFERENCE
from sage_rlvr.verdicts.stats.paired import FEWEST_SEEDS, SEEDS
from sage_rlvr.verdicts.stats.passk import powers

Tree = Mapping[str, Any]
Scores = Mapping[str, Tree]
"""Name -> row of every policy with exact scores, of `tables.evaluated`."""
Drawn = dict[str, float]
"""value, low and high of an estimate."""
Band = tuple[Sequence[int], list[float], list[float], list[float]]
"""(ks, mean, low, high), each (K,)."""
Line = tuple[Sequence[int], Sequence[float]]
"""(ks, values), each (K,)."""


def scores_of(summary: Tree, them: Scores, base: str) -> dict[str, Any]:
    """The values of the template's sections on scores."""
    k, power = max(summary["ks"]), summary["power"]
    chance = chance_in(summary)
    shown = tables.samples(summary)
    if them or (summary["swept"] and not summary["sampled"]):
        shown.insert(0, ("", tables.scores(summary)))
    return {
        "tables": shown,
        "top": top_columns(shown[0][1], k) if shown else None,
        "away": [(world, tables.scores(summary, world)) for world in summary["away"]],
        "power": _power_table(power["points"], k, chance) if power else None,
        "cold": _cold_table(summary, k) if summary["cold"] else None,
        "cold_temperature": PAPER,
        "support": _support(them, summary),
        "frontier": _frontier(them, base, k, power, chance) or _sampled_frontier(summary, base),
        "passk": _passk(summary, them) if them else None,
        "chance": chance_line(summary),
        "sampled_curves": _sampled_curves(summary),
        "crossings": _crossings(summary),
        "unlocked": _unlocked(summary),
        "differences": [_differences(**one) for one in summary.get("differences") or ()],
        "gaps": _panels(summary.get("gaps")),
        "no_gaps": _no_gaps(summary, them),
    }


def drawn(estimate: Tree | float | None) -> Drawn:
    """An estimate for drawing: of zero width without an interval, and for fewer than three training seeds."""
    value: Any = estimate
    if isinstance(estimate, Mapping):
        value, low, high = estimate["value"], estimate["low"], estimate["high"]
        too_few = estimate["over"].startswith(SEEDS) and estimate["n"] < FEWEST_SEEDS
        if not too_few and low is not None and high is not None:
            return {"value": value, "low": low, "high": high}
    return dict.fromkeys(("value", "low", "high"), math.nan if value is None else value)


# ------------------------------------------------------------------------------------------------------------------
# curves


def band(estimates: Mapping[str, Any]) -> Band:
    """Arrays for a figure from k -> interval."""
    found = list(map(drawn, estimates.values()))
    return list(map(int, estimates)), *([one[end] for one in found] for end in ("value", "low", "high"))  # type: ignore[return-value]


def _passk(summary: Tree, them: Scores) -> dict[str, Band]:
    """pass@k of every policy with its band at powers of two, or at the k of a stored summary."""
    curves = summary["curves"]
    return {name: band(curves[name]["pass"] if name in curves else row["pass"]) for name, row in them.items()}


def _sampled_curves(summary: Tree) -> list[dict[str, Any]]:
    """pass@k over k of each sampled policy, task by task."""
    curves = []
    for task, rows in sampled_apart(summary).items():
        lines = {row["label"]: band(row["pass"]) for row in rows}
        curves.append({"task": task, "slug": slug(task), "lines": lines, "chance": chance_line(summary, task)})
    return curves


def _crossings(summary: Tree) -> list[dict[str, Any]]:
    """Each verdict on samples: both curves, the difference with its band, and the set that contains the first lost k."""
    found = []
    for one in (summary.get("verdicts") or {}).get("verdicts", ()):
        if one["over_k"] and "curves" in one:
            lines = {one[side]: band(one["curves"][side]) for side in ("control", "arm")}
            shown = {"pair": (one["arm"], one["control"]), "lines": lines, "chance": chance_line(summary, one["task"])}
            found.append({**shown, "curve": one["over_k"], "first_loss": one["first_loss"]})
    return found


def _unlocked(summary: Tree) -> list[dict[str, Any]]:
    """The gains of each verdict on samples, by how often half of the control's samples solves a problem."""
    found = []
    for one in (summary.get("verdicts") or {}).get("verdicts", ()):
        gained = (one.get("unlocked") or {}).get("gained")
        if gained:
            pair, strata = (one["arm"], one["control"]), gained["strata"]
            rows = [{"right": _right(row), "share": row["share"], **_gains(row)} for row in strata]
            made = tables.strata([(" − ".join(pair), gained)]).only(lambda head: head not in ("pair", "k"))
            open_marks = any(row["difference"]["low"] is None for row in strata)
            found.append({"pair": pair, "half": gained["half"], "k": gained["k"], "rows": rows, "open": open_marks, "table": made})
    return found


def _gains(row: Tree) -> dict[str, Any]:
    """The gain of the arm and of the control drawn again, read from the samples that chose, and the gain on other samples."""
    return {"naive": row["other"] - row["same"], "redrawn": row["again"] - row["same"], "gain": drawn(row["difference"])}


def _right(row: Tree) -> str:
    return f"{row['low']}" if row["low"] == row["high"] else f"{row['low']}–{row['high']}"


def chance_line(summary: Mapping[str, Any], task: str = "") -> Line | None:
    """The chance floor of a task over k up to the largest of a summary; None where none is known."""
    chance = chance_in(summary, task)
    if chance is None:
        return None
    samples = [row["n"] for row in summary["sampled"] if row["task"] == task]
    ks = powers(max(samples or summary["ks"]))
    return ks, [chance.at(k) for k in ks]


def _frontier(them: Scores, base: str, k: int, power: Tree | None, chance: Chance | None) -> dict[str, Any] | None:
    """The values of the frontier figure; None if the base has a single temperature."""
    curves = {name: row["frontier"] for name, row in them.items() if len(row["frontier"]) > 1}
    if base not in curves:
        return None
    arms = {name: (drawn(row["pass"]["1"]), drawn(row["pass"][str(k)])) for name, row in them.items() if name != base}
    seeds = {}
    for name, row in them.items():
        points = [point for of_seed in row.get("frontier_by_seed", {}).values() for point in of_seed]
        marks = [(point["pass1"], point["passk"]) for point in points if point["temperature"] == REFERENCE]
        if len(marks) > 1:
            seeds[name] = marks
    points = power["points"] if power else []
    known = [(point["pass1"], point["passk"]) for point in points if point["known"]]
    floor = None if chance is None else chance.at(k)
    return {"curves": curves, "arms": arms, "k": k, "seeds": seeds, "power": known, "chance": floor}


def _sampled_frontier(summary: Tree, base: str) -> dict[str, Any] | None:
    """`_frontier` from samples: the base at all temperatures at which it was sampled, and the arms; None for one temperature."""
    rows = summary["sampled"]
    task = next((row["task"] for row in rows if row["policy"] == base), None)
    rows = [row for row in rows if row["task"] == task]
    of_base = [row for row in rows if row["policy"] == base]
    lines: dict[str, list[tuple[float, str]]] = {}
    for row in rows:
        for name, distance in row.get("lines", {}).items():
            lines.setdefault(name, []).append((distance, row["label"]))
    if len(of_base) < 2 and not lines:
        return None
    k = min(row["n"] for row in of_base)
    scores = {row["label"]: (drawn(row["pass"]["1"]), drawn(row["pass"][str(k)])) for row in rows}
    mixed = {
        name: [(1 - distance, scores[label][0]["value"], scores[label][1]["value"]) for distance, label in sorted(found)[::-1]]
        for name, found in lines.items()
    }
    points = []
    for row in of_base:
        pass1, passk = scores.pop(row["label"])
        points.append({"temperature": row["temperature"], "pass1": pass1["value"], "passk": passk["value"]})
    chance = chance_in(summary, str(task))
    floor = None if chance is None else chance.at(k)
    ends = [row["label"] for row in rows if any(0 < distance < 1 for distance in row.get("lines", {}).values())]
    arms = {label: score for label, score in scores.items() if label not in ends}
    return {"curves": {base: points}, "arms": arms, "k": k, "seeds": {}, "power": (), "chance": floor, "mixed": mixed}


# ------------------------------------------------------------------------------------------------------------------
# tables


def top_columns(scores: Table, most: int) -> Table:
    """The arms with pass@1, 8, 64 and at the largest k. most: which that is, or what it is below."""
    largest = [head for k in range(1, most + 1) if (head := f"pass@{k}") in scores.header][-1:]
    return scores.only({"arm", *largest, *(f"pass@{k}" for k in (1, FEW, 64) if k <= most)}.__contains__)


def _cold_table(summary: Tree, k: int) -> Table:
    """pass@1 and pass@k at T = 0.3 and T = 1."""
    cold, chance = summary["cold"], chance_in(summary)
    rows = [(row["label"], row, summary["arms"][key]["pass"]) for key, row in cold["arms"].items()]
    if cold["base"]:
        rows.insert(0, ("base", cold["base"], summary["base"]["pass"]))
    columns: Columns = {"arm": lambda row: row[0]}
    ks: dict[str, int] = {}
    for n in (1, k):
        for side, temperature in enumerate((PAPER, REFERENCE), 1):
            ks[head := f"pass@{n}\nT = {temperature:g}"] = n
            columns[head] = lambda row, n=n, side=side: tables.passed({"pass": row[side]}, n, chance)  # type: ignore[misc]
    return tables.with_chance(table(columns, rows), chance, ks)


def _power_table(points: Sequence[Tree], k: int, chance: Chance | None) -> Table:
    """Power, pass@1 and pass@k, each with the bound of the error of the normalizer."""

    def known(point: Tree, n: int, which: str) -> str:
        if not point["known"]:
            return "not available"
        shown, *mark = tables.passed({"pass": {str(n): point[f"pass{which}"]}}, n, chance).split("\n")
        return "\n".join([shown, f"± {point[f'bound{which}']:.1g}", *mark])

    columns: Columns = {"power": lambda point: f"{point['power']:g}"}
    columns["pass@1"] = lambda point: known(point, 1, "1")
    columns[f"pass@{k}"] = lambda point: known(point, k, "k")
    return tables.with_chance(table(columns, points), chance, {"pass@1": 1, f"pass@{k}": k})


def _support(them: Scores, summary: Tree) -> dict[str, Any] | None:
    """Right completions kept, gained and lost relative to the base (Definition 4.1)."""
    counted = {name: row["support"] for name, row in them.items() if row.get("support")}
    if not counted or summary["base"] is None:
        return None
    kinds, of_base = ("preserved", "gained", "lost"), summary["base"]["support"]
    changes = {name: [counts[kind]["value"] for kind in kinds] for name, counts in counted.items()}
    body: list[tuple[str, ...]] = [("base", f"{of_base:,}", "–", "–", "–")]
    for name, (kept, _, lost) in changes.items():
        body.append((name, *(cell(counted[name][kind], 0) for kind in kinds), f"{kept / max(kept + lost, 1):.1%}"))
    made = Table(header=("arm", "kept", "gained", "lost", "share kept"), rows=tuple(body))
    return {"kept": changes, "base": of_base, "table": made}


# ------------------------------------------------------------------------------------------------------------------
# differences


def _differences(task: str, pairs: Sequence[Tree]) -> dict[str, Any]:
    """The differences over k of a task, with the sentence below their figures and a table. task: "" of exact scores."""
    about = f"{task}: simultaneous 95 % band over {pairs[0]['over']}."
    if not task:
        about = (
            f"Paired differences, simultaneous 95 % band over {pairs[0]['over']}; a band that excludes zero is a significant "
            "difference."
        )
    columns: Columns = {"pair": lambda pair: f"{pair['a']} − {pair['b']}"}
    # the band of one run has other k than one over training seeds: the table has those of all
    for k in sorted(set(pairs[0]["ks"]).intersection(*(pair["ks"] for pair in pairs))):
        columns[f"k = {k}"] = lambda pair, k=k: _band_cell(pair, pair["ks"].index(k))  # type: ignore[misc]
    return {"slug": f"-{slug(task)}" if task else "", "about": about, "table": table(columns, pairs), **(_panels(pairs) or {})}


def _band_cell(pair: Tree, i: int) -> str:
    low, high = pair["low"][i], pair["high"][i]
    ends = "no interval" if low is None or high is None else f"{low:+.3f} to {high:+.3f}"
    return f"{pair['difference'][i]:+.3f}\n{ends}".replace("-", "−")


def _panels(pairs: Sequence[Tree] | None) -> dict[str, Any] | None:
    """Curves of differences with a common scale that includes zero; None without any."""
    if not pairs:
        return None
    known = [x for pair in pairs for name in ("low", "high", "difference") for x in pair[name] if x is not None]
    low, high = min(0.0, *known, 0.0), max(0.0, *known, 0.0)
    margin = 0.06 * (high - low) or 0.01
    return {"found": pairs, "limits": (low - margin, high + margin)}


def _no_gaps(summary: Tree, them: Scores) -> str:
    """The reason for missing curves of gaps between frontiers."""
    if not them:
        return "there is no exact evaluation, so each policy has a single temperature."
    if not any(len(row["frontier"]) > 1 for row in them.values()):
        more = "Remove evaluate.temperatures from the design, or list more temperatures, and run the same command again."
        if summary.get("model"):
            more = f"Evaluate it at more with: {suggest('eval', summary['model'], '--frontier')}"
        return f"the base was evaluated at a single temperature, so it has no frontier. {more}"
    if max(len(row["seeds"]) for row in them.values()) < FEWEST_SEEDS:
        return f"curves of gaps between frontiers need {FEWEST_SEEDS} training seeds."
    if not any(len(row.get("frontier_by_seed", {})) > 1 for row in them.values()):
        return "a summary has no frontiers of single training seeds."
    return "no two of these policies have a common range of pass@1 in all training seeds."


def slug(text: str) -> str:
    """A name as part of a file name."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in text)
    return plain[:40].strip("-") or "task"
