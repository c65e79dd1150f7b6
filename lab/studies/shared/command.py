"""Tables, page and picture of `python -m lab shared`; lab/pages/results/shared.md is filled from them, nothing in it is typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.studies.pages import remade
from lab.studies.shared.measure import (
    ARMS,
    FIRST,
    LEVELS,
    SWEEPS,
    Claim,
    Found,
    K,
    Point,
    Rest,
    best,
    betas,
    claims,
)
from sage_rlvr.render.style import BLUE, INK, MUTED, RC, RED, looks, saved
from sage_rlvr.results import tables
from sage_rlvr.results.tables import NONE, Table
from sage_rlvr.runs import writing
from sage_rlvr.verdicts.stats.intervals import seed_interval

SHOWN = (0, 1, 3, 4, 7, 9)
"""Arms of the picture, by their place."""
AXIS = np.linspace(0.07, 0.2, 14)


def made(found: Sequence[Found]) -> dict[str, Table]:
    """The tables of the page by the names of their marks."""
    rest = {"rests": _rests(found), "kept": _kept(found), "turned": _turned(found)}
    return {"claims": _claims(claims(found)), "frontier": _frontier(found), **rest}


def _claims(found: Sequence[Claim]) -> Table:
    columns: dict[str, Callable[[Claim], str]] = {
        "claim": lambda one: one.name,
        "what it says": lambda one: one.says,
        "left": lambda one: f"{one.left:.3f}",
        "right": lambda one: f"{one.right:.3f}",
        "left - right": lambda one: f"{one.difference.value:+.3f}\n{one.difference.low:+.3f} to {one.difference.high:+.3f}",
        "worlds where it is so": lambda one: f"{one.more} of {one.difference.n}",
        "verdict": lambda one: one.verdict,
    }
    return tables.table(columns, found)


def _frontier(found: Sequence[Found]) -> Table:
    columns: dict[str, Callable[[str], str]] = {"objective": lambda name: name}
    for level in LEVELS:
        columns[f"pass@1 >= {level:g}"] = partial(_cell, found, level)
    columns["first version"] = lambda name: f"{FIRST[name]:.3f}" if name in FIRST else NONE
    return tables.table(columns, [arm.name for arm in ARMS])


def _cell(found: Sequence[Found], level: float, name: str) -> str:
    """Mean best pass@256 / distinct right answers, and how many worlds got there where not all did."""
    there: list[Point] = [point for world in found if (point := best(world, name, level)) is not None]
    if not there:
        return NONE
    text = f"{np.mean([p.pass256 for p in there]):.3f} / {np.mean([p.distinct for p in there]):.1f}"
    return text if len(there) == len(found) else f"{text}\n{len(there)} of {len(found)} worlds"


def _rests(found: Sequence[Found]) -> Table:
    rows = [(kl, beta) for kl in SWEEPS for beta in betas(kl)]
    columns: dict[str, Callable[[tuple[str, float]], str]] = {"KL": lambda row: row[0], "beta": lambda row: f"{row[1]:.3g}"}
    for start in ("base", "concentrated"):
        columns[f"from the {start}: pass@1, pass@{K}, KL"] = partial(_rest, found, start)
    columns[f"largest gap in pass@{K}"] = lambda row: f"{max(_gaps(found, row)):.3f}"
    return tables.table(columns, rows)


def _of(world: Found, kl: str, beta: float, start: str) -> Rest:
    return next(rest for rest in world.rests if (rest.kl, rest.beta, rest.start) == (kl, beta, start))


def _rest(found: Sequence[Found], start: str, row: tuple[str, float]) -> str:
    there = [_of(world, *row, start) for world in found]
    means = (np.mean([getattr(rest, name) for rest in there]) for name in ("pass1", "pass256", "divergence"))
    return "{:.3f}, {:.3f}, {:.2f}".format(*means)


def _gaps(found: Sequence[Found], row: tuple[str, float]) -> list[float]:
    return [abs(_of(world, *row, "base").pass256 - _of(world, *row, "concentrated").pass256) for world in found]


def _kept(found: Sequence[Found]) -> Table:
    names = {
        "shared": ("shared", "pi(. | right) and base(. | right)"),
        "shared from ref exp(r/beta)": ("shared", "pi and ref exp(r / beta)"),
        "table": ("a logit for every answer", "pi(. | right) and base(. | right)"),
        "table from ref exp(r/beta)": ("a logit for every answer", "pi and ref exp(r / beta)"),
    }

    def distance(name: str) -> str:
        one = seed_interval([world.kept[name] for world in found], over="worlds")
        return f"{one.value:.3f}\n{one.low:.3f} to {one.high:.3f}"

    columns: dict[str, Callable[[str], str]] = {
        "policy": lambda name: names[name][0],
        "between": lambda name: names[name][1],
        "total variation": distance,
    }
    return tables.table(columns, list(names))


def _turned(found: Sequence[Found]) -> Table:
    def degrees(place: int, steps: str) -> str:
        one = seed_interval([world.turned[steps][place] for world in found], over="worlds")
        return f"{one.value:.3g}\n{one.low:.3g} to {one.high:.3g}"

    columns: dict[str, Callable[[str], str]] = {
        "policy after steps of DARS": lambda steps: steps,
        "one baseline over both stages against each by itself": partial(degrees, 0),
        "one stage against two": partial(degrees, 1),
    }
    return tables.table(columns, list(found[0].turned))


def facts(found: Sequence[Found]) -> str:
    """What the base does on the worlds, in one line."""
    ones, many = (np.mean([world.base[i] for world in found]) for i in (0, 1))
    return f"{len(found)} worlds; the base on their test prompts: pass@1 {ones:.3f}, pass@{K} {many:.3f}."


def tables_of(found: Sequence[Found]) -> dict[str, str]:
    """What stands between the marks of lab/pages/results/shared.md."""
    return {"facts": facts(found), **{name: one.markdown() for name, one in made(found).items()}}


def picture(found: Sequence[Found], path: str | Path | None = None) -> Figure:
    """Left: resting points of linear utility at each beta, from both ends. Right: most pass@256 at a pass@1."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(10.4, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_rests(left, found)
        _draw_frontier(right, found)
        return saved(figure, path)


def _draw_rests(plot: Axes, found: Sequence[Found]) -> None:
    for kl, color in (("reverse", RED), ("forward", BLUE)):
        for start, style, marker in (("base", "-", "o"), ("concentrated", (0, (4, 2)), "s")):
            for world in found:
                line = [_of(world, kl, beta, start).pass256 for beta in betas(kl)]
                plot.plot(betas(kl), line, linestyle=style, color=color, linewidth=0.7, alpha=0.35)
            mean = [float(np.mean([_of(world, kl, b, start).pass256 for world in found])) for b in betas(kl)]
            label = f"{kl} KL, from the {start}"
            plot.plot(betas(kl), mean, linestyle=style, color=color, marker=marker, markersize=4, label=label)
    plot.set_xscale("log")
    plot.set_xticks((0.01, 0.02, 0.04, 0.08), ["0.01", "0.02", "0.04", "0.08"])
    plot.set_xticks([], minor=True)
    plot.set_xlabel("beta")
    plot.set_ylabel(f"test pass@{K} where descent rests")
    plot.set_title("linear utility: two resting points, or one")
    plot.legend(frameon=False, fontsize=8.5, loc="lower left")


def _draw_frontier(plot: Axes, found: Sequence[Found]) -> None:
    names = [ARMS[place].name for place in SHOWN]
    shown = looks(["", *names])
    for name in names:
        line = [[best(world, name, level) for world in found] for level in AXIS]
        means = [(level, np.mean([p.pass256 for p in row if p])) for level, row in zip(AXIS, line, strict=True) if all(row)]
        look = shown[name]
        plot.plot(*zip(*means, strict=True), color=look.color, marker=look.marker, markersize=4, linestyle=look.dash, label=name)
    one, many = (float(np.mean([world.base[i] for world in found])) for i in (0, 1))
    plot.plot(one, many, "*", color=INK, markersize=9)
    plot.annotate("base", (one, many), (6, -10), textcoords="offset points", fontsize=9, color=MUTED)
    plot.set_xlabel("test pass@1 of at least")
    plot.set_ylabel(f"best test pass@{K} over strength and temperature")
    plot.set_title("coverage at equal pass@1")
    plot.legend(frameon=False, fontsize=8.5, loc="lower left")


def write_docs(found: Sequence[Found], docs: Path) -> list[Path]:
    """Make the tables of results/shared.md and images/shared.png in docs again."""
    where, text = remade(docs, "results/shared.md", tables_of(found))
    with writing("page", docs, 1 << 20):
        where.write_text(text, encoding="utf-8")
        picture(found, docs / "images" / "shared.png")
    return [where, docs / "images" / "shared.png"]
