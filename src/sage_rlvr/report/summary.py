"""A result in words and numbers: the sentences, the table's intervals and the curves that page and terminal share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.report.result import Arm, Result, as_result, plain
from sage_rlvr.stats.comparison import (
    FEWEST_SEEDS,
    Comparison,
    adjust,
    minimum_detectable,
    paired,
    paired_seeds,
    sentence,
    signed,
)
from sage_rlvr.stats.curves import CurveComparison, paired_curve, seed_ks, seeds_curve
from sage_rlvr.stats.frontier import (
    NEAR,
    NOT_NEAR,
    AtEqualPass1,
    FrontierPoint,
    at_equal_pass1,
    best_pass1,
    compare_frontiers,
    frontier,
    frontier_sentence,
    gap_near,
    gap_to_frontier,
    variety,
)
from sage_rlvr.stats.intervals import Interval, mean_interval, seed_interval, share_intervals
from sage_rlvr.stats.passk import curve

Floats = NDArray[np.float64]

SIBLING = (
    "This page is one of {siblings} training seeds: every sentence here is about the checkpoints of this seed, on problems "
    "like these. What the seeds say together, about the methods, stands on the page one folder up."
)
ONE_SEED = (
    "Each arm was trained once, with one training seed: every sentence here is about these checkpoints, on problems "
    "like these. Another seed could reorder the arms, so whether one method beats another cannot be told from this "
    "page; that takes several training seeds of each."
)
MANY = (
    "p values and intervals are not adjusted for the number of sentences: "
    "of twenty true ties one may look like a difference."
)
CHOSEN_HERE = (
    "The best temperature of each policy, trained or not, was chosen on these same problems, which flatters each a "
    "little."
)
HELD_FIXED = (
    "Intervals over training seeds hold these {problems} problems fixed: they say what another training run of the same "
    "methods would give on these problems, not what other problems would."
)
HOLM = (
    "Holm's p is corrected for the {family} comparisons listed here. A difference that stands only without it is called "
    'better or worse "taken alone"; intervals and minimum detectable differences are those of each comparison taken alone.'
)
FEW_SEEDS = "{seeds} training seeds: nothing is said about the methods with fewer than three; train at least one more."
TABLE_KS = (1, 8, 64, 256)
# What differs in one part: a KL or none, a guide or none, one KL against another
_CONTROLS = (
    ("grpo", "nokl"), ("sagebranch", "grpo"), ("sagebranch", "placebo"), ("sagetoken", "grpo"), ("sagerandom", "grpo"),
    ("branchstrong", "grpo"), ("branchstrong", "placebostrong"), ("forwardkl", "grpo"), ("forwardklbranch", "forwardkl"),
    ("grpotokenmean", "grpo"),
    ("rloobranch", "rloo"), ("bnpokl", "bnpo"), ("bnpobranch", "bnpokl"), ("dapokl", "dapo"), ("dapobranch", "dapokl"),
    ("dapooverlong", "dapo"),
)  # fmt: skip


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
    """One trained arm against the base sampled at every temperature that was tried.

    pass1: the arm at its home temperature against the base at its best; best: both at their best temperatures (None where
    the arm or the base has one temperature alone); equal: pass@k at equal pass@1. A base with one temperature has no
    frontier: the sentence then says so and gives no verdict.
    """

    name: str
    best_base: FrontierPoint
    pass1: Comparison
    equal: AtEqualPass1
    best: Comparison | None
    sentence: str


@dataclass(frozen=True, kw_only=True)
class FrontierVerdict:
    """Two arms at all their temperatures: `metric` of a minus b at equal pass@1. `difference` is None where there is none;
    family: over how many frontier comparisons Holm's correction went, 1 where it was not made."""

    a: str
    b: str
    metric: str
    verdict: str
    sentence: str
    difference: Interval | None = None
    detectable: float = math.inf
    detectable_high: float = math.inf
    family: int = 1

    @property
    def home(self) -> bool:
        """Not the mean over all of pass@1 that both cover, but near temperature 1 (`gap_near`)."""
        return self.metric.endswith(NEAR)


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
        caveats=_caveats(result),
        rows=tuple(_row(result, arm, curves[arm.name], frontiers[arm.name]) for arm in result.arms),
        curves=tuple(
            Curve(name=name, ks=result.ks, points=tuple(share_intervals(values))) for name, values in curves.items()
        ),
        verdicts=verdicts,
        against_frontier=against,
        frontiers=frontiers,
        differences={f"{a} − {b}": paired_curve(curves[a], curves[b], result.ks) for a, b in pairs},
    )


def _caveats(result: Result) -> tuple[str, ...]:
    first = SIBLING.format(siblings=result.siblings) if result.siblings > 1 else ONE_SEED
    chosen = (CHOSEN_HERE,) if any(len(arm.ps) > 1 for arm in result.arms) else ()
    return (first, MANY, *chosen, *result.notes)


def control_pairs(result: Result) -> tuple[tuple[str, str], ...]:
    """The pairs of trained arms to put in words: those the result names, else the usual controls that are there."""
    if result.pairs is not None:
        return result.pairs
    by_key = {key_of(arm.name): arm.name for arm in result.arms if arm.trained}
    own = tuple((key, f"{key}placebo") for key in by_key)  # "SAGE-Token placebo" is that of SAGE-Token
    return tuple((by_key[a], by_key[b]) for a, b in (*_CONTROLS, *own) if a in by_key and b in by_key)


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
    cells = share_intervals(values[:, [result.ks.index(k) for k in shown]])
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
    who = "the base" if base.name == "base" else base.name
    equal = at_equal_pass1(arm.p, base.ps, k=result.k, whose=who)
    head, best = f"{arm.name} against {who}'s temperature frontier: ", None
    if len(base.ps) == 1:
        text = head + _no_frontier(base.name, who, top.temperature)
        return AgainstFrontier(name=arm.name, best_base=top, pass1=pass1, equal=equal, best=None, sentence=text)
    text = head + (
        f"its pass@1 {pass1.mean_a:.3f} {_over(pass1)} the best pass@1 of {who} at any of the {len(base.ps)} temperatures "
        f"tried ({top.pass1:.3f} at T = {top.temperature:g}; {_inside(pass1)}); "
    )
    if len(arm.ps) > 1:
        own = best_pass1(frontier(arm.ps, result.k))
        best = paired(arm.ps[own.temperature], base.ps[top.temperature])
        text += f"its own best, {own.pass1:.3f} at T = {own.temperature:g}, {_over(best)} it ({_inside(best)}); "
    text += _equal_text(result, arm, top, equal, who)
    return AgainstFrontier(name=arm.name, best_base=top, pass1=pass1, equal=equal, best=best, sentence=text)


def _no_frontier(name: str, who: str, temperature: float) -> str:
    """What is said where the control was read at one temperature alone: no verdict, and what would give one."""
    what = "BASE" if name == "base" else name
    return (
        f"{who} was read at T = {temperature:g} only, so there is no frontier to compare with: "
        f"{suggest('eval', what, '--frontier')} ({what}: its run or model)."
    )


def _over(comparison: Comparison) -> str:
    return {"better": "exceeds", "worse": "falls below"}.get(comparison.verdict, "cannot be told from")


def _inside(comparison: Comparison) -> str:
    """Difference, interval and, where nothing was found, what could have been."""
    gap = comparison.difference
    if not comparison.told or not np.isfinite(gap.width):
        return f"difference {signed(gap.value)}; {gap.n} {gap.over} are too few"
    text = (
        f"difference {signed(gap.value)}, 95 % interval {signed(gap.low)} to {signed(gap.high)} over {gap.n} {gap.over}"
    )
    return text + (
        f"; {minimum_detectable(comparison.detectable, comparison.detectable_high)}"
        if comparison.verdict == "tied"
        else ""
    )


def _equal_text(result: Result, arm: Arm, top: FrontierPoint, equal: AtEqualPass1, who: str) -> str:
    own = float(curve(arm.p, [result.k]).mean())
    if equal.base_passk is None or equal.temperature is None:
        there = f"; at that temperature {who} has pass@{result.k} {top.passk:.3f} against its {own:.3f}"
        end = there if equal.reason.startswith("beyond") else ""
        return f"at equal pass@1 nothing can be compared: its pass@1 at T = {arm.temperature:g} is {equal.reason}{end}."
    text = (
        f"at equal pass@1 {who}, sampled at T = {equal.temperature:.2g}, has pass@{result.k} {equal.base_passk:.3f} "
        f"against its {own:.3f} "
    )
    if equal.difference is None:
        return text + f"({equal.reason})."
    d = equal.difference
    numbers = f"difference {signed(d.value)}, 95 % interval {signed(d.low)} to {signed(d.high)} over {d.n} problems"
    if max(abs(d.low), abs(d.high)) < 1e-9:
        return text + "and does the same there on every problem."
    if d.contains(0.0):
        hidden = minimum_detectable(equal.detectable, equal.detectable_high)
        return text + f"and cannot be told from {who}'s frontier at equal pass@1 ({numbers}; {hidden})."
    return text + f"and lies {'above' if d.low > 0 else 'below'} {who}'s frontier at equal pass@1 ({numbers})."


@dataclass(frozen=True, kw_only=True)
class SeedSummary:
    """Several training seeds of the same arms: means with Student intervals over seeds, sentences about methods.

    results: one a seed; labels: their names ("0", "1", ...). scores: arm -> mean over problems of pass@k, (S, K) over
    `ks`; passes: arm -> k -> interval over seeds; frontiers: arm -> one frontier a seed; fixed: arms that are one and the
    same policy in every seed (the base), for which an interval over seeds means nothing.
    """

    results: tuple[Result, ...]
    labels: tuple[str, ...]
    ks: tuple[int, ...]
    scores: dict[str, Floats]
    passes: dict[str, dict[int, Interval]]
    best: dict[str, Interval]
    distinct: dict[str, Interval]
    frontiers: dict[str, tuple[tuple[FrontierPoint, ...], ...]]
    fixed: frozenset[str]
    comparisons: dict[tuple[str, str, int], Comparison]
    verdicts: tuple[Verdict, ...]
    sentences: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def seeds(self) -> int:
        """How many training seeds."""
        return len(self.results)


def summarise_seeds(results: Sequence[Result | Mapping[str, Any]]) -> SeedSummary:
    """Claims about methods: one result a training seed, the same arms on the same problems in each.

    Paired by seed (row s of every arm shares prompts and random streams); Student's t with S - 1 degrees of freedom, the
    problems held fixed; p with Holm's correction over all comparisons. Each trained arm is also held against the base,
    each of the two at the temperature of its best pass@1.
    """
    checked = _alike(results)
    first, k = checked[0], checked[0].k
    names = [arm.name for arm in first.arms]
    trained = [arm.name for arm in first.arms if arm.trained and arm.name != first.base]
    curves = {name: np.stack([curve(r.arm(name).p, first.ks) for r in checked]) for name in names}  # (S, N, K)
    column = {1: first.ks.index(1), k: first.ks.index(k)}
    frontiers = {name: tuple(frontier(r.arm(name).ps, k) for r in checked) for name in names}
    tops = {name: [best_pass1(points) for points in frontiers[name]] for name in names}
    best = {n: np.stack([r.arm(n).ps[t.temperature] for r, t in zip(checked, tops[n], strict=True)]) for n in names}
    pairs = [(name, first.base) for name in trained] + list(control_pairs(first))
    found = {
        (a, b, n): paired_seeds(curves[a][:, :, j], curves[b][:, :, j]) for a, b in pairs for n, j in column.items()
    }
    at_best = {name: _at_best(name, tops[name], len(frontiers[name][0])) for name in [first.base, *trained]}
    found |= {(at_best[a], at_best[first.base], 1): paired_seeds(best[a], best[first.base]) for a in trained}
    comparisons = dict(zip(found, adjust(list(found.values())), strict=True))
    verdicts = tuple(
        Verdict(a=a, b=b, k=n, comparison=c, sentence=sentence(c, a, b, f"pass@{n}") + ".")
        for (a, b, n), c in comparisons.items()
    )
    scores = {name: values.mean(axis=1) for name, values in curves.items()}
    counts = {
        n: np.array([np.mean(r.arm(n).distinct) for r in checked])
        for n in names
        if all(r.arm(n).distinct is not None for r in checked)
    }
    return SeedSummary(
        results=tuple(replace(r, siblings=len(checked)) for r in checked),
        labels=_labels(checked),
        ks=first.ks,
        scores=scores,
        passes={n: dict(zip(first.ks, map(seed_interval, scores[n].T), strict=True)) for n in names},
        best={n: seed_interval([top.pass1 for top in tops[n]]) for n in names},
        distinct={n: seed_interval(values) for n, values in counts.items()},
        frontiers=frontiers,
        fixed=frozenset(n for n in names if n not in trained and not np.ptp(curves[n], axis=0).any()),
        comparisons=comparisons,
        verdicts=verdicts,
        sentences=tuple(v.sentence for v in verdicts),
        caveats=_seed_caveats(checked, verdicts),
    )


def corrected(summary: Summary) -> tuple[Verdict, ...]:
    """The verdicts of one training seed with Holm's correction over all of them, sentences included."""
    found = adjust([v.comparison for v in summary.verdicts])
    return tuple(
        replace(v, comparison=c, sentence=sentence(c, v.a, v.b, f"pass@{v.k}") + ".")
        for v, c in zip(summary.verdicts, found, strict=True)
    )


def seed_differences(summary: SeedSummary) -> dict[str, CurveComparison]:
    """Mean difference in pass@k over training seeds of each pair, with a band that holds at all of few k at once."""
    first, ks = summary.results[0], seed_ks(summary.results[0].k)
    names = [arm.name for arm in first.arms]
    curves = {name: np.stack([curve(r.arm(name).p, list(ks)) for r in summary.results]) for name in names}
    trained = [arm.name for arm in first.arms if arm.trained and arm.name != first.base]
    pairs = [(name, first.base) for name in trained] + list(control_pairs(first))
    return {f"{a} − {b}": seeds_curve(curves[a], curves[b], ks) for a, b in pairs}


def frontier_verdicts(
    results: Sequence[Result], pairs: Sequence[tuple[str, str]], k: int
) -> tuple[FrontierVerdict, ...]:
    """Each pair whose arms were evaluated at several temperatures: their whole frontiers, pass@k at equal pass@1. One seed:
    bootstrap over problems. Several: paired by seed; near temperature 1 too, there also distinct right completions where every
    arm has its varieties; with Holm's correction over all of these."""
    wide = {arm.name for arm in results[0].arms if all(len(r.arm(arm.name).ps) > 1 for r in results)}
    chosen = [pair for pair in pairs if set(pair) <= wide]
    if len(results) == 1:
        return tuple(_one_frontier(results[0], a, b, k) for a, b in chosen)
    told, out = {}, {}
    varied = all(arm.varieties for r in results for arm in r.arms if arm.name in wide)
    near = [f"pass@{k}{NEAR}", *[f"distinct in {k}{NEAR}"] * varied]
    wanted = [(a, b, f"pass@{k}") for a, b in chosen]
    wanted += [(a, b, metric) for a, b in chosen if b != results[0].base for metric in near]
    for a, b, metric in wanted:
        gaps = [_gap(r.arm(a), r.arm(b), metric, k) for r in results]
        known = [gap for gap in gaps if gap is not None]
        if len(known) == len(gaps):
            told[a, b, metric] = paired_seeds(known, np.zeros(len(known)))
        else:
            lacking = NOT_NEAR if metric in near else "no common range of pass@1"
            why = f"{lacking} in {len(gaps) - len(known)} of {len(gaps)} training seeds"
            text = f"{a} vs {b}, {metric}, temperature frontiers: {why}."
            out[a, b, metric] = FrontierVerdict(
                a=a, b=b, metric=metric, verdict=f"cannot be told ({why})", sentence=text
            )
    for (a, b, metric), c in zip(told, adjust(list(told.values())), strict=True):
        words = metric if metric in near else f"mean gap in {metric} at equal pass@1, temperature frontiers"
        out[a, b, metric] = FrontierVerdict(
            a=a, b=b, metric=metric, verdict=c.verdict, sentence=sentence(c, a, b, words) + ".", difference=c.difference,
            detectable=c.detectable, detectable_high=c.detectable_high, family=c.family,
        )  # fmt: skip
    return tuple(out[one] for one in wanted)


def _gap(a: Arm, b: Arm, metric: str, k: int) -> float | None:
    """`metric` of a minus b in one training seed; None where it cannot be read."""
    points = [frontier(arm.ps, k) for arm in (a, b)]
    if metric.startswith("distinct"):
        points = [variety(line, arm.varieties or {}) for arm, line in zip((a, b), points, strict=True)]
    return gap_near(*points) if metric.endswith(NEAR) else gap_to_frontier(*points).value


def _one_frontier(result: Result, a: str, b: str, k: int) -> FrontierVerdict:
    gap = compare_frontiers(result.arm(a).ps, result.arm(b).ps, k=k)
    text = frontier_sentence(gap, a, b, k) + "."
    return FrontierVerdict(
        a=a, b=b, metric=f"pass@{k}", verdict=gap.verdict, sentence=text, difference=gap.difference, detectable=gap.detectable,
        detectable_high=gap.detectable_high,
    )  # fmt: skip


def _alike(results: Sequence[Result | Mapping[str, Any]]) -> list[Result]:
    checked = [as_result(result) for result in results]
    if not checked:
        raise DataError("no results; pass one result a training seed.")
    first = checked[0]
    for other in checked[1:]:
        same = [arm.name for arm in other.arms] == [arm.name for arm in first.arms]
        if not same or (other.problems, other.k, other.ks) != (first.problems, first.k, first.ks):
            raise DataError("results differ in arms, problems or k; evaluate every training seed in the same way.")
    return checked


def _at_best(name: str, tops: Sequence[FrontierPoint], tried: int) -> str:
    if tried == 1:
        return name
    if len({(top.pass1, top.temperature) for top in tops}) == 1:  # one policy, such as the base
        return f"{name} at its best temperature ({tops[0].pass1:.3f} at T = {tops[0].temperature:g})"
    return f"{name} at its best temperature"


def _labels(results: Sequence[Result]) -> tuple[str, ...]:
    own = [str(r.seed) for r in results]
    return tuple(own) if len(set(own)) == len(own) else tuple(str(i + 1) for i in range(len(results)))


def _seed_caveats(results: Sequence[Result], verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    out = [FEW_SEEDS.format(seeds=len(results))] if len(results) < FEWEST_SEEDS else []
    out.append(HELD_FIXED.format(problems=results[0].problems))
    out += [HOLM.format(family=verdicts[0].comparison.family)] if verdicts and len(results) >= FEWEST_SEEDS else []
    return (*out, CHOSEN_HERE, *(f"Training seed {results[0].seed}. {note}" for note in results[0].notes))


def seeds_to_dict(summary: SeedSummary) -> dict[str, Any]:
    """Every number of the page over seeds as JSON-able dict, so that its figures can be drawn again without it."""
    first = summary.results[0]
    arms = {
        name: {
            "pass_at_k": {label: dict(zip(map(str, summary.ks), row, strict=True)) for label, row in rows},
            "mean": {str(k): asdict(interval) for k, interval in summary.passes[name].items()},
            "frontier": {
                label: [asdict(point) for point in points]
                for label, points in zip(summary.labels, summary.frontiers[name], strict=True)
            },
        }
        for name, values in summary.scores.items()
        for rows in [list(zip(summary.labels, values.tolist(), strict=True))]
    }
    comparisons = [{"a": v.a, "b": v.b, "k": v.k, **v.comparison.told_dict()} for v in summary.verdicts]
    return plain(
        {
            "schema": 1, "seeds": summary.labels, "problems": first.problems, "split": first.split, "world": first.world,
            "k": first.k, "ks": summary.ks, "arms": arms, "comparisons": comparisons, "sentences": summary.sentences,
            "caveats": summary.caveats,
        }
    )  # fmt: skip
