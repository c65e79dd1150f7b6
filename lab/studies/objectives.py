"""Every published objective on two axes: the table of `python -m lab map` and lab/pages/results/map.md, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from lab.studies.pages import remade
from lab.theory.utility import SHARES, Axes, axes, has_axes, same_objectives
from sage_rlvr.core.describe import preference
from sage_rlvr.core.extras import TokenWeight
from sage_rlvr.core.method import Method
from sage_rlvr.core.rollout_plans import is_staged
from sage_rlvr.methods import METHODS
from sage_rlvr.render.style import INK, MUTED, RC, saved
from sage_rlvr.results import tables
from sage_rlvr.results.tables import NONE, Table
from sage_rlvr.runs import writing
from sage_rlvr.training.engines import Refusal, refusals

GROUP_SIZE = 8


@dataclass(frozen=True)
class Placed:
    """A method with its place: `axes` None where its first update is not its advantages' gradient; what TRL does not run of it."""

    name: str
    label: str
    method: Method
    axes: Axes | None
    refused: tuple[Refusal, ...]

    @property
    def parts(self) -> str:
        """Its parts by name, without the anchor."""
        one = self.method
        paying = [extra for extra in one.extras if extra.changes_rewards or extra is one.reward_source]
        weights = [extra for extra in one.extras if isinstance(extra, TokenWeight)]
        others = [extra for extra in one.extras if extra not in (*paying, *weights)]
        gradient = (one.rollout, *paying, one.advantage, *weights, one.surrogate, *others)
        named = one.extras if one.is_replay_only else gradient
        return " + ".join(type(part).__name__ for part in named if part is not None)

    @property
    def engines(self) -> str:
        """loop, TRL; or loop and the reason."""
        return "loop, TRL" if not self.refused else f"loop (TRL: {'; '.join(f'{one.value}: {one.why}' for one in self.refused)})"


def placed(names: Sequence[str] = ()) -> list[Placed]:
    """Every method, or those named, with its defaults and its axes for groups of `GROUP_SIZE`."""
    known: dict[tuple[object, ...], Axes] = {}
    found = []
    for name in names or dict(METHODS.items()):
        method = METHODS[name]()
        key = (method.extras, method.advantage, method.rollout if is_staged(method.rollout) else None)
        if has_axes(method) and key not in known:
            known[key] = axes(method, GROUP_SIZE)
        where = known[key] if has_axes(method) else None
        found.append(Placed(name, METHODS.label(name), method, where, tuple(refusals(method, "trl"))))
    return found


def table(found: Iterable[Placed]) -> Table:
    """A row per method: name, parts, f'(P) at `SHARES`, concentration, returning, preference in words, engines."""
    columns: dict[str, Callable[[Placed], str]] = {"method": lambda one: one.name}
    for place, p in enumerate(SHARES):
        columns[f"f'({p:g})"] = partial(_number, lambda found, place=place: found.weights[place])
    columns |= {name: partial(_number, attrgetter(name)) for name in ("concentration", "returning")}
    columns |= {"parts": lambda one: one.parts, "engines": lambda one: one.engines}
    columns["among right answers"] = lambda one: preference(one.method)
    return tables.table(columns, found)


def _number(of: Callable[[Axes], float], one: Placed) -> str:
    return NONE if one.axes is None else f"{of(one.axes):.2f}"


def same(found: Iterable[Placed]) -> list[str]:
    """A line for each set of methods whose reward terms have the same expected gradient, with their factors."""
    groups = same_objectives([(one.name, one.axes) for one in found if one.axes is not None])
    return [
        ", ".join(name if factor == 1 else f"{name} (x {factor:.3g})" for name, factor in group) for group in groups
    ]


def tables_of(found: Sequence[Placed]) -> dict[str, str]:
    """What stands between the marks of lab/pages/results/map.md."""
    told = "The same reward term in expectation, whatever stands beside it; (x 2): twice its force, so that beta acts as beta / 2:"
    return {"methods": "\n".join([table(found).markdown(), "", told, "", *(f"- {line}" for line in same(found))])}


def write_docs(found: Sequence[Placed], docs: Path) -> list[Path]:
    """Make the table of results/map.md and images/map.png in a folder of pages again."""
    page, text = remade(docs, "results/map.md", tables_of(found))
    image = docs / "images" / "map.png"
    with writing("page", docs, 1 << 20):
        page.write_text(text, encoding="utf-8")
        picture(found, image)
    return [page, image]


def picture(found: Iterable[Placed], path: str | Path | None = None) -> Figure:
    """The map: how much more a hard prompt (P = .05) counts than a middling one, against concentration among right answers."""
    places: dict[tuple[float, float], list[str]] = {}
    for one in found:
        if one.axes is not None:
            x = one.axes.weights[0] / one.axes.weights[SHARES.index(0.5)]
            places.setdefault((round(x, 2), round(one.axes.concentration, 2)), []).append(one.name)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(8.6, 4.6), layout="constrained")
        plot = figure.subplots()
        for (x, y), names in sorted(places.items()):
            plot.plot(x, y, "o", color=INK, markersize=4)
            known = [name for name in ("rloo", "grpo") if name in names] or names
            text = known[0] if len(names) == 1 else f"{known[0]} and {len(names) - 1} more"
            crowded = y != 1 and any(1.02 < other / x < 1.3 and abs(beside - y) < 0.08 for other, beside in places)
            place, side = ((0, 7), "left") if y == 1 else ((-7, -3), "right") if crowded else ((7, -3), "left")
            turned = 45 if y == 1 else 0
            plot.annotate(text, (x, y), place, textcoords="offset points", fontsize=8, rotation=turned, ha=side)
        plot.set_ylim(-1.6, 1.6)
        plot.axhline(1.0, color=MUTED, linewidth=0.7)
        plot.axhline(0.0, color=MUTED, linewidth=0.7, linestyle=(0, (4, 2)))
        plot.set_xscale("log")
        plot.set_xlim(left=0.7)
        ticks = (1, 1.5, 2, 3, 4, 6, 10)
        plot.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        plot.set_xticks([], minor=True)
        plot.set_xlabel("weight of a prompt with P(right) = .05 over that of one with .5")
        plot.set_ylabel("concentration among right answers\n(1: as REINFORCE; below 0: the rare gain)")
        return saved(figure, path)
