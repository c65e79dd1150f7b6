"""Figures: names that do not overlap, intervals that are drawn, SVG that can live inside a page."""

from __future__ import annotations

from itertools import combinations

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.report.figures import (
    frontier_figure,
    gap_figure,
    moving_mean,
    passk_figure,
    png_of,
    svg_of,
    training_figure,
)
from sage_rlvr.report.style import RC, spread
from sage_rlvr.stats.frontier import FrontierPoint, GapCurve
from sage_rlvr.stats.intervals import Interval

KS = (1, 4, 16, 64, 256)


def boxes(figure):
    with matplotlib.rc_context(RC):
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        axes = figure.axes[0]
        return {t.get_text(): matplotlib.text.Text.get_window_extent(t, renderer) for t in axes.texts if t.get_text()}


def test_end_labels_do_not_overlap_even_when_lines_meet():
    mean = np.array([0.3, 0.5, 0.7, 0.8, 0.9])
    curves = {
        n: (KS, mean + 0.001 * i, mean - 0.03, mean + 0.03)
        for i, n in enumerate(["base", "no KL", "GRPO", "SAGE-Branch", "placebo"])
    }
    figure = passk_figure(curves)
    placed = boxes(figure)
    assert set(placed) == set(curves)
    assert not any(a.overlaps(b) for a, b in combinations(placed.values(), 2))
    assert max(b.x1 for b in placed.values()) <= figure.bbox.x1
    assert len(figure.axes[0].collections) == 5  # one band an arm


def test_frontier_labels_keep_apart():
    base = [
        FrontierPoint(temperature=t, pass1=x, passk=y)
        for t, x, y in [(0.1, 0.39, 0.74), (0.4, 0.33, 0.9), (1.0, 0.22, 0.96), (1.2, 0.21, 0.965)]
    ]
    near = lambda v, n: Interval(value=v, low=v - 0.03, high=v + 0.03, level=0.95, over="problems", n=n)  # noqa: E731
    arms = {
        name: (near(0.40 + 0.005 * i, 300), near(0.85 + 0.004 * i, 300))
        for i, name in enumerate(["GRPO", "SAGE-Branch", "placebo"])
    }
    placed = boxes(frontier_figure(base, arms))
    assert {"GRPO", "SAGE-Branch", "placebo", "base at T = 0.1", "0.4", "1", "1.2"} == set(placed)
    assert not any(a.overlaps(b) for a, b in combinations(placed.values(), 2))


def test_of_many_temperatures_only_those_with_room_are_labelled():
    crowded = [FrontierPoint(temperature=0.5 + t / 20, pass1=0.2 - t / 500, passk=0.95) for t in range(11)]
    base = [FrontierPoint(temperature=0.1, pass1=0.3, passk=0.5), *crowded]
    near = Interval(value=0.3, low=0.28, high=0.32, level=0.95, over="problems", n=300)
    placed = boxes(frontier_figure(base, {"GRPO": (near, near)}))
    assert {"base at T = 0.1", "1", "GRPO"} <= set(placed) and len(placed) < len(base)
    assert not any(a.overlaps(b) for a, b in combinations(placed.values(), 2))


def test_every_training_seed_has_its_mark():
    base = [FrontierPoint(temperature=t, pass1=t / 3, passk=1 - t / 4) for t in (0.2, 0.5, 1.0)]
    near = Interval(value=0.3, low=0.2, high=0.4, level=0.95, over="training seeds", n=3)
    marks = [(0.25, 0.3), (0.3, 0.31), (0.35, 0.29)]
    figure = frontier_figure(base, {"GRPO": (near, near)}, seeds={"GRPO": marks})
    drawn = [c.get_offsets().tolist() for c in figure.axes[0].collections if len(c.get_offsets()) == 3]
    np.testing.assert_allclose(drawn, [marks])


def test_many_arms_get_a_key_and_no_names_on_each_other():
    base = [FrontierPoint(temperature=t, pass1=t / 3, passk=1 - t / 4) for t in (0.2, 0.5, 1.0)]
    near = Interval(value=0.3, low=0.28, high=0.32, level=0.95, over="training seeds", n=3)
    names = ["no KL", "GRPO", "SAGE-Branch", "Placebo", "SAGE-Token"]
    figure = frontier_figure(base, dict.fromkeys(names, (near, near)))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["base", *names]
    assert not set(boxes(figure)) & set(names)
    few = frontier_figure(base, dict.fromkeys(names[:2], (near, near)))
    assert not few.legends and set(names[:2]) <= set(boxes(few))


def test_gaps_share_their_scale_and_only_the_lowest_panels_name_the_axis():
    lines = np.linspace(0.2, 0.4, 5)
    curves = {
        f"{name} − GRPO": GapCurve(pass1=lines, difference=lines * size, low=lines * size - 0.01,
                                   high=lines * size + 0.01, level=0.95, seeds=3)
        for name, size in (("no KL", -0.5), ("SAGE-Branch", 0.01), ("Placebo", 0.0))
    }  # fmt: skip
    axes = [a for a in gap_figure(curves).axes if a.get_visible()]
    assert [a.get_title(loc="left") for a in axes] == list(curves)
    assert len({a.get_ylim() for a in axes}) == 1 and [a.get_xlabel() for a in axes] == ["", "pass@1", "pass@1"]
    low, high = axes[0].get_ylim()
    assert low == -high and high == pytest.approx(1.3 * 0.2)


def test_svg_is_fit_for_a_page(tmp_path):
    steps = np.arange(30)
    figure = training_figure({"GRPO": (steps, steps / 30, np.full(30, np.nan), steps / 10)}, tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes() == png_of(figure)
    svg = svg_of(figure, "train", 'reward "<now>"')
    assert svg.startswith("<svg ") and "http" not in svg and "<metadata" not in svg and "<text" not in svg
    assert 'aria-label="reward &quot;&lt;now&gt;&quot;"' in svg
    assert 'id="train-' in svg and 'xlink:href="#train-' in svg
    assert "var(--c0072b2, #0072b2)" in svg and "viewBox" in svg.split(">")[0] and "width=" not in svg.split(">")[0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.3))
@settings(max_examples=80, deadline=None)
def test_spread_keeps_order_gap_and_bounds(wanted, gap):
    placed = spread(wanted, gap, 0.0, 1.0)
    shrunk = min(gap, 1 / (len(wanted) - 1)) if len(wanted) > 1 else gap
    order = np.argsort(wanted, kind="stable")
    steps = np.diff(np.array(placed)[order])
    assert np.all(steps >= shrunk - 1e-9)
    assert min(placed) >= -1e-9 and max(placed) <= 1 + 1e-9


def test_spread_by_hand():
    assert spread([0.5, 0.5], 0.2, 0.0, 1.0) == pytest.approx([0.4, 0.6])
    assert spread([0.1, 0.9], 0.2, 0.0, 1.0) == pytest.approx([0.1, 0.9])


def test_moving_mean_by_hand():
    np.testing.assert_allclose(moving_mean([1.0, 2.0, 6.0], 3), [1.5, 3.0, 4.0])
    np.testing.assert_allclose(moving_mean([1.0, np.nan, 3.0], 3), [1.0, 2.0, 3.0])
