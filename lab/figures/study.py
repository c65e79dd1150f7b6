"""The picture of the study on SmolLM2, a row per complete room: pass@k of every policy; pass@32 against exact KL; pass@32 against
pass@1 beside the base at lower temperatures. The runs of a repetition are in the row of their room, as open marks where each run
has one. `python -m lab study --docs docs` draws it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from lab.figures.readme import FLOOR
from lab.primaries import ARM, BASE, RIVALS, K
from lab.room.exploratory import FEW
from lab.room.smollm2 import ROOMS, Room, chance_of_room, score, together
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.readers import CountTable
from sage_rlvr.verdicts.stats.intervals import Interval, seed_interval
from sage_rlvr.verdicts.stats.paired import control_error

KS = (1, 2, 4, 8, 16, 32, 64)
STYLES = {  # label on the picture, color (Okabe and Ito's palette, readable by the color-blind), marker
    ARM: ("GRPO, k3, beta 0.02", "#0072B2", "^"),
    RIVALS[0]: ("GRPO, k3_is, beta 0.02", "#D55E00", "s"),
    RIVALS[1]: ("GRPO, k3_is, beta 0.05", "#E69F00", "D"),
}
BLACK = "#000000"


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
    axes.plot(ks, floor, color=FLOOR, linestyle="--", label="a guesser")
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


def draw_first(room: Room, chance: Chance, out: Path) -> None:
    """Draw the README's picture into a folder, little_room.png: GRPO with k3 beside the base at every temperature. Left pass@k
    against k, right pass@8 against pass@1."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.9), layout="constrained")
    color, bases, runs = STYLES[ARM][1], room.bases(), room.runs(ARM)
    ks = np.arange(1, max(KS) + 1)
    floor = [chance.at(int(k)) for k in ks]
    left.fill_between(ks, floor, color=FLOOR, alpha=0.15, linewidth=0, label="a guesser")
    for t, base in bases.items():
        if t == 0:
            continue  # greedy: one completion, whatever k
        first = t == 1
        left.plot(KS, [score(base, k) for k in KS], color=BLACK, linewidth=1.6 if first else 0.9, linestyle="-" if first else ":")
        place = (5, {0.4: 2, 0.3: -8}.get(t, -3))  # these two end at one height
        left.annotate(f"T = {t:g}", (KS[-1], score(base, KS[-1])), place, textcoords="offset points", fontsize=8)
    left.plot([], [], color=BLACK, linewidth=1.6, label="untrained, T = 1")
    left.plot([], [], color=BLACK, linewidth=0.9, linestyle=":", label="untrained, colder")
    found = [seed_interval([score(run, k) for run in runs]) for k in KS]
    left.fill_between(KS, [one.low for one in found], [one.high for one in found], color=color, alpha=0.2, linewidth=0)
    left.plot(KS, [one.value for one in found], color=color, marker="^", markersize=5, label="after RL (GRPO), T = 1")
    left.set_xscale("log", base=2)
    left.set_xticks(KS, list(map(str, KS)))
    left.set(xlabel="samples per problem, k", ylabel="pass@k", ylim=(0, 1), xlim=(1, 100), title="RL narrowed at large k")
    left.legend(loc="upper left", fontsize=8, frameon=False)
    x, y = ([score(base, k) for base in bases.values()] for k in (1, FEW))
    right.errorbar(
        x, y, xerr=[base_bar(base, 1) for base in bases.values()], yerr=[base_bar(base, FEW) for base in bases.values()],
        color=BLACK, marker="o", markersize=4, linewidth=1, elinewidth=0.6,
    )  # fmt: skip
    for t, spot in zip(bases, zip(x, y, strict=True), strict=True):
        place, side = ((-8, 8), "center") if t > 0.3 else ((-7, -10), "right")
        right.annotate(f"T = {t:g}", spot, place, textcoords="offset points", ha=side, fontsize=8)
    one, many = (seed_interval([score(run, k) for run in runs]) for k in (1, FEW))
    right.errorbar(
        one.value, many.value, xerr=bar(one), yerr=bar(many), color=color, marker="^", markersize=9, linewidth=1.2,
        markeredgecolor="white",
    )  # fmt: skip
    right.annotate("after RL", (one.value, many.value), (8, 8), textcoords="offset points", color=color, fontsize=9)
    right.margins(0.16)
    right.set(xlabel="pass@1", ylabel=f"pass@{FEW}", title="and learned: the line is the untrained model")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_size(10)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "little_room.png", dpi=130)
    plt.close(figure)
