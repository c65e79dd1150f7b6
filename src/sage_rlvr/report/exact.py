"""Pages of exact results: `Summary` (one training seed) and `SeedSummary` (several) as sections and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import matplotlib.figure
import numpy as np

from sage_rlvr.report import figures
from sage_rlvr.report.parts import (
    CAVEAT,
    Card,
    Cards,
    Links,
    Page,
    Part,
    Picture,
    Prose,
    Said,
    Section,
    Tabular,
    quiet,
)
from sage_rlvr.report.result import Arm
from sage_rlvr.report.summary import SeedSummary, Summary, Verdict
from sage_rlvr.report.tables import results_table, seeds_table, support_table
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.frontier import FrontierPoint, gap_curve
from sage_rlvr.stats.intervals import Interval

_SHARED = "All arms share the problems, so overlapping bands do not mean a tie: read the differences below."
_GREY = (
    "Each grey point is the untrained base at one sampling temperature. A point on or below the grey line shows no gain in "
    "pass@1 or pass@{k} over sampling the base colder; right of the line's end is what no temperature that was tried gives "
    "the base."
)
_LINE = (
    "The line with temperatures is {base}. A point on or below it shows no gain in pass@1 or pass@{k} over sampling {base} "
    "colder; right of the line's end is what no temperature that was tried gives it."
)


def summary_page(summary: Summary) -> Page:
    """The page of one training seed's checkpoints."""
    result = summary.result
    curves: list[Part] = [passk_picture(summary)]
    if summary.differences:
        caption = (
            "Paired differences. The band holds for all k at once (95 %, over problems): where it leaves zero, these "
            f"checkpoints differ. {figures.SCALE}"
        )
        figure = figures.difference_figure(summary.differences)
        label = "paired differences in pass@k with bands"
        curves.append(Picture(key="difference", figure=figure, label=label, caption=caption))
    sections = [
        Section(key="verdicts", title="What can be said", parts=_one_seed_said(summary)),
        Section(key="table", title="The numbers", parts=(Tabular(table=results_table(summary)),)),
        Section(key="curves", title="pass@k", parts=tuple(curves)),
        Section(key="frontier", title="Against the base sampled colder", parts=(frontier_picture(summary),)),
    ]
    if training := _training(summary):
        sections.append(Section(key="training", title="Training", parts=training))
    if (counts := support_table(summary)) is not None:
        about = (
            "A correct completion is in a policy's support when its probability is above the threshold at the policy's home "
            "temperature (Definition 4.1). Kept, gained and lost are against the base. These are counts on these "
            "problems, without "
            "an interval."
        )
        sections.append(Section(key="support", title="Support", parts=(Tabular(table=counts), *quiet(about))))
    cards = Cards(cards=tuple(map(_card, result.arms)), versions=tuple(result.versions.items()))
    sections.append(Section(key="cards", title="Run cards", parts=(cards,)))
    of = f" of {result.world}" if result.world else ""
    seed = f", seed {result.seed}" if result.seed is not None else ""
    lead = (
        f"{len(summary.rows)} policies on the same {result.problems} {result.split} problems{of}{seed}. Every "
        "probability is exact; "
        "intervals are 95 % over problems."
    )
    return Page(title=result.title, lead=lead, sections=tuple(sections))


def _one_seed_said(summary: Summary) -> tuple[Part, ...]:
    against = Said(lines=tuple((item.name, "frontier", item.sentence) for item in summary.against_frontier))
    siblings = summary.result.siblings
    link = (f"All {siblings} seeds.", "../report.html") if siblings > 1 else None
    first = Prose(kind=CAVEAT, strong="What one training seed cannot show.", text=summary.caveats[0], link=link)
    return (said_of(summary.verdicts), against, first, *quiet(*summary.caveats[1:]))


def _training(summary: Summary) -> tuple[Part, ...]:
    runs = runs_of(summary)
    if not runs:
        return ()
    panels = figures.training_panels(runs)
    pictures = [
        Picture(key=f"training_{key}", figure=figure, label=f"{key} over training steps", small=True)
        for key, figure in panels.items()
    ]
    note = "Faint: each step; strong: a moving mean. The KL is the raw one, before any shaping, so that arms compare."
    return (*pictures, *quiet(note))


def seeds_page(summary: SeedSummary, pages: Sequence[str] = ()) -> Page:
    """The page about the methods; `pages` are relative addresses of the seeds' own pages."""
    result, seeds = summary.results[0], summary.seeds
    caveats = Prose(kind=CAVEAT, strong="What these seeds cannot show.", text="\n".join(summary.caveats))
    about = "its checkpoints, with intervals over problems, training curves and run cards"
    links = tuple((f"training seed {label}", page, about) for label, page in zip(summary.labels, pages, strict=False))
    of = f" of {result.world}" if result.world else ""
    labels = ", ".join(summary.labels)
    lead = (
        f"{len(result.arms) - 1} methods against {result.base}, {seeds} training seeds each ({labels}), on the same "
        f"{result.problems} {result.split} problems{of}. Every probability is exact; intervals are 95 % over training seeds."
    )
    sections = (
        Section(key="verdicts", title="What can be said about the methods", parts=(said_of(summary.verdicts), caveats)),
        Section(key="table", title="The numbers", parts=(Tabular(table=seeds_table(summary)),)),
        Section(key="curves", title="pass@k", parts=(passk_picture(summary),)),
        Section(key="frontier", title="Against the base sampled colder", parts=(frontier_picture(summary),)),
        Section(
            key="seeds",
            title="Each seed by itself",
            parts=(Links(links=links), *quiet("Every number of this page is in seeds.json.")),
        ),
    )
    return Page(title=result.title, lead=lead, sections=sections)


def said_of(verdicts: Sequence[Verdict]) -> Said:
    """Verdicts with the colour of their first arm and the word that they come to."""
    return Said(
        lines=tuple((v.a.split(" at its ")[0], verdict_word(v.comparison.verdict), v.sentence) for v in verdicts)
    )


def verdict_word(verdict: str) -> str:
    """The word alone: "cannot be told (why)" has its why in the sentence."""
    return verdict.split(" (")[0].split(": ")[0]


def passk_picture(summary: Summary | SeedSummary) -> Picture:
    """pass@k with bands, over problems or over training seeds."""
    if isinstance(summary, Summary):
        k = summary.result.k
        caption = (
            "Chance that at least one of k samples is right, mean over problems. Bands: 95 % intervals over problems, one k "
            "at a time. "
        )
        label = f"pass@k of each arm for k up to {k}, with 95 % intervals over problems"
        return Picture(key="passk", figure=_passk(summary), label=label, caption=caption + _SHARED)
    k = summary.results[0].k
    bands = "Two seeds are too few for bands."
    if summary.seeds >= FEWEST_SEEDS:
        bands = (
            "Bands: 95 % intervals over training seeds (Student), one k at a time, the problems held fixed; the base "
            "is one policy and "
            "has none."
        )
    caption = f"Chance that at least one of k samples is right, mean over problems and training seeds. {bands}"
    label = f"pass@k of each method for k up to {k}, mean over training seeds"
    shown = _shown(summary)
    lines = {
        n: (summary.ks, *zip(*((i.value, i.low, i.high) for i in passes.values()), strict=True))
        for n, passes in shown.items()
    }
    return Picture(key="passk", figure=figures.passk_figure(lines), label=label, caption=caption)


def frontier_picture(summary: Summary | SeedSummary) -> Picture:
    """pass@1 against pass@k of the base at all temperatures and of every arm."""
    if isinstance(summary, Summary):
        k = summary.result.k
        caption = (
            "Where a cross reaches the line the two cannot be told apart by eye: read the sentences. Crosses: 95 % "
            "intervals over "
            "problems, each axis by itself."
        )
        wide = any(len(line) > 1 for name, line in summary.frontiers.items() if name != summary.result.base)
        caption += " Thin lines: the arms' own temperatures." if wide else ""
        label = f"pass@1 against pass@{k}: the base at several temperatures, and each arm"
        figure = _frontier(summary)
    else:
        k = summary.results[0].k
        crosses = (
            "; crosses: 95 % intervals over training seeds, each axis by itself"
            if summary.seeds >= FEWEST_SEEDS
            else ""
        )
        caption = f"Open marks: the training seeds; filled: their mean{crosses}."
        base = summary.results[0].base
        wide = any(len(seeds[0]) > 1 for name, seeds in summary.frontiers.items() if name != base)
        caption += " Thin lines: the arms' own temperatures, mean over seeds." if wide else ""
        label = f"pass@1 against pass@{k}: the base at several temperatures, and every training seed"
        figure = _seed_frontier(summary)
    base = (summary.result if isinstance(summary, Summary) else summary.results[0]).base
    text = _GREY if base == "base" else _LINE
    return Picture(key="frontier", figure=figure, label=label, caption=f"{text.format(k=k, base=base)} {caption}")


def gap_picture(summary: SeedSummary, pairs: Sequence[tuple[str, str]]) -> Picture | None:
    """pass@k of A minus B at equal pass@1 along the frontiers, one panel a pair; None where no pair has a common range."""
    k = summary.results[0].k
    found = {f"{a} − {b}": gap_curve(summary.frontiers[a], summary.frontiers[b]) for a, b in pairs}
    curves = {name: curve for name, curve in found.items() if curve is not None}
    if not curves:
        return None
    bands = " Bands: 95 % intervals over training seeds (Student), one pass@1 at a time." * (
        summary.seeds >= FEWEST_SEEDS
    )
    caption = (
        f"Each pair A − B sampled at all temperatures: what A has more of pass@{k} where both have the same pass@1. A line on "
        f"zero slides along B's frontier. Towards the right both are sampled so cold that pass@{k} collapses, and a small "
        f"difference in the best pass@1 reads as a large one in pass@{k}. Linear up to 0.01, logarithmic beyond. Dotted: B's own "
        f"pass@1 at temperature 1.{bands}"
    )
    label = f"difference in pass@{k} at equal pass@1 along the temperature frontiers, one panel a pair"
    return Picture(key="gap", figure=figures.gap_figure(curves, k=k), label=label, caption=caption)


def runs_of(summary: Summary) -> dict[str, Any]:
    """Arm -> (steps, reward, raw KL, entropy) of those that carry training curves."""
    curves = {arm.name: arm.training for arm in summary.result.arms}
    return {name: (t.step, t.reward, t.kl_raw, t.entropy) for name, t in curves.items() if t is not None and t.step}


def _passk(summary: Summary) -> matplotlib.figure.Figure:
    lines = {}
    for c in summary.curves:
        low = [_edge(p.low, p.value) for p in c.points]
        high = [_edge(p.high, p.value) for p in c.points]
        lines[c.name] = (c.ks, [p.value for p in c.points], low, high)
    return figures.passk_figure(lines)


def _frontier(summary: Summary) -> matplotlib.figure.Figure:
    result, points = summary.result, {c.name: c.points for c in summary.curves}
    last = result.ks.index(result.k)
    arms = {name: (p[0], p[last]) for name, p in points.items() if name != result.base}
    own = {name: line for name, line in summary.frontiers.items() if name != result.base and len(line) > 1}
    return figures.frontier_figure(summary.frontiers[result.base], arms, k=result.k, base_name=result.base, curves=own)


def _seed_frontier(summary: SeedSummary) -> matplotlib.figure.Figure:
    first, k, shown = summary.results[0], summary.results[0].k, _shown(summary)
    one, last = summary.ks.index(1), summary.ks.index(k)
    others = [name for name in shown if name != first.base]
    return figures.frontier_figure(
        _mean_frontier(summary.frontiers[first.base]),
        {name: (shown[name][1], shown[name][k]) for name in others},
        k=k,
        base_name=first.base,
        curves={n: _mean_frontier(summary.frontiers[n]) for n in others if len(summary.frontiers[n][0]) > 1},
        seeds={name: [(row[one], row[last]) for row in summary.scores[name].tolist()] for name in others},
    )


def _shown(summary: SeedSummary) -> dict[str, dict[int, Interval]]:
    """Arm -> k -> interval, without width below three seeds, where there is none to draw."""
    drawn = summary.seeds >= FEWEST_SEEDS

    def shown(i: Interval) -> Interval:
        return i if drawn else replace(i, low=i.value, high=i.value)

    return {name: {k: shown(i) for k, i in passes.items()} for name, passes in summary.passes.items()}


def _mean_frontier(seeds: Sequence[Sequence[FrontierPoint]]) -> list[FrontierPoint]:
    """Mean over seeds at every temperature that all of them have."""
    by_t = [{p.temperature: p for p in points} for points in seeds]
    shared = sorted(set.intersection(*(set(points) for points in by_t)))
    rows = {t: [points[t] for points in by_t] for t in shared}
    return [
        FrontierPoint(
            temperature=t, pass1=float(np.mean([p.pass1 for p in row])), passk=float(np.mean([p.passk for p in row]))
        )
        for t, row in rows.items()
    ]


def _edge(edge: float, value: float) -> float:
    return edge if abs(edge) < float("inf") else value


def _card(arm: Arm) -> Card:
    seconds = "" if arm.seconds is None else f"{arm.seconds:,.0f} s of training"
    config = json.dumps(arm.config, indent=2, ensure_ascii=False, default=str) if arm.config else ""
    return Card(name=arm.name, facts=seconds, equation=arm.equation, config=config)
