"""Pictures of `sage-rlvr study anchor`, from plain arrays: the paper's Fig. 1 and Fig. 5 with our numbers, and the forces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from sage_rlvr.report.style import BLUE, BROWN, GREEN, GREY, GRID, INK, MUTED, OCHRE, RC, saved


def landscape_figure(
    curves: Mapping[str, ArrayLike], right: ArrayLike, beta: float, epsilon: float, path: str | Path | None = None
) -> Figure:
    """Fig. 1: above the reference and q x reference, below the policy without and with q; (N,) each.

    curves: reference, shaped, grpo (Eq. 2), sage (Eq. 4), k3 (where k3 in the loss with that q rests). right: (N,) bool.
    """
    values = {name: np.asarray(curve) for name, curve in curves.items()}
    marks = np.flatnonzero(np.asarray(right))
    place = np.arange(len(values["reference"]))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(7.2, 5.4), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        above.fill_between(place, values["reference"], step="mid", color=GREY, alpha=0.35, linewidth=0)
        above.step(place, values["reference"], where="mid", color=GREY, label="reference")
        above.step(place, values["shaped"], where="mid", color=GREEN, label="q x reference")
        above.set_title("The anchor: q lifts what is rare and uncertain")
        below.step(place, values["grpo"], where="mid", color=BLUE, label="optimum without q, Eq. (2)")
        below.step(place, values["sage"], where="mid", color=GREEN, label="optimum with q, Eq. (4)")
        below.step(
            place, values["k3"], where="mid", color=OCHRE, linestyle=(0, (4, 2)), linewidth=1.6,
            label="where k3 in the loss rests with the same q",
        )  # fmt: skip
        below.set_title(f"The policy it leads to, beta = {beta:g}")
        for axes in (above, below):
            axes.set_yscale("log")
            axes.axhline(epsilon, color=INK, linewidth=0.8, linestyle=":")
            axes.set_ylabel("probability")
            axes.legend(frameon=False, fontsize=9, loc="upper right")
            axes.set_ylim(1e-4, 0.4)
            low = axes.get_ylim()[0]
            axes.scatter(marks, np.full(len(marks), low * 1.25), marker="^", s=26, color=INK, zorder=4, clip_on=False)
        above.text(47, epsilon * 1.15, "above: empirical support (Def. 4.1)", fontsize=8.5, color=MUTED, ha="right")
        below.set_xlabel("completions of one prompt (triangles: right answers)")
        return saved(figure, path)


def modes_figure(
    place: ArrayLike,
    target: ArrayLike,
    shaped: ArrayLike,
    fits: Mapping[str, ArrayLike],
    path: str | Path | None = None,
) -> Figure:
    """Fig. 5 with SAGE beside: the bell curve closest to a two-moded target by each divergence; (X,) each.

    fits: title -> density; a title that speaks of q is drawn over the shaped target.
    """
    x, plain, lifted = np.asarray(place), np.asarray(target), np.asarray(shaped)
    shades = (BLUE, BROWN, GREEN)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(9.6, 3.0), layout="constrained")
        panels = figure.subplots(1, len(fits), sharey=True)
        for axes, (title, fit), shade in zip(panels, fits.items(), shades, strict=True):
            axes.fill_between(x, plain, color=GREY, alpha=0.35, linewidth=0)
            if "q x" in title:
                axes.plot(x, lifted, color=MUTED, linewidth=1.2, linestyle=(0, (4, 2)))
                axes.text(2.3, float(lifted.max()) * 1.02, "q x target", fontsize=8.5, color=MUTED, ha="center")
            axes.plot(x, np.asarray(fit), color=shade, linewidth=2.2)
            axes.set_title(title, fontsize=10.5)
            axes.set_yticks([])
            axes.set_xticks([])
        panels[0].set_ylabel("density")
        return saved(figure, path)


def forces_figure(
    pushes: Mapping[tuple[str, str, str], Sequence[float]],
    tokens: Mapping[str, Sequence[str]],
    refused: Sequence[tuple[str, str]],
    titles: Mapping[str, str],
    path: str | Path | None = None,
) -> Figure:
    """The push of each KL term on the logits of two states: a column per term, a row per state, a bar per guide.

    pushes: (term, guide, state) -> one number per token; tokens: state -> names; refused: (term, guide) drawn hatched;
    titles: state -> row title.
    """
    terms = list(dict.fromkeys(term for term, _, _ in pushes))
    guides = list(dict.fromkeys(guide for _, guide, _ in pushes))
    shades = dict(zip(guides, (GREY, GREEN, OCHRE), strict=True))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(3.2 * len(terms), 5.0), layout="constrained")
        grid = figure.subplots(len(tokens), len(terms), sharey="row", squeeze=False)
        for row, state in enumerate(tokens):
            for column, term in enumerate(terms):
                axes = grid[row][column]
                for n, guide in enumerate(guides):
                    _bars(
                        axes, n, len(guides), pushes[term, guide, state], shades[guide], (term, guide) in refused, guide
                    )
                axes.axhline(0, color=INK, linewidth=0.8)
                axes.set_xticks(range(len(tokens[state])), tokens[state], fontsize=8.5)
                axes.grid(axis="x", visible=False)
                if row == 0:
                    axes.set_title(term, fontsize=10)
            grid[row][0].set_ylabel(titles[state], fontsize=9)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(guides), frameon=False, fontsize=9)
        return saved(figure, path)


def _bars(axes: Axes, n: int, of: int, values: Sequence[float], shade: str, hatched: bool, label: str) -> None:
    """One guide's bars at its place in each group; hatched where the combination is refused."""
    width = 0.8 / of
    at = np.arange(len(values)) + (n - (of - 1) / 2) * width
    face = {"facecolor": "none", "edgecolor": shade, "hatch": "////"} if hatched else {"color": shade}
    axes.bar(at, values, width * 0.92, linewidth=0.8, label=label, **face)
    if hatched:
        axes.text(
            0.98,
            0.04,
            f"hatched: {label} is refused here",
            transform=axes.transAxes,
            ha="right",
            fontsize=8,
            color=MUTED,
        )
    axes.tick_params(colors=GRID, labelcolor=INK)
