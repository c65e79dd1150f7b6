"""The README's first picture: a pretrained model before and after RL, beside its base at lower temperatures and the chance floor.

    sage-rlvr demo --model smollm2                 trains it again, into runs/demo-smollm2
    python -m lab.figures.real [FOLDER]           by default of the stored experiment

Reads FOLDER/summary.json; writes docs/images/smollm2.png and docs/images/smollm2.svg.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from lab.figures.readme import ARMS, FLOOR, OUT
from sage_rlvr.results.page.scores import chance_line
from sage_rlvr.verdicts.summary_io import read_summary

FOLDER = Path(__file__).parents[1] / "experiments" / "2026-11-27_demo_smollm2"
LINE = 0.03
"""Height of a line of print, in pass@k."""


def of_base(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The base at its temperatures, 1 first."""
    return sorted((row for row in summary["sampled"] if row["policy"] == "base"), key=lambda row: -row["temperature"])


def arms(summary: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], tuple[str, str, str]]]:
    """The samples of each arm with its label, color and marker."""
    rows = {row["policy"]: row for row in summary["sampled"]}
    return [(rows[arm["label"]], ARMS[key]) for key, arm in summary["arms"].items() if arm["label"] in rows]


def curve(row: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """k and pass@k."""
    return [int(k) for k in row["pass"]], [found["value"] for found in row["pass"].values()]


def ends_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[tuple[int, float], str]]:
    """The right end of each curve with its temperature; ends within a line of print share a label."""
    found: list[tuple[tuple[int, float], str]] = []
    for row in sorted(rows, key=lambda row: -curve(row)[1][-1]):
        k, value = (column[-1] for column in curve(row))
        if found and found[-1][0][1] - value < LINE:
            found[-1] = found[-1][0], f"{found[-1][1]}, {row['temperature']:g}"
        else:
            found.append(((k, value), f"{row['temperature']:g}"))
    return found


def curves(axes: Axes, summary: Mapping[str, Any]) -> None:
    """pass@k against k: the arms and the base at T = 1, thin the base at lower temperatures, gray below chance."""
    base, *colder = of_base(summary)
    if floor := chance_line(summary, base["task"]):
        axes.fill_between(*floor, color=FLOOR, alpha=0.15, linewidth=0)
        axes.plot(*floor, color=FLOOR, linestyle="--", label="uniform guesser (chance)")
    for row in colder:
        axes.plot(*curve(row), color=ARMS["base"][1], alpha=0.45, linewidth=0.8, linestyle=":")
    for (k, value), text in ends_of(colder):
        axes.annotate(text, (k, value), (7, -3), textcoords="offset points", fontsize=7)
    axes.plot([], [], color=ARMS["base"][1], alpha=0.45, linewidth=0.8, linestyle=":", label="base at lower T")
    for row, (label, color, marker) in [(base, ARMS["base"]), *arms(summary)]:
        axes.plot(*curve(row), color=color, marker=marker, markersize=5, label=label)
    ks, _ = curve(base)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks[::2], list(map(str, ks[::2])))
    axes.set(xlabel="samples per problem, k", ylabel="pass@k", ylim=(0, 1.0), title="At temperature 1")
    axes.legend(loc="upper left", fontsize=8, frameon=False)


def plane(axes: Axes, summary: Mapping[str, Any], k: int) -> None:
    """pass@k against pass@1: the base at its temperatures as a line, the arms as marks."""
    rows = of_base(summary)
    x, y = ([row["pass"][str(n)]["value"] for row in rows] for n in (1, k))
    axes.plot(x, y, color=ARMS["base"][1], marker="o", markersize=4, linewidth=1)
    for row, at in zip(rows, zip(x, y, strict=True), strict=True):
        axes.annotate(f"T = {row['temperature']:g}", at, (-4, -10), textcoords="offset points", ha="right", fontsize=7)
    for row, (_, color, marker) in arms(summary):
        one, many = row["pass"]["1"], row["pass"][str(k)]
        bars = [[[found["value"] - found["low"]], [found["high"] - found["value"]]] for found in (one, many)]
        axes.errorbar(
            one["value"], many["value"], xerr=bars[0], yerr=bars[1], color=color, marker=marker, markersize=8, linewidth=1,
            markeredgecolor="white",
        )  # fmt: skip
    axes.margins(0.14)  # room for the first label
    axes.set(xlabel="pass@1", ylabel=f"pass@{k}")
    axes.set_title("Line: the untrained base at lower temperatures")


def main(folder: Path = FOLDER) -> None:
    """Draw both panels and write the picture."""
    summary = read_summary(folder / "summary.json")
    passes = {row["label"]: {k: round(found["value"], 3) for k, found in row["pass"].items()} for row in summary["sampled"]}
    print(json.dumps(passes))
    plt.rcParams |= {"svg.hashsalt": "real", "axes.titlesize": 10}  # the same picture, the same bytes
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.7), layout="constrained")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    curves(left, summary)
    plane(right, summary, min(row["n"] for row in of_base(summary)))
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / "smollm2.svg", metadata={"Date": None})
    figure.savefig(OUT / "smollm2.png", dpi=150)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
