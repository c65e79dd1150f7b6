"""Details that `compare` prints for a pair: the curve over k, the probability of improvement, and problems kept, gained and lost.
Scores of sample stores, chance floors and costs of the arms.

Lines of a pair have intervals without correction: they describe a difference and are not tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from sage_rlvr.verdicts.chance import BELOW, UNKNOWN, Chance
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.numbers import EPS
from sage_rlvr.verdicts.pairs import ArmPair, pair_on
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import End, Row, end_of
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.sources import Runs, by_arm
from sage_rlvr.verdicts.stats.curves import CurveComparison, Improvement, probability_of_improvement
from sage_rlvr.verdicts.stats.intervals import Interval, all_one, seed_interval
from sage_rlvr.verdicts.stats.leash import (
    LeashCounts,
    expected_cells,
    leash_at_k,
    leash_discoveries,
    leash_intervals,
    leash_noise_floor,
    leash_sampling_error,
    mcnemar_p,
    rate_intervals,
)
from sage_rlvr.verdicts.stats.paired import DETECTABLE, FEWEST_SEEDS, signed
from sage_rlvr.verdicts.stats.support import exact_cells, success_probability
from sage_rlvr.verdicts.text.words import bracketed, first_of, ks_text, listed, many, over_text, score_text
from sage_rlvr.verdicts.units import units_of

LEGEND = (
    "SRR: preserved / (preserved + shrunk), the share of the control's support that was kept; NDR: expanded / (preserved + "
    "expanded), the share of the arm's support that is new; SDS: the harmonic mean of SRR and NDR; NSCR: (expanded - shrunk) / "
    "(preserved + expanded + shrunk), above 0 if more was gained than lost."
)
WORDS = {"preserved": "preserved", "expanded": "expanded", "shrunk": "shrunk", "outside": "out of support"}


def detail_lines(results: Results, rows: Sequence[Row], *, support: bool = False) -> list[str]:
    """Lines for every compared pair and task: band over k, probability of improvement, support kept and gained; then the cost of
    each arm, and training steps if they differ. support: print all cells and rates of the support with intervals."""
    at_home = [row for row in rows if row.metric.at == "temperature" and not row.metric.matched]
    pairs = dict.fromkeys((row.a, row.b, row.task, row.metric.temperature) for row in at_home)
    k, several, lines = results.k, results.several, list[str]()
    for a, b, task, temperature in pairs:
        if temperature != 1.0 and not task:
            continue
        pair = pair_on(results.design, a, b, "control", results.table.where(task=task))
        lines += pair_lines(pair, temperature, k, several, results.chances.get(task), support=support, fixed=results.fixed)
    lines += [LEGEND] * (support and bool(lines))
    return [*lines, *cost_lines(results.runs), *steps_lines(results.runs)]


def pair_lines(
    pair: ArmPair, temperature: float, k: int, several: bool, floor: Chance | None, *, support: bool = False, fixed: bool = False
) -> Iterator[str]:
    """The lines for one pair on one task; no lines without scores of both arms. floor: the chance floor of the task; fixed:
    whether claims are about methods on these problems."""
    if (both := pair.sides(temperature)) is None:
        return
    a, b = both
    on = f"{a.task}: " if a.task else ""
    held = f"; the samples of {b.arm} are held fixed" if fixed and b.n and len(b.values) == 1 < len(a.values) else ""
    curve = units_of(a, b, fixed=fixed, several=several).curve(k)
    if curve is not None:
        yield on + curve_words(curve, a.arm, b.arm, floor) + "."
    chance = improvement(a, b, several, fixed)
    if chance is not None:
        what = "a problem's pass@1" + ("" if a.n else " (the same at every k)")
        yield on + chance_words(chance, a.arm, b.arm, what) + held + "."
    if not support:
        yield f"{on}{_kept_in_words(pair, a, b, k)}."
    elif a.n is not None:
        yield from _kept_of_counts(a, b, min(k, a.n))
    else:
        yield from _kept_exactly(pair, len(b.problems), k)


def improvement(a: ProblemScores, b: ProblemScores, several: bool, fixed: bool = False) -> Improvement | None:
    """The probability that a run of a scores higher than a run of b on a problem; None for two training seeds and for clusters."""
    if a.cluster:
        return None
    if not several:
        return probability_of_improvement(a.values[0], b.values[0])
    left, right = np.broadcast_arrays(a.values, b.values)
    return probability_of_improvement(left, right, over="training seeds", fixed=fixed) if len(left) >= FEWEST_SEEDS else None


def curve_words(curve: CurveComparison, a: str, b: str, chance: Chance | None = None) -> str:
    """Ranges of k with one outcome, each with its largest difference and the chance floor."""
    by_outcome = groupby(range(len(curve.ks)), key=curve.outcomes.__getitem__)
    ranges = "; ".join(_range_of_k(curve, list(places), chance) for _, places in by_outcome)
    return (
        f"{a} vs {b} over k: {ranges}; the {100 * curve.level:g} % band holds at all {many(len(curve.ks), 'value')} of k at once "
        f"(and is wider than an interval at one k), over {over_text(curve.n, curve.over)}"
    )


def _range_of_k(c: CurveComparison, places: Sequence[int], chance: Chance | None) -> str:
    """Neighboring k with one outcome; places: their indices."""
    top = max(places, key=lambda i: abs(c.difference[i]))
    k, outcome = c.ks[top], c.outcomes[top]
    end = end_of(outcome, detected=all(max(abs(c.low[i]), abs(c.high[i])) <= DETECTABLE for i in places))
    at = f"{end} at {ks_text(c.ks, [(c.ks[places[0]], c.ks[places[-1]])])}"
    if outcome == "unknown":
        return at
    floor = "" if chance is None or k == 1 else f", chance {chance.at(k):.3f}"
    return f"{at} (largest difference {signed(float(c.difference[top]))} at k = {k}{floor})"


def chance_words(probability: Improvement, a: str, b: str, what: str) -> str:
    """P(a > b) with its interval."""
    i, over = probability.interval, over_text(probability.interval.n, probability.interval.over)
    value = f"P({a} > {b}), {what}: {i.value:.3f}"
    if probability.outcome == "unknown":
        return f"{value} ({End.CANNOT}: {over} {'is' if i.n == 1 else 'are'} too few)"
    half = {"better": "above 1/2", "worse": "below 1/2", "tied": "interval includes 1/2"}[probability.outcome]
    return f"{value} ({100 * i.level:g} % interval {i.low:.3f} to {i.high:.3f} over {over}: {half})"


# ------------------------------------------------------------------------------------------------------------------
# kept, gained and lost ("The Invisible Leash")


def _kept_in_words(pair: ArmPair, a: ProblemScores, b: ProblemScores, k: int) -> str:
    """Support kept, gained and lost in one sentence, means over training seeds."""
    if a.n is None:
        rows = [LeashCounts(*exact_cells(old, new, EPS)[0].sum(axis=0).tolist()) for new, old in _logps(pair)]
        what = f"right completions of {b.arm} above 1/{1 / EPS:.0f}"
    else:
        left, right = np.broadcast_arrays(a.values.astype(int), b.values.astype(int))
        k = min(k, a.n)
        sizes = zip(*np.broadcast_arrays(a.samples, b.samples), strict=True)
        rows = [leash_at_k(m, old, n, new, k) for new, old, (n, m) in zip(left, right, sizes, strict=True)]
        what = f"problems of {b.arm} solved in {k} samples"
    kept, gained, lost = (float(np.mean([getattr(row, name) for row in rows])) for name in ("preserved", "expanded", "shrunk"))
    means = " (means over training seeds)" if len(a.values) > 1 else ""
    return (
        f"{a.arm} keeps {_rounded(kept)} of the {_rounded(kept + lost)} {what}, gains {_rounded(gained)} and loses "
        f"{_rounded(lost)}{means}; rates and intervals: --support"
    )


def _rounded(x: float) -> str:
    return f"{x:,.0f}" if x == round(x) or x >= 100 else f"{x:,.3g}"


def _logps(pair: ArmPair) -> list[tuple[Any, Any]]:
    """Log-probs of the right completions under a and b, of each training seed."""
    return [(one.logps, two.logps) for one, two in pair.runs]


def _kept_exactly(pair: ArmPair, problems: int, k: int) -> Iterator[str]:
    """Definition 4.1 over completions and over problems, and the problems expected to be solved in k samples."""
    cells = [
        (*exact_cells(old, new, EPS), expected_cells(success_probability(old), success_probability(new), k))
        for new, old in _logps(pair)
    ]
    what = (
        f"right completions with probability above 1/{1 / EPS:.0f} (Definition 4.1)",
        f"problems with at least one of them, of {problems}",
        f"problems expected to be solved in {k} samples",
    )
    for label, *tables in zip(what, *cells, strict=True):
        head = f"{pair.a} against {pair.b}, exact, {label}"
        rows = [LeashCounts(*table.sum(axis=0).tolist()) for table in tables]
        if len(rows) > 1:
            yield from _over_seeds(rows, f"{head}, held fixed")
            continue
        rates = rate_intervals(tables[0])
        numbers = ", ".join(f"{word} {_count(getattr(rows[0], name))}" for name, word in WORDS.items())
        yield f"{head}: {numbers}; {_rates(rates, problems, 'none in either')}."


def _kept_of_counts(a: ProblemScores, b: ProblemScores, k: int) -> Iterator[str]:
    """The same at k samples, with the counts that chance would produce."""
    n, head = a.n, f"{a.task}: problems of {b.arm} that {a.arm} still solves at {k} samples"
    left, right = np.broadcast_arrays(a.values.astype(int), b.values.astype(int))
    if len(left) > 1:
        both = f" and {b.arm}'s samples" if len(b.values) == 1 else ""
        sizes = zip(*np.broadcast_arrays(a.samples, b.samples), strict=True)
        rows = [leash_at_k(old_n, old, new_n, new, k) for new, old, (new_n, old_n) in zip(left, right, sizes, strict=True)]
        yield from _over_seeds(rows, f"{head}, these {len(b.problems)} problems{both} held fixed")
        return
    counts = (b.samples[0], right[0], a.samples[0], left[0])
    seen, floor = leash_at_k(*counts, k), leash_noise_floor(*counts, k)
    error: Mapping[str, float] = leash_sampling_error(*counts, k) if 2 * k <= (n or 0) else {}
    errors = {name: f"sampling error {x:.2g}" for name, x in error.items()}
    cells = ", ".join(f"{name} {getattr(seen, name):.4g}{bracketed(errors.get(name, ''))}" for name in WORDS)
    chance = f"{floor.expanded:.1f}" if floor.expanded >= 0.1 else f"{floor.expanded:.1g}"
    p = mcnemar_p(round(seen.expanded), round(seen.shrunk)) if k == n else math.nan
    whole = f"; expanded against shrunk, McNemar's p = {p:.2g}" if k == n else ""
    yield (
        f"{head}: {cells}; two runs of the same policy would show {chance} problems expanded and as many shrunk by chance{whole}."
    )
    none = "neither solves a problem, so no rate is defined"
    yield f"{a.task}: {_rates(leash_intervals(*counts, k), len(b.problems), none)}."
    discoveries, apart = leash_discoveries(*counts), []
    for word, hits in (("new", discoveries.new), ("lost", discoveries.lost)):
        names = [name for name, hit in zip(a.problems, hits.tolist(), strict=True) if hit]
        apart.append(f"{len(names)} {word}{bracketed(first_of(names, 5))}")
    yield (
        f"{a.task}: problems that only one of the two solves, significantly (two-sided, family-wise error at most 5 %, all {n} "
        f"samples): {', '.join(apart)}."
    )


def _rates(rates: Mapping[str, Interval], problems: int, none: str) -> str:
    text = ", ".join(f"{name} {score_text(i)}" for name, i in rates.items())
    return f"{text}, 95 % intervals over {many(problems, 'problem')}" if rates else none


def _over_seeds(rows: Sequence[LeashCounts], head: str) -> Iterator[str]:
    """P, E, S, O and the rates: means with Student's intervals over at least three training seeds."""
    if len(rows) < FEWEST_SEEDS:
        return
    cells = [(word, [getattr(row, name) for row in rows], 0.0, math.inf) for name, word in WORDS.items()]
    cells += [(name, [row.rates[name] for row in rows], -1.0 if name == "NSCR" else 0.0, 1.0) for name in rows[0].rates]
    parts = []
    for label, values, least, most in cells:
        i, form = seed_interval(values), ",.1f" if most > 1 else ".3f"
        ends = f"[{max(i.low, least):{form}}, {min(i.high, most):{form}}]" if not all_one(values) else "(in each)"
        parts.append(f"{label} {i.value:{form}} {ends}")
    yield f"{head}: {', '.join(parts)}; Student's 95 % intervals over {len(rows)} training seeds."


def _count(x: float) -> str:
    return f"{x:,.0f}" if x == round(x) else f"{x:,.2f}"


def cost_lines(runs: Runs) -> list[str]:
    """One line with the sampled tokens and optimizer steps of each arm, means over training seeds; [] for fewer than two arms."""
    costs = []
    for arm, mine in by_arm(runs).items():
        tokens = [n for run in mine.values() if (n := run.total("rollout/tokens")) is not None]
        steps = [n for run in mine.values() if (n := run.optimizer_steps)]
        if tokens and steps:
            costs.append(f"{arm}: {np.mean(tokens) / 1e6:,.3f} M sampled tokens, {np.mean(steps):,.0f} optimizer steps")
    return [f"Cost per run: {'; '.join(costs)}."] if len(costs) > 1 else []


def steps_lines(runs: Runs) -> list[str]:
    """One line if the arms were trained for different numbers of steps; else, or if unknown, []."""
    steps_by_arm: dict[str, str] = {}
    for arm, mine in by_arm(runs).items():
        if steps := sorted({run.steps for run in mine.values() if run.steps}):
            steps_by_arm[arm] = " and ".join(f"{n:,}" for n in steps)
    if len(set(steps_by_arm.values())) < 2:
        return []
    arms = "; ".join(f"{name}: {text}" for name, text in steps_by_arm.items())
    return [f"Training steps differ ({arms}): a difference between these arms may come from the number of steps."]


# ------------------------------------------------------------------------------------------------------------------
# scores of sample stores, with chance floors


def score_lines(results: Results) -> list[str]:
    """pass@1 and pass@k of each arm without exact records on each task of stores, with chance."""
    lines, exact = [], results.table.exact().where(task="").by_arm()
    policies = results.table.sampled().policies()
    for arm, task, temperature in policies:
        measured = policies[arm, task, temperature].scores()
        if measured is not None and measured.n is not None and arm not in exact:
            ks = dict.fromkeys((1, min(results.k, measured.n)))
            chance = results.chances.get(task)
            cells = [f"pass@{k} {measured.interval(k)}{chance_mark(measured, k, chance)}" for k in ks]
            law = f" at T = {temperature:g}" if sum((arm, task) == other[:2] for other in policies) > 1 else ""
            lines.append(f"{arm}, {task}{law}: {'; '.join(cells)}")
    return lines


def chance_mark(measured: ProblemScores, k: int, chance: Chance | None) -> str:
    """The chance floor for a pass@k, and whether the policy is below it."""
    if chance is None:
        return ""
    floor = f", chance {chance.at(k):.3f}"
    return f"{floor}, {BELOW}" if measured.below(k, chance) else floor


def chance_lines(results: Results) -> list[str]:
    """One line per kind of chance floor, and one for tasks without a known floor."""

    def text_of(task: str) -> str:
        chance = results.chances.get(task)
        return UNKNOWN if chance is None else f"{chance.words}; {BELOW}: a lower pass@k than that"

    by_text = grouped(results.tasks, text_of)
    return [f"Chance{bracketed(listed(*tasks))}: {text}." for text, tasks in by_text.items()]
