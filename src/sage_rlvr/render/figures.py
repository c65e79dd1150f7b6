"""Figures: functions from values to a `Figure`, without global state. Every mean has an interval; `shown` has the look of each arm.

A new figure needs one function here and one line in report.md.j2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike

from sage_rlvr.render.labels import label_points
from sage_rlvr.render.style import GREEN, INK, MUTED, RC, RED, Looks, canvas, key_above, saved
from sage_rlvr.results.page.scores import Band, Drawn, Line
from sage_rlvr.results.tables import TRAINING
from sage_rlvr.verdicts.stats.arrays import Floats

Curve = Mapping[str, Any]
"""A difference with its band: difference, low and high, each (K,), over `ks`, in a verdict with the outcome at each; or over
`pass1`, with `home`, pass@1 of the second arm at temperature 1."""
SMALL = 0.01  # differences up to here stand on a linear scale
SCALE = f"The scale is linear up to {SMALL:g} and logarithmic above."  # of differences, said under them
_HEAT = np.array([(0.93, 0.95, 0.99), (0.42, 0.62, 0.85), (0.05, 0.22, 0.46)])  # low to high, alike on a dark page
CHANCE: dict[str, Any] = {"color": MUTED, "linestyle": (0, (3, 2)), "linewidth": 1.3, "zorder": 1}
_PLAIN = FuncFormatter(lambda x, _: f"{x:g}")


def over_k(shown: Looks, lines: Mapping[str, Band], count: str = "", chance: Line | None = None) -> Figure:
    """A score over k on a log2 axis with bands: pass@k with the chance floor, or the score named `count`."""
    with matplotlib.rc_context(RC):
        figure, axes = canvas((5.2, 4.1))
        _draw_lines(axes, shown, lines)
        if chance:
            axes.plot(*chance, **CHANCE)
        _k_axis(axes, sorted({k for ks, *_ in lines.values() for k in ks}))
        axes.set(ylabel=count or "pass@k")
        low, high = axes.get_ylim()
        axes.set_ylim(*((0.0, high) if count else (max(0.0, low), min(1.005, high))))
        if chance:
            axes.fill_between(*chance, axes.get_ylim()[0], color=MUTED, alpha=0.12, linewidth=0, zorder=0)
            _name_chance(axes, _middle(chance))
        key_above(figure, shown, list(lines))
        return saved(figure)


def _draw_lines(axes: Axes, shown: Looks, lines: Mapping[str, Band]) -> None:
    """Each line with its marks and band; one without a mark is thin and has no band."""
    for name, (ks, mean, low, high) in lines.items():
        look, width = shown[name], 1.5 if shown[name].marker else 0.9
        if look.marker:
            axes.fill_between(ks, np.asarray(low), np.asarray(high), color=look.color, alpha=0.12, linewidth=0)
        axes.plot(ks, mean, color=look.color, linestyle=look.dash, marker=look.marker, markersize=4.5, linewidth=width)


def difference(
    shown: Looks, pair: tuple[str, str], curve: Curve, ylabel: str, limits: tuple[float, float]
) -> Figure:
    """The paired difference a - b with its band on a common scale of all pairs: over k, or over the common pass@1 along the
    frontiers, with a dotted line at pass@1 of b at temperature 1."""
    with matplotlib.rc_context(RC):
        figure, axes = canvas((4.0, 2.7))
        _draw_difference(axes, pair, curve, shown[pair[0]].color)
        axes.set(xlabel="pass@1", ylabel=ylabel)
        if "ks" in curve:
            _k_axis(axes, curve["ks"])
        elif curve["home"] is not None and curve["pass1"][0] <= curve["home"] <= curve["pass1"][-1]:
            axes.axvline(curve["home"], color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
        _linear_near_zero(axes, *limits)
        return saved(figure)


def verdict(
    shown: Looks, lines: Mapping[str, Band], curve: Curve, pair: tuple[str, str], chance: Line | None = None
) -> Figure:
    """Both curves over k, above the difference with its simultaneous band, shaded where the arm gains or loses."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(5.2, 5.6), layout="constrained")
        FigureCanvasAgg(figure)
        top, low = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _draw_lines(top, shown, lines)
        if chance:
            top.plot(*chance, **CHANCE)
            _name_chance(top, _middle(chance))
        _draw_difference(low, pair, curve, shown[pair[0]].color)
        for outcome, name, shade in (("better", "gain", GREEN), ("worse", "loss", RED)):
            _shade(low, curve, outcome, name, shade)
        _k_axis(low, curve["ks"])
        top.set(ylabel="pass@k")
        low.set(ylabel="difference")
        key_above(figure, shown, list(lines))
        return saved(figure)


def unlocked(shown: Looks, pair: tuple[str, str], half: int, k: int, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Gains in pass@k by how often half of the control's samples solves a problem: read from the samples that chose (gray), where
    the control drawn again gains too, and from other samples with intervals. Strata without an interval have open marks."""
    arm, control = pair
    with matplotlib.rc_context(RC):
        figure, axes = canvas((5.2, 4.1))
        axes.axhline(0, color=INK, linewidth=1.0)
        look = shown[arm]
        for x, row in enumerate(rows):
            gain = row["gain"]
            axes.plot(x - 0.17, row["naive"], color=MUTED, marker=look.marker, markersize=7, linestyle="none")
            axes.plot(x, row["redrawn"], color=MUTED, marker="_", markersize=15, markeredgewidth=2.2, linestyle="none")
            face = look.color if gain["low"] < gain["high"] else "none"
            axes.errorbar(
                x + 0.17, gain["value"], yerr=_bars(gain), color=look.color, marker=look.marker, markersize=7, markerfacecolor=face,
                linewidth=1.5, capsize=3,
            )  # fmt: skip
        axes.set_xticks(range(len(rows)), [f"{row['right']}\n{100 * row['share']:.0f} %" for row in rows])
        axes.set(xlim=(-0.6, len(rows) - 0.4), xlabel=f"right of {half} samples of {control}; share of the problems")
        axes.set(ylabel=f"gain in pass@{k}")
        axes.grid(axis="x", visible=False)
        marks = [
            Line2D([], [], color=MUTED, marker=look.marker, markersize=7, linestyle="none"),
            Line2D([], [], color=MUTED, marker="_", markersize=15, markeredgewidth=2.2, linestyle="none"),
            Line2D([], [], color=look.color, marker=look.marker, markersize=7, linewidth=1.5),
        ]
        names = [f"{arm}, same samples", f"{control} drawn again, same samples", f"{arm}, other samples"]
        figure.legend(marks, names, loc="outside upper left", frameon=False, fontsize=9.5)
        return saved(figure)


def _draw_difference(axes: Axes, pair: tuple[str, str], curve: Curve, color: str) -> None:
    """The line with its band over k or pass@1, the zero line, and the pair as the title."""
    x = curve["ks"] if "ks" in curve else curve["pass1"]
    middle, low, high = (np.asarray(curve[name], dtype=float) for name in ("difference", "low", "high"))
    axes.axhline(0, color=INK, linewidth=1.0)
    axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    axes.plot(x, middle, color=color, linewidth=1.5)
    axes.set_title(" − ".join(pair), fontsize=11 if len("".join(pair)) < 30 else 9)


def _shade(axes: Axes, curve: Curve, outcome: str, name: str, color: str) -> None:
    """Mark every stretch of k with this outcome at the lower edge, with its name at the first."""
    ks, inside = np.array(curve["ks"]), np.array([one == outcome for one in curve["outcomes"]])
    changes = np.flatnonzero(np.diff(inside)) + 1
    parts = np.split(np.arange(len(ks)), changes)
    stretches = [part for part in parts if inside[part[0]]]
    for number, part in enumerate(stretches):
        first, last = ks[part[0]], ks[part[-1]]
        left, right = first / 2**0.12, last * 2**0.12
        axes.axvspan(left, right, color=color, alpha=0.12, linewidth=0, zorder=0)
        if not number:
            middle = math.sqrt(left * right)
            axes.text(middle, 0.04, name, color=color, ha="center", fontsize=9, transform=axes.get_xaxis_transform())


def frontier(
    shown: Looks,
    base: str,
    curves: Mapping[str, Sequence[Mapping[str, float]]],
    arms: Mapping[str, tuple[Drawn, Drawn]],
    k: int,
    *,
    seeds: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    power: Sequence[tuple[float, float]] = (),
    chance: float | None = None,
    mixed: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
) -> Figure:
    """pass@1 against pass@k: each policy at all its temperatures (`curves`, the base's bold with temperatures), each arm's point
    at temperature 1 with both intervals, small open marks for the training seeds, the base tempered over whole completions, the
    chance floor of pass@k, and dotted lines of mixed weights (`mixed`: name -> share, pass@1, pass@k) with their shares."""
    with matplotlib.rc_context(RC):
        figure, axes = canvas((5.4, 4.6))
        for name, points in curves.items():
            look, is_base = shown[name], name == base
            x, y = zip(*(_xy(p) for p in sorted(points, key=lambda p: p["temperature"])), strict=True)
            axes.plot(
                x, y, color=look.color, linestyle=look.dash, marker=look.marker if is_base else "", markersize=4,
                linewidth=1.9 if is_base else 1.0, alpha=1 if is_base else 0.6, zorder=2 if is_base else 1,
            )  # fmt: skip
        for name, marks in (seeds or {}).items():
            look, (x, y) = shown[name], zip(*marks, strict=True)
            axes.scatter(
                x, y, s=20, marker=look.marker, facecolors="none", edgecolors=look.color, linewidths=0.9, zorder=3
            )
        for name, (one, many) in arms.items():
            look = shown[name]
            axes.errorbar(
                one["value"], many["value"], xerr=_bars(one), yerr=_bars(many), color=look.color, marker=look.marker,
                markersize=8, markeredgecolor="white", markeredgewidth=0.8, linewidth=1.3, capsize=2.5, zorder=4,
            )  # fmt: skip
        for number, points_of in enumerate((mixed or {}).values()):
            dash = (0, (1.2, 1.6)) if not number else (0, (4, 1.4, 1.2, 1.4))
            _, x, y = zip(*points_of, strict=True)
            axes.plot(x, y, color=INK, linewidth=1.2, linestyle=dash, marker=".", markersize=5, zorder=2)
        if power:
            axes.plot(*zip(*power, strict=True), color=INK, linewidth=1.3, linestyle=(0, (4, 2)), zorder=2)
            middle = sum(axes.get_xlim()) / 2
            axes.annotate(
                f"{base} tempered",
                power[-1],
                (0, -12),
                textcoords="offset points",
                ha="right" if power[-1][0] > middle else "left",
                color=INK,
                fontsize=9,
            )
        axes.margins(0.08, 0.1)
        axes.set(xlabel="pass@1", ylabel=f"pass@{k}")
        if chance is not None:
            axes.axhline(chance, **CHANCE)
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.01))
        if chance is not None:
            axes.axhspan(axes.get_ylim()[0], chance, color=MUTED, alpha=0.12, linewidth=0, zorder=0)
            _name_chance(axes, (axes.get_xlim()[0], chance))
        key_above(figure, shown, list(dict.fromkeys([*curves, *arms])))
        saved(figure)
        of_base = sorted(curves.get(base, ()), key=lambda p: (p["temperature"] != 1.0, p["temperature"]))
        labels = [(f"T = {p['temperature']:g}", _xy(p)) for p in of_base]
        for points_of in (mixed or {}).values():
            labels += [(f"{share:g}", (x, y)) for share, x, y in points_of if 0 < share < 1]
        avoided, crossed = list[tuple[float, float]](), list[tuple[float, float]]()
        for one, many in arms.values():
            avoided.append((one["value"], many["value"]))
            crossed += _ends(one, many)
        for of_seeds in (seeds or {}).values():
            avoided += of_seeds
        for points in curves.values():
            crossed += [_xy(point) for point in points]
        if chance is not None:
            crossed += [(x, chance) for x in np.linspace(*axes.get_xlim(), 60)]
        crossed += [*power, *((x, y) for points_of in (mixed or {}).values() for _, x, y in points_of)]
        label_points(axes, labels, avoided, crossed, shown[base].color)
        return figure


def training(shown: Looks, runs: Mapping[str, Sequence[Mapping[str, ArrayLike]]], metric: str) -> Figure | None:
    """One metric over training: thin lines for seeds, bold for their mean, both as moving means over a twentieth of the run. If no
    arm has a second seed, the thin lines are the raw steps. runs: arm -> one {"step": (S,), metric: (S,)} per seed. None if no run
    logged the metric."""
    with matplotlib.rc_context(RC):
        figure, axes = canvas((4.2, 3.2))
        several = max(map(len, runs.values())) > 1
        drawn, thin_lines, bold_lines = [], [], []
        for name, seeds in runs.items():
            of_seeds = [{key: np.asarray(run.get(key, ()), dtype=float) for key in ("step", metric)} for run in seeds]
            logged = [run for run in of_seeds if np.isfinite(run[metric]).any()]
            if not logged:
                continue
            table = _aligned([run[metric] for run in logged])
            steps = max((run["step"] for run in logged), key=len)[: table.shape[1]]
            width = 2 * (table.shape[1] // 40) + 1
            stride = max(1, width // 3) if several else 1  # a moving mean needs no more points, and the page is smaller
            for row in table:
                thin = moving_mean(row, width if several else 1)
                axes.plot(steps[::stride], thin[::stride], color=shown[name].color, linewidth=0.7, alpha=0.3)
                thin_lines.append(thin)
            seen = np.isfinite(table)
            count = seen.sum(axis=0)
            total = np.where(seen, table, 0.0).sum(axis=0)
            mean = np.divide(total, count, out=np.full(table.shape[1], np.nan), where=count > 0)
            bold_lines.append(moving_mean(mean, width))
            axes.plot(steps, bold_lines[-1], color=shown[name].color, linestyle=shown[name].dash)
            drawn.append(name)
        if not drawn:
            return None
        axes.set_ylim(*_limits(np.concatenate(thin_lines), np.concatenate(bold_lines)))
        title, unit = TRAINING[metric]
        axes.set(title=title, xlabel="training step", ylabel=unit)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        key_above(figure, shown, drawn, marked=False)
        return saved(figure)


def moving_mean(values: ArrayLike, width: int) -> Floats:
    """Centered mean over `width` neighbors (S,), shorter at the ends; NaN entries are left out."""
    raw = np.asarray(values, dtype=float)
    seen = np.isfinite(raw)
    kernel = np.ones(max(1, min(width, len(raw))))
    total = np.convolve(np.where(seen, raw, 0.0), kernel, "same")[: len(raw)]
    count = np.convolve(seen.astype(float), kernel, "same")[: len(raw)]
    return np.divide(total, count, out=np.full(len(raw), np.nan), where=count > 0)


def support(shown: Looks, kept: Mapping[str, Sequence[float]], base: float) -> Figure:
    """Right completions in each arm's support relative to the base: arm -> (kept, gained, lost), means over seeds."""
    with matplotlib.rc_context(RC):
        figure, axes = canvas((5.2, 0.5 * len(kept) + 1.5))
        for row, (name, (keep, gain, lose)) in enumerate(kept.items()):
            color = shown[name].color
            axes.barh(row, keep, height=0.5, color=color)
            axes.barh(row, gain, left=keep, height=0.5, facecolor="none", edgecolor=color, hatch="////", linewidth=0.8)
            axes.barh(row, -lose, height=0.5, facecolor="none", edgecolor=color, linewidth=1.0, linestyle=(0, (2, 1.5)))
        axes.axvline(base, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.axvline(0, color=INK, linewidth=0.9)
        axes.set_yticks(range(len(kept)), list(kept))
        axes.set_ylim(len(kept) - 0.45, -0.55)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{abs(x):,.0f}"))
        axes.set_xlabel("right completions:\nlost | kept, then gained", loc="right")
        axes.grid(axis="y", visible=False)
        return saved(figure)


def tails(shown: Looks, values: Mapping[str, tuple[ArrayLike, ArrayLike]], base: str) -> Figure:
    """Share of samples with a perplexity under the base above x, both axes logarithmic: arm -> (perplexities, shares), (M,)."""
    with matplotlib.rc_context(RC):
        figure, axes = canvas((5.2, 4.0))
        for name, (perplexities, above) in values.items():
            axes.step(perplexities, above, where="pre", color=shown[name].color, linestyle=shown[name].dash)
        axes.set(xlabel=f"perplexity under {base}", ylabel="share of samples above it", xscale="log", yscale="log")
        axes.xaxis.set_major_formatter(_PLAIN)
        axes.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "2358" else ""))
        axes.yaxis.set_major_formatter(_PLAIN)
        key_above(figure, shown, list(values), marked=False)
        return saved(figure)


def shares(shown: Looks, by_arm: Mapping[str, Mapping[str, Drawn]], xlabel: str) -> Figure:
    """Shares of classes, one row per class and one mark with interval per arm: arm -> class -> interval."""
    with matplotlib.rc_context(RC):
        classes = list(next(iter(by_arm.values())))
        figure, axes = canvas((5.2, 0.09 * len(classes) * len(by_arm) + 0.22 * len(classes) + 1.6))
        height = 0.72 / len(by_arm)
        for i, (name, of_arm) in enumerate(by_arm.items()):
            look, offset = shown[name], (i - (len(by_arm) - 1) / 2) * height
            for row, key in enumerate(classes):
                axes.errorbar(
                    of_arm[key]["value"], row + offset, xerr=_bars(of_arm[key]), linewidth=1.0, color=look.color,
                    marker=look.marker, markersize=5, markeredgecolor="white", markeredgewidth=0.5,
                )  # fmt: skip
        for row in range(len(classes) - 1):
            axes.axhline(row + 0.5, color=MUTED, linewidth=0.4, alpha=0.5)
        axes.set_yticks(range(len(classes)), classes)
        axes.set_ylim(len(classes) - 0.45, -0.55)
        axes.set_xlim(left=0)
        axes.set_xlabel(xlabel)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.0f} %"))
        axes.grid(axis="y", visible=False)
        key_above(figure, shown, list(by_arm), lines=False)
        return saved(figure)


def learning(
    shown: Looks,
    lines: Mapping[str, Sequence[tuple[int, Drawn, Drawn, Drawn]]],
    base: Sequence[float],
    k: int,
    chance: float | None = None,
) -> Figure:
    """Two panels over steps, each line from the base at step 0. lines: name -> (steps, pass@1, best pass@1 at any temperature,
    pass@k) in the order of the steps; base: its three values."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(6.0, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.axhline(base[1], color=MUTED, linestyle=":", linewidth=1.4)
        for name, points in lines.items():
            look, steps = shown[name], [0, *(point[0] for point in points)]
            for axes, i, style in ((left, 1, "-"), (left, 2, "--"), (right, 3, "-")):
                intervals: list[Any] = [point[i] for point in points]
                values = [base[i - 1], *(one["value"] for one in intervals)]
                axes.plot(
                    steps, values, color=look.color, linestyle=style, marker=look.marker, markersize=5, linewidth=1.4
                )  # fmt: skip
                if style == "-":
                    low, high = [one["low"] for one in intervals], [one["high"] for one in intervals]
                    axes.fill_between(steps[1:], low, high, color=look.color, alpha=0.15, linewidth=0)
        if chance is not None:
            right.axhline(chance, **CHANCE)
            _name_chance(right, (0, chance))
        left.set(xlabel="training steps", ylabel="pass@1")
        right.set(xlabel="training steps", ylabel=f"pass@{k}")
        key_above(figure, shown, list(lines), lines=False)
        return saved(figure)


def heat(
    _: Looks,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[str, str], float],
    names: tuple[str, str],
    title: str,
) -> Figure:
    """A grid of numbers with text in each cell; missing cells are hatched and labeled "not run". cells: (row, column) -> value."""
    with matplotlib.rc_context(RC):
        figure, axes = canvas((1.05 * len(columns) + 2.2, 0.62 * len(rows) + 1.6))
        values = [value for value in cells.values() if math.isfinite(value)]
        low, high = min(values, default=0.0), max(values, default=1.0)
        for y, row in enumerate(rows):
            for x, column in enumerate(columns):
                _heat_cell(axes, x, y, cells.get((row, column), math.nan), low, high)
        axes.set(
            xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel=names[1], ylabel=names[0], title=title
        )
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        return saved(figure)


def _heat_cell(axes: Axes, x: int, y: int, value: float, low: float, high: float) -> None:
    corner = (x - 0.48, y - 0.48)
    if not math.isfinite(value):
        axes.add_patch(Rectangle(corner, 0.96, 0.96, facecolor="none", edgecolor=MUTED, hatch="///", linewidth=0.6))
        axes.text(x, y, "not run", ha="center", va="center", fontsize=9, color=INK)
        return
    share = (value - low) / (high - low) if high > low else 0.0
    face = [float(np.interp(share, (0, 0.5, 1), channel)) for channel in _HEAT.T]
    axes.add_patch(Rectangle(corner, 0.96, 0.96, facecolor=face, linewidth=0))
    text = "#fffffe" if share > 0.45 else "#101418"
    axes.text(x, y, f"{value:.3f}", ha="center", va="center", fontsize=9.5, color=text)


# ------------------------------------------------------------------------------------------------------------------
# axes


def _limits(thin: Floats, bold: Floats) -> tuple[float, float]:
    """Limits that include every bold line and all but the most extreme points of thin lines, so that one spike does not
    dominate."""
    low, high = np.nanquantile(np.where(np.isfinite(thin), thin, np.nan), [0.002, 0.998])
    low, high = min(low, np.nanmin(bold)), max(high, np.nanmax(bold))
    room = 0.05 * (high - low) or 0.05 * max(abs(high), 1.0)
    return float(low - room), float(high + room)


def _linear_near_zero(axes: Axes, low: float, high: float) -> None:
    """Linear up to SMALL and logarithmic beyond, on both sides of zero."""
    ticks = [x for x in (SMALL, 0.1, 1.0) if x < max(-low, high)]
    axes.set_yscale("symlog", linthresh=SMALL, linscale=1.0)
    axes.set_yticks([*(-x for x in reversed(ticks)), 0.0, *ticks])
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+g}".replace("-", "−") if x else "0"))
    axes.set_ylim(low, high)


def _middle(line: Line) -> tuple[float, float]:
    """The point in the middle of a line over k."""
    ks, values = line
    return ks[len(ks) // 2], values[len(ks) // 2]


def _name_chance(axes: Axes, at: tuple[float, float]) -> None:
    axes.annotate("chance", at, (4, -3), textcoords="offset points", va="top", color=MUTED, fontsize=9)


def _k_axis(axes: Axes, ks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    ks = [k for k in ks if len(ks) <= 12 or k & (k - 1) == 0]  # of every k, the powers of two
    ticks = [k for i, k in enumerate(ks) if len(ks) <= 5 or i % 2 == 0]
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("k (samples per problem)")


def _aligned(rows: Sequence[Floats]) -> Floats:
    """(S, longest) with NaN where a run is shorter or has no number."""
    table = np.full((len(rows), max(map(len, rows))), np.nan)
    for i, row in enumerate(rows):
        table[i, : len(row)] = np.where(np.isfinite(row), row, np.nan)
    return table


def _bars(one: Drawn) -> Any:
    return [[one["value"] - one["low"]], [one["high"] - one["value"]]]


def _ends(one: Drawn, many: Drawn) -> list[tuple[float, float]]:
    """Places along the bars of a cross."""
    places = [(float(x), many["value"]) for x in np.linspace(one["low"], one["high"], 9)]
    return places + [(one["value"], float(y)) for y in np.linspace(many["low"], many["high"], 5)]


def _xy(point: Mapping[str, float]) -> tuple[float, float]:
    return point["pass1"], point["passk"]
