"""The README's picture: pass@k of base, GRPO, GRPO without a KL term and SAGE-Branch on easy Countdown, with the chance floor.

    python -m lab.figures.readme

Reads lab/experiments/2026-11-21_table1/summary.json; writes docs/images/passk.png and docs/images/passk.svg.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from sage_rlvr.render.style import looks
from sage_rlvr.tasks.chance import chance_of
from sage_rlvr.tasks.countdown import WORLDS

ROOT = Path(__file__).parents[2]
SUMMARY = ROOT / "lab" / "experiments" / "2026-11-21_table1" / "summary.json"
OUT = ROOT / "docs" / "images"
KS = (1, 8, 64, 256)
LABELS = {"base": "base", "no_kl": "GRPO, no KL", "grpo": "GRPO", "sage_branch": "SAGE-Branch"}
ARMS = {arm: (LABELS[arm], look.color, look.marker) for arm, look in looks(LABELS).items()}
"""Arm of the summary: label, color and marker, those of the page that the demo writes."""
FLOOR = "#777777"


def floor_of(problems: int) -> dict[int, float]:
    """pass@k of a guesser that draws well-formed expressions uniformly, on the test problems of the experiment."""
    task = WORLDS["demo"]
    chosen = task.draw("test", 1, problems)  # 1: the evaluation's default seed of problems, `EvalSettings.seed`
    chance = chance_of(task, chosen)
    assert chance is not None
    return {k: chance.at(k) for k in range(1, max(KS) + 1)}


def curves(axes: Axes, summary: dict[str, Any], floor: dict[int, float]) -> None:
    """pass@k against k at T = 1."""
    axes.fill_between(list(floor), list(floor.values()), color=FLOOR, alpha=0.15, linewidth=0)
    axes.plot(list(floor), list(floor.values()), color=FLOOR, linestyle="--", label="uniform guesser (chance)")
    for arm, (label, color, marker) in ARMS.items():
        scores = summary["base"]["pass"] if arm == "base" else summary["arms"][arm]["pass"]
        values = [scores[str(k)] if arm == "base" else scores[str(k)]["value"] for k in KS]
        axes.plot(KS, values, color=color, marker=marker, markersize=5, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    axes.set(xlabel="samples per problem, k", ylabel="pass@k", ylim=(0, 1.02), title="At temperature 1")
    axes.legend(loc="lower right", fontsize=8, frameon=False)


def frontiers(axes: Axes, summary: dict[str, Any], floor: dict[int, float]) -> None:
    """pass@256 against pass@1, each policy at fifteen temperatures."""
    axes.axhspan(0, floor[256], color=FLOOR, alpha=0.15, linewidth=0)
    axes.axhline(floor[256], color=FLOOR, linestyle="--")
    axes.text(0.095, floor[256] - 0.012, "chance", color="#555555", fontsize=8, va="top")
    for arm, (_, color, marker) in ARMS.items():
        points = (summary["base"] if arm == "base" else summary["arms"][arm])["frontier"]
        x, y = [p["pass1"] for p in points], [p["passk"] for p in points]
        axes.plot(x, y, color=color, marker=marker, markersize=3, linewidth=1)
        sampled = next(p for p in points if p["temperature"] == 1.0)
        large = {"markersize": 9, "markeredgecolor": "white", "zorder": 3}
        axes.plot(sampled["pass1"], sampled["passk"], color=color, marker=marker, **large)
    axes.set(xlabel="pass@1", ylabel="pass@256", xlim=(0.09, 0.28), ylim=(0.3, 1.02), xticks=[0.1, 0.15, 0.2, 0.25])
    axes.set_title("At 15 temperatures, 0.05 to 1.3 (large marks: 1)")


def main() -> None:
    """Draw both panels and write the picture."""
    summary = json.loads(SUMMARY.read_text(encoding="utf-8"))
    floor = floor_of(summary["evaluate"]["problems"])
    print("uniform guesser:", ", ".join(f"pass@{k} {floor[k]:.3f}" for k in KS))
    plt.rcParams["svg.hashsalt"] = "readme"  # the same picture, the same bytes
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.7), layout="constrained")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
    curves(left, summary, floor)
    frontiers(right, summary, floor)
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / "passk.svg", metadata={"Date": None})
    figure.savefig(OUT / "passk.png", dpi=150)


if __name__ == "__main__":
    main()
