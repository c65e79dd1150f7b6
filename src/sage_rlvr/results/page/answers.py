"""Right answers: their structure, the number of distinct ones, and the perplexity of samples under the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sage_rlvr.evaluation.record import Record
from sage_rlvr.results.distinct import distinct_lines
from sage_rlvr.results.page.samples import SampleSet, by_arm, by_task, first_of_each
from sage_rlvr.results.page.scores import band, drawn, slug
from sage_rlvr.results.row_text import grouped
from sage_rlvr.results.tables import NONE, Table, cell
from sage_rlvr.results.verdict import CurveVerdict
from sage_rlvr.stats.intervals import Interval, mean_interval, seed_interval
from sage_rlvr.stats.passk import powers
from sage_rlvr.stats.samples.perplexity import perplexity_tails
from sage_rlvr.stats.samples.structure import ClassOfAnswers, classes_of_answers, effective_classes, reachable_classes
from sage_rlvr.tasks import known_task
from sage_rlvr.tasks.abilities import Classified, Enumerable, Recoverable
from sage_rlvr.tasks.base import Task

MOST_CLASSES = 10  # in a figure; the table has all
TAIL_QUANTILES = (0.5, 0.9, 0.99)
Rows = Mapping[str, Sequence[Record]]
"""The exact records of each policy, one per training seed, the base first."""


def answers_of(
    records: Rows, k: int, summary: Mapping[str, Any], samples: Sequence[SampleSet], judged: Sequence[CurveVerdict]
) -> dict[str, Any]:
    """The values of the template's sections on answers. judged: the verdicts on arms compared by samples."""
    shown, kinds = structure(records, k)
    return {
        "structure": shown, "kinds": kinds, "patterns": patterns(samples),
        "distinct": [*distinct(summary, samples), *distinct_in_rows(judged)],
        "perplexity": perplexity(samples),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------
# kinds of right answers


def structure(rows: Rows, k: int) -> tuple[list[dict[str, Any]], Table | None]:
    """The kinds of all right answers: a figure and a table for each classification of the task, and the number of kinds; [], None
    for a task without classifications."""
    if not rows:
        return [], None
    base, out = next(iter(rows)), []
    record = rows[base][0]
    task = known_task(str(record.meta["world"].get("name", "")))
    labels = _labels(task, record)
    if labels is None:
        return [], None
    header = ["arm"]
    kinds: dict[str, list[str]] = {name: [name] for name in rows}
    for kind, of in labels.items():
        header += [f"effective {kind}", f"{kind} in {k} samples"]
        classes = {}
        for name, records in rows.items():
            of_base = None if name == base else record.logps[1.0]
            tables = [one.logps[1.0] for one in records]
            single = len(records) == 1
            classes[name] = [classes_of_answers(table, of, base=of_base, intervals=single) for table in tables]
            effective = np.stack([effective_classes(table, of) for table in tables])
            reachable = np.stack([reachable_classes(table, of, k) for table in tables])
            kinds[name] += [cell(_over(effective), 2), cell(_over(reachable), 2)]
        out.append(_structure(kind, task.kinds[kind], classes))
    note = (
        "effective: the exponential of the entropy of the kinds among the right answers of a problem, mean over problems; in "
        f"{k} samples: expected number of distinct kinds among the right samples."
    )
    return out, Table(header=tuple(header), rows=tuple(map(tuple, kinds.values())), notes=(note,))


def _labels(task: Task | None, record: Record) -> dict[str, list[list[str]]] | None:
    """Name of a classification -> for each problem the kind of each right completion, in the order of the record; None for a task
    without classifications."""
    if not (isinstance(task, Classified) and isinstance(task, Recoverable) and isinstance(task, Enumerable)):
        return None
    ids = list(map(str, record.meta["problem_ids"]))
    kinds: dict[str, list[Sequence[str]]] = {}  # of each right completion of a problem, each distinct problem once
    for name in dict.fromkeys(ids):
        problem = task.problem_of(name)
        kinds[name] = [task.kinds_of(problem, text) for text in task.solutions(problem)]
    if [len(kinds[name]) for name in ids] != list(map(len, record.logps[1.0])):
        return None  # the record lists other completions than this version enumerates
    labels = {}
    for index, kind in enumerate(task.kinds):
        labels[kind] = [[of_completion[index] for of_completion in kinds[name]] for name in ids]
    return labels


def _over(table: np.ndarray) -> Interval:
    """Mean of (S, N) with an interval over seeds if there are several, else over the problems with a number."""
    if len(table) > 1:
        return drawn(seed_interval(np.nanmean(table, axis=1).tolist()))
    return mean_interval(table[0][np.isfinite(table[0])])


def _structure(kind: str, spelling: str, classes: Mapping[str, Sequence[Mapping[str, ClassOfAnswers]]]) -> dict[str, Any]:
    """spelling: the task's explanation of how kinds are written."""
    base = next(iter(classes.values()))[0]
    order = sorted(base, key=lambda name: -base[name].share.value)
    shares = {}
    for arm, seeds in classes.items():
        shares[arm] = {key: _class_share([of_seed[key] for of_seed in seeds]) for key in order[:MOST_CLASSES]}
    rows = []
    for key in order:
        cells = [_class_cell([of_seed[key] for of_seed in seeds]) for seeds in classes.values()]
        rows.append((key, *cells))
    note = (
        "Exact share of the right answers; below it the number of completions of this kind in the support: for the base all, for "
        "each arm those kept, gained and lost (means over training seeds if there are several)."
    )
    table = Table(header=(kind, *classes), rows=tuple(rows), notes=(f"{note} {spelling}".strip(),))
    return {"kind": kind, "shares": shares, "rest": max(0, len(order) - MOST_CLASSES), "table": table}


def _class_share(by_seed: Sequence[ClassOfAnswers]) -> Interval:
    """The share of a kind, of several training seeds their mean."""
    if len(by_seed) == 1:
        return by_seed[0].share
    return drawn(seed_interval([one.share.value for one in by_seed]))


def _class_cell(classes: Sequence[ClassOfAnswers]) -> str:
    share = np.mean([one.share.value for one in classes])
    if classes[0].kept is None:
        return f"{share:.1%}\n{classes[0].supported:,} in support"
    kept, gained, lost = (float(np.mean([getattr(one, name) for one in classes])) for name in ("kept", "gained", "lost"))
    return f"{share:.1%}\n{kept:,.0f} +{gained:,.0f} −{lost:,.0f}"


def patterns(samples: Sequence[SampleSet]) -> Table | None:
    """Reasoning patterns among right samples."""
    sets = [s for s in samples if s.patterns]
    if not sets:
        return None
    names = list(dict.fromkeys(name for s in sets for name in s.patterns))
    rows, cautions = [], []
    for s in sets:
        cells = [cell(s.patterns[name].macro) if name in s.patterns else "–" for name in names]
        rows.append((s.name, s.task, *cells))
        cautions += [f"{s.name}, {s.task}, {name}: {p.caution}" for name, p in s.patterns.items() if p.caution]
    note = "Share of a problem's right samples with the pattern, mean over problems (Eq. 13), 95 % intervals over problems."
    return Table(header=("samples", "task", *names), rows=tuple(rows), notes=(note, *cautions[:6]))


# ------------------------------------------------------------------------------------------------------------------
# number of distinct answers


def distinct(summary: Mapping[str, Any], samples: Sequence[SampleSet]) -> list[dict[str, Any]]:
    """Expected number of distinct right answers over k: exact, else from samples, task by task."""
    if curves := summary.get("curves"):
        about = "Expected number of distinct right completions among k samples of a problem, exact, mean over problems."
        seeds = max((len(row["seeds"]) for row in summary["arms"].values()), default=1)
        if seeds > 2:
            about += " Bands: 95 % intervals over training seeds."
        exact = {name: band(curve["distinct"]) for name, curve in curves.items()}
        return [{"slug": "", "lines": exact, "about": about}]
    out = []
    for task, sets in by_task(samples).items():
        lines = {}
        for s in first_of_each(sets):
            if s.distinct is not None:
                means = [mean_interval(column) for column in s.distinct.T]
                lines[s.arm] = band(dict(zip(powers(s.n), means, strict=True)))
        if lines:
            about = f"{task}: expected number of distinct right answers among k samples; 95 % intervals over problems."
            out.append({"slug": f"-{slug(task)}", "lines": lines, "about": about})
    return out


def distinct_in_rows(judged: Sequence[CurveVerdict]) -> list[dict[str, Any]]:
    """Expected number of distinct right answers over k, of both sides of each verdict on files with answers."""
    out = []
    for number, one in enumerate(judged, 1):
        if one.distinct is None:
            continue
        curves, (a, b) = one.distinct.curves, one.distinct.names
        lines = {}
        for name, side in ((b, 1), (a, 0)):
            lines[name] = band({k: both[side] for k, both in curves.items()})
        first, *rest = distinct_lines(one.a, one.b, one.distinct)
        about = "; ".join([f"{first[:1].upper()}{first[1:]}", *rest])
        out.append({"slug": f"-rows-{number}", "lines": lines, "about": f"{about}. Bands: 95 % intervals, one k at a time."})
    return out


# ------------------------------------------------------------------------------------------------------------------
# perplexity under the base


def perplexity(samples: Sequence[SampleSet]) -> list[dict[str, Any]]:
    """Tails of the perplexity of samples under the base, a figure and a table of quantiles for each task and base."""
    scored = [s for s in samples if s.perplexities is not None and s.scored]
    out = []
    for (task, base), apart in grouped(scored, lambda s: (s.task, s.scored)).items():
        sets = [_pooled(of_arm) for of_arm in by_arm(apart).values()]
        values: dict[str, Any] = {"task": task, "slug": slug(task)}
        values["tails"] = {s.arm: s.perplexities for s in sets}
        values["table"] = _tail_table(sets)
        values["base"] = "the base" if base in ("embedded", "base") else base
        out.append(values)
    return out


def _pooled(mine: Sequence[SampleSet]) -> SampleSet:
    """The perplexities of an arm's training seeds together."""
    first, *others = mine
    return replace(
        first,
        seed=None if others else first.seed,
        perplexities=np.concatenate([np.asarray(s.perplexities) for s in mine]),
        is_right=np.concatenate([np.asarray(s.is_right) for s in mine]),
        owners=tuple(name for s in mine for name in s.owners),
    )


def _tail_table(sets: Sequence[SampleSet]) -> Table:
    rows: list[tuple[str, ...]] = []
    cautions: dict[str, None] = {}
    for s in sets:
        everything = np.ones(len(s.owners), dtype=bool)
        for name, kept in (("all", everything), ("right", np.asarray(s.is_right))):
            if not kept.any():
                rows.append((f"{s.name}, {name}", "0", *(NONE for _ in TAIL_QUANTILES)))
                continue
            owners = [owner for owner, keep in zip(s.owners, kept.tolist(), strict=True) if keep]
            values = np.asarray(s.perplexities)[kept]
            tails = perplexity_tails(values, owners, quantiles=TAIL_QUANTILES, resamples=1000)
            cells = [cell(tails.quantiles[q], 2) for q in TAIL_QUANTILES]
            rows.append((f"{s.name}, {name}", f"{tails.samples:,}", *cells))
            if tails.caution:
                cautions[tails.caution] = None
    header = ("samples", "number", *(f"{q:.0%} quantile" for q in TAIL_QUANTILES))
    note = "Quantiles of the perplexity under the base, each with its 95 % interval over problems. Training seeds are pooled."
    return Table(header=header, rows=tuple(rows), notes=(note, *cautions))
