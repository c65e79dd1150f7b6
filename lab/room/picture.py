"""The picture of the room law: what the base leaves to win against the change by RL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lab.room.cohort import DOMAINS, FAMILIES, MODELS

COLORS = dict(zip(DOMAINS, ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"), strict=True))  # Okabe and Ito
MARKERS = {
    ("level1", "qwen05b"): "o",
    ("level2", "qwen05b"): "o",
    ("level1", "falcon1b"): "^",
    ("level1", "qwen3b"): "s",
}
OWN = {"easy": "*", "hard": "P"}
SMOLLM2 = {"marker": "v", "color": "black", "markersize": 8, "markerfacecolor": "#F0E442", "linestyle": ""}
IMPOSSIBLE = "#DDDDDD"


def panel(axes: Axes, found: Mapping[str, Any], family: str) -> None:
    """One family's settings, the line through them, and what no change can leave."""
    axes.fill_between([0, 1], [0, 1], [1, 1], color=IMPOSSIBLE, linewidth=0, zorder=0)  # a gain above the room
    axes.fill_between([0, 1], [-1, -1], [-1, 0], color=IMPOSSIBLE, linewidth=0, zorder=0)  # a loss below 0
    axes.axhline(0, color="#555555", linewidth=0.8, zorder=1)
    line = found["lines"][family]
    axes.plot(
        [0, 1],
        [line["intercept"], line["intercept"] + line["slope"]],
        color="#777777",
        linestyle="--",
        linewidth=1,
        zorder=1,
    )
    for row in found["settings"]:
        if row["method"] not in FAMILIES[family]:
            continue
        color, hollow = COLORS.get(row["domain"], "#777777"), row["level"] != "level1"
        place = (1 - row["base"], row["change"])
        runs = row["changes"]
        axes.plot(
            [place[0]] * len(runs), runs, marker=".", markersize=3, linestyle="", color=color, alpha=0.6, zorder=2
        )
        axes.plot([place[0]] * 2, [min(runs), max(runs)], color=color, linewidth=0.6, alpha=0.5, zorder=2)
        axes.plot(
            *place,
            marker=MARKERS.get((row["level"], row["model"]), "D"),
            color=color,
            markersize=6,
            linestyle="",
            markerfacecolor="white" if hollow else color,
            markeredgewidth=1.2 if hollow else 0.4,
            markeredgecolor=color if hollow else "white",
            zorder=3,
        )
    axes.set(
        xlim=(-0.02, 1.03), ylim=(-0.62, 1.03), title=f"RL {family}", xlabel=f"room: 1 - pass@{found['k']} of the base"
    )
    axes.spines[["top", "right"]].set_visible(False)


def own_worlds(axes: Axes, found: Mapping[str, Any]) -> None:
    """Our own arms as boxes of what the stored scores leave open: filled without a KL term, hollow with one."""
    for arm in found["worlds"]:
        (left, right), (low, high) = arm["room"], arm["change"]
        x, y = (left + right) / 2, (low + high) / 2
        axes.plot([left, right], [y, y], color="black", linewidth=1, zorder=4)
        axes.plot([x, x], [low, high], color="black", linewidth=1, zorder=4)
        axes.plot(x, y, **own_style(arm["name"].partition(" ")[0], "without KL" in arm["name"]), zorder=5)


def smollm2_arms(axes: Axes, found: Mapping[str, Any]) -> None:
    """The arms of the study on SmolLM2, with their intervals over training seeds."""
    for arm in found["smollm2"]:
        x = 1 - arm["base"]
        axes.plot([x, x], [arm["low"], arm["high"]], color="black", linewidth=1, zorder=4)
        axes.plot(x, arm["change"], **SMOLLM2, zorder=6)


def own_style(world: str, bare: bool) -> dict[str, Any]:
    """Marker of a world; filled without a KL term."""
    fill = "black" if bare else "white"
    return {"marker": OWN[world], "color": "black", "markersize": 9, "markerfacecolor": fill, "linestyle": ""}


def legend_marks(found: Mapping[str, Any]) -> list[Line2D]:
    """Domains by color, models by marker."""

    def mark(label: str, **style: Any) -> Line2D:
        return Line2D([], [], label=label, linestyle="", **style)

    grey = "#555555"
    return [
        *(mark(name, marker="o", color=COLORS[key]) for key, name in DOMAINS.items()),
        mark(MODELS["qwen05b"], marker="o", color=grey),
        mark(f"{MODELS['qwen05b']}, level 2", marker="o", color=grey, markerfacecolor="white"),
        mark(MODELS["falcon1b"], marker="^", color=grey),
        mark(MODELS["qwen3b"], marker="s", color=grey),
        *(
            Line2D([], [], label=f"ours, {world} Countdown, {'no KL' if bare else 'KL'}", **own_style(world, bare))
            for world in OWN
            for bare in (True, False)
        ),
        *([Line2D([], [], label="ours, SmolLM2-135M on Countdown, KL", **SMOLLM2)] if found["smollm2"] else []),
        mark("one training run", marker=".", color=grey, markersize=4),
        Line2D([], [], label="least squares", color="#777777", linestyle="--", linewidth=1),
    ]


def draw(found: Mapping[str, Any], svg: Path, png: Path) -> None:
    """Both panels, as SVG and PNG."""
    plt.rcParams["svg.hashsalt"] = "room"  # the same picture, the same bytes
    figure, panels = plt.subplots(1, len(FAMILIES), figsize=(10, 5.4), sharey=True, layout="constrained")
    for axes, family in zip(panels, FAMILIES, strict=True):
        panel(axes, found, family)
    own_worlds(panels[0], found)
    smollm2_arms(panels[0], found)
    panels[0].set_ylabel(f"change of pass@{found['k']} by RL")
    panels[0].text(0.03, 0.75, "no change can lie here", color="#666666", fontsize=8)
    figure.legend(handles=legend_marks(found), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(svg, metadata={"Date": None})
    figure.savefig(png, dpi=150)
    plt.close(figure)
