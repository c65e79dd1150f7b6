"""Figures of the full report beside those of `figures.py`: training over seeds, support, tails, structure, grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.report import figures
from sage_rlvr.report.result import Training
from sage_rlvr.report.style import INK, MUTED, RC, colour, dash, marker
from sage_rlvr.stats.intervals import Interval

Floats = NDArray[np.float64]

TRAINING = {
    "reward": "mean reward",
    "kl_raw": "raw KL to the reference\n(nats a token)",
    "kl": "KL to the shaped reference\n(nats a token)",
    "entropy": "policy entropy\n(nats a token)",
    "q_mean": "mean of q",
    "q_active": "share of tokens with q not 1",
    "dead_groups": "share of dead groups",
    "grad_norm": "gradient norm\n(before clipping)",
}
# Colours of a heat map from low to high; none of them has a twin, so a cell looks the same on a dark page
_HEAT = ((0.93, 0.95, 0.99), (0.42, 0.62, 0.85), (0.05, 0.22, 0.46))


def training_over_seeds(runs: Mapping[str, Sequence[Training]], key: str) -> Figure | None:
    """One metric over training: thin each seed, bold their mean, both as moving means over a twentieth of the run; where no
    arm has a second seed the raw steps are the thin lines. None where no run recorded the metric."""
    with matplotlib.rc_context(RC):
        figure, axes = figures._figure((5.2, 3.4))
        ends, several = {}, max(map(len, runs.values())) > 1
        for name, seeds in runs.items():
            table = _aligned([getattr(run, key) for run in seeds if len(getattr(run, key))])
            if table is None or not np.isfinite(table).any():
                continue
            steps = max((run.step for run in seeds), key=len)[: table.shape[1]]
            width = 2 * (table.shape[1] // 40) + 1
            thin = np.stack([figures.moving_mean(row, width if several else 1) for row in table])
            stride = max(1, width // 3) if several else 1  # a moving mean needs no more points, and the page is smaller
            for row in thin:
                axes.plot(steps[::stride], row[::stride], color=colour(name), linewidth=0.7, alpha=0.3)
            seen = np.isfinite(table)
            mean = np.divide(
                np.where(seen, table, 0.0).sum(axis=0), seen.sum(axis=0),
                out=np.full(table.shape[1], np.nan), where=seen.any(axis=0),
            )  # fmt: skip
            smooth = figures.moving_mean(mean, width)
            axes.plot(steps, smooth, color=colour(name), linestyle=dash(name))
            last = int(np.flatnonzero(np.isfinite(smooth))[-1])
            ends[name] = (float(steps[last]), float(smooth[last]))
        if not ends:
            return None
        axes.set_ylim(*_limits(axes))
        axes.set(title=TRAINING[key], xlabel="step")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        figures._label_ends(axes, ends)
        return figures.saved(figure, None)


def _limits(axes: Axes) -> tuple[float, float]:
    """Limits that hold every bold line and all but the rarest points of the thin ones, so that one spike flattens nothing."""
    lines = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    thin = np.concatenate(
        [y[np.isfinite(y)] for y, line in zip(lines, axes.lines, strict=True) if line.get_linewidth() < 1]
    )
    bold = np.concatenate(
        [y[np.isfinite(y)] for y, line in zip(lines, axes.lines, strict=True) if line.get_linewidth() > 1]
    )
    low, high = np.quantile(thin, [0.002, 0.998])
    low, high = min(low, bold.min()), max(high, bold.max())
    room = 0.05 * (high - low) or 0.05 * max(abs(high), 1.0)
    return float(low - room), float(high + room)


def support_figure(kept: Mapping[str, tuple[float, float, float]], base: float) -> Figure:
    """Right completions in each arm's support against the base's: arm -> (kept, gained, lost), means over seeds."""
    with matplotlib.rc_context(RC):
        figure, axes = figures._figure((6.0, 0.55 * len(kept) + 1.5))
        for row, (name, (keep, gain, lose)) in enumerate(kept.items()):
            shade = colour(name)
            axes.barh(row, keep, height=0.5, color=shade)
            axes.barh(row, gain, left=keep, height=0.5, facecolor="none", edgecolor=shade, hatch="////", linewidth=0.8)
            axes.barh(row, -lose, height=0.5, facecolor="none", edgecolor=shade, linewidth=1.0, linestyle=(0, (2, 1.5)))
            label = f"{keep:,.0f} kept  +{gain:,.0f}  −{lose:,.0f}"
            axes.text(
                1.0,
                row,
                label,
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="center",
                fontsize=9.5,
                color=shade,
            )
        axes.axvline(base, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.axvline(0, color=INK, linewidth=0.9)
        axes.set_yticks(range(len(kept)), list(kept))
        axes.set_ylim(len(kept) - 0.45, -0.55)
        widest = max((k + g for k, g, _ in kept.values()), default=1.0)
        left = -1.08 * max(lost for *_, lost in kept.values()) - 1
        right = 1.04 * max(base, widest)
        axes.set_xlim(left, right + 0.66 * (right - left))  # the numbers stand in the last third
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{abs(x):,.0f}".replace(",", " ")))
        axes.set_xlabel("right completions: lost | kept, then gained")
        axes.grid(axis="y", visible=False)
        return figures.saved(figure, None)


def tails_figure(values: Mapping[str, ArrayLike], base: str) -> Figure:
    """Share of samples with a perplexity under the base above x, both axes logarithmic: arm -> perplexities (M,)."""
    with matplotlib.rc_context(RC):
        figure, axes = figures._figure((6.0, 4.1))
        axes.set_xscale("log")
        axes.set_yscale("log")
        for name, given in values.items():
            found = np.sort(np.asarray(given, dtype=float))
            found = found[np.isfinite(found)]
            above = 1 - np.arange(len(found)) / len(found)
            axes.step(found, above, where="pre", color=colour(name), linestyle=dash(name), label=name)
        axes.set(xlabel=f"perplexity under {base}", ylabel="share of samples above it")
        plain = FuncFormatter(lambda x, _: f"{x:g}")
        axes.xaxis.set_major_formatter(plain)
        axes.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "2358" else ""))
        axes.yaxis.set_major_formatter(plain)
        figures.key_above(figure, list(values), marked=False)
        return figures.saved(figure, None)


def over_k_figure(lines: Mapping[str, tuple[Sequence[int], ArrayLike, ArrayLike, ArrayLike]], ylabel: str) -> Figure:
    """Any count over k on a log2 axis: name -> (ks, mean, low, high), each (K,)."""
    with matplotlib.rc_context(RC):
        figure, axes = figures._figure((6.0, 4.1))
        for name, (ks, mean, low, high) in lines.items():
            axes.fill_between(ks, np.asarray(low), np.asarray(high), color=colour(name), alpha=0.16, linewidth=0)
            axes.plot(
                ks, np.asarray(mean), color=colour(name), linestyle=dash(name), marker=marker(name), markersize=4.5
            )
        figures._k_axis(axes, sorted({k for ks, *_ in lines.values() for k in ks}))
        axes.set_ylim(bottom=0)
        axes.set_ylabel(ylabel)
        ends = {name: (float(ks[-1]), float(np.asarray(mean)[-1])) for name, (ks, mean, *_) in lines.items()}
        figures._label_ends(axes, ends)
        return figures.saved(figure, None)


def shares_figure(
    shares: Mapping[str, Mapping[str, Interval]], xlabel: str, label: Callable[[str], str] = str
) -> Figure:
    """Shares of classes, one row a class and one mark with its interval an arm: arm -> class -> interval."""
    with matplotlib.rc_context(RC):
        classes = list(next(iter(shares.values())))
        figure, axes = figures._figure((6.0, 0.09 * len(classes) * len(shares) + 0.22 * len(classes) + 1.5))
        height = 0.72 / len(shares)
        for i, (name, found) in enumerate(shares.items()):
            for row, key in enumerate(classes):
                where = row + (i - (len(shares) - 1) / 2) * height
                mean, bars = found[key].value, figures._bars(found[key])
                axes.errorbar(
                    mean, where, xerr=bars, color=colour(name), marker=marker(name), markersize=5.5, linewidth=1.0,
                    markeredgecolor="white", markeredgewidth=0.5,
                )  # fmt: skip
        for row in range(len(classes) - 1):
            axes.axhline(row + 0.5, color=MUTED, linewidth=0.4, alpha=0.5)
        axes.set_yticks(range(len(classes)), [label(key) for key in classes])
        axes.set_ylim(len(classes) - 0.45, -0.55)
        axes.set_xlim(left=0)
        axes.set_xlabel(xlabel)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.0f} %"))
        axes.grid(axis="y", visible=False)
        figures.key_above(figure, list(shares), lines=False)
        return figures.saved(figure, None)


def learning_figure(
    lines: Mapping[str, Sequence[tuple[int, Interval, Interval, Interval]]], base: tuple[float, float, float], k: int
) -> Figure:
    """Two panels over steps, each line from the base at step 0. lines: name -> (steps, pass@1, best pass@1 at any temperature,
    pass@k) in the order of the steps; base: its three values."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(8.2, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.axhline(base[1], color=colour("base"), linestyle=":", linewidth=1.4)
        for name, points in lines.items():
            steps = [0, *(point[0] for point in points)]
            for axes, i, style in ((left, 1, "-"), (left, 2, "--"), (right, 3, "-")):
                found = [point[i] for point in points]
                axes.plot(steps, [base[i - 1], *(one.value for one in found)], color=colour(name), linestyle=style,
                    marker=marker(name), markersize=5, linewidth=1.4)  # fmt: skip
                if style == "-":
                    low, high = [one.low for one in found], [one.high for one in found]
                    axes.fill_between(steps[1:], low, high, color=colour(name), alpha=0.15, linewidth=0)
        left.set(xlabel="steps", ylabel="pass@1")
        right.set(xlabel="steps", ylabel=f"pass@{k}")
        figures.key_above(figure, list(lines), lines=False)
        return figures.saved(figure, None)


def heat_figure(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[str, str], float],
    names: tuple[str, str],
    title: str,
) -> Figure:
    """A grid of numbers, each written in its cell; a missing one is hatched and says "not run". cells: (row, column) "
    "-> value."""
    with matplotlib.rc_context(RC):
        figure, axes = figures._figure((1.05 * len(columns) + 2.2, 0.62 * len(rows) + 1.6))
        values = [value for value in cells.values() if math.isfinite(value)]
        low, high = min(values, default=0.0), max(values, default=1.0)
        for y, row in enumerate(rows):
            for x, column in enumerate(columns):
                _cell(axes, x, y, cells.get((row, column), math.nan), low, high)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlabel=names[1], ylabel=names[0], title=title)
        axes.grid(visible=False)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0)
        return figures.saved(figure, None)


def _cell(axes: Axes, x: int, y: int, value: float, low: float, high: float) -> None:
    place = (x - 0.48, y - 0.48)
    if not math.isfinite(value):
        axes.add_patch(Rectangle(place, 0.96, 0.96, facecolor="none", edgecolor=MUTED, hatch="///", linewidth=0.6))
        axes.text(x, y, "not run", ha="center", va="center", fontsize=9, color=INK)
        return
    share = (value - low) / (high - low) if high > low else 0.0
    axes.add_patch(Rectangle(place, 0.96, 0.96, facecolor=_heat(share), linewidth=0))
    text = "#fffffe" if share > 0.45 else "#101418"
    axes.text(x, y, f"{value:.3f}", ha="center", va="center", fontsize=9.5, color=text)


def _heat(share: float) -> tuple[float, ...]:
    a, b, w = (_HEAT[0], _HEAT[1], 2 * share) if share < 0.5 else (_HEAT[1], _HEAT[2], 2 * share - 1)
    return tuple((1 - w) * x + w * y for x, y in zip(a, b, strict=True))


def _aligned(rows: Sequence[Sequence[float]]) -> Floats | None:
    """(S, longest) with NaN where a run is shorter."""
    if not rows:
        return None
    table = np.full((len(rows), max(map(len, rows))), np.nan)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


__all__ = [
    "TRAINING",
    "heat_figure",
    "over_k_figure",
    "shares_figure",
    "support_figure",
    "tails_figure",
    "training_over_seeds",
]
