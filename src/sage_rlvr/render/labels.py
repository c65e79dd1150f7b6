"""Label points of a figure with final layout, at free positions with a thin connecting line."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike

SIZE = 8.5  # of the letters, points
ROOM = 5.5  # that a marker takes to each side, pixels
WAYS = [math.radians(a) for a in (0, 180, 25, -25, 155, 205, 50, -50, 130, 230, 90, 270)]  # the label beside its point first
REACH = (10, 16, 24, 34, 46)  # how far off, pixels
Point = tuple[float, float]


def label_points(
    axes: Axes, points: Sequence[tuple[str, Point]], marks: Sequence[Point], lines: Sequence[Point], color: str
) -> None:
    """Label points in this order; a label without free space is left out, except the first. points: (text, position). A label
    overlaps no point, mark, text or other label, and avoids lines."""
    figure = axes.figure
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    inside, places = axes.get_window_extent(renderer), _pixels(axes, [*(at for _, at in points), *marks])
    taken = [_box(x, y, ROOM, ROOM) for x, y in places]
    taken += [text.get_window_extent(renderer) for text in axes.texts]
    thin = _pixels(axes, lines)
    for i, (text, at) in enumerate(points):
        made = axes.annotate(
            text, at, (0, 0), textcoords="offset points", color=color, fontsize=SIZE, ha="center", va="center", zorder=5,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2},
        )  # fmt: skip
        made.set_in_layout(False)
        size = made.get_window_extent(renderer)
        costs = [
            (_cost(box, places[i], taken, thin, inside) + reach, dx, dy, box)
            for reach in REACH for way in WAYS for dx, dy, box in [_label_box(places[i], way, reach, size.width, size.height)]
        ]  # fmt: skip
        cost, dx, dy, box = min(costs, key=lambda candidate: candidate[0])
        if cost >= WALL and i:
            made.remove()
            continue
        made.set_position((dx * 72 / figure.dpi, dy * 72 / figure.dpi))
        taken.append(box)


WALL = 1e6  # the cost of what may not be


def _label_box(at: np.ndarray, way: float, reach: float, width: float, height: float) -> tuple[float, float, Bbox]:
    """The offset of the label's middle, and its box, its edge `reach` away in this direction."""
    dx = math.cos(way) * (reach + width / 2)
    dy = math.sin(way) * (reach + height / 2)
    return dx, dy, _box(at[0] + dx, at[1] + dy, width / 2 + 3, height / 2 + 1)


def _cost(box: Bbox, at: np.ndarray, taken: Sequence[Bbox], thin: np.ndarray, inside: Bbox) -> float:
    outside = box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1
    hits = sum(bool(box.overlaps(other)) for other in taken)
    crossed = int(np.sum((thin[:, 0] > box.x0) & (thin[:, 0] < box.x1) & (thin[:, 1] > box.y0) & (thin[:, 1] < box.y1)))
    return WALL * (outside + hits) + 6.0 * crossed


def _box(x: float, y: float, width: float, height: float) -> Bbox:
    return Bbox.from_extents(x - width, y - height, x + width, y + height)


def _pixels(axes: Axes, points: ArrayLike) -> np.ndarray:
    """Data -> (N, 2) pixels."""
    return np.asarray(axes.transData.transform(np.asarray(points, dtype=float).reshape(-1, 2)))
