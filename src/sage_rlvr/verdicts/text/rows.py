"""Rows of the list of comparisons as text.

    sentence(row)   the full comparison                         line(rows)  a group with one second arm and metric
    lines(rows)     all groups                                  chip(row)   the cell of a table
    answer(rows)    the answer to the design's questions        question(rows)  these questions
    cautions(rows)  remarks that apply to many rows
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from sage_rlvr.verdicts.chance import BELOW
from sage_rlvr.verdicts.comparisons import answering
from sage_rlvr.verdicts.design import BASE, COLDER
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.metric import Metric, is_of_samples, known_metrics
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import BEFORE, RANK, End, Row
from sage_rlvr.verdicts.stats.paired import DETECTABLE, FEWEST_SEEDS, PairedDifference, Reason, signed
from sage_rlvr.verdicts.text.colder import between, sharpened, sharpened_in_two
from sage_rlvr.verdicts.text.verdicts import paragraphs as of_verdicts
from sage_rlvr.verdicts.text.words import bracketed, decided, detectable_text, ends_text, listed, many, p_text, small
from sage_rlvr.verdicts.verdict import CurveVerdict

REASONS = {
    Reason.NONE: "",
    Reason.ONE_SEED: "one training seed",
    Reason.TWO_SEEDS: "two training seeds",
    Reason.NO_SCATTER: "the same difference in every training seed; check that the runs differ",
    Reason.FEW_PROBLEMS: "too few problems",
    Reason.NO_COMMON_RANGE: "no common range of pass@1",
    Reason.RESAMPLES: "too many resamples have no common range of pass@1",
    Reason.FRONTIER_END: "too close to the end of the other's frontier for an interval",
    Reason.BEYOND: "its pass@1 lies beyond the other's frontier",
    Reason.BELOW: "its pass@1 lies below the other's frontier",
    Reason.OUTSIDE: "its KL lies outside the range of the other's betas in every training seed",
    Reason.NOT_NEAR: "no temperature gives one arm the pass@1 of the other at T = 1",
}
NOTHING = "Nothing is compared: fewer than two policies were evaluated on the same problems."
CLAIM = f"A claim about methods needs at least {FEWEST_SEEDS} training seeds per arm; with fewer, only differences are printed."
OPEN_ENDED = (
    "If the upper end of an interval against a mixture equals the arm's score, the gap has no upper bound: the mixtures may end "
    "below the arm's pass@1."
)
MOST = 4  # comparisons in the answer

# ------------------------------------------------------------------------------------------------------------------
# one row


def sentence(row: Row) -> str:
    """The full comparison as one sentence."""
    about = _about(row.comparison) if row.comparison.known else ""
    return f"{row.a} vs {row.b}, {_metric(row)}: {_label(row)}{about}{_numbers(row)}."


def chip(row: Row) -> str:
    """The cell of a table, on a line each: outcome, difference, interval and, if not significant, the detectable difference."""
    scope = "one run each" if row.comparison.over == "problems" and row.comparison.known else ""
    interval = _interval(row.comparison).replace(" to ", " to\u00a0")
    mark = BELOW if row.below[0] else ""
    return listed(row.outcome, scope, _difference(row.comparison), interval, _detectable(row), mark, by="\n")


def column_of(row: Row) -> str:
    """The head of the column of a row's cell, on a line each: "vs GRPO", "pass@256", "chance 0.512"."""
    return listed(f"vs {_rival(row)}", _metric(row), _chance(row), by="\n")


def _name(row: Row) -> str:
    """The arm in a list of rows with one second arm."""
    return f"{row.a} vs {row.b}" if row.why == "placebo" else row.a


def _rival(row: Row) -> str:
    """The second arm of such a list; placebos share one list."""
    return "its own placebo" if row.why == "placebo" else row.b


def _metric(row: Row) -> str:
    return f"{row.metric} on {row.task}" if row.task else str(row.metric)


def _label(row: Row) -> str:
    """The outcome, with the reason of an unknown one."""
    reason = REASONS[row.comparison.reason]
    return f"{row.outcome} ({reason})" if reason else row.outcome


def _about(c: PairedDifference) -> str:
    which = "checkpoints" if c.over == "problems" else "methods"
    # fixed without a number of problems: the interval has only the scatter of training seeds
    return f" for these {which}{' on these problems' if c.fixed and not c.problems else ''}"


def _difference(c: PairedDifference) -> str:
    return signed(c.difference.value) if math.isfinite(c.difference.value) else ""


def _interval(c: PairedDifference) -> str:
    """The ends of the interval; "" for two training seeds, whose interval covers impossible values."""
    return ends_text(c.difference) if c.known and 0 < c.difference.width < math.inf else ""


def _is_tied(row: Row) -> bool:
    return row.comparison.outcome == "tied" and row.outcome != End.IDENTICAL


def _detectable(row: Row) -> str:
    mde = row.comparison.mde
    return f"detectable {small(mde)}" if _is_tied(row) and math.isfinite(mde) else ""


def _chance(row: Row) -> str:
    return "" if row.chance is None else f"chance {row.chance:.3f}"


def _below(row: Row) -> str:
    return f"{' and '.join(row.below_chance)} {BELOW}" if row.below_chance else ""


def _brief(row: Row) -> str:
    """ " (+0.020, −0.005 to +0.045; detectable 0.033)"."""
    c = row.comparison
    return bracketed(listed(_difference(c), _interval(c)), _detectable(row), _below(row))


def _numbers(row: Row) -> str:
    """The numbers that follow the outcome in a sentence."""
    c, difference, interval = row.comparison, _difference(row.comparison), _interval(row.comparison)
    level = f"{100 * c.difference.level:g} % interval {interval}" if interval else ""
    over = _over(c) if c.known else ""
    estimate = listed(f"difference {difference}" if difference else "", listed(level, over, by=" "))
    p = p_text(c.p) if math.isfinite(c.p) else ""
    holm = ""
    if math.isfinite(row.adjusted) and row.family_size > 1:
        holm = f"Holm's {p_text(row.adjusted)} among {many(row.family_size, f'{row.family} comparison')}"
    power = detectable_text(c.mde, c.mde_limit) if _is_tied(row) else ""
    procedure = decided(c) if _is_tied(row) else ""
    covers = f"mean over the common range of pass@1, {row.covers[0]:.3f} to {row.covers[1]:.3f}" if row.covers else ""
    left_out = ""
    if row.left_out:
        matched = row.metric.matched
        why = f"whose {matched} is not within the range of these betas" if matched else "without a value"
        left_out = f"left out: {many(row.left_out, 'training seed')} {why}"
    return bracketed(listed(estimate, p, holm), power, procedure, covers, _chance(row), _below(row), left_out)


def _over(c: PairedDifference) -> str:
    if c.over == "training seeds" and not c.fixed:
        return f"over {c.difference.n} training seeds and {many(c.problems or 0, 'problem')}"
    held = f" on these {c.problems} problems" if c.fixed and c.problems else ""
    return f"over {c.difference.n} {c.difference.over}{held}"


# ------------------------------------------------------------------------------------------------------------------
# several rows


def groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows by family, rival, metric and task, in order; the primary family first."""
    by_key = grouped(rows, lambda row: (row.family, _rival(row), row.metric, row.task))
    return [by_key[key] for key in sorted(by_key, key=lambda key: key[0] != "primary")]


def line(rows: Sequence[Row]) -> str:
    """Rows with one second arm and metric in one sentence, significant ones first: "Against GRPO, pass@256: lower: C (...); cannot
    be told: A (...), B (...).\""""
    head = listed(_metric(rows[0]), _chance(rows[0]))
    return f"Against {_rival(rows[0])}, {head}: {_by_outcome(rows, lambda row: f'{_name(row)}{_brief(row)}')}."


def lines(rows: Iterable[Row]) -> list[str]:
    """One line per group."""
    return list(map(line, groups(rows)))


def sentences(rows: Sequence[Row]) -> list[str]:
    """Every row in full; those without a value in one line."""
    return [*(sentence(row) for row in rows if not row.unread), *lines(row for row in rows if row.unread)]


def _by_outcome(rows: Iterable[Row], text_of: Callable[[Row], str]) -> str:
    """The texts of rows by outcome, significant ones first."""
    ends = grouped(sorted(rows, key=lambda row: RANK[row.outcome]), _label)
    return "; ".join(f"{label}: {', '.join(map(text_of, some))}" for label, some in ends.items())


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
    first = listed(lost, "" if primary else "Exploratory:", _lead(primary or rows), _answered(primary or rows), by=" ")
    return [text for text in (first, colder) if text]


def question(rows: Sequence[Row]) -> str:
    """The questions of these comparisons, one question per second arm; "" without any."""
    asked = []
    for rival, some in grouped(rows, lambda row: row.b).items():
        arms = list(dict.fromkeys(row.a for row in some))
        named = " and ".join(arms) if len(arms) < 3 else f"the {len(arms)} arms"
        verb, other = "Does" if len(arms) == 1 else "Do", "the base" if rival == BASE else rival
        asked.append(f"{verb} {named} differ from {other}?")
    return " ".join(asked)


def _asks_about_the_base(results: Results) -> bool:
    questions = results.design.questions
    return bool(questions) and all(q.b in (BASE, COLDER) for q in questions)


def _lead(rows: Sequence[Row]) -> str:
    """The restriction of the claims that the rows support, if they are not about methods."""
    if not any(row.comparison.known for row in rows):
        return "No claim about methods."
    return "One run of each: about these checkpoints, not about methods." if rows[0].comparison.over == "problems" else ""


def _answered(rows: Sequence[Row]) -> str:
    """The first `MOST` rows: significant after correction, before correction, not significant, not tested; among equals the first
    second arm and the largest k. The others are counted."""
    rivals = [*dict.fromkeys(row.b for row in rows)]
    ranked = sorted(rows, key=lambda row: (row.firmness, rivals.index(row.b), -(row.metric.k or 0)))
    rest, more = sorted((row.outcome for row in ranked[MOST:]), key=RANK.__getitem__), ""
    if rest:
        ends = ", ".join(f"{len(some)} {word}" for word, some in grouped(rest, str).items())
        more = f"{many(len(rest), f'more {rows[0].family} comparison')}: {ends}."
    return listed(*map(line, groups(ranked[:MOST])), more, by=" ")


def _unanswered(rows: Sequence[Row], results: Results) -> str:
    """The questions of the design without a row, with the reason; "" if every question has a row."""
    k, known, lost = results.k, known_metrics(results.k), []
    for q, rows_of_question in answering(results.design, rows):
        if not rows_of_question:
            compared = q.metric in known or is_of_samples(q.metric, k)
            why = "no such comparison exists" if compared else f"k is {k} here"
            lost.append(f"{q.a} against {q.b}, {q.metric} ({why})")
    more = [f"{len(lost) - MOST} more"] if len(lost) > MOST else []
    return f"Questions of the design that cannot be answered: {'; '.join([*lost[:MOST], *more])}." if lost else ""


def _widened(rows: Sequence[Row], k: int) -> str:
    """Each arm's gains and losses at pass@1 and pass@k against the base; "" without such rows."""
    first, last = ({row.a: row.outcome for row in rows if row.metric == Metric(k=n)} for n in (1, k))
    found = grouped(last, lambda name: _gained(first.get(name, End.CANNOT), last[name], k))
    parts = [f"{', '.join(names)}: {word}" for word, names in found.items()]
    return f"Did RL widen what the base solves? {'; '.join(parts)}." if parts else ""


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
    texts = []
    for some in [group for n in (k, 1) for group in groups(row for row in rows if row.metric == Metric(k=n))]:
        row = some[0]
        arms = _by_outcome(some, lambda one: f"{_name(one)} {one.comparison.mean_a:.3f}{_brief(one)}")
        texts.append(f"{listed(_metric(row), _chance(row))}: {row.b} {row.comparison.mean_b:.3f}; {arms}.")
    return " ".join(texts)


# ------------------------------------------------------------------------------------------------------------------
# about many rows


def cautions(rows: Sequence[Row]) -> list[str]:
    """Remarks that apply to many rows: too few seeds for a claim; intervals that end at the arm's score."""
    few = any(row.comparison.reason in (Reason.ONE_SEED, Reason.TWO_SEEDS) for row in rows)
    c = [row.comparison for row in rows if row.metric.at in ("mixture", "hull") and row.comparison.known]
    ends = any(math.isclose(one.difference.high, one.mean_a, rel_tol=1e-9) for one in c)
    return [CLAIM] * few + [OPEN_ENDED] * ends


def families(rows: Sequence[Row]) -> str:
    """The number of tests in each family and the meaning of the outcomes; "" without a test."""
    sizes = {row.family: row.family_size for row in rows if row.family_size}
    parts = [many(sizes[name], f"{name} comparison") for name in ("primary", "exploratory") if name in sizes]
    if not parts:
        return ""
    return (
        f"Holm's correction runs once over {' and once over '.join(parts)}. Higher or lower: the interval excludes 0 and Holm's p "
        f"is below 0.05; {BEFORE}: only the interval excludes 0. No significant difference: the design could have detected a "
        f"difference of {DETECTABLE:g} with 80 % power (for metrics other than pass@k, {100 * DETECTABLE:g} % of the second arm's "
        "mean). Cannot be told: only a larger difference could have been detected."
    )


def starts(arms_by_start: Mapping[str, Sequence[str]]) -> list[str]:
    """Say which arm is the starting point of which others, one sentence each. arms_by_start: starting point -> arms."""
    sentences = []
    for start, arms in arms_by_start.items():
        were = "were" if len(arms) > 1 else "was"
        sentences.append(f"{', '.join(arms)} {were} trained from {start} (the hashes of the weights are equal).")
    return sentences
