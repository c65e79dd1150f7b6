"""The full report of a study as a `Page`: verdicts first, then numbers and figures, last what was run. No markup.

Every section is there whatever was recorded; where something was not run or not recorded, the section says so in words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation import (
    CurveComparison,
    Interval,
    mean_interval,
    paired_count_curve,
    passk_interval,
    seed_interval,
)
from sage_rlvr.evaluation.compare import FEWEST_SEEDS
from sage_rlvr.evaluation.perplexity import perplexity_tails
from sage_rlvr.evaluation.verdicts import Scored, arms_of, compare_counts, score_lines
from sage_rlvr.report import browser, figures, panels
from sage_rlvr.report.exact import frontier_picture, passk_picture, said_of, verdict_word
from sage_rlvr.report.parts import (
    CAVEAT,
    HEADING,
    Card,
    Cards,
    Page,
    Part,
    Picture,
    Prose,
    Said,
    Section,
    Tabular,
    joined,
    missing,
    quiet,
)
from sage_rlvr.report.result import Training
from sage_rlvr.report.study import GridOf, RunFacts, SampleSet, Structure, Study
from sage_rlvr.report.summary import (
    HOLM,
    MANY,
    SeedSummary,
    Summary,
    control_pairs,
    corrected,
    frontier_verdicts,
    seed_differences,
    summarise,
    summarise_seeds,
)
from sage_rlvr.report.tables import Table, interval_cell, results_table, seeds_table

MOST_CLASSES = 10  # of operators in a figure; the table has all
MOST_COLUMNS = 8  # of the sample browser, side by side
TAIL_QUANTILES = (0.5, 0.9, 0.99)
_WORDS = ("better", "worse", "tied", "cannot be told", "identical")


def book(study: Study) -> Page:
    """The full report."""
    study = replace(study, samples=_told_apart(study.samples))
    exact: Summary | SeedSummary | None = None
    if study.results:
        exact = summarise(study.results[0]) if len(study.results) == 1 else summarise_seeds(study.results)
    sections = (
        Section(key="verdicts", title="What can be said", parts=_verdicts(study, exact)),
        Section(key="table", title="The numbers", parts=_numbers(study, exact)),
        Section(key="curves", title="pass@k", parts=_curves(study, exact)),
        Section(key="differences", title="Differences over k", parts=_differences(study, exact)),
        Section(key="frontier", title="Against the base sampled colder", parts=_frontier(study, exact)),
        Section(key="training", title="Training", parts=_training(study.runs)),
        Section(key="support", title="Support: kept, gained, lost", parts=_support(study)),
        Section(key="perplexity", title="How unlikely the base finds the samples", parts=_perplexity(study.samples)),
        Section(key="structure", title="Which kinds of right answers survive", parts=_structure(study)),
        Section(key="distinct", title="Different right answers", parts=_distinct(study)),
        Section(key="grids", title="Grids", parts=_grids(study, exact)),
        Section(key="samples", title="Samples", parts=_browser(study.samples)),
        Section(key="runs", title="What was run", parts=_runs(study)),
        Section(key="cards", title="Run cards", parts=_cards(study.runs)),
    )
    return Page(title=study.title, lead=_lead(study), sections=sections)


def _lead(study: Study) -> str:
    if not study.results:
        sets = {s.task for s in study.samples}
        arms = {s.arm for s in study.samples}
        many = "One policy" if len(arms) == 1 else f"{len(arms)} policies"
        return f"{many}, sampled on {joined(sorted(sets)) or 'nothing'}; no exact evaluation was given."
    first, seeds = study.results[0], len(study.results)
    over = f"{seeds} training seeds each" if seeds > 1 else "one training seed each"
    of = f" of {first.world}" if first.world else ""
    trained = len(first.arms) - 1
    many = "One trained policy" if trained == 1 else f"{trained} trained policies"
    if not trained:
        return (
            f"{first.base} alone, on {first.problems} {first.split} problems{of}. Every probability is an exact sum; "
            "intervals are 95 % over problems."
        )
    return (
        f"{many} against {first.base}, {over}, on the same {first.problems} {first.split} "
        f"problems{of}. Every probability is an exact sum; intervals are 95 % over "
        f"{'training seeds' if seeds > 1 else 'problems'}."
    )


# ------------------------------------------------------------------------------------------------------------------
# what is said, and the numbers


def _verdicts(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    left = tuple(missing(text) for text in study.left_out)
    if exact is None:
        return (*_sampled_verdicts(study.samples), *left)
    beside = _beside(study)
    sampled = _sampled_verdicts(beside) if len({s.arm for s in beside}) > 1 else ()
    if isinstance(exact, SeedSummary):
        return (said_of(exact.verdicts), _caveats("What these seeds cannot show.", exact.caveats), *sampled, *left)
    if not exact.verdicts:  # one policy alone: no sentence that a caveat could be about
        return (missing("One policy alone was evaluated exactly, so no exact numbers are compared."), *sampled, *left)
    verdicts = corrected(exact)
    family = max((v.comparison.family for v in verdicts), default=1)
    notes = [HOLM.format(family=family) if text == MANY else text for text in exact.caveats]
    against = Said(lines=tuple((item.name, "frontier", item.sentence) for item in exact.against_frontier))
    return (said_of(verdicts), against, _caveats("What one training seed cannot show.", notes), *sampled, *left)


def _caveats(strong: str, texts: Sequence[str]) -> Prose:
    return Prose(kind=CAVEAT, strong=strong, text="\n".join(texts))


def _sampled_verdicts(samples: Sequence[SampleSet]) -> tuple[Part, ...]:
    if len({s.arm for s in samples}) < 2:
        return (missing("Nothing is compared: fewer than two policies were evaluated."),)
    lines, refused = [], []
    for sets in _comparable(samples):
        try:
            counts, k = _counts(sets), _common_k(sets)
            alone = [line for name, data in counts.items() for line in score_lines(name, data, k)]
            lines += compare_counts(counts, k) if len(counts) > 1 else alone
        except DataError as error:
            refused.append(f"Not compared: {error}.")
    arms = sorted({s.arm for s in samples}, key=len, reverse=True)

    def item(line: str) -> tuple[str, str, str]:
        arm = next((name for name in arms if line.startswith(f"{name} vs ")), "")
        word = next((w for w in _WORDS if f": {w} " in line), "") if " vs " in line else ""
        return arm, word, line

    items = [item(line) for line in lines]
    verdicts = tuple(row for row in items if row[1] and row[0])
    rest = [line for arm, word, line in items if not (word and arm)]
    said = (Said(lines=verdicts),) if verdicts else ()
    return (*said, *quiet(*rest), *map(missing, refused))


def _comparable(samples: Sequence[SampleSet]) -> list[list[SampleSet]]:
    """All together where every arm was sampled on every task, else the stores of each task by themselves."""
    tasks = _by_task(samples)
    arms = [{s.arm for s in sets} for sets in tasks.values()]
    return [list(samples)] if all(found == arms[0] for found in arms) else list(tasks.values())


def _beside(study: Study) -> list[SampleSet]:
    """Beside exact evaluations: the stores of every task on which an arm was sampled that has none."""
    exact = {arm.name for arm in study.results[0].arms}
    return [s for sets in _by_task(study.samples).values() if any(one.arm not in exact for one in sets) for s in sets]


def _told_apart(samples: Sequence[SampleSet]) -> tuple[SampleSet, ...]:
    """An arm that was sampled at several temperatures is as many policies, and no two training seeds."""
    laws: dict[tuple[str, str], set[float | None]] = {}
    for s in samples:
        laws.setdefault((s.arm, s.task), set()).add(s.temperature)
    several = {key for key, found in laws.items() if len(found) > 1}
    return tuple(
        replace(s, arm=f"{s.arm} at T = {s.temperature:g}")
        if (s.arm, s.task) in several and s.temperature is not None
        else s
        for s in samples
    )


def _counts(samples: Sequence[SampleSet]) -> dict[str, dict[str, Scored]]:
    loaded: dict[str, list[tuple[str, Scored]]] = {}
    for s in samples:
        loaded.setdefault(s.arm, []).append((s.task, Scored(s.problems, s.n, s.right[None, :])))
    return arms_of(loaded)


def _common_k(samples: Sequence[SampleSet]) -> int:
    return min(s.n for s in samples)


def _powers(n: int) -> list[int]:
    return [*(2**i for i in range(n.bit_length()) if 2**i < n), n]


def _numbers(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    if isinstance(exact, SeedSummary):
        return (Tabular(table=seeds_table(exact), about="pass@k of each method"), *_sampled_tables(_beside(study)))
    if exact is not None:
        return (Tabular(table=results_table(exact), about="pass@k of each policy"), *_sampled_tables(_beside(study)))
    return _sampled_tables(study.samples) or (missing("No evaluation was given."),)


def _sampled_tables(samples: Sequence[SampleSet]) -> tuple[Part, ...]:
    """Sampled pass@1 and pass@k, one table a task."""
    out: list[Part] = []
    note = "From samples; beneath each number its 95 % interval over problems and their samples."
    for task, sets in _by_task(samples).items():
        ks = tuple(dict.fromkeys((1, _common_k(sets))))
        rows = []
        for s in sets:
            cells = [interval_cell(passk_interval(s.n, s.right, k)) for k in ks]
            rows.append((_set_name(s), s.task, f"{len(s.problems)} x {s.n}", *cells))
        header = ("arm", "task", "problems x samples", *(f"pass@{k}" for k in ks))
        table = Table(header=header, rows=tuple(rows), notes=(note,))
        out += [Prose(text=f"From samples: {task}", kind=HEADING), Tabular(table=table, about=f"pass@k on {task}")]
    return tuple(out)


def _set_name(s: SampleSet) -> str:
    return s.arm if s.seed is None else f"{s.arm}, seed {s.seed}"


def _curves(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    if exact is not None:
        return (passk_picture(exact),)
    out: list[Part] = []
    for task, sets in _by_task(study.samples).items():
        lines = {}
        for s in _one_seed(sets):
            ks = _powers(s.n)
            found = [passk_interval(s.n, s.right, k) for k in ks]
            lines[s.arm] = (ks, [i.value for i in found], [i.low for i in found], [i.high for i in found])
        caption = (
            f"{task}: chance that one at least of k samples is right, from samples, with 95 % intervals over problems "
            "and their "
            "samples, one k at a time."
        )
        figure = figures.passk_figure(lines)
        out.append(Picture(key=f"passk-{_slug(task)}", figure=figure, label=f"pass@k on {task}", caption=caption))
    return tuple(out) or (missing("No evaluation was given."),)


def _by_task(samples: Iterable[SampleSet]) -> dict[str, list[SampleSet]]:
    out: dict[str, list[SampleSet]] = {}
    for s in samples:
        out.setdefault(s.task, []).append(s)
    return out


def _one_seed(sets: Iterable[SampleSet]) -> list[SampleSet]:
    """The first store of each arm."""
    seen: dict[str, SampleSet] = {}
    for s in sets:
        seen.setdefault(s.arm, s)
    return list(seen.values())


def _differences(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    if exact is None:
        return _sampled_differences(study.samples)
    if isinstance(exact, SeedSummary):
        if exact.seeds < FEWEST_SEEDS:
            return (missing("Two training seeds are too few for a band on a difference."),)
        found = seed_differences(exact)
        over = "training seeds (Student's t, with Bonferroni's share of the level at each k)"
        who = "these methods differ on these problems"
    else:
        found, over, who = dict(exact.differences), "problems", "these checkpoints differ"
    caption = f"Paired differences. The band holds at all k at once (95 %, over {over}): where it leaves zero, {who}."
    return _difference_parts(found, caption, "differences")


def _difference_parts(found: Mapping[str, CurveComparison], caption: str, key: str) -> tuple[Part, ...]:
    if not found:
        return (missing("There is one policy alone, so there is no difference."),)
    table = Table(
        header=("pair", *(f"k = {k}" for k in next(iter(found.values())).ks)),
        rows=tuple(
            (
                name,
                *(
                    f"{d:+.3f}\n{low:+.3f} to {high:+.3f}".replace("-", "−")
                    for d, low, high in zip(c.difference, c.low, c.high, strict=True)
                ),
            )
            for name, c in found.items()
        ),
    )
    limits = _limits(found)
    drawn: list[Part] = [
        Picture(
            key=f"{key}-{i}",
            figure=figures.difference_figure({name: c}, limits=limits),
            label=f"{name}: paired difference in pass@k",
            small=True,
        )
        for i, (name, c) in enumerate(found.items(), start=1)
    ]
    about = "differences in pass@k with their simultaneous bands"
    return (*drawn, *quiet(caption), Tabular(table=table, about=about, folded=True))


def _limits(found: Mapping[str, CurveComparison]) -> tuple[float, float]:
    """One scale for all differences, zero in it."""
    edges = np.concatenate([np.concatenate([c.low, c.high, c.difference]) for c in found.values()])
    known = edges[np.isfinite(edges)]
    low, high = min(0.0, float(known.min(initial=0.0))), max(0.0, float(known.max(initial=0.0)))
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def _sampled_differences(samples: Sequence[SampleSet]) -> tuple[Part, ...]:
    out: list[Part] = []
    for task, sets in _by_task(samples).items():
        first, *others = _one_seed(sets)
        found = {
            f"{s.arm} − {first.arm}": paired_count_curve(s.n, s.right, first.right)
            for s in others
            if s.problems == first.problems and s.n == first.n
        }
        if found:
            caption = f"{task}: the band holds at all k at once (95 %, over problems and their samples)."
            out += [
                p for p in _difference_parts(found, caption, f"differences-{_slug(task)}") if not isinstance(p, Tabular)
            ]
    return tuple(out) or (missing("No two policies were sampled on the same problems."),)


def _frontier(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    if exact is None:
        return (missing("No exact evaluation was given, so no policy was read at other temperatures than its own."),)
    first = study.results[0]
    if len(first.arm(first.base).ps) < 2:
        return (
            missing(
                "The base was evaluated at one temperature alone: no frontier. Evaluate with: sage-rlvr eval --frontier"
            ),
        )
    trained = [arm.name for arm in first.arms if arm.trained and arm.name != first.base]
    pairs = [(name, first.base) for name in trained] + list(control_pairs(first))
    lines = frontier_verdicts(study.results, pairs, first.k)
    if not lines:
        return (frontier_picture(exact),)
    said = Said(lines=tuple((arm, verdict_word(verdict), text) for arm, verdict, text in lines))
    note = (
        f"Each policy at all its temperatures: the mean gap in pass@{first.k} where both frontiers have the same "
        "pass@1. A policy that "
        "only slides along the base's frontier has none."
    )
    return (frontier_picture(exact), said, *quiet(note))


# ------------------------------------------------------------------------------------------------------------------
# training and support


def _training(runs: Sequence[RunFacts]) -> tuple[Part, ...]:
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


def _seen(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _support(study: Study) -> tuple[Part, ...]:
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
            share += f"\n{i.low:.1%}–{i.high:.1%}"
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
            f"A right completion is in a policy's support when its probability is above {home.eps:.3g} at temperature 1 "
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
    return f"{i.value:,.0f}\n{i.low:,.0f}–{i.high:,.0f}"


# ------------------------------------------------------------------------------------------------------------------
# samples: perplexity, patterns, browser


def _perplexity(samples: Sequence[SampleSet]) -> tuple[Part, ...]:
    scored = [s for s in samples if s.perplexities is not None and s.scored]
    if not scored:
        return (
            missing(
                "Not recorded: it needs samples that were scored under the base. Draw some with: sage-rlvr eval RUN "
                "--samples 64 "
                "--score-base BASE"
            ),
        )
    out: list[Part] = []
    groups: dict[tuple[str, str], list[SampleSet]] = {}
    for s in scored:
        groups.setdefault((s.task, str(s.scored)), []).append(s)
    for (task, base), sets in groups.items():
        sets = _pooled(sets)
        values = {s.arm: s.perplexities for s in sets if s.perplexities is not None}
        caption = (
            f"{task}: share of samples whose perplexity under the base ({base}) exceeds the value on the axis. A line "
            "that ends further right has "
            "samples that the base finds less likely; colder sampling moves it left, broken text moves it right."
        )
        figure = panels.tails_figure(values, "the base" if base in ("embedded", "base") else base)
        label = f"tails of perplexity on {task}"
        out.append(Picture(key=f"perplexity-{_slug(task)}", figure=figure, label=label, caption=caption))
        out.append(Tabular(table=_tail_table(sets), about=f"quantiles of perplexity on {task}"))
    return tuple(out)


def _pooled(sets: Sequence[SampleSet]) -> list[SampleSet]:
    """One set an arm: the perplexities of its training seeds together."""
    out = []
    for arm in dict.fromkeys(s.arm for s in sets):
        mine = [s for s in sets if s.arm == arm]
        values = [s.perplexities for s in mine if s.perplexities is not None]
        right = [s.is_right for s in mine if s.is_right is not None]
        owners = tuple(name for s in mine for name in s.owners)
        one = mine[0] if len(mine) == 1 else replace(mine[0], seed=None)
        out.append(replace(one, perplexities=np.concatenate(values), is_right=np.concatenate(right), owners=owners))
    return out


def _tail_table(sets: Sequence[SampleSet]) -> Table:
    rows, cautions = [], []
    for s in sets:
        values, right = s.perplexities, s.is_right
        assert values is not None and right is not None
        for name, kept in (("all", np.ones(len(values), dtype=bool)), ("right", right)):
            if not kept.any():
                rows.append((f"{_set_name(s)}, {name}", "0", *("–" for _ in TAIL_QUANTILES)))
                continue
            owners = [p for p, keep in zip(s.owners, kept.tolist(), strict=True) if keep]
            found = perplexity_tails(values[kept], owners, quantiles=TAIL_QUANTILES, resamples=1000)
            cells = [interval_cell(found.quantiles[q], 2) for q in TAIL_QUANTILES]
            rows.append((f"{_set_name(s)}, {name}", f"{found.samples:,}", *cells))
            cautions.append(found.caution)
    header = ("samples", "number", *(f"{q:.0%} lie below" for q in TAIL_QUANTILES))
    notes = (
        "Quantiles of the perplexity under the base; beneath each its 95 % interval over problems. Several training seeds of an "
        "arm are taken together.",
    )
    return Table(header=header, rows=tuple(rows), notes=(*notes, *dict.fromkeys(filter(None, cautions))))


def _structure(study: Study) -> tuple[Part, ...]:
    out: list[Part] = []
    if study.structure is not None:
        out += _exact_structure(study, study.structure)
    patterned = [s for s in study.samples if s.patterns]
    if patterned:
        out.append(Prose(text="Reasoning patterns among right samples", kind=HEADING))
        out.append(Tabular(table=_pattern_table(patterned), about="reasoning patterns"))
    if not out:
        return (
            missing(
                "Not recorded: the structure of right answers needs an exact evaluation of a world of expressions, "
                "reasoning patterns "
                "need samples in words."
            ),
        )
    return tuple(out)


def _exact_structure(study: Study, found: Structure) -> list[Part]:
    out: list[Part] = []
    for kind, arms in found.classes.items():
        base = next(iter(arms))
        order = sorted(arms[base][0], key=lambda name: -arms[base][0][name].share.value)
        shown = order[:MOST_CLASSES]
        shares = {
            arm: {name: _over_seeds([one[name].share for one in seeds]) for name in shown}
            for arm, seeds in arms.items()
        }
        rest = len(order) - len(shown)
        figure = panels.shares_figure(shares, "share of the right answers that the policy gives", _class_label)
        caption = (
            f"Right answers by their {kind}: of the right answers that a policy gives, the share of each kind, exactly."
        )
        caption += (
            f" The {len(shown)} most frequent under the base; the table has all {len(order)}." if rest > 0 else ""
        )
        out.append(
            Picture(key=f"structure_{kind}", figure=figure, label=f"shares of right answers by {kind}", caption=caption)
        )
        out.append(Tabular(table=_class_table(kind, order, arms), about=f"right answers by {kind}", folded=True))
    out.append(Tabular(table=_diversity_table(found), about="number of kinds of right answers"))
    return out


def _class_label(name: str) -> str:
    return name.replace("*", "×").replace("-", "−").replace("/", "÷").replace(".", "·")


def _over_seeds(intervals: Sequence[Interval]) -> Interval:
    """One interval as it is; of several the mean and Student's interval over seeds."""
    return intervals[0] if len(intervals) == 1 else seed_interval([i.value for i in intervals])


def _class_table(kind: str, order: Sequence[str], arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    rows = []
    for name in order:
        cells = []
        for seeds in arms.values():
            share = np.mean([one[name].share.value for one in seeds])
            one = [found[name] for found in seeds]
            if one[0].kept is None:
                cells.append(f"{share:.1%}\n{one[0].supported:,} in support")
            else:
                kept, gained, lost = (float(np.mean([getattr(c, f) for c in one])) for f in ("kept", "gained", "lost"))
                cells.append(f"{share:.1%}\n{kept:,.0f} +{gained:,.0f} −{lost:,.0f}")
        rows.append((_class_label(name), *cells))
    note = (
        "Share of the right answers given, exactly; beneath it the completions of this kind in the support: the "
        "base's, and of each arm "
        "those kept, gained and lost (means over training seeds where there are several)."
    )
    if kind == "trees":
        note += " A dot is a number, a pair of parentheses an operation."
    return Table(header=(kind, *arms), rows=tuple(rows), notes=(note,))


def _diversity_table(found: Structure) -> Table:
    rows = []
    for arm in next(iter(found.effective.values())):
        cells = []
        for kind in found.effective:
            for table in (found.effective[kind][arm], found.reachable[kind][arm]):
                several = len(table) > 1
                values = np.nanmean(table, axis=1) if several else table[0][np.isfinite(table[0])]
                cells.append(interval_cell(seed_interval(values) if several else mean_interval(values), 2))
        rows.append((arm, *cells))
    header = [f"{word}" for kind in found.effective for word in (f"effective {kind}", f"{kind} in {found.k} samples")]
    notes = (
        "effective: the exponential of the entropy of the kinds among the right answers of a problem, mean over problems; in "
        f"{found.k} samples: expected number of different kinds among the right ones. Intervals over problems, or over "
        "training "
        "seeds where there are several.",
    )
    return Table(header=("arm", *header), rows=tuple(rows), notes=notes)


def _pattern_table(sets: Sequence[SampleSet]) -> Table:
    names = list(dict.fromkeys(name for s in sets for name in s.patterns))
    rows = []
    for s in sets:
        cells = [interval_cell(s.patterns[name].macro) if name in s.patterns else "–" for name in names]
        rows.append((_set_name(s), s.task, *cells))
    cautions = [
        f"{_set_name(s)}, {s.task}, {name}: {p.caution}" for s in sets for name, p in s.patterns.items() if p.caution
    ]
    note = "Share of a problem's right samples that show the pattern, mean over problems (Eq. 13), 95 % intervals over problems."
    return Table(header=("samples", "task", *names), rows=tuple(rows), notes=(note, *cautions[:6]))


def _distinct(study: Study) -> tuple[Part, ...]:
    out: list[Part] = []
    if study.distinct and study.results:
        first = study.results[0]
        lines = {}
        for arm, table in study.distinct.items():
            found = [seed_interval(column) if len(table) >= FEWEST_SEEDS else None for column in table.T]
            mean = table.mean(axis=0)
            low = [i.low if i else m for i, m in zip(found, mean, strict=True)]
            high = [i.high if i else m for i, m in zip(found, mean, strict=True)]
            lines[arm] = (first.ks, mean, low, high)
        caption = (
            "Expected number of different right completions among k samples of a problem, exactly, mean over problems. "
        )
        caption += (
            "Bands: 95 % intervals over training seeds."
            if len(study.results) >= FEWEST_SEEDS
            else f"No bands; the table above has the interval at k = {first.k}."
        )
        figure = panels.over_k_figure(lines, "different right completions in k samples")
        out.append(
            Picture(key="distinct", figure=figure, label="different right completions in k samples", caption=caption)
        )
    for task, sets in ({} if out else _by_task(study.samples)).items():
        counted = [s for s in _one_seed(sets) if s.distinct is not None]
        lines = {}
        for s in counted:
            assert s.distinct is not None
            means = [mean_interval(column) for column in s.distinct.T]
            low, high = ([_finite(getattr(i, end), i.value) for i in means] for end in ("low", "high"))
            lines[s.arm] = (s.ks, [i.value for i in means], low, high)
        if lines:
            figure = panels.over_k_figure(lines, "different right answers in k samples")
            caption = (
                f"{task}: expected number of different right answers among k samples, from samples; 95 % intervals over "
                "problems."
            )
            out.append(Picture(key=f"distinct-{_slug(task)}", figure=figure, label=caption, caption=caption))
    return tuple(out) or (missing("Not recorded: neither an exact evaluation nor samples were given."),)


def _finite(edge: float, value: float) -> float:
    return edge if math.isfinite(edge) else value


def _grids(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    if not study.grids or exact is None:
        return (
            missing(
                "No four arms of this report differ in exactly two keys of their recipe, so there is no grid to draw."
            ),
        )
    out: list[Part] = []
    for i, grid in enumerate(study.grids[:3], start=1):
        out += _grid_parts(grid, study, i)
    return tuple(out)


def _grid_parts(grid: GridOf, study: Study, number: int) -> list[Part]:
    first = study.results[0]
    names = {arm.name for arm in first.arms}
    out: list[Part] = []
    for k in (1, first.k):
        cells = {
            (c.row, c.column): float(np.mean([np.mean(1 - (1 - r.arm(c.arm).p) ** k) for r in study.results]))
            for c in grid.cells
            if c.arm in names
        }
        figure = panels.heat_figure(grid.rows, grid.columns, cells, (grid.row_key, grid.column_key), f"pass@{k}")
        label = f"pass@{k} over {grid.row_key} and {grid.column_key}"
        out.append(Picture(key=f"grid{number}-{k}", figure=figure, label=label, small=True))
    said = [f"{c.row}, {c.column}: {c.arm or 'not run'}" for c in grid.cells]
    note = "Choose on validation problems: the best of many cells on these problems flatters itself."
    return [*out, *quiet(f"Arms ({grid.row_key}, {grid.column_key}): {'; '.join(said)}.", note)]


def _browser(samples: Sequence[SampleSet]) -> tuple[Part, ...]:
    shown = [s for s in samples if s.shown]
    if not shown:
        return (
            missing(
                "No samples were given. Draw some with: sage-rlvr eval RUN --samples 64 --guide branch, and name the store here"
            ),
        )
    every, few = len(shown), ""
    if every > MOST_COLUMNS:
        shown = [s for sets in _by_task(shown).values() for s in _one_seed(sets)]
        few = f"Of {every} stores the first of each arm and task is shown, {len(shown)} in all."
    count = sum(len(s.shown) for s in shown)
    laws = dict.fromkeys(f"{_set_name(s)}: {s.task}, {s.law}" for s in shown)
    note = f"{count:,} samples are on this page: the first of every problem of every store; the stores keep all."
    return (browser.part(shown), *quiet(note, few, "; ".join(laws) + "."))


# ------------------------------------------------------------------------------------------------------------------
# what was run


def _runs(study: Study) -> tuple[Part, ...]:
    if not study.runs:
        return (
            missing("No run directory was given; what stands above comes from evaluations alone."),
            *_sources(study),
        )
    seeds = sorted({run.seed for run in study.runs if run.seed is not None})
    states: dict[str, dict[int | None, str]] = {}
    for run in study.runs:
        states.setdefault(run.arm, {})[run.seed] = run.state
    if not seeds:
        return (*quiet(*(f"{run.arm}: {run.state}." for run in study.runs)), *_sources(study))
    rows = tuple((arm, *(found.get(seed, "not run") for seed in seeds)) for arm, found in states.items())
    table = Table(header=("arm", *(f"seed {seed}" for seed in seeds)), rows=rows)
    return (Tabular(table=table, about="state of every run"), *_sources(study))


def _sources(study: Study) -> tuple[Prose, ...]:
    return quiet(f"Read: {', '.join(study.sources)}.") if study.sources else ()


def _cards(runs: Sequence[RunFacts]) -> tuple[Part, ...]:
    arms: dict[str, list[RunFacts]] = {}
    for run in runs:
        if run.config:
            arms.setdefault(run.arm, []).append(run)
    if not arms:
        return (missing("No run directory was given, so there is no configuration to show."),)
    cards = tuple(_card(arm, found) for arm, found in arms.items())
    versions = [dict(run.versions) for run in runs if run.versions]
    same = dict.fromkeys(json.dumps(v, sort_keys=True) for v in versions)
    said: tuple[Part, ...] = ()
    if len(same) > 1:
        said = (
            missing(f"The runs were made under {len(same)} different sets of versions; those of the first are listed."),
        )
    return (Cards(cards=cards, versions=tuple((versions[0] if versions else {}).items())), *said)


def _card(arm: str, runs: Sequence[RunFacts]) -> Card:
    first = runs[0]
    facts = []
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    if seeds:
        facts.append(f"training seed{'s' * (len(seeds) > 1)} {joined([str(seed) for seed in seeds])}")
    seconds = [run.seconds for run in runs if run.seconds is not None]
    if seconds:
        facts.append(f"{np.mean(seconds):,.0f} s of training a seed")
    tokens = [run.tokens for run in runs if run.tokens is not None]
    if tokens:
        facts.append(f"{np.mean(tokens) / 1e6:,.2f} M tokens drawn a seed")
    commits = dict.fromkeys(run.commit for run in runs if run.commit)
    if commits:
        facts.append(f"code {', '.join(commit[:12] for commit in commits)}")
    plain = [{**run.config, "seed": None} for run in runs]
    if any(config != plain[0] for config in plain):
        facts.append("its seeds differ in more than the seed; the first one's configuration is shown")
    config = json.dumps(first.config, indent=2, ensure_ascii=False, default=str)
    return Card(name=arm, facts="; ".join(facts), equation=first.equation, config=config)


def _slug(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text)[:40].strip("-") or "task"


__all__ = ["book"]
