"""Figures: matplotlib without global state; every mean with its interval, every line with its name beside it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike

from sage_rlvr.report.style import INK, RC, colour, dark_twins, dash, marker, spread
from sage_rlvr.stats.curves import CurveComparison
from sage_rlvr.stats.frontier import FrontierPoint, GapCurve
from sage_rlvr.stats.intervals import Interval

PANELS = (
    ("reward", "mean reward"),
    ("kl_raw", "raw KL to the reference\n(nats a token)"),
    ("entropy", "policy entropy\n(nats a token)"),
)
MOST_NAMES_BESIDE = 4  # arms whose names stand beside their marks; more get a key above
SMALL = 0.01  # gaps up to here stand on a linear scale
SCALE = f"The scale is linear up to {SMALL:g} and logarithmic beyond."  # of differences, said under them
CROWDED = 12.0  # cost from which a temperature is left out
REM_AN_INCH = 7.4  # of the page
RC_DPI = 100  # RC["figure.dpi"]
_SIZE = (6.0, 4.1)
_RULE = {"arrowstyle": "-", "linewidth": 0.6, "alpha": 0.6}


def passk_figure(
    curves: Mapping[str, tuple[Sequence[int], ArrayLike, ArrayLike, ArrayLike]],
    path: str | Path | None = None,
    *,
    title: str = "",
) -> Figure:
    """pass@k against k (log2 axis): name -> (ks, mean, low, high), each (K,), in [0, 1].

    Saves a PNG when `path` is given, like every function here; the Figure is returned either way.
    """
    with matplotlib.rc_context(RC):
        figure, axes = _figure(_SIZE)
        for name, (ks, mean, low, high) in curves.items():
            axes.fill_between(ks, np.asarray(low), np.asarray(high), color=colour(name), alpha=0.16, linewidth=0)
            axes.plot(
                ks, np.asarray(mean), color=colour(name), linestyle=dash(name), marker=marker(name), markersize=4.5
            )
        _k_axis(axes, sorted({k for ks, *_ in curves.values() for k in ks}))
        top = max(float(np.nanmax(high)) for *_, high in curves.values())
        bottom = min(float(np.nanmin(low)) for _, _, low, _ in curves.values())
        axes.set_ylim(max(0.0, bottom - 0.05), min(1.0, top + 0.05) + 0.005)
        axes.set(ylabel="pass@k", title=title)
        ends = {name: (float(ks[-1]), float(np.asarray(mean)[-1])) for name, (ks, mean, *_) in curves.items()}
        _label_ends(axes, ends)
        return saved(figure, path)


def difference_figure(
    differences: Mapping[str, CurveComparison],
    path: str | Path | None = None,
    *,
    title: str = "",
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Paired differences in pass@k with their simultaneous bands, one panel a pair ("A − B"), the same scale in all: `limits`
    where several figures are to share it. The scale is linear up to 0.01 and logarithmic beyond: what a guide does is small beside
    what a KL does."""
    with matplotlib.rc_context(RC):
        figure, panels = _pair_panels(len(differences), 2.35)
        for axes, (name, c) in zip(panels, differences.items(), strict=True):
            _band(axes, name, c.ks, c, marker="o", markersize=3.5)
            _k_axis(axes, c.ks)
        _lowest_labelled(panels, "k (tries)")
        _linear_near_zero(panels[0], *(limits or panels[0].get_ylim()))
        figure.supylabel("difference in pass@k", fontsize=10.5)
        if title:
            figure.suptitle(title, fontsize=11.5, fontweight="bold", x=0.02, ha="left")
        return saved(figure, path)


def frontier_figure(
    base: Sequence[FrontierPoint],
    arms: Mapping[str, tuple[Interval, Interval]],
    path: str | Path | None = None,
    *,
    k: int = 256,
    base_name: str = "base",
    curves: Mapping[str, Sequence[FrontierPoint]] | None = None,
    seeds: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    title: str = "",
) -> Figure:
    """pass@1 against pass@k: the base at every temperature (labelled) and each arm's point with both intervals.

    arms: name -> (pass@1, pass@k); `curves` adds the arms' own temperature frontiers as thin lines, `seeds` a small open
    mark for each training seed. Right of the base's line is what no temperature of the base reaches.
    """
    with matplotlib.rc_context(RC):
        figure, axes = _figure((6.0, 4.6))
        ordered = sorted(base, key=lambda point: point.temperature)
        shade = colour(base_name)
        x, y = zip(*map(_xy, ordered), strict=True)
        axes.plot(x, y, color=shade, marker="o", markersize=5, zorder=2)
        lines = {name: sorted(points, key=lambda point: point.temperature) for name, points in (curves or {}).items()}
        for name, line in lines.items():
            x, y = zip(*map(_xy, line), strict=True)
            axes.plot(x, y, color=colour(name), linestyle=dash(name), linewidth=1.0, alpha=0.55, zorder=1)
        for name, marks in (seeds or {}).items():
            x, y = zip(*marks, strict=True)
            axes.scatter(
                x, y, s=22, marker=marker(name), facecolors="none", edgecolors=colour(name), linewidths=1.0, zorder=3
            )
        for name, (one, many) in arms.items():
            axes.errorbar(
                one.value, many.value, xerr=_bars(one), yerr=_bars(many), color=colour(name), marker=marker(name),
                markersize=8, markeredgecolor="white", markeredgewidth=0.8, linewidth=1.3, capsize=2.5, zorder=4,
            )  # fmt: skip
        axes.margins(0.10, 0.12)
        axes.set(xlabel="pass@1", ylabel=f"pass@{k}", title=title)
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.01))
        labels = [(a, (o.value, m.value), colour(a), True) for a, (o, m) in arms.items()]
        if len(arms) > MOST_NAMES_BESIDE:
            key_above(figure, [base_name, *arms])
            labels = []
        labels.append((f"{base_name} at T = {ordered[0].temperature:g}", _xy(ordered[0]), shade, False))
        labels += [(f"{p.temperature:g}", _xy(p), shade, False) for p in _spread_out(axes, ordered)[1:]]
        segments = [[_xy(p) for p in line] for line in (ordered, *lines.values())]
        segments += [[(o.low, m.value), (o.high, m.value)] for o, m in arms.values()]
        segments += [[(o.value, m.low), (o.value, m.high)] for o, m in arms.values()]
        segments += [[xy, xy] for marks in (seeds or {}).values() for xy in marks]
        _place_labels(figure, axes, labels, segments)
        return saved(figure, path)


def gap_figure(curves: Mapping[str, GapCurve], path: str | Path | None = None, *, k: int = 256) -> Figure:
    """pass@k of A minus B at equal pass@1 over pass@1, one panel a pair ("A − B"), the same scales in all.

    Only what lies clear of zero moves the frontier. The differences' axis is linear up to 0.01 and logarithmic beyond: what
    guides do is small, and towards the coldest temperatures pass@k falls steeply.
    """
    with matplotlib.rc_context(RC):
        figure, panels = _pair_panels(len(curves), 2.1)
        for axes, (name, c) in zip(panels, curves.items(), strict=True):
            _band(axes, name, c.pass1, c)
            if c.home is not None and c.pass1[0] <= c.home <= c.pass1[-1]:
                axes.axvline(c.home, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
        _lowest_labelled(panels, "pass@1")
        edge = max(1.3 * max(float(np.abs(c.difference).max()) for c in curves.values()), 2 * SMALL)
        _linear_near_zero(panels[0], -edge, edge)
        figure.supylabel(f"difference in pass@{k} at equal pass@1", fontsize=10.5)
        return saved(figure, path)


def _linear_near_zero(axes: Axes, low: float, high: float) -> None:
    """Linear up to SMALL and logarithmic beyond, on both sides of zero."""
    ticks = [x for x in (SMALL, 0.1, 1.0) if x < max(-low, high)]
    axes.set_yscale("symlog", linthresh=SMALL, linscale=1.0)
    axes.set_yticks([*(-x for x in reversed(ticks)), 0.0, *ticks])
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+g}".replace("-", "−") if x else "0"))
    axes.set_ylim(low, high)


def _pair_panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """So many panels, two beside each other, `height` inches each, all on the same axes."""
    columns = min(2, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.4 * columns + 0.6, height * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return figure, list(grid.flat[:count])


def _band(axes: Axes, name: str, x: ArrayLike, c: CurveComparison | GapCurve, **style: Any) -> None:
    """A difference with its band over x, in the colour of the first of the pair "A − B"."""
    shade = colour(name.split(" − ")[0])
    axes.axhline(0, color=INK, linewidth=1.0)
    axes.fill_between(x, c.low, c.high, color=shade, alpha=0.2, linewidth=0)
    axes.plot(x, c.difference, color=shade, **style)
    axes.set_title(name, fontsize=10.5)


def _lowest_labelled(panels: Sequence[Axes], label: str) -> None:
    """Ticks and axis label under the lowest panel of each of the columns."""
    for index, axes in enumerate(panels):
        lowest = index + min(2, len(panels)) >= len(panels)
        axes.tick_params(labelbottom=lowest)
        axes.set_xlabel(label if lowest else "")


def key_above(figure: Figure, names: Sequence[str], *, marked: bool = True, lines: bool = True) -> None:
    """A key in place of names beside the marks, where so many would lie on each other's names; call before `saved`."""
    handles = [
        Line2D(
            [], [], color=colour(name), marker=marker(name) if marked else "", linestyle=dash(name) if lines else "none",
            markersize=6.5, linewidth=1.3 if marked else 1.9,
        )
        for name in names
    ]  # fmt: skip
    figure.legend(handles, names, loc="outside upper left", ncols=3, frameon=False, fontsize=9.5, handlelength=2.6)


def _spread_out(axes: Axes, points: Sequence[FrontierPoint], least: float = 0.06) -> list[FrontierPoint]:
    """The points far enough apart, in shares of the axes, for each to carry its label; T = 1 always does, few all do."""
    if len(points) <= 8:
        return list(points)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()

    def apart(a: FrontierPoint, b: FrontierPoint) -> float:
        (ax, ay), (bx, by) = _xy(a), _xy(b)
        return float(np.hypot((ax - bx) / (right - left), (ay - by) / (top - bottom)))

    home = [p for p in points if p.temperature == 1.0]
    kept = [points[0]]
    for point in points[1:]:
        if point in home or all(apart(point, other) >= least for other in (*kept, *home)):
            kept.append(point)
    return kept


def training_figure(
    runs: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]], path: str | Path | None = None
) -> Figure:
    """Reward, raw KL and entropy over the optimiser steps: name -> (steps, reward, kl_raw, entropy), each (steps,).

    Faint: every step; strong: a centred moving mean over a twentieth of the run.
    """
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(12.0, 3.5), layout="constrained")
        for index, axes in enumerate(figure.subplots(1, 3)):
            _draw_training(axes, {n: (run[0], run[index + 1]) for n, run in runs.items()}, PANELS[index][1])
        return saved(figure, path)


def training_panels(runs: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]]) -> dict[str, Figure]:
    """The panels of `training_figure` as figures of their own, for narrow pages: reward, kl_raw, entropy."""
    out = {}
    with matplotlib.rc_context(RC):
        for index, (key, label) in enumerate(PANELS):
            figure, axes = _figure((5.2, 3.4))
            _draw_training(axes, {n: (run[0], run[index + 1]) for n, run in runs.items()}, label)
            out[key] = saved(figure, None)
    return out


def svg_of(figure: Figure, prefix: str, label: str) -> str:
    """The figure as inline SVG: ids prefixed, no metadata or namespace address, colours as CSS variables with the
    light value as fallback, `label` (escaped here) as its accessible name."""
    buffer = io.StringIO()
    with matplotlib.rc_context(RC):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for light in dark_twins():
        text = re.sub(light, f"var(--c{light[1:]}, {light})", text, flags=re.I)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    widest = REM_AN_INCH * figure.get_figwidth()  # so that letters are as large in a narrow figure as in a wide one
    named = f'<svg role="img" aria-label="{_escaped(label)}" style="max-width:{widest:.1f}rem" '
    return text.replace("<svg ", named, 1)


def png_of(figure: Figure) -> bytes:
    """The figure as PNG on white."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(RC):
        figure.savefig(buffer, format="png", facecolor="white")
    return buffer.getvalue()


def moving_mean(values: ArrayLike, width: int) -> np.ndarray:
    """Centred mean over `width` neighbours (S,), shorter at the ends; NaN entries are left out."""
    raw = np.asarray(values, dtype=float)
    kernel, seen = np.ones(max(1, width)), np.isfinite(raw)
    total = np.convolve(np.where(seen, raw, 0.0), kernel, "same")[: len(raw)]
    count = np.convolve(seen.astype(float), kernel, "same")[: len(raw)]
    return np.divide(total, count, out=np.full(len(raw), np.nan), where=count > 0)


def _draw_training(axes: Axes, lines: Mapping[str, tuple[ArrayLike, ArrayLike]], title: str) -> None:
    ends = {}
    for name, (steps, values) in lines.items():
        x, y = np.asarray(steps, dtype=float), np.asarray(values, dtype=float)
        if not np.isfinite(y).any():
            continue
        width = 2 * (len(x) // 40) + 1
        smooth = moving_mean(y, min(width, len(x)))
        if width > 1:
            axes.plot(x, y, color=colour(name), linewidth=0.7, alpha=0.28)
        axes.plot(x, smooth, color=colour(name), linestyle=dash(name))
        last = int(np.flatnonzero(np.isfinite(smooth))[-1])
        ends[name] = (float(x[last]), float(smooth[last]))
    axes.set(title=title, xlabel="step")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    _label_ends(axes, ends)


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """The figure with its layout settled, so that every later drawing of it is the same; saved when `path` is given."""
    figure.draw_without_rendering()  # type: ignore[no-untyped-call]
    figure.set_layout_engine("none")
    if path is not None:
        Path(path).write_bytes(png_of(figure))
    return figure


def _k_axis(axes: Axes, ks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    shown = [k for i, k in enumerate(ks) if len(ks) <= 5 or i % 2 == 0]
    axes.set_xticks(shown, [str(k) for k in shown])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("k (tries)")


def _label_ends(axes: Axes, ends: Mapping[str, tuple[float, float]]) -> None:
    """Names right of the line ends, pushed apart where ends are close; a thin rule leads from each name to its line."""
    low, high = axes.get_ylim()
    height = axes.bbox.height * 72 / RC_DPI  # points, before the layout gives or takes a little
    gap = 12.5 / height * (high - low)
    wanted = spread([y for _, y in ends.values()], gap, low + gap / 2, high - gap / 2)
    for (name, (x, y)), place in zip(ends.items(), wanted, strict=True):
        axes.annotate(
            name, (x, y), xytext=(1.03, place), textcoords=axes.get_yaxis_transform(), color=colour(name), fontsize=10,
            fontweight="bold", va="center", annotation_clip=False,
            arrowprops={"color": colour(name), "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5), **_RULE},
        )  # fmt: skip


def _place_labels(
    figure: Figure,
    axes: Axes,
    labels: Sequence[tuple[str, tuple[float, float], str, bool]],
    segments: Sequence[Sequence[tuple[float, float]]],
) -> None:
    """Put each text where it meets the fewest lines, markers and earlier texts; greedy over rings of positions."""
    figure.canvas.draw()
    renderer, inside = figure.canvas.get_renderer(), axes.get_window_extent()  # type: ignore[attr-defined]
    ink = np.concatenate([_along(axes, line) for line in segments])
    marks = axes.transData.transform([xy for _, xy, _, _ in labels])
    taken: list[Bbox] = []
    unit = figure.dpi / 72
    for text, xy, shade, strong in labels:
        label = axes.annotate(
            text, xy, xytext=(0, 0), textcoords="offset points", color=shade, fontsize=10 if strong else 9,
            fontweight="bold" if strong else "normal", ha="center", va="center", zorder=5,
        )  # fmt: skip
        box = label.get_window_extent(renderer)
        half, origin = (box.width / 2 / unit, box.height / 2 / unit), axes.transData.transform(xy)
        best, best_cost = (0.0, 0.0), float("inf")
        for dx, dy in _ring(half, near=not strong and bool(taken)):
            corner = (origin[0] + dx * unit - box.width / 2, origin[1] + dy * unit - box.height / 2)
            moved = Bbox.from_bounds(*corner, box.width, box.height)
            cost = _cost(moved, inside, ink, marks, taken) + 0.02 * float(np.hypot(dx, dy))
            if cost < best_cost:
                best, best_cost, chosen = (dx, dy), cost, moved
        if not strong and taken and best_cost >= CROWDED:
            label.remove()  # a temperature far from its point, or on another's, says less than none
            continue
        label.set_position(best)
        if strong and np.hypot(*best) > 2.2 * half[1] + half[0]:
            _leader(axes, xy, best, shade)
        taken.append(chosen)


def _leader(axes: Axes, xy: tuple[float, float], offset: tuple[float, float], shade: str) -> None:
    axes.annotate(
        "", xy, xytext=(0.75 * offset[0], 0.75 * offset[1]), textcoords="offset points",
        arrowprops={"color": shade, "shrinkB": 5, **_RULE},
    )  # fmt: skip


def _ring(half: tuple[float, float], near: bool = False) -> list[tuple[float, float]]:
    out = []
    for distance in (5.0, 9.0, 14.0, 20.0, 28.0, 38.0)[: 3 if near else None]:
        for angle in np.arange(16) * np.pi / 8:
            c, s = float(np.cos(angle)), float(np.sin(angle))
            out.append((c * (half[0] + distance), s * (half[1] + distance)))
    return out


def _cost(box: Bbox, inside: Bbox, ink: np.ndarray, marks: np.ndarray, taken: Sequence[Bbox]) -> float:
    outside = box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1
    return (
        30.0 * outside
        + float(np.sum(_within(box.padded(4), ink)))
        + 8.0 * float(np.sum(_within(box.padded(5), marks)))
        + 40.0 * sum(box.padded(8).overlaps(other) for other in taken)
    )


def _within(box: Bbox, points: np.ndarray) -> np.ndarray:
    x, y = points[:, 0], points[:, 1]
    return (x >= box.x0) & (x <= box.x1) & (y >= box.y0) & (y <= box.y1)


def _along(axes: Axes, line: Sequence[tuple[float, float]]) -> np.ndarray:
    corners = axes.transData.transform(np.asarray(line, dtype=float))
    corners = corners[np.isfinite(corners).all(axis=1)]
    if len(corners) < 2:
        return corners.reshape(-1, 2)
    pieces = [np.linspace(a, b, 40) for a, b in pairwise(corners)]
    return np.concatenate(pieces)


def _bars(interval: Interval) -> list[list[float]] | None:
    if not np.isfinite(interval.width):
        return None
    return [[interval.value - interval.low], [interval.high - interval.value]]


def _xy(point: FrontierPoint) -> tuple[float, float]:
    return point.pass1, point.passk


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
