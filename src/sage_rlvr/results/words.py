"""Print rows as text, one function per form. No code parses these texts.

sentence(row)   the full comparison                         line(rows)  a group with one second arm and metric
lines(rows)     all groups, rows without a value merged     chip(row)   the cell of a table
answer(rows)    one line that answers the design's questions   nothing(results)  the same for no rows
cautions(rows)  remarks that apply to many rows
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby

from sage_rlvr.errors import suggest
from sage_rlvr.evaluation.record import EMBEDDED
from sage_rlvr.results.comparisons import AT_ANY, COLDER, answering
from sage_rlvr.results.design import BASE
from sage_rlvr.results.metric import FEW, REFERENCE, Metric, known_metrics
from sage_rlvr.results.read import Results
from sage_rlvr.results.row import Row
from sage_rlvr.results.sources import Run
from sage_rlvr.results.verdict import CurveVerdict
from sage_rlvr.results.verdict import paragraphs as of_verdicts
from sage_rlvr.stats.comparison import (
    DETECTABLE,
    FEWEST_SEEDS,
    Comparison,
    Outcome,
    Reason,
    detectable_text,
    p_text,
    signed,
)
from sage_rlvr.stats.passk import powers
from sage_rlvr.tasks.chance import BELOW

REASONS = {
    Reason.ONE_SEED: "one training seed",
    Reason.TWO_SEEDS: "two training seeds",
    Reason.NO_SCATTER: "the same difference in every training seed; check that the runs differ",
    Reason.FEW_PROBLEMS: "too few problems",
    Reason.NO_COMMON_RANGE: "no common range of pass@1",
    Reason.RESAMPLES: "too many resamples have no common range of pass@1",
    Reason.FRONTIER_END: "too close to the end of the other's frontier for an interval",
    Reason.BEYOND: "its pass@1 lies beyond the other's frontier",
    Reason.BELOW: "its pass@1 lies below the other's frontier",
    Reason.NOT_NEAR: "no temperature gives one arm the pass@1 of the other at T = 1",
}
TWO_PROCEDURES = {
    True: "the interval, the wider of the two procedures, includes 0 and decides",
    False: "the interval excludes 0, but p, the stricter of the two procedures, decides",
}
BEFORE = "before correction"


class End(StrEnum):
    """The printed outcome of a comparison: the only words for outcomes in the terminal, in Markdown and on the page."""

    HIGHER = "higher"
    LOWER = "lower"
    HIGHER_BEFORE = f"higher {BEFORE}"
    LOWER_BEFORE = f"lower {BEFORE}"
    NO_DIFFERENCE = "no significant difference"
    CANNOT = "cannot be told"
    IDENTICAL = "identical"


RANK = {end: i for i, end in enumerate(End)}
MEANING = (
    f"No significant difference: the design could have detected a difference of {DETECTABLE:g} with 80 % power (for metrics other "
    f"than pass@k, {DETECTABLE:.0%} of the second arm's mean). Cannot be told: only a larger difference could have been detected."
)
ONE_RUN = "One run of each: about these checkpoints, not about methods. "
ONE_EACH = "one run each"
MOST = 4  # comparisons in the answer
TOO_FEW = (Reason.ONE_SEED, Reason.TWO_SEEDS)
CLAIM = f"A claim about methods needs at least {FEWEST_SEEDS} training seeds per arm; with fewer, only differences are printed."
OPEN_ENDED = (
    "If the upper end of an interval against a mixture equals the arm's score, the gap has no upper bound: the mixtures may end "
    "below the arm's pass@1."
)


def starts(arms: Mapping[str, Sequence[str]]) -> list[str]:
    """Which arm is the starting point of which others, one sentence each."""
    return [
        f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} trained from {start} (the hashes of the weights are equal)."
        for start, names in arms.items()
    ]


def answer(rows: Sequence[Row], results: Results | None = None, judged: Sequence[CurveVerdict] = ()) -> str:
    """`paragraphs` as one text."""
    return "\n\n".join(paragraphs(rows, results, judged))


def paragraphs(rows: Sequence[Row], results: Results | None = None, judged: Sequence[CurveVerdict] = ()) -> list[str]:
    """The answer to the questions of the design: at most `MOST` comparisons, significant ones first, and counts of the others.
    Where all questions are about the base, the verdict, and in a second paragraph the numbers.

    results: the source of the rows, for questions without a row; judged: the verdicts of arms that are compared by samples only,
    which then answer. Without primary rows, exploratory rows answer."""
    if not rows:
        return ["Nothing is compared: fewer than two policies were evaluated on the same problems."]
    if results is not None and judged:
        first, *rest = of_verdicts(judged)
        return [f"{first} {sharpened(rows, results)}".strip(), *rest]
    primary = [row for row in rows if row.family == "primary"]
    asked = () if results is None else results.design.questions
    if results is not None and primary and asked and all(q.b in (BASE, COLDER) for q in asked):
        return _widened(primary, results, sharpened(rows, results))
    lost = "" if results is None else _unanswered(rows, results)
    first = f"{lost}{_answered(primary)}" if primary else f"{lost}Exploratory: {_answered(rows)}"
    return [first, *filter(None, [] if results is None else [sharpened(rows, results).strip()])]


def _widened(rows: Sequence[Row], results: Results, beside: str) -> list[str]:
    """The answer of a design that asks only about the base: the finding at pass@k and `beside`; each arm's pass@k and pass@1."""
    lines = []
    for n in (results.k, 1):
        lines += [_beside_base(some) for some in groups(row for row in rows if row.metric == Metric(k=n))]
    once = ONE_RUN if rows[0].comparison.over == "problems" else ""
    found = _shown_at([row for row in rows if row.metric == Metric(k=results.k)])
    return [f"Did RL widen what the base solves? {found}{beside}{once}".strip(), " ".join(lines)]


def sharpened(rows: Sequence[Row], results: Results) -> str:
    """Whether the arms do more than their base sampled at a lower temperature; "" where the base was sampled at one temperature."""
    apart: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.why == "colder":
            apart.setdefault((row.a, row.task), []).append(row)
    told: dict[str, list[str]] = {}
    for some in apart.values():
        verdict, why = _beside_colder(some, results)
        told.setdefault(verdict, []).append(f"{some[0].a} ({why})")
    said = "; ".join(f"{verdict}: {', '.join(arms)}" for verdict, arms in told.items())
    controls = {_tempered_of(some[0]) for some in apart.values()}
    home = "the base" if controls == {BASE} else ", ".join(sorted(controls))
    return f"Does it do more than {home} at a lower temperature? {said[:1].upper()}{said[1:]}. " if said else ""


def _tempered_of(row: Row) -> str:
    """The arm that was sampled at several temperatures in a row against it at any."""
    return row.b.removesuffix(AT_ANY)


def _beside_colder(rows: Sequence[Row], results: Results) -> tuple[str, str]:
    """One arm beside the base at the temperature with the nearest pass@1: the verdict, and its numbers."""
    at, base = nearest_colder(results, rows[0])
    home = "the base" if _tempered_of(rows[0]) == BASE else _tempered_of(rows[0])
    few = [row for row in rows if row.metric.k in (1, FEW, max(base, key=lambda k: k or 0))]
    pairs = ", ".join(f"{row.metric.bare} {row.comparison.mean_a:.3f} and {base[row.metric.k]:.3f}" for row in few)
    for end, word in ((End.HIGHER, "above"), (End.LOWER, "below")):
        # a pass@1 below the best of all temperatures says nothing: the arm has a temperature of its own
        if found := [row for row in rows if outcome(row) == end and (row.metric.k != 1 or end == End.HIGHER)]:
            ks = ", ".join(str(row.metric.k) for row in found)
            return f"{word} the colder {home.removeprefix('the ')} at k = {ks}", f"{pairs} of {home} at T = {at:g}"
    hidden = [row.comparison.mde for row in rows if row.metric.k != 1 and math.isfinite(row.comparison.mde)]
    seen = f"; detectable at k > 1: {max(hidden):.3f}" if hidden else ""
    if at == REFERENCE:
        return f"not told from {home} at the same temperature", f"{pairs}{seen}"
    return "only sharpened, as far as can be told", f"{home} at T = {at:g} does the same: {pairs}{seen}"


def nearest_colder(results: Results, row: Row) -> tuple[float, dict[int | None, float]]:
    """The temperature at which the base has the pass@1 nearest to that of the row's arm, and its pass@k there."""
    home = _tempered_of(row)
    found: dict[float, dict[int | None, float]] = {}
    if results.stored is not None:
        for one in results.stored["sampled"]:
            if (one["policy"], one["task"]) == (home, row.task):
                found[one["temperature"]] = {int(k): float(value["value"]) for k, value in one["pass"].items()}
        own = next(one for one in results.stored["sampled"] if (one["policy"], one["task"]) == (row.a, row.task))
        pass1 = float(own["pass"]["1"]["value"])
    else:
        here = results.table.where(task=row.task)
        colder = here.where(arm=home)
        for t in colder.temperatures:
            if (scores := colder.where(temperature=t).scores()) is not None and scores.n is not None:
                ks = powers(scores.n)
                found[t] = dict(zip(ks, scores.passes(ks)[0].mean(axis=0).tolist(), strict=True))
        pass1 = float(here.only_scores(row.a, row.task).passes([1]).mean())
    nearest = min(found, key=lambda t: abs(found[t][1] - pass1))
    return nearest, found[nearest]


def _shown_at(rows: Sequence[Row]) -> str:
    """Whether the arms are above the base in one metric, as a sentence; "" without rows."""
    if not rows:
        return ""
    higher, lower = ([row for row in rows if outcome(row) == end] for end in (End.HIGHER, End.LOWER))
    metric = rows[0].metric
    if len(higher) == len(rows):
        return f"Yes: {metric} is higher in every arm. "
    if higher:
        return f"In part: {metric} is higher in {', '.join(row.a for row in higher)}. "
    return f"No: {metric} is lower in every arm. " if len(lower) == len(rows) else f"Not shown: {metric} is higher in no arm. "


def _beside_base(rows: Sequence[Row]) -> str:
    """One metric of the base, and of the arms by outcome."""
    first, ends = rows[0], dict[str, list[str]]()
    for row in sorted(rows, key=lambda row: RANK[outcome(row)]):
        below = f"; {BELOW}" if row.below[0] else ""
        ends.setdefault(outcome(row), []).append(f"{row.a} {row.comparison.mean_a:.3f} ({_brief(row)}{below})")
    level = "" if first.chance is None else f" (chance {first.chance:.3f})"
    arms = "; ".join(f"{word}: {', '.join(names)}" for word, names in ends.items())
    return f"{first.metric}{level}: {first.b} {first.comparison.mean_b:.3f}; {arms}."


def _unanswered(rows: Sequence[Row], results: Results) -> str:
    """The questions of the design without a row, with the reason; "" if every question has a row."""
    design, known = results.design, set(map(str, known_metrics(results.k)))
    lost: dict[str, list[str]] = {}
    for q, found in answering(design, rows):
        if not found:
            why = "no such comparison exists" if q.metric in known else f"k is {results.k} here"
            lost.setdefault(why, []).append(f"{design.called(q.a)} against {design.called(q.b)}, {q.metric}")
    told = (f"{'; '.join(some[:MOST])}{f'; {len(some) - MOST} more' * (len(some) > MOST)} ({why})" for why, some in lost.items())
    return f"Questions of the design that cannot be answered: {'; '.join(told)}. " if lost else ""


def _answered(rows: Sequence[Row]) -> str:
    """The answer from rows of one family."""
    if not any(row.comparison.known for row in rows):
        return _no_claim(rows)
    shown = _first(rows)
    rest = [outcome(row) for row in sorted((row for row in rows if row not in shown), key=lambda row: RANK[outcome(row)])]
    ends = ", ".join(f"{rest.count(word)} {word}" for word in dict.fromkeys(rest))
    more = f" {len(rest)} more {rows[0].family} comparison{'s' * (len(rest) > 1)}: {ends}." if rest else ""
    return f"{ONE_RUN if shown[0].comparison.over == 'problems' else ''}{_told(shown)}{more}"


def _no_claim(primary: Sequence[Row]) -> str:
    """The answer without any test: only differences, at the largest k."""
    top = max(row.metric.k or 0 for row in primary)
    first = groups([row for row in primary if (row.metric.k or 0) == top])[0]
    why = ", ".join(dict.fromkeys(REASONS[row.comparison.reason] for row in first))
    if not any(map(_read, first)):
        return f"No claim about methods: {first[0].metric} has no value for {'; '.join(row.a for row in first)} ({why})."
    read = [row for row in first if _read(row)]
    gaps = "; ".join(
        f"{row.a} against {row.b} {signed(row.comparison.difference.value)}{f' ({_who_is_below(row)})' * any(row.below)}"
        for row in read[:MOST]
    )
    more = f"; {len(read) - MOST} more" * (len(read) > MOST)
    level = "" if first[0].chance is None else f" ({_level(first[0])})"
    return f"No claim about methods ({why}); differences in {first[0].metric}{level}: {gaps}{more}."


def _first(primary: Sequence[Row]) -> list[Row]:
    """The rows in the answer: significant after correction, significant before correction, then not significant (at least one
    place); among equals the first second arm and the largest k."""
    rivals = list(dict.fromkeys(row.b for row in primary))
    ranked = sorted(primary, key=lambda r: (_firmness(r), rivals.index(r.b), -(r.metric.k or 0)))
    ends = [row for row in ranked if row.comparison.outcome in ("better", "worse")]
    tied = [row for row in ranked if row.comparison.outcome == "tied"]
    named = ends[: MOST - bool(tied)]
    return [*named, *tied[: MOST - len(named)]]


def _told(rows: Sequence[Row]) -> str:
    """Rows in order as one line, one sentence per second arm; a common arm, metric and place are printed once."""
    numbers = _numbers if len(rows) < 3 else _brief
    whole = len({(row.b, row.metric, row.task) for row in rows}) == 1
    if whole:
        return line(rows, numbers)
    shared = len({(row.metric.place, row.task) for row in rows}) == 1
    place = f"{rows[0].metric.place}{_on(rows[0])}".strip() if shared else ""
    arm = rows[0].a if len({row.a for row in rows}) == 1 else ""
    said = []
    for rival, group in groupby(rows, key=lambda row: row.b):
        ends: dict[str, list[str]] = {}
        for row in group:
            label = f"{outcome(row)} at {row.metric.bare if shared else f'{row.metric}{_on(row)}'}"
            label += "" if row.chance is None else f", {_level(row)}"
            below = f"; {_who_is_below(row)}" * any(row.below)
            ends.setdefault(label, []).append(f"{'' if arm else f'{row.a} '}({numbers(row)}{below})")
        parts = (f"{label}{' ' if arm else ': '}{', '.join(names)}" for label, names in ends.items())
        said.append(f"Against {rival}: {'; '.join(parts)}.")
    head = f"{arm}, {place}, " if arm and place else f"{arm} " if arm else f"{place[:1].upper()}{place[1:]}, " if place else ""
    return head + (f"a{' '.join(said)[1:]}" if head else " ".join(said))


def _read(row: Row) -> bool:
    return math.isfinite(row.comparison.difference.value)


def nothing(results: Results) -> str:
    """The line instead of `answer` for no rows: what to evaluate next, or which path to add."""
    said = ["Nothing is compared: fewer than two policies were evaluated on the same problems."]

    def on_task(run: Run) -> bool:
        return bool(run.config.get("task") or run.config.get("data"))

    scored = {row.arm for row in results.table.rows}
    bare = [run for run in results.runs.values() if run.arm not in scored]
    if results.design.facts or results.stored is not None:  # sweep and demo evaluate what they train
        return f"{said[0]} Run the command that created the folder again to continue."
    if bare and bare[0].path is not None:
        many = f"{len(bare)} runs have" if len(bare) > 1 else "The run has"
        given = ["--samples", 64] if on_task(bare[0]) else []  # a run stores only the name of a plugin
        given += [word for name in bare[0].config.get("plugins") or () if given for word in ("--plugin", name)]
        said.append(f"{many} no evaluation yet: `{suggest('eval', bare[0].path, *given)}`.")
    if len(scored | {run.arm for run in bare}) < 2:
        runs = list(results.runs.values())
        base = {run.config.get("model") for run in runs} == {EMBEDDED} and not any(map(on_task, runs))
        said.append(f"Add another policy: `{suggest('report', *results.sources, EMBEDDED if base else 'RUN')}`.")
    elif not bare:
        said.append("Evaluate both with the same --task, --split, --seed and --problems.")
    return " ".join(said)


def sentence(row: Row) -> str:
    """The full comparison as one sentence."""
    c, gap = row.comparison, row.comparison.difference
    head = f"{row.a} vs {row.b}, {row.metric}{_on(row)}: "
    level = "" if row.chance is None else f"; {_level(row)}{', ' * any(row.below)}{_who_is_below(row)}"
    if not c.known:
        value = f" (difference {signed(gap.value)})" if math.isfinite(gap.value) else ""
        return f"{head}{End.CANNOT}: {REASONS[c.reason]}{value}{level}{_left_out(row)}."
    if gap.width == 0 and gap.value == 0:
        return f"{head}identical on all {gap.n} {gap.over}{level}."
    about = "these checkpoints" if c.over == "problems" else "these methods"
    on = f" on these {c.problems} problems" if c.problems else ""
    ps = f", {p_text(c.p)}" if math.isfinite(c.p) else ""
    if math.isfinite(row.adjusted) and row.family_size > 1:
        ps += f", Holm's {p_text(row.adjusted)} among {row.family_size} {row.family} comparisons"
    hidden = f"; {detectable_text(c.mde, c.mde_limit)}" if c.outcome == "tied" else ""
    if c.outcome == "tied" and math.isfinite(c.p) and (c.p < 1 - gap.level) == gap.contains(0.0):
        hidden = f"; not significant: {TWO_PROCEDURES[gap.contains(0.0)]}{hidden}"
    covers = f"; mean over pass@1 {row.covers[0]:.3f} to {row.covers[1]:.3f}, the common range" if row.covers else ""
    return (
        f"{head}{outcome(row)} for {about} ({span(c)} over {gap.n} {gap.over}{on}{ps}{hidden}{covers}{level}{_left_out(row)})."
    )


def outcome(row: Row) -> End:
    """The printed outcome of a row, after correction."""
    c = row.comparison
    if c.outcome == "tied" and c.difference.width == 0 and c.difference.value == 0:
        return End.IDENTICAL
    word = told(c.outcome, detected=c.detects(stated(row)))
    return word if c.outcome in ("tied", "unknown") or row.holds else End(f"{word} {BEFORE}")


def stated(row: Row) -> float:
    """The difference that a design must be able to detect before its non-significant result is printed as "no significant
    difference": `DETECTABLE` for pass@k, that share of the second arm's mean for counts and the raw KL."""
    return DETECTABLE if row.metric.name == "pass" else DETECTABLE * abs(row.comparison.mean_b)


def told(outcome: Outcome, *, detected: bool) -> End:
    """The printed word for an uncorrected outcome. detected: whether the design could have detected the stated difference."""
    if outcome == "tied":
        return End.NO_DIFFERENCE if detected else End.CANNOT
    return {"better": End.HIGHER, "worse": End.LOWER, "unknown": End.CANNOT}[outcome]


def _firmness(row: Row) -> int:
    """0: significant after correction; 1: only before; 2: not significant or not tested."""
    return 2 if row.comparison.outcome in ("tied", "unknown") else int(not row.holds)


def chip(row: Row) -> str:
    """The cell of a table, on a line each: outcome, difference, interval and, if not significant, the detectable difference."""
    gap = row.comparison.difference
    lines = [outcome(row)] + [ONE_EACH] * (row.comparison.over == "problems" and row.comparison.known)
    lines += [signed(gap.value)] * math.isfinite(gap.value)
    if math.isfinite(gap.width) and gap.width > 0:
        lines.append(f"{signed(gap.low)} to\u00a0{signed(gap.high)}")
    if seen := _seen(row.comparison, "detectable"):
        lines.append(seen.removeprefix("; "))
    lines += [BELOW] * row.below[0]
    return "\n".join(lines)


def line(rows: Sequence[Row], numbers: Callable[[Row], str] | None = None) -> str:
    """Rows with one second arm and metric in one sentence, significant ones first: "Against GRPO, pass@256: lower: C (...); cannot
    be told: A (...), B (...).". numbers: the text in brackets; by default the difference and, if not significant, the detectable
    one."""
    first, several = rows[0], len({row.b for row in rows}) > 1
    who = "Each against its own placebo" if several else f"Against {first.b}"
    words: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: RANK[outcome(row)]):
        name = f"{row.a} vs {row.b}" if several else row.a
        said = "; ".join(filter(None, ((numbers or _short)(row), _who_is_below(row) if several else BELOW * row.below[0])))
        why = "" if row.comparison.known else f" ({REASONS[row.comparison.reason]})"
        words.setdefault((outcome(row), why), []).append(f"{name} ({said})" if said else name)
    told = "; ".join(f"{word}{why}: {', '.join(names)}" for (word, why), names in words.items())
    rival = "" if several or not first.below[1] else f"; {first.b} {BELOW}"
    level = "" if first.chance is None else f", {_level(first)}{rival}"
    return f"{who}, {first.metric}{_on(first)}{level}: {told}."


def lines(rows: Sequence[Row]) -> list[str]:
    """One line per group; rows without a value are merged into one line per reason."""
    return [*map(line, groups(row for row in rows if not unread(row))), *unread_lines(rows)]


def unread(row: Row) -> bool:
    """Whether there is neither an outcome nor a difference."""
    return not row.comparison.known and not _read(row)


def unread_lines(rows: Sequence[Row]) -> list[str]:
    """Rows without a value, one line per reason: "Cannot be told, no common range of pass@1: pass@256 at equal pass@1 (mean over
    all temperatures): A, B against GRPO; A against base."."""
    found: dict[str, list[Row]] = {}
    for row in filter(unread, rows):
        found.setdefault(REASONS[row.comparison.reason], []).append(row)
    out = [sentence(some[0]) for some in found.values() if len(some) == 1]
    for why, some in found.items():
        metrics: dict[str, dict[str, list[str]]] = {}
        for row in some if len(some) > 1 else ():
            metrics.setdefault(f"{row.metric}{_on(row)}", {}).setdefault(row.b, []).append(row.a)
        alike: dict[str, list[str]] = {}  # metrics with the same pairs
        for metric, rivals in metrics.items():
            pairs = "; ".join(f"{', '.join(names)} against {rival}" for rival, names in rivals.items())
            alike.setdefault(pairs, []).append(metric)
        out += [f"Cannot be told, {why}: {' and '.join(names)}: {pairs}." for pairs, names in alike.items()]
    return out


def cautions(rows: Sequence[Row]) -> list[str]:
    """Remarks that apply to many rows: too few seeds for a claim; intervals that end at the arm's score."""
    few = any(row.comparison.reason in TOO_FEW for row in rows)
    c = [row.comparison for row in rows if row.metric.at in ("mixture", "hull") and row.comparison.known]
    ends = any(math.isclose(one.difference.high, one.mean_a, rel_tol=1e-9) for one in c)
    return [CLAIM] * few + [OPEN_ENDED] * ends


def groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows by family, rival, metric and task, in order; the primary family first."""
    found: dict[tuple[str, str, Metric, str], list[Row]] = {}
    for row in rows:
        rival = "" if row.why == "placebo" else row.b
        found.setdefault((row.family, rival, row.metric, row.task), []).append(row)
    return [found[key] for key in sorted(found, key=lambda key: key[0] != "primary")]


def families(rows: Sequence[Row]) -> str:
    """The number of tests in each family and the meaning of the outcomes; "" without a test."""
    sizes = {row.family: row.family_size for row in sorted(rows, key=lambda row: row.family != "primary") if row.family_size}
    if not sizes:
        return ""
    parts = " and once over ".join(f"{n} {name} comparison{'s' * (n != 1)}" for name, n in sizes.items())
    return (
        f"Holm's correction runs once over {parts}. Higher or lower: the interval excludes 0 and Holm's p is below 0.05; {BEFORE}: "
        f"only the interval excludes 0. {MEANING}"
    )


def state(run: Run, evaluated: bool = False) -> str:
    """The state of a run. evaluated: whether an evaluation exists, even if the sweep's design.json lacks it."""
    if run.state in ("trained", "evaluated"):
        return "evaluated" if evaluated or run.state == "evaluated" else "trained, not evaluated"
    total = f" of {run.config['steps']}" if "steps" in run.config else ""
    return f"{f'{run.steps}{total} steps' if run.state == 'training' else run.state}{', evaluated' * evaluated}"


def span(c: Comparison) -> str:
    """ "difference −0.004, 95 % interval −0.012 to +0.003"."""
    return f"difference {_gap(c, f'{100 * c.difference.level:g} % interval ')}"


def _gap(c: Comparison, before: str = "") -> str:
    gap = c.difference
    ends = f", {before}{signed(gap.low)} to {signed(gap.high)}" if math.isfinite(gap.width) else ""
    return f"{signed(gap.value)}{ends}"


def _numbers(row: Row) -> str:
    """In the answer: the reason, or the difference and the detectable difference."""
    c = row.comparison
    return f"difference {_gap(c)}{_seen(c, 'minimum detectable difference', ' (80 % power)')}" if c.known else _short(row)


def _brief(row: Row) -> str:
    """In an answer on several arms."""
    c = row.comparison
    return f"{_gap(c)}{_seen(c, 'detectable')}" if c.known else _short(row)


def _short(row: Row) -> str:
    """In a line of several arms."""
    c = row.comparison
    return f"{signed(c.difference.value) if _read(row) else ''}{_seen(c, 'detectable')}"


def _seen(c: Comparison, what: str, after: str = "") -> str:
    if c.outcome != "tied" or not math.isfinite(c.mde):
        return ""
    return f"; {what} {c.mde:.3f}{after}" if c.mde >= 0.0005 else f"; {what} {c.mde:.1g}{after}"


def _level(row: Row) -> str:
    return f"chance {row.chance:.3f}"


def _who_is_below(row: Row) -> str:
    """ "A below chance", "both below chance"; "" where neither is."""
    who = [name for name, is_below in zip((row.a, row.b), row.below, strict=True) if is_below]
    return f"{'both' if len(who) == 2 else who[0]} {BELOW}" if who else ""


def _on(row: Row) -> str:
    return f" on {row.task}" if row.task else ""


def _left_out(row: Row) -> str:
    if not row.left_out:
        return ""
    what = "with a raw KL outside the range of these betas" if row.metric.matched else "without a value"
    return f"; left out: {row.left_out} training seed{'s' * (row.left_out > 1)} {what}"
