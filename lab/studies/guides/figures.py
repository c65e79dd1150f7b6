"""The picture of `python -m lab guides`: what each guide gains against its budget, the oracle above."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from sage_rlvr.render.style import (
    BLUE,
    CRIMSON,
    GREEN,
    INK,
    MUTED,
    OCHRE,
    OLIVE,
    RC,
    RED,
    SKY,
    VIOLET,
    saved,
)

Curve = list[tuple[float, float, float, float]]
PANELS = (
    ("support", "right completions above 1/256, gained"),
    ("distinct", "distinct right in 256, gained"),
    ("passk", "pass@256, gained"),
)
COLORS = {
    "Random": SKY, "Token": OCHRE, "Branch": GREEN, "rarity": RED,
    "rarity x reference": CRIMSON, "drift": BLUE, "fitted, reference": VIOLET,
    "unlikeliness": OLIVE, "policy hotter": MUTED, "oracle": INK,
}  # fmt: skip
_STYLES = {"policy hotter": (0, (4, 2)), "oracle": (0, (1, 1.5))}


def guides_figure(policies: Mapping[str, Mapping[str, Mapping[str, Curve]]], path: str | Path | None = None) -> Figure:
    """policies: name -> metric (support, distinct, passk) -> guide -> [(budget, gain, low, high)]; one row of panels a policy.

    The vertical axes are linear near 0 and logarithmic beyond, so that the guides and the oracle fit on one.
    """
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(11.4, 0.6 + 3.2 * len(policies)), layout="constrained")
        grid = figure.subplots(len(policies), len(PANELS), squeeze=False)
        for axes_row, (policy, metrics) in zip(grid, policies.items(), strict=True):
            for axes, (metric, title) in zip(axes_row, PANELS, strict=True):
                for guide, curve in metrics[metric].items():
                    x, y, low, high = np.array(curve).T
                    look = {"color": COLORS.get(guide, MUTED), "linestyle": _STYLES.get(guide, "-"), "label": guide}
                    line = axes.plot(x, y, marker="o", markersize=3, **look)
                    if guide != "oracle":
                        axes.fill_between(x, low, high, color=line[0].get_color(), alpha=0.12, linewidth=0)
                axes.set_xscale("log")
                axes.set_yscale("symlog", linthresh=0.02 if metric == "passk" else 1.0)
                axes.axhline(0.0, color=INK, linewidth=0.7)
                axes.set_title(f"{policy}: {title}", fontsize=9.5)
                axes.set_xlabel("KL(with guide || without), nats per completion")
        figure.legend(
            *grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=9
        )
        return saved(figure, path)
