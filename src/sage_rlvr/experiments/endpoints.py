"""Second endpoints of a sweep, beside its comparisons at temperature 1: the paper's own temperature, and the power frontier.

Each is a question of its own, asked of the same records, and Holm's correction runs over each by itself:

    cold    every pair of `differences.pairs`, every guided arm at the same raw KL, and every arm against the base, at T = 0.3,
            where the paper's presets sample
    power   every arm against the base tempered over whole completions (`evaluation.tempered`), which uses no reward
    gains   whether the intervals of Branch against GRPO, at T = 1 and at 0.3, leave out the gains of the paper's table (`excludes`)
    leash   the realised raw KL of the same pairs, so that "holds the policy tighter" is a paired difference and no impression
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.experiments.differences import Difference, corrected, matched, pairs
from sage_rlvr.experiments.folder import ANY_TEMPERATURE, Cell, Floats, Folder, K, raw_kl
from sage_rlvr.runs import read_metrics
from sage_rlvr.stats.comparison import adjust, excludes, paired_seeds, signed
from sage_rlvr.stats.frontier import FrontierPoint, best_pass1, gap_to_frontier, passk_at
from sage_rlvr.stats.intervals import seed_interval
from sage_rlvr.stats.passk import curve
from sage_rlvr.stats.support import success_probability
from sage_rlvr.stats.tempered import power_frontier, tempered

PAPER_TEMPERATURE = 0.3
"""What the paper samples with (its Appendix B; `sage-rlvr eval --preset paper` and `released_code`)."""
PAPER_GAINS = {1: 0.017, K: 0.015}
"""k -> Branch minus GRPO at pass@k, averages of the paper's Table 1 (`sage-rlvr compare paper:GRPO paper:Branch`)."""
COLD = f" at T = {PAPER_TEMPERATURE:g}"
BASE = "base"
TEMPERED = "base tempered over whole completions"
EQUAL = f"pass@{K} at equal pass@1"


def endpoints(folder: Folder) -> dict[str, Any]:
    """{"cold": ..., "power": ..., "gains": ..., "leash": ...}; None for one whose records are not there."""
    return {
        "cold": _cold(folder),
        "power": _power(folder),
        "gains": _gains(folder) or None,
        "leash": _leash(folder) or None,
    }


def _cold(folder: Folder) -> dict[str, Any] | None:
    """Scores of the base and the arms at T = 0.3, and who differs from whom there."""
    named = [name for name in folder.arms if folder.cells.get(name)]
    known = [cell for name in named for cell in folder.cells[name].values()]
    if not named or any(PAPER_TEMPERATURE not in cell.record.logps for cell in known):
        return None
    scores = {name: {seed: _scores(cell) for seed, cell in folder.cells[name].items()} for name in named}
    base = folder.base if folder.base and PAPER_TEMPERATURE in folder.base.record.logps else None
    home = None if base is None else _scores(base)
    found = []
    for a, b, kind in pairs(folder):
        seeds = folder.shared(a, b)
        if seeds:
            found += _pair(
                kind, folder.label(a), folder.label(b), [scores[a][s] for s in seeds], [scores[b][s] for s in seeds]
            )
    for name in named:
        found += matched(folder, name, lambda cell: _scores(cell).mean(axis=0), COLD)
    for name in named if home is not None else []:
        own = [scores[name][seed] for seed in sorted(scores[name])]
        found += _pair("base", folder.label(name), BASE, own, [home] * len(own))
    means = {name: np.stack([one.mean(axis=0) for one in rows.values()]) for name, rows in scores.items()}
    return {
        "temperature": PAPER_TEMPERATURE,
        "base": None if home is None else dict(zip(("1", str(K)), home.mean(axis=0).tolist(), strict=True)),
        "arms": {
            name: {"label": folder.label(name)}
            | {k: asdict(seed_interval(rows[:, j])) for j, k in enumerate(("1", str(K)))}
            for name, rows in means.items()
        },
        "comparisons": corrected(found),
    }


def _scores(cell: Cell, temperature: float = PAPER_TEMPERATURE) -> Floats:
    """(N, 2) pass@1 and pass@256 of each problem."""
    return np.asarray(curve(success_probability(cell.record.logps[temperature]), (1, K)))


def _pair(kind: str, a: str, b: str, left: Sequence[Floats], right: Sequence[Floats]) -> list[Difference]:
    x, y = np.stack(left), np.stack(right)
    return [
        Difference(kind, a, b, f"pass@{k}{COLD}", paired_seeds(x[:, :, j], y[:, :, j])) for j, k in enumerate((1, K))
    ]


def _power(folder: Folder) -> dict[str, Any] | None:
    """The base's power frontier with its bounds, and every arm against it: its best pass@1, and pass@256 at equal pass@1, as
    sampled at T = 1 and over all of its temperatures."""
    if folder.base is None or not folder.base.record.norms:
        return None
    record = folder.base.record
    line = power_frontier(record.logps[1.0], record.norms, K)
    found = []
    for name in folder.arms:
        cells = [folder.cells[name][seed] for seed in sorted(folder.cells.get(name, {}))]
        if cells and line:
            found += _against_power(folder.label(name), cells, line)
    return {
        "points": [
            {"power": one.power, "known": one.known, "bound1": float(one.bound.mean()), "boundk": one.passk_bound(K)}
            | {"pass1": one.point(K).pass1, "passk": one.point(K).passk}
            for one in tempered(record.logps[1.0], record.norms)
        ],
        "comparisons": corrected(found),
    }


def _against_power(label: str, cells: Sequence[Cell], line: Sequence[FrontierPoint]) -> list[Difference]:
    top = best_pass1(line).pass1
    own = [best_pass1(cell.points).pass1 - top for cell in cells]
    readings: dict[str, tuple[str, list[float | None]]] = {
        "pass@1, each at its best": (label + ANY_TEMPERATURE, [*own]),
        EQUAL: (label, [_at_home(cell, line) for cell in cells]),
        f"mean {EQUAL}": (label + ANY_TEMPERATURE, [gap_to_frontier(cell.points, line).value for cell in cells]),
    }
    out = []
    for metric, (a, gaps) in readings.items():
        known = [gap for gap in gaps if gap is not None]
        if len(known) == len(gaps):  # what is missing is not missing by chance
            out.append(Difference("power", a, TEMPERED, metric, paired_seeds(known, np.zeros(len(known)))))
    return out


def _at_home(cell: Cell, line: Sequence[FrontierPoint]) -> float | None:
    """pass@256 of the policy at T = 1 minus that of the line at its pass@1; None outside."""
    home = next((point for point in cell.points if point.temperature == 1.0), None)
    there = None if home is None else passk_at(home.pass1, line)
    return None if home is None or there is None else home.passk - there[0]


def _gains(folder: Folder) -> list[dict[str, Any]]:
    """Per metric and temperature: the paper's gain, the interval of the arm of recipe sage_branch minus the control of recipe
    grpo, and whether it leaves the gain out. [] where the sweep has no such two arms."""
    stems = {name: Path(arm["recipe"]).stem for name, arm in folder.arms.items()}
    a = next((name for name, stem in stems.items() if stem == "sage_branch"), None)
    b = folder.facts["control"]  # and not the same recipe at another beta
    seeds = [] if a is None or stems.get(b) != "grpo" else folder.shared(a, b)
    if a is None or not seeds:
        return []
    rows = []
    for temperature in (1.0, PAPER_TEMPERATURE):
        pair = [[folder.cells[name][seed] for seed in seeds] for name in (a, b)]
        if any(temperature not in cell.record.logps for side in pair for cell in side):
            continue
        left, right = (np.stack([_scores(cell, temperature) for cell in side]) for side in pair)
        for j, (k, gain) in enumerate(PAPER_GAINS.items()):
            found = paired_seeds(left[:, :, j], right[:, :, j])
            row = {"a": folder.label(a), "b": folder.label(b), "metric": f"pass@{k} at T = {temperature:g}"}
            rows.append(row | {"gain": gain, "difference": asdict(found.difference), "excluded": excludes(found, gain)})
    return rows


def _leash(folder: Folder) -> list[dict[str, Any]]:
    """Raw KL of a minus that of b at the end of training, nats per token, for every pair that has one. It is no score: larger or
    smaller and never better; p with Holm's correction over these."""
    rows, found = [], []
    for a, b, _ in pairs(folder):
        both = [[raw_kl(read_metrics(folder.run(name, seed))) for name in (a, b)] for seed in folder.shared(a, b)]
        if both and not any(None in pair for pair in both):
            left, right = np.array(both, dtype=float).T
            found.append(paired_seeds(left, right))
            rows.append(
                {"a": folder.label(a), "b": folder.label(b), "by_seed": {"a": left.tolist(), "b": right.tolist()}}
            )
    return [
        row | {"difference": asdict(c.difference), "p": c.p, "adjusted": c.adjusted, "family": c.family}
        for row, c in zip(rows, adjust(found), strict=True)
    ]


def endpoint_lines(found: Mapping[str, Any]) -> list[str]:
    """Both as sections of summary.md."""
    lines: list[str] = []
    cold, power = found["cold"], found["power"]
    if cold is not None:
        lines += [
            "",
            f"## At the paper's temperature, T = {cold['temperature']:g}",
            "",
            "| arm | pass@1 | pass@256 |",
            "|---|---|---|",
        ]
        lines += [f"| base | {cold['base']['1']:.3f} | {cold['base'][str(K)]:.3f} |"] * (cold["base"] is not None)
        lines += [f"| {row['label']} | {interval_text(row['1'])} | {interval_text(row[str(K)])} |" for row in cold["arms"].values()]
        lines += ["", *(f"- {c['sentence']}" for c in cold["comparisons"])]
    if power is not None:
        points = [_point_row(p) for p in power["points"]]
        lines += [
            "",
            "## Against the base tempered over whole completions",
            "",
            "No reward: pi(y)^power, normalized per problem. +-: what the normalizer leaves open.",
            "",
        ]
        lines += ["| power | pass@1 | +- | pass@256 | +- |", "|---" * 5 + "|", *points, ""]
        lines += [f"- {c['sentence']}" for c in power["comparisons"]]
    if found["gains"]:
        lines += ["", "## The gains that the paper prints for Branch over GRPO", ""]
        lines += [_gain_row(row) for row in found["gains"]]
    if found["leash"]:
        lines += [
            "",
            "## Raw KL at the end of training, nats per token",
            "",
            "| a | b | a − b | p | Holm's p |",
            "|---" * 5 + "|",
        ]
        lines += [_leash_row(row) for row in found["leash"]]
    return lines


def _gain_row(row: Mapping[str, Any]) -> str:
    gap, word = row["difference"], "excluded" if row["excluded"] else "not excluded"
    if gap["low"] is None:
        return f"- {row['metric']}: {signed(row['gain'])} cannot be judged: too few training seeds."
    inside = f"{signed(gap['value'])}, {100 * gap['level']:g} % interval {signed(gap['low'])} to {signed(gap['high'])}"
    pair = f"{row['a']} minus {row['b']}"
    return f"- {row['metric']}: {signed(row['gain'])} is {word} ({pair} here {inside} over {gap['n']} {gap['over']})."


def _point_row(point: Mapping[str, Any]) -> str:
    if not point["known"]:
        return f"| {point['power']:g} | not available | {point['bound1']:.1g} | not available | |"
    cells = (f"{point[value]:.3f} | {point[bound]:.1g}" for value, bound in (("pass1", "bound1"), ("passk", "boundk")))
    return f"| {point['power']:g} | {' | '.join(cells)} |"


def _leash_row(row: Mapping[str, Any]) -> str:
    gap = row["difference"]
    value, low, high = (signed(gap[end], 4) if gap[end] is not None else "?" for end in ("value", "low", "high"))
    ps = (f"{p:.3f}" if p is not None else "" for p in (row["p"], row["adjusted"]))
    return f"| {row['a']} | {row['b']} | {value} ({low} to {high}) | {' | '.join(ps)} |"


def interval_text(interval: Mapping[str, Any], digits: int = 3) -> str:
    """A mean over seeds with the ends of its interval in brackets, as summary.md's tables have it."""
    text = f"{interval['value']:.{digits}f}"
    if interval["low"] is None or interval["high"] is None:
        return f"{text} (one seed)"
    return f"{text} ({interval['low']:.{digits}f} to {interval['high']:.{digits}f})"


__all__ = ["PAPER_TEMPERATURE", "endpoint_lines", "endpoints", "interval_text"]
