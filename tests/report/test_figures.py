"""Figures hold what they are given: marks, bands, scales, keys; and become SVG that a page can hold."""

from __future__ import annotations

import numpy as np
import pytest

from sage_rlvr.render import figures
from sage_rlvr.render.style import PALETTE, dark_twins, file_of, looks, saved, svg_of
from sage_rlvr.results.page.scores import _panels

KS = (1, 4, 16, 64, 256)
NAMES = ["base", "no KL", "GRPO", "SAGE-Branch", "placebo"]
LOOKS = looks(NAMES)


def near(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.03, "high": value + 0.03}


def test_an_arm_looks_the_same_wherever_it_appears_and_like_no_other():
    many = looks(["base", *(f"arm {i}" for i in range(40))])
    assert len({(look.color, look.marker) for look in many.values()}) == len(many)
    assert looks(["base", "A"])["base"] == looks(["base", "B"])["base"] and many["base"].marker == "o"
    few = list(looks(map(str, range(len(PALETTE)))).values())
    assert len({look.color for look in few}) == len(PALETTE) and set(dark_twins()) >= {look.color for look in few}


def test_lines_have_bands_and_a_key():
    mean = np.array([0.3, 0.5, 0.7, 0.8, 0.9])
    figure = figures.over_k(LOOKS, {name: (KS, mean, mean - 0.03, mean + 0.03) for name in NAMES})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == NAMES
    assert len(figure.axes[0].collections) == 5 and figure.axes[0].get_xlabel() == "k (samples per problem)"


def test_the_frontier_has_every_policy_and_every_seed():
    points = [dict(temperature=t, pass1=t / 3, passk=1 - t / 4) for t in (0.2, 0.5, 1.0)]
    marks = [(0.25, 0.3), (0.3, 0.31), (0.35, 0.29)]
    arms = {"GRPO": (near(0.3), near(0.9))}
    figure = figures.frontier(
        LOOKS,
        "base",
        {"base": points, "GRPO": points},
        arms,
        256,
        seeds={"GRPO": marks},
        power=[(0.1, 0.9), (0.2, 0.5)],
    )
    (axes,) = figure.axes
    drawn = [c.get_offsets().tolist() for c in axes.collections if len(c.get_offsets()) == 3]
    np.testing.assert_allclose(drawn, [marks])
    texts = {text.get_text() for text in axes.texts}
    assert {"T = 0.2", "T = 1", "base tempered"} <= texts and axes.get_ylabel() == "pass@256"


def test_of_many_temperatures_only_those_with_room_are_labeled():
    crowded = [dict(temperature=0.5 + t / 20, pass1=0.2 - t / 500, passk=0.95) for t in range(11)]
    base = [dict(temperature=0.1, pass1=0.3, passk=0.5), *crowded]
    texts = {t.get_text() for t in figures.frontier(LOOKS, "base", {"base": base}, {}, 8).axes[0].texts}
    assert {"T = 0.1", "T = 1"} <= texts and len(texts) < len(base)


def test_differences_share_their_scale_with_zero_in_it():
    line = np.linspace(0.2, 0.4, 5)
    gap = {"pass1": line, "difference": line, "low": line - 0.01, "high": line + 0.01, "home": None}
    band = {"ks": KS, "difference": -line, "low": -line - 0.1, "high": -line + 0.1}
    limits = _panels([gap, band])["limits"]
    assert limits[0] < -0.5 and limits[1] > 0.41
    for found in (gap, band):
        (axes,) = figures.difference(LOOKS, ("GRPO", "no KL"), found, "difference", limits).axes
        assert axes.get_ylim() == limits and axes.get_title(loc="left") == "GRPO − no KL"
        assert axes.lines[1].get_color() == LOOKS["GRPO"].color


def test_training_is_a_mean_of_seeds_and_no_spike_flattens_it():
    runs = {
        "GRPO": [
            {"step": np.arange(3.0), "m": np.array([1.0, 2.0, 6.0])},
            {"step": np.arange(1.0), "m": np.array([3.0])},
        ]
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(figures.TRAINING, "m", ("M", "unit"))
        figure = figures.training(LOOKS, runs, "m")
    bold = max(figure.axes[0].lines, key=lambda line: line.get_linewidth())
    assert bold.get_ydata().tolist() == [2.0, 2.0, 6.0] and figure.axes[0].get_ylabel() == "unit"
    assert figures.training(LOOKS, {"GRPO": [{"step": np.arange(3.0)}]}, "reward/mean") is None


def test_a_grid_says_what_was_not_run():
    figure = figures.heat(LOOKS, ("1", "2"), ("1", "2"), {("1", "1"): 0.25, ("1", "2"): 0.5}, ("a", "b"), "pass@1")
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.250", "0.500", "not run", "not run"]


def test_learning_starts_at_the_base():
    points = [(steps, near(steps / 100), near(steps / 50), near(0.9)) for steps in (5, 10)]
    left, right = figures.learning(LOOKS, {"GRPO": points}, (0.01, 0.02, 0.95), 8).axes
    dotted, solid, dashed = left.lines
    assert solid.get_xdata().tolist() == [0, 5, 10] and solid.get_ydata().tolist() == [0.01, 0.05, 0.1]
    assert dashed.get_ydata()[1] == 0.1 and set(dotted.get_ydata()) == {0.02} and right.get_ylabel() == "pass@8"


def test_svg_is_fit_for_a_page(tmp_path):
    mean = np.array([0.3, 0.5, 0.7, 0.8, 0.9])
    figure = figures.over_k(LOOKS, {"no KL": (KS, mean, mean, mean)})
    assert saved(figure, tmp_path / "t.png") is figure and (tmp_path / "t.png").read_bytes() == file_of(figure, "png")
    svg = svg_of(figure, "train", 'reward "<now>"')
    assert svg.startswith("<svg ") and "http" not in svg and "<metadata" not in svg and "<text" not in svg
    assert 'aria-label="reward &quot;&lt;now&gt;&quot;"' in svg
    assert 'id="train-' in svg and 'xlink:href="#train-' in svg
    assert "var(--c0072b2, #0072b2)" in svg and "viewBox" in svg.split(">")[0] and "width=" not in svg.split(">")[0]


def test_moving_mean_by_hand():
    np.testing.assert_allclose(figures.moving_mean([1.0, 2.0, 6.0], 3), [1.5, 3.0, 4.0])
    np.testing.assert_allclose(figures.moving_mean([1.0, np.nan, 3.0], 3), [1.0, 2.0, 3.0])
