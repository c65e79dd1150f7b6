"""The picture of the study on SmolLM2, a row per complete room: pass@k of every policy; pass@32 against exact KL; pass@32 against
pass@1 beside the base at lower temperatures. The runs of a repetition are in the row of their room, as open marks where each run
has one. `python -m lab study --docs docs` draws it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import yaml
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from lab.figures.readme import FLOOR
from lab.primaries import ARM, BASE, DESIGN, RIVALS, K
from lab.room.smollm2 import ROOMS, Room, score, together
from sage_rlvr.config import build
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.chance import chance_of_task
from sage_rlvr.results.readers import CountTable
from sage_rlvr.stats.comparison import control_error
from sage_rlvr.stats.intervals import Interval, seed_interval
from sage_rlvr.tasks.chance import Chance

KS = (1, 2, 4, 8, 16, 32, 64)
STYLES = {  # label on the picture, color (Okabe and Ito's palette, readable by the color-blind), marker
    ARM: ("GRPO, k3, beta 0.02", "#0072B2", "^"),
    RIVALS[0]: ("GRPO, k3_is, beta 0.02", "#D55E00", "s"),
    RIVALS[1]: ("GRPO, k3_is, beta 0.05", "#E69F00", "D"),
}
BLACK = "#000000"


def chance_of_room(folder: Path, room: Room) -> Chance:
    """pass@k of a guesser that draws well-formed expressions uniformly, on the problems of the room."""
    tree = yaml.safe_load((folder / DESIGN).read_text(encoding="utf-8"))
    chance = chance_of_task(build("task", tree["base"]["task"]), sorted(room.counts[BASE, None, 1.0].problems))
    if chance is None:
        raise DataError(f"{folder}: the task of {DESIGN} has no chance floor on the problems of the counts")
    return chance


def base_bar(policy: CountTable, k: int) -> float:
    """Half of the 95 % interval of the base's pass@k over its samples."""
    return 1.96 * control_error(policy.n, policy.c, k)


def bar(one: Interval) -> list[list[float]]:
    """The interval as matplotlib's error bar."""
    return [[one.value - one.low], [one.high - one.value]]


def curves(axes: Axes, room: Room, chance: Chance) -> None:
    """pass@k against k: arms over training seeds, the base at its temperatures, gray below the guesser."""
    ks = np.arange(1, max(KS) + 1)
    floor = [chance.at(int(k)) for k in ks]
    axes.fill_between(ks, floor, color=FLOOR, alpha=0.15, linewidth=0)
    axes.plot(ks, floor, color=FLOOR, linestyle="--", label="uniform guesser (chance)")
    for t, base in room.bases().items():
        values = [score(base, k) for k in KS]
        if t == 1:
            axes.plot(KS, values, color=BLACK, marker="o", markersize=4, label="base")
        else:
            axes.plot(KS, values, color=BLACK, linewidth=0.9, linestyle=":" if t < 0.5 else "-.", label=f"base at T = {t:g}")
    for arm, (label, color, marker) in STYLES.items():
        found = [seed_interval([score(run, k) for run in room.runs(arm)]) for k in KS]
        axes.fill_between(KS, [one.low for one in found], [one.high for one in found], color=color, alpha=0.15, linewidth=0)
        axes.plot(KS, [one.value for one in found], color=color, marker=marker, markersize=4, linewidth=1.2, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(KS[::2], list(map(str, KS[::2])))
    axes.set(xlabel="samples per problem, k", ylabel="pass@k", ylim=(0, None))


def at_equal_kl(axes: Axes, room: Room, fresh: Collection[int] = ()) -> None:
    """pass@32 against exact KL, a mark per training run, open for the training seeds in `fresh`. Gray: where the k3_is runs of a
    training seed are interpolated."""
    base = room.counts[BASE, None, 1.0]
    level, half = score(base, K), base_bar(base, K)
    axes.axhline(level, color=BLACK, linewidth=1)
    axes.axhspan(level - half, level + half, color=BLACK, alpha=0.08, linewidth=0)
    spots = {(arm, seed): (room.kls[arm, seed], score(room.counts[arm, seed, 1.0], K)) for arm in STYLES for seed in room.seeds}
    for seed in room.seeds:
        axes.plot(*zip(*(spots[arm, seed] for arm in RIVALS), strict=True), color="#999999", linewidth=0.8, zorder=1)
    for arm, (_, color, marker) in STYLES.items():
        above = 4 if arm == ARM else 3
        for seed in room.seeds:
            if seed in fresh:
                look = {"markersize": 7, "markeredgecolor": color, "markerfacecolor": "white"}
            else:
                look = {"markersize": 8, "markeredgecolor": "white" if arm == ARM else color, "markerfacecolor": color}
            axes.plot(*spots[arm, seed], linestyle="", marker=marker, zorder=above, **look)  # type: ignore[arg-type]
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [x for x in (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1) if low <= x <= high]
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set(xlabel="exact KL to the base, nats per token", ylabel=f"pass@{K}")


def plane(axes: Axes, room: Room) -> None:
    """pass@32 against pass@1: the base at its temperatures as a line, the arms over training seeds."""
    bases = room.bases()
    x, y = ([score(base, k) for base in bases.values()] for k in (1, K))
    axes.errorbar(
        x, y, xerr=[base_bar(base, 1) for base in bases.values()], yerr=[base_bar(base, K) for base in bases.values()],
        color=BLACK, marker="o", markersize=4, linewidth=1, elinewidth=0.6,
    )  # fmt: skip
    for t, spot in zip(bases, zip(x, y, strict=True), strict=True):
        place, side = (4, 4), "left"
        if t == max(bases):
            place, side = (-4, 4), "right"
        if t == min(bases):  # the line comes from the left above
            place, side = (-4, -11), "right"
        axes.annotate(f"T = {t:g}", spot, place, textcoords="offset points", ha=side, fontsize=8)
    for arm, (_, color, marker) in STYLES.items():
        runs = room.runs(arm)
        one, many = (seed_interval([score(run, k) for run in runs]) for k in (1, K))
        axes.errorbar(
            one.value, many.value, xerr=bar(one), yerr=bar(many), color=color, marker=marker, markersize=7, linewidth=1,
            markeredgecolor="white", zorder=3,
        )  # fmt: skip
    axes.margins(0.12)
    axes.set(xlabel="pass@1", ylabel=f"pass@{K}")


def draw(experiments: Path, rooms: Mapping[str, Room], out: Path, fresh: Mapping[str, Room] | None = None) -> None:
    """Draw the rooms and write study.svg and study.png into a folder. experiments: the folder of their designs; fresh: room -> its
    repetition, whose training seeds are drawn with those of the room."""
    with plt.rc_context({"svg.hashsalt": "study", "axes.titlesize": 10}):  # the same picture, the same bytes
        _draw(experiments, rooms, out, fresh or {})


def _draw(experiments: Path, rooms: Mapping[str, Room], out: Path, fresh: Mapping[str, Room]) -> None:
    figure, grid = plt.subplots(len(rooms), 3, figsize=(12, 3.8 * len(rooms) + 0.5), layout="constrained", squeeze=False)
    for (name, room), (left, middle, right) in zip(rooms.items(), grid, strict=True):
        for axes in (left, middle, right):
            axes.spines[["top", "right"]].set_visible(False)
        more = fresh.get(name)
        seen = room if more is None else together(room, more)
        curves(left, seen, chance_of_room(experiments / ROOMS[name], room))
        at_equal_kl(middle, seen, () if more is None else more.seeds)
        plane(right, seen)
        left.set_title(f"{name.capitalize()}, {len(seen.seeds)} training seeds: at temperature 1")
        marks = "" if more is None else "; open: repetition"
        middle.set_title(f"Band: base; lines: k3_is by seed{marks}")
        right.set_title("Line: the base at lower temperatures")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "study.svg", metadata={"Date": None})
    figure.savefig(out / "study.png", dpi=150)
    plt.close(figure)
