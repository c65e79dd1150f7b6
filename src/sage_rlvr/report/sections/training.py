"""What happened in training, and what it left in the support."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sage_rlvr.report import panels
from sage_rlvr.report.parts import Part, Picture, Tabular, missing, quiet
from sage_rlvr.report.result import Training
from sage_rlvr.report.study import RunFacts, Study
from sage_rlvr.report.summary import SeedSummary, Summary
from sage_rlvr.report.tables import Table
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.intervals import seed_interval


def training(runs: Sequence[RunFacts]) -> tuple[Part, ...]:
    """Training curves of all seeds, a panel a metric."""
    curves: dict[str, list[Training]] = {}
    for run in runs:
        if run.training is not None and run.training.step:
            curves.setdefault(run.arm, []).append(run.training)
    if not curves:
        return (missing("No run directory was given, so there are no training curves."),)
    out: list[Part] = []
    absent = []
    idle = not any(value > 0 for seeds in curves.values() for run in seeds for value in _seen(run.q_active))
    for key, title in panels.TRAINING.items():
        if idle and key in ("q_mean", "q_active"):
            continue
        figure = panels.training_over_seeds(curves, key)
        name = " ".join(title.split())
        if figure is None:
            absent.append(name)
        else:
            out.append(Picture(key=f"training_{key}", figure=figure, label=f"{name} over training steps", small=True))
    most = max(map(len, curves.values()))
    how = (
        f"Thin: each training seed (up to {most}); bold: their mean; both as moving means over a twentieth of the run."
        if most > 1
        else "Thin: each step; bold: a moving mean over a twentieth of the run."
    )
    uneven = {name: len(seeds) for name, seeds in curves.items() if len(seeds) < most}
    text = "The raw KL is taken before any shaping, so that arms compare. An arm without a KL term has none recorded."
    out += quiet(how, text)
    if idle:
        out.append(
            missing("q was 1 on every token of every run: no arm here has a guide that acts, so q has no panel.")
        )
    if uneven:
        out.append(missing(f"Fewer seeds: {', '.join(f'{name} {n} of {most}' for name, n in uneven.items())}."))
    if absent:
        out.append(missing(f"Not recorded in any run: {', '.join(absent)}."))
    return tuple(out)


def learning(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    """pass@1 and pass@k after so many steps, of arms that are one run stopped early; over training seeds only."""
    if not isinstance(exact, SeedSummary):
        return ()
    names, k, base = set(exact.passes), exact.results[0].k, exact.results[0].base
    lines = {}
    for family in study.learning:
        there = [(steps, arm) for steps, arm in family if arm in names]
        if len(there) > 1:
            lines[there[-1][1]] = [
                (steps, exact.passes[arm][1], exact.best[arm], exact.passes[arm][k]) for steps, arm in there
            ]
    if not lines:
        return ()
    start = (exact.passes[base][1].value, exact.best[base].value, exact.passes[base][k].value)
    figure = panels.learning_figure(lines, start, k)
    text = (
        "Runs stopped early and run to the end, from the base at step 0. Solid: at temperature 1, with its interval over training "
        "seeds; dashed: each at its best temperature; dotted: the base at its own, which is what sampling colder alone gives."
    )
    return (Picture(key="learning", figure=figure, label=f"pass@1 and pass@{k} over training steps"), *quiet(text))


def _seen(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def support(study: Study) -> tuple[Part, ...]:
    """Right completions kept, gained and lost against the base (Definition 4.1)."""
    if not study.results:
        return (missing("Support needs the probabilities of all right completions: no exact evaluation was given."),)
    first, seeds = study.results[0], len(study.results)
    home = first.arm(first.base).support
    arms = {arm.name: [r.arm(arm.name).support for r in study.results] for arm in first.arms if arm.name != first.base}
    whole = {name: found for name, found in arms.items() if all(s is not None and s.lost is not None for s in found)}
    if home is None or not whole:
        return (missing("The support of these policies was not recorded."),)
    columns = {
        name: np.array([(s.preserved, s.gained, s.lost) for s in found if s is not None], dtype=float)
        for name, found in whole.items()
    }
    drawn = {name: tuple(values.mean(axis=0).tolist()) for name, values in columns.items()}
    rows = [(first.base, f"{home.supported:,}", "–", "–", "–", "–")]
    for name, values in columns.items():
        ends = values[:, :2].sum(axis=1)
        parts = [ends, *values.T]
        kept = values[:, 0] / np.maximum(values[:, 0] + values[:, 2], 1)
        share = f"{kept.mean():.1%}"
        if seeds >= FEWEST_SEEDS:
            i = seed_interval(kept)
            share += f"\n{i.low:.1%} to {i.high:.1%}"
        rows.append((name, *(_count_cell(part) for part in parts), share))
    per = (
        "mean over training seeds, beneath it its 95 % interval (Student)"
        if seeds > 1
        else "counts, without an interval"
    )
    table = Table(
        header=("arm", "in support", "kept", "gained", "lost", "share kept"),
        rows=tuple(rows),
        notes=(
            f"A right completion is in a policy's support when its probability is above {_share(home.eps)} at temperature 1 "
            "(Definition "
            f"4.1); {home.correct:,} right completions in all, one drawn twice counts twice. Kept, gained and lost are against "
            f"{first.base}; {per}.",
        ),
    )
    caption = "Right of zero: kept (filled) and gained (hatched); left of it: lost (open). The dashed rule is the base's support."
    figure = panels.support_figure({n: (d[0], d[1], d[2]) for n, d in drawn.items()}, float(home.supported))
    picture = Picture(
        key="support", figure=figure, label="right completions kept, gained and lost by each arm", caption=caption
    )
    return picture, Tabular(table=table, about="support kept, gained and lost")


def _count_cell(values: np.ndarray) -> str:
    if len(values) == 1:
        return f"{values[0]:,.0f}"
    if len(values) < FEWEST_SEEDS:
        return f"{values.mean():,.0f}\nno interval"
    i = seed_interval(values)
    return f"{i.value:,.0f}\n{i.low:,.0f} to {i.high:,.0f}"


def _share(eps: float) -> str:
    """1/256 rather than 0.00391, where it is one over a whole number."""
    whole = round(1 / eps)
    return f"1/{whole}" if abs(whole * eps - 1) < 1e-9 else f"{eps:.3g}"
