"""Print rows as text: templates that arrange the texts of `results.row_text`. No code parses what they make.

sentence(row)   the full comparison                         line(rows)  a group with one second arm and metric
lines(rows)     all groups                                  chip(row)   the cell of a table
answer(rows)    the answer to the design's questions
cautions(rows)  remarks that apply to many rows
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from sage_rlvr.verdicts.colder_text import between, sharpened, sharpened_in_two
from sage_rlvr.verdicts.comparisons import answering
from sage_rlvr.verdicts.design import BASE, COLDER
from sage_rlvr.verdicts.metric import Metric, is_of_samples, known_metrics
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.row_text import BEFORE, RANK, End, firmness, grouped, listed, many, outcome, rival, unread, view
from sage_rlvr.verdicts.stats.paired import DETECTABLE, FEWEST_SEEDS, Reason
from sage_rlvr.verdicts.verdict import CurveVerdict
from sage_rlvr.verdicts.verdict_text import paragraphs as of_verdicts

SENTENCE = "{v.a} vs {v.b}, {v.metric_text}: {v.label}{v.about}{v.full}."
LINE = "Against {v.rival}, {v.head}: {ends}."
LEVELS = "{v.head}: {v.b} {v.rival_score}; {ends}."
ARM = "{v.name}{v.brief}"
ARM_WITH_SCORE = "{v.name} {v.score}{v.brief}"
ENDS = "{label}: {names}"
UNANSWERED = "Questions of the design that cannot be answered: {questions}."
QUESTION = "{a} against {b}, {metric} ({why})"
MORE = "{n}: {ends}."
FAMILIES = (
    "Holm's correction runs once over {families}. Higher or lower: the interval excludes 0 and Holm's p is below 0.05; "
    f"{BEFORE}: only the interval excludes 0. No significant difference: the design could have detected a difference of "
    f"{DETECTABLE:g} with 80 % power (for metrics other than pass@k, {100 * DETECTABLE:g} % of the second arm's mean). Cannot be "
    "told: only a larger difference could have been detected."
)
STARTS = {
    False: "{arms} was trained from {start} (the hashes of the weights are equal).",
    True: "{arms} were trained from {start} (the hashes of the weights are equal).",
}
WIDENED = "Did RL widen what the base solves? {found}."
NOTHING = "Nothing is compared: fewer than two policies were evaluated on the same problems."
ONE_RUN = "One run of each: about these checkpoints, not about methods."
NO_CLAIM = "No claim about methods."
EXPLORATORY = "Exploratory:"
MOST = 4  # comparisons in the answer
TOO_FEW = (Reason.ONE_SEED, Reason.TWO_SEEDS)
CLAIM = f"A claim about methods needs at least {FEWEST_SEEDS} training seeds per arm; with fewer, only differences are printed."
OPEN_ENDED = (
    "If the upper end of an interval against a mixture equals the arm's score, the gap has no upper bound: the mixtures may end "
    "below the arm's pass@1."
)


def sentence(row: Row) -> str:
    """The full comparison as one sentence."""
    return SENTENCE.format(v=view(row))


def line(rows: Sequence[Row]) -> str:
    """Rows with one second arm and metric in one sentence, significant ones first: "Against GRPO, pass@256: lower: C (...); cannot
    be told: A (...), B (...).\""""
    return LINE.format(v=view(rows[0]), ends=_ends(rows, ARM))


def chip(row: Row) -> str:
    """The cell of a table, on a line each: outcome, difference, interval and, if not significant, the detectable difference."""
    v = view(row)
    interval = v.interval.replace(" to ", " to\u00a0")
    return listed(v.outcome, v.runs, v.difference, interval, v.detectable, v.mark, by="\n")


def _ends(rows: Iterable[Row], arm: str) -> str:
    """The rows by outcome, significant ones first. arm: the template of one."""
    views = sorted(map(view, rows), key=lambda v: RANK[v.outcome])
    ends = grouped(views, lambda v: v.label).items()
    return "; ".join(ENDS.format(label=label, names=", ".join(arm.format(v=v) for v in some)) for label, some in ends)


def lines(rows: Iterable[Row]) -> list[str]:
    """One line per group."""
    return list(map(line, groups(rows)))


def sentences(rows: Sequence[Row]) -> list[str]:
    """Every row in full; those without a value in one line."""
    return [*(sentence(row) for row in rows if not unread(row)), *lines(row for row in rows if unread(row))]


def groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows by family, rival, metric and task, in order; the primary family first."""
    by_key = grouped(rows, lambda row: (row.family, rival(row), row.metric, row.task))
    return [by_key[key] for key in sorted(by_key, key=lambda key: key[0] != "primary")]


# ------------------------------------------------------------------------------------------------------------------
# the answer


def answer(rows: Sequence[Row], results: Results | None = None, judged: Sequence[CurveVerdict] = ()) -> str:
    """`paragraphs` as one text."""
    return "\n\n".join(paragraphs(rows, results, judged))


def paragraphs(rows: Sequence[Row], results: Results | None = None, judged: Sequence[CurveVerdict] = ()) -> list[str]:
    """The answer to the questions of the design: at most `MOST` comparisons, significant ones first, and counts of the others.
    If all questions are about the base: the verdict, and in a second paragraph the numbers.

    results: the source of the rows, for questions without a row
    judged: the verdicts of arms compared by samples only, which then answer

    Without primary rows, exploratory rows answer."""
    if not rows:
        return [NOTHING]
    colder = "" if results is None else listed(sharpened(rows, results), between(rows, results), by=" ")
    if judged:
        first, *rest = of_verdicts(judged)
        return [listed(first, colder, by=" "), *rest]
    primary = [row for row in rows if row.family == "primary"]
    if results is not None and primary and _asks_about_the_base(results):
        shortly, numbers = sharpened_in_two(rows, results)
        first = listed(_widened(primary, results.k), shortly, between(rows, results), _lead(primary), by=" ")
        return [first, listed(_levels(primary, results.k), numbers, by=" ")]
    lost = "" if results is None else _unanswered(rows, results)
    first = listed(lost, "" if primary else EXPLORATORY, _lead(primary or rows), _answered(primary or rows), by=" ")
    return [text for text in (first, colder) if text]


def _asks_about_the_base(results: Results) -> bool:
    questions = results.design.questions
    return bool(questions) and all(q.b in (BASE, COLDER) for q in questions)


def _lead(rows: Sequence[Row]) -> str:
    """The restriction of the claims that the rows support, if they are not about methods."""
    if not any(row.comparison.known for row in rows):
        return NO_CLAIM
    return ONE_RUN if rows[0].comparison.over == "problems" else ""


def _answered(rows: Sequence[Row]) -> str:
    """The first `MOST` rows: significant after correction, before correction, not significant, not tested; among equals the first
    second arm and the largest k. The others are counted."""
    rivals = [*dict.fromkeys(row.b for row in rows)]
    ranked = sorted(rows, key=lambda row: (firmness(row), rivals.index(row.b), -(row.metric.k or 0)))
    shown, rest = ranked[:MOST], sorted(map(outcome, ranked[MOST:]), key=RANK.__getitem__)
    ends = ", ".join(f"{len(some)} {word}" for word, some in grouped(rest, str).items())
    more = MORE.format(n=many(len(rest), f"more {rows[0].family} comparison"), ends=ends) if rest else ""
    return listed(*map(line, groups(shown)), more, by=" ")


def _unanswered(rows: Sequence[Row], results: Results) -> str:
    """The questions of the design without a row, with the reason; "" if every question has a row."""
    design, k = results.design, results.k
    known = known_metrics(k)
    lost = [
        QUESTION.format(
            a=design.called(q.a), b=design.called(q.b), metric=q.metric,
            why="no such comparison exists" if q.metric in known or is_of_samples(q.metric, k) else f"k is {k} here",
        )
        for q, matches in answering(design, rows) if not matches
    ]  # fmt: skip
    more = [f"{len(lost) - MOST} more"] if len(lost) > MOST else []
    return UNANSWERED.format(questions="; ".join([*lost[:MOST], *more])) if lost else ""


def _widened(rows: Sequence[Row], k: int) -> str:
    """Each arm's gains and losses at pass@1 and pass@k against the base; "" without such rows."""
    first, last = ({row.a: outcome(row) for row in rows if row.metric == Metric(k=n)} for n in (1, k))
    found = grouped(last, lambda name: _gained(first.get(name, End.CANNOT), last[name], k))
    parts = [f"{', '.join(names)}: {word}" for word, names in found.items()]
    return WIDENED.format(found="; ".join(parts)) if parts else ""


def _gained(first: End, last: End, k: int) -> str:
    """The answer of an arm by its outcomes at pass@1 and pass@k."""
    word = {
        End.HIGHER: "yes",
        End.LOWER: "no, it narrowed" if first == End.HIGHER else "no",
        End.NO_DIFFERENCE: End.NO_DIFFERENCE,
        End.IDENTICAL: End.IDENTICAL,
    }.get(last, End.CANNOT)
    ends = [f"pass@{n} {end}" for n, end in {1: first, k: last}.items() if end in (End.HIGHER, End.LOWER)]
    return f"{word} ({', '.join(ends)})" if ends else word


def _levels(rows: Sequence[Row], k: int) -> str:
    """pass@k and pass@1 of the base, and of the arms by outcome."""
    levels = [group for n in (k, 1) for group in groups(row for row in rows if row.metric == Metric(k=n))]
    return " ".join(LEVELS.format(v=view(some[0]), ends=_ends(some, ARM_WITH_SCORE)) for some in levels)


# ------------------------------------------------------------------------------------------------------------------
# about many rows


def cautions(rows: Sequence[Row]) -> list[str]:
    """Remarks that apply to many rows: too few seeds for a claim; intervals that end at the arm's score."""
    few = any(row.comparison.reason in TOO_FEW for row in rows)
    c = [row.comparison for row in rows if row.metric.at in ("mixture", "hull") and row.comparison.known]
    ends = any(math.isclose(one.difference.high, one.mean_a, rel_tol=1e-9) for one in c)
    return [CLAIM] * few + [OPEN_ENDED] * ends


def families(rows: Sequence[Row]) -> str:
    """The number of tests in each family and the meaning of the outcomes; "" without a test."""
    sizes = {row.family: row.family_size for row in rows if row.family_size}
    parts = [many(sizes[name], f"{name} comparison") for name in ("primary", "exploratory") if name in sizes]
    return FAMILIES.format(families=" and once over ".join(parts)) if parts else ""


def starts(arms_by_start: Mapping[str, Sequence[str]]) -> list[str]:
    """Say which arm is the starting point of which others, one sentence each. arms_by_start: starting point -> arms."""
    return [STARTS[len(arms) > 1].format(arms=", ".join(arms), start=start) for start, arms in arms_by_start.items()]
