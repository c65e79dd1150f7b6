"""Right answers as trees of JSON: kinds, patterns, number of distinct ones, and the perplexity of samples under the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.results.details.samples import SampleSet, by_arm, by_task, first_of_each
from sage_rlvr.tasks import known_task
from sage_rlvr.tasks.abilities import Classified, Enumerable, Recoverable
from sage_rlvr.tasks.base import Task
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.stats.intervals import Interval, mean_interval, seed_interval
from sage_rlvr.verdicts.stats.passk import powers
from sage_rlvr.verdicts.stats.samples.perplexity import perplexity_tails
from sage_rlvr.verdicts.stats.samples.structure import (
    ClassOfAnswers,
    classes_of_answers,
    effective_classes,
    reachable_classes,
)
from sage_rlvr.verdicts.text.verdicts import distinct_lines
from sage_rlvr.verdicts.verdict import CurveVerdict

TAIL_QUANTILES = (0.5, 0.9, 0.99)
MOST_POINTS = 1000  # of a tail in a figure
EACH_K = "Bands: 95 % intervals, one k at a time."
Tree = dict[str, Any]
Rows = Mapping[str, Sequence[Record]]
"""The exact records of each policy, one per training seed, the base first."""


# ------------------------------------------------------------------------------------------------------------------
# kinds of right answers


def kinds_of(rows: Rows, k: int) -> list[Tree]:
    """Each classification of the task: the classes of all right answers by arm, and how many; [] for a task without one."""
    if not rows:
        return []
    base = next(iter(rows))
    record = rows[base][0]
    task = known_task(str(record.meta["world"].get("name", "")))
    labels = _labels(task, record)
    if task is None or labels is None:
        return []
    out = []
    for kind, of in labels.items():
        tree: Tree = {"kind": kind, "spelling": task.kinds[kind], "classes": {}, "effective": {}, "reached": {}}  # type: ignore[attr-defined]
        for name, records in rows.items():
            of_base = None if name == base else record.logps[1.0]
            tables = [one.logps[1.0] for one in records]
            single = len(records) == 1
            seeds = [classes_of_answers(table, of, base=of_base, intervals=single) for table in tables]
            tree["classes"][name] = {key: _class([of_seed[key] for of_seed in seeds]) for key in seeds[0]}
            tree["effective"][name] = _over(np.stack([effective_classes(table, of) for table in tables]))
            tree["reached"][name] = _over(np.stack([reachable_classes(table, of, k) for table in tables]))
        out.append(tree)
    return out


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


def _over(table: NDArray[np.float64]) -> Tree:
    """Mean of (S, N) with an interval over seeds if there are several, else over the problems with a number."""
    if len(table) > 1:
        return asdict(seed_interval(np.nanmean(table, axis=1).tolist()))
    return asdict(mean_interval(table[0][np.isfinite(table[0])]))


def _class(by_seed: Sequence[ClassOfAnswers]) -> Tree:
    """The share of a class and its completions in the support: for the base all, for an arm those kept, gained and lost; means over
    training seeds."""
    first = by_seed[0]
    share = first.share if len(by_seed) == 1 else seed_interval([one.share.value for one in by_seed])
    if first.kept is None:
        return {"share": asdict(share), "supported": first.supported}
    counts = {name: float(np.mean([getattr(one, name) for one in by_seed])) for name in ("kept", "gained", "lost")}
    return {"share": asdict(share), **counts}


def patterns(samples: Sequence[SampleSet]) -> list[Tree]:
    """Reasoning patterns among the right samples of each store."""
    out = []
    for s in samples:
        if s.patterns:
            shares = {name: asdict(found.macro) for name, found in s.patterns.items()}
            cautions = [f"{s.name}, {s.task}, {name}: {found.caution}" for name, found in s.patterns.items() if found.caution]
            out.append({"samples": s.name, "task": s.task, "shares": shares, "cautions": cautions})
    return out


# ------------------------------------------------------------------------------------------------------------------
# number of distinct answers


def distinct(samples: Sequence[SampleSet], judged: Sequence[CurveVerdict]) -> list[Tree]:
    """Expected number of distinct right answers over k: of stores task by task, and of both sides of each verdict on files with
    answers."""
    out = []
    for task, sets in by_task(samples).items():
        lines = {}
        for s in first_of_each(sets):
            if s.distinct is not None:
                lines[s.arm] = _over_k(dict(zip(powers(s.n), map(mean_interval, s.distinct.T), strict=True)))
        if lines:
            about = f"{task}: expected number of distinct right answers among k samples; 95 % intervals over problems."
            out.append({"of": "stores", "name": task, "about": about, "lines": lines})
    for number, one in enumerate(judged, 1):
        if one.distinct is None:
            continue
        a, b = one.distinct.names
        lines = {name: _over_k({k: both[i] for k, both in one.distinct.curves.items()}) for name, i in ((b, 1), (a, 0))}
        first, *rest = distinct_lines(one.a, one.b, one.distinct)
        about = "; ".join([f"{first[:1].upper()}{first[1:]}", *rest])
        out.append({"of": "rows", "name": f"rows-{number}", "about": f"{about}. {EACH_K}", "lines": lines})
    return out


def _over_k(intervals: Mapping[int, Interval]) -> dict[int, Tree]:
    return {k: asdict(interval) for k, interval in intervals.items()}


# ------------------------------------------------------------------------------------------------------------------
# perplexity under the base


def perplexity(samples: Sequence[SampleSet]) -> list[Tree]:
    """Tails and quantiles of the perplexity of samples under the base, for each task and base; training seeds are pooled."""
    scored = [s for s in samples if s.perplexities is not None and s.scored]
    out = []
    for (task, base), apart in grouped(scored, lambda s: (s.task, s.scored)).items():
        sets = [_pooled(of_arm) for of_arm in by_arm(apart).values()]
        name = "the base" if base in ("embedded", "base") else base
        tails = {s.arm: _tail(s) for s in sets}
        out.append({"task": task, "base": name, "tails": tails, "quantiles": [row for s in sets for row in _quantiles(s)]})
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


def _tail(s: SampleSet) -> tuple[list[float], list[float]]:
    """Perplexities in order, and the share of samples above each; of many samples `MOST_POINTS`, evenly in the logarithm of the
    share."""
    values = np.sort(np.asarray(s.perplexities, dtype=float))
    values = values[np.isfinite(values)]
    n = len(values)
    kept = np.arange(n) if n <= MOST_POINTS else np.unique(n - np.geomspace(n, 1, MOST_POINTS).round().astype(int))
    return values[kept].tolist(), (1 - kept / n).tolist()


def _quantiles(s: SampleSet) -> list[Tree]:
    """The number and the quantiles of all and of the right samples, {} without a sample."""
    everything = np.ones(len(s.owners), dtype=bool)
    rows: list[Tree] = []
    for name, kept in (("all", everything), ("right", np.asarray(s.is_right))):
        row: Tree = {"name": f"{s.name}, {name}", "samples": int(kept.sum()), "quantiles": {}, "caution": ""}
        if kept.any():
            owners = [owner for owner, keep in zip(s.owners, kept.tolist(), strict=True) if keep]
            tails = perplexity_tails(np.asarray(s.perplexities)[kept], owners, quantiles=TAIL_QUANTILES, resamples=1000)
            row["quantiles"] = {q: asdict(tails.quantiles[q]) for q in TAIL_QUANTILES}
            row |= {"samples": tails.samples, "caution": tails.caution or ""}
        rows.append(row)
    return rows
