"""A result in words and numbers: the sentences, the table's intervals and the curves that page and terminal share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation import (
    AtEqualPass1,
    Comparison,
    CurveComparison,
    FrontierPoint,
    Interval,
    at_equal_pass1,
    best_pass1,
    column_intervals,
    curve,
    frontier,
    mean_interval,
    paired,
    paired_curve,
    paired_seeds,
    seed_interval,
    sentence,
    signed,
)
from sage_rlvr.report.result import Arm, Result, as_result

Floats = NDArray[np.float64]

ONE_SEED = (
    "Each arm was trained once, with one training seed: every sentence here is about these checkpoints, on problems "
    "like these. Another seed could reorder the arms, so whether one method beats another cannot be told from this "
    "page; that takes several training seeds of each."
)
MANY = (
    "p values and intervals are not adjusted for the number of sentences: "
    "of twenty true ties one may look like a difference."
)
TABLE_KS = (1, 8, 64, 256)
_CONTROLS = (("grpo", "nokl"), ("sagebranch", "grpo"), ("sagebranch", "placebo"), ("sagetoken", "grpo"))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """pass@k of one arm over ks with pointwise intervals over problems."""

    name: str
    ks: tuple[int, ...]
    points: tuple[Interval, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the results table; `passes` maps k -> interval, `best` is the temperature of best pass@1."""

    name: str
    passes: dict[int, Interval]
    distinct: Interval | None
    support: Any
    best: FrontierPoint
    temperatures: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One paired comparison of two arms at one k, with its sentence."""

    a: str
    b: str
    k: int
    comparison: Comparison
    sentence: str


@dataclass(frozen=True, kw_only=True)
class AgainstFrontier:
    """One trained arm against the base sampled at every temperature that was tried."""

    name: str
    best_base: FrontierPoint
    pass1: Comparison
    equal: AtEqualPass1
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Everything the page, the table and the terminal say about a result; numbers and words, no markup."""

    result: Result
    sentences: tuple[str, ...]
    caveats: tuple[str, ...]
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    verdicts: tuple[Verdict, ...]
    against_frontier: tuple[AgainstFrontier, ...]
    frontiers: dict[str, tuple[FrontierPoint, ...]]
    differences: dict[str, CurveComparison]


def summarise(result: Result | Mapping[str, Any]) -> Summary:
    """Sentences, table rows, curves with intervals, frontiers and difference curves of a result.

    All arms are paired by problem. Order of the sentences: trained arm vs base at pass@1 and pass@k, the controls
    against each other, each trained arm against the base's temperature frontier.
    """
    result = as_result(result)
    base = result.arm(result.base)
    trained = [arm for arm in result.arms if arm.trained and arm.name != base.name]
    curves = {arm.name: curve(arm.p, result.ks) for arm in result.arms}
    pairs = [(arm.name, base.name) for arm in trained] + list(control_pairs(result))
    verdicts = tuple(_verdict(result, curves, a, b, k) for a, b in pairs for k in (1, result.k))
    frontiers = {arm.name: frontier(arm.ps, result.k) for arm in result.arms}
    against = tuple(_against_frontier(result, arm, base) for arm in trained)
    return Summary(
        result=result,
        sentences=tuple(v.sentence for v in verdicts) + tuple(a.sentence for a in against),
        caveats=(ONE_SEED, MANY, *result.notes),
        rows=tuple(_row(result, arm, curves[arm.name], frontiers[arm.name]) for arm in result.arms),
        curves=tuple(
            Curve(name=name, ks=result.ks, points=tuple(column_intervals(values))) for name, values in curves.items()
        ),
        verdicts=verdicts,
        against_frontier=against,
        frontiers=frontiers,
        differences={f"{a} − {b}": paired_curve(curves[a], curves[b], result.ks) for a, b in pairs},
    )


def control_pairs(result: Result) -> tuple[tuple[str, str], ...]:
    """The pairs of trained arms to put in words: those the result names, else the usual controls that are there."""
    if result.pairs is not None:
        return result.pairs
    by_key = {key_of(arm.name): arm.name for arm in result.arms if arm.trained}
    return tuple((by_key[a], by_key[b]) for a, b in _CONTROLS if a in by_key and b in by_key)


def key_of(name: str) -> str:
    """An arm's name as its colour and its controls know it: "SAGE-Branch" and "sage_branch" -> "sagebranch"."""
    return "".join(c for c in name.lower() if c.isalnum())


def _verdict(result: Result, curves: Mapping[str, Floats], a: str, b: str, k: int) -> Verdict:
    column = result.ks.index(k)
    comparison = paired(curves[a][:, column], curves[b][:, column])
    return Verdict(a=a, b=b, k=k, comparison=comparison, sentence=sentence(comparison, a, b, f"pass@{k}") + ".")


def _row(result: Result, arm: Arm, values: Floats, points: tuple[FrontierPoint, ...]) -> Row:
    shown = [k for k in TABLE_KS if k in result.ks and k <= result.k]
    shown = shown if result.k in shown else [*shown, result.k]
    cells = column_intervals(values[:, [result.ks.index(k) for k in shown]])
    return Row(
        name=arm.name,
        passes=dict(zip(shown, cells, strict=True)),
        distinct=None if arm.distinct is None else mean_interval(arm.distinct),
        support=arm.support,
        best=best_pass1(points),
        temperatures=len(points),
    )


def _against_frontier(result: Result, arm: Arm, base: Arm) -> AgainstFrontier:
    top = best_pass1(frontier(base.ps, result.k))
    pass1 = paired(arm.p, base.ps[top.temperature])
    equal = at_equal_pass1(arm.p, base.ps, k=result.k)
    words = {"better": "exceeds", "worse": "falls below", "tied": "does not exceed"}[pass1.verdict]
    gap = pass1.difference
    text = (
        f"{arm.name} against the base's temperature frontier: its pass@1 {pass1.mean_a:.3f} {words} the best pass@1 of "
        f"the base at any temperature ({top.pass1:.3f} at T = {top.temperature:g}; difference {signed(gap.value)}, "
        f"95 % interval {signed(gap.low)} to {signed(gap.high)} over {gap.n} problems"
    )
    text += f"; could only have seen {pass1.detectable:.3f}); " if pass1.verdict == "tied" else "); "
    return AgainstFrontier(
        name=arm.name, best_base=top, pass1=pass1, equal=equal, sentence=text + _equal_text(result, arm, top, equal)
    )


def _equal_text(result: Result, arm: Arm, top: FrontierPoint, equal: AtEqualPass1) -> str:
    own = float(curve(arm.p, [result.k]).mean())
    if equal.base_passk is None or equal.temperature is None:
        there = f"; at that temperature the base has pass@{result.k} {top.passk:.3f} against its {own:.3f}"
        end = there if equal.reason.startswith("beyond") else ""
        return f"at equal pass@1 nothing can be compared: its pass@1 is {equal.reason}{end}."
    text = (
        f"at equal pass@1 the base, sampled at T = {equal.temperature:.2g}, has pass@{result.k} {equal.base_passk:.3f} "
        f"against its {own:.3f} "
    )
    if equal.difference is None:
        return text + f"({equal.reason})."
    d = equal.difference
    place = "above" if d.low > 0 else "below" if d.high < 0 else "on"
    return text + (
        f"({signed(d.value)}, 95 % interval {signed(d.low)} to {signed(d.high)} over {d.n} problems: "
        f"this checkpoint lies {place} the base's frontier)."
    )


@dataclass(frozen=True, kw_only=True)
class SeedSummary:
    """Several training seeds of the same arms: means with Student intervals over seeds, sentences about methods."""

    seeds: int
    passes: dict[str, dict[int, Interval]]
    comparisons: dict[tuple[str, str, int], Comparison]
    sentences: tuple[str, ...]


def summarise_seeds(results: Sequence[Result | Mapping[str, Any]]) -> SeedSummary:
    """Claims about methods: one result a training seed, the same arms on the same problems in each.

    Paired by seed (row s of every arm shares prompts and random streams); Student's t with S - 1 degrees of freedom. Each
    trained arm is also held against the base's best pass@1 at any temperature that was tried.
    """
    checked = [as_result(result) for result in results]
    if not checked:
        raise DataError("no results; pass one result a training seed.")
    first = checked[0]
    names = [arm.name for arm in first.arms]
    for other in checked[1:]:
        if [arm.name for arm in other.arms] != names or other.problems != first.problems or other.k != first.k:
            raise DataError("results differ in arms, problems or k; evaluate every training seed in the same way.")
    scores = {
        (name, k): np.stack([curve(r.arm(name).p, [k])[:, 0] for r in checked]) for name in names for k in (1, first.k)
    }
    trained = [arm.name for arm in first.arms if arm.trained and arm.name != first.base]
    pairs = [(name, first.base) for name in trained] + list(control_pairs(first))
    comparisons = {(a, b, k): paired_seeds(scores[a, k], scores[b, k]) for a, b in pairs for k in (1, first.k)}
    base = first.arm(first.base)
    top = best_pass1(frontier(base.ps, first.k))
    colder = f"{first.base} at its best temperature ({top.pass1:.3f} at T = {top.temperature:g})"
    best = np.stack([np.asarray(base.ps[top.temperature])] * len(checked))
    comparisons |= {(name, colder, 1): paired_seeds(scores[name, 1], best) for name in trained}
    return SeedSummary(
        seeds=len(checked),
        passes={n: {k: seed_interval(scores[n, k].mean(axis=1)) for k in (1, first.k)} for n in names},
        comparisons=comparisons,
        sentences=tuple(sentence(c, a, b, f"pass@{k}") + "." for (a, b, k), c in comparisons.items()),
    )
