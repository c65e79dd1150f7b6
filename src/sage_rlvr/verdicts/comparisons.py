"""The list of all comparisons: each pair of the design and each metric once, Holm-corrected in at most two families.

primary       the design's `questions:`; in a design with baselines, every candidate against them and against the tempered base,
              pass@8 and pass@k at equal pass@1; else every arm against its controls, pass@1 and pass@k on the main task at the
              reference temperature
exploratory   all other comparisons: other temperatures, frontiers, equal pass@1, equal KL, other tasks, the base
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.design import CONTROLS, Design, Question
from sage_rlvr.verdicts.measurements import Measurement, Measurements, PolicyKey
from sage_rlvr.verdicts.metric import FEW, REFERENCE, Metric
from sage_rlvr.verdicts.of_samples import Sampled
from sage_rlvr.verdicts.pairs import Line, Plan
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.stats.paired import Reason, holm


def compare(results: Results) -> list[Row]:
    """Every comparison of these results, corrected. A stored summary has only the comparisons that it contains."""
    made = list[Row]()
    if results.stored is not None:
        from sage_rlvr.verdicts.summary_io import rows_of_summary

        made = rows_of_summary(results.stored)
    for pairs, metrics, estimator in plan_of(results):
        # a metric that a line has twice, such as pass@1 and pass@k at k = 1, is one comparison and counts once in the correction
        for pair, metric in product(pairs, dict.fromkeys(metrics)):
            found = estimator(pair, metric)
            if found is not None:
                made.append(Row(
                    a=pair.a, b=pair.b, why=pair.why, task=pair.task, metric=metric, comparison=found.comparison,
                    left_out=found.left_out, covers=found.covers, rising=found.rising,
                ))  # fmt: skip
    policies = results.table.policies()
    return [with_chance(row, results.chances.get(row.task), policies) for row in corrected(results, made)]


def plan_of(results: Results) -> Plan:
    """Every comparison of the measurements: the exact records first, then the samples task by task."""
    lines = list[Line]()
    if results.table.exact():
        from sage_rlvr.verdicts.of_records import Exact  # what only exact scores allow

        lines += Exact(results).plan()
    for task in results.table.sampled().tasks:
        samples = Sampled(results, task)
        lines += samples.plan()
        if results.design.baselines or len(samples.temperatures) > 1:
            from sage_rlvr.verdicts.of_temperatures import AnyTemperature  # mixtures; not needed for one temperature

            lines += AnyTemperature(samples).plan()
        if any(row.mixture for row in samples.samples.rows):
            from sage_rlvr.verdicts.of_temperatures import plan_of_weights

            lines += plan_of_weights(samples)
    return lines


def with_chance(row: Row, chance: Chance | None, policies: Mapping[PolicyKey, Measurements[Measurement]]) -> Row:
    """The row with the chance floor of its k > 1; a row of a stored summary has it already."""
    k, t = row.metric.k or 0, row.metric.temperature
    if chance is None or row.chance is not None or k < 2 or row.metric.name != "pass":
        return row
    below = (False, False)
    if row.metric == Metric(k=k, temperature=t):
        a, b = (policies.get((name, row.task, t)) for name in (row.a, row.b))
        below = (_is_below(a, k, chance), _is_below(b, k, chance))
    return replace(row, chance=chance.at(k), below=below)


def _is_below(policy: Measurements[Measurement] | None, k: int, chance: Chance) -> bool:
    scores = None if policy is None else policy.scores()
    return scores is not None and scores.below(k, chance)


def corrected(results: Results, made: Sequence[Row]) -> list[Row]:
    """The rows with their family and Holm's p.

    A family contains all planned comparisons, whatever their result, so that a lost one makes no other p smaller. These count with
    p = 1: in the primary family every row without a test, every question without a row, and for each candidate that the
    design discarded as many tests as for one that was run; in the exploratory family a row that lost its test with its training
    seeds. Other rows without a test, such as two arms without a common pass@1, do not count."""
    made = [replace(row, comparison=row.comparison.of_shares()) if row.metric.name == "pass" else row for row in made]
    primary, design = _primary(results, made), results.design
    rows = [replace(row, family="primary" if row in primary else "exploratory") for row in made]
    for family in ("primary", "exploratory"):
        planned = [i for i, row in enumerate(rows) if row.family == family and (family == "primary" or _is_tested(row))]
        p_values = [p if math.isfinite(p := rows[i].comparison.p) else 1.0 for i in planned]
        if family == "primary":
            tests = Counter(rows[i].a for i in planned if rows[i].a in design.candidates)
            p_values += [1.0] * (len(design.discarded) * max(tests.values(), default=0) + _lost_questions(design, rows))
        adjusted = holm(p_values).tolist()
        for i, p in zip(planned, adjusted, strict=False):
            if math.isfinite(rows[i].comparison.p):
                rows[i] = replace(rows[i], adjusted=p, family_size=len(adjusted))
    return rows


def _is_tested(row: Row) -> bool:
    """Return whether a row has a test, or lost it with its training seeds."""
    lost_seeds = row.left_out > 0 and row.comparison.reason in (Reason.ONE_SEED, Reason.TWO_SEEDS, Reason.OUTSIDE)
    return math.isfinite(row.comparison.p) or lost_seeds


def _lost_questions(design: Design, rows: Sequence[Row]) -> int:
    """The number of questions without a row. A question about the base at any temperature is also answered by a row at the same k
    with another `at` (`of_temperatures.above_colder`)."""
    colder = {(row.a, row.b, row.metric.k) for row in rows if row.why == "colder"}
    return sum(not answers and (q.a, q.b, q.metric.k) not in colder for q, answers in answering(design, rows))


def answering(design: Design, rows: Sequence[Row]) -> list[tuple[Question, list[Row]]]:
    """The design's questions by the names of their arms, each with its rows of either sign. A row at equal KL answers questions
    about each of the arms that it interpolates between."""
    tasks = {row.task for row in rows}
    main = tasks.pop() if len(tasks) == 1 else ""  # if there are only samples, every row has its task's name
    between = {arm.name: arm.matched for arm in design.arms}
    found = []
    for q in design.asked:
        answers = []
        for row in rows:
            rivals = {row.b, *(between.get(row.a, ()) if row.metric.matched else ())}
            same_pair = (row.a == q.a and q.b in rivals) or (row.a == q.b and q.a in rivals)
            if same_pair and (row.metric, row.task) == (q.metric, q.task or main):
                answers.append(row)
        found.append((q, answers))
    return found


def _primary(results: Results, rows: Sequence[Row]) -> list[Row]:
    """The rows of the primary family."""
    design = results.design
    if design.questions:
        answers = [row for _, of_question in answering(design, rows) for row in of_question]
        return [row for row in rows if row in answers]
    if design.baselines:
        against = [row for row in rows if row.why in ("envelope", "power") and row.a in design.candidates]
        for at in ("mixture", "hull", "a equal"):  # stored summaries may have only the hull, or only the last
            metrics = [Metric(k=k, at=at) for k in (FEW, results.k)]
            primary = [row for row in against if row.metric in metrics]
            if primary:
                return primary
        return []
    main = {""} if any(row.task == "" for row in rows) else {row.task for row in rows}
    temperatures = {row.metric.temperature for row in rows if row.task}
    only = temperatures.pop() if len(temperatures) == 1 else REFERENCE  # of samples, if there is only one
    plain = []
    for row in rows:
        temperature = only if row.task else REFERENCE
        if row.task in main and row.metric == Metric(k=row.metric.k, temperature=temperature):
            plain.append(row)
    controls = [row for row in plain if row.why in CONTROLS and row.a not in design.extra_arms]
    return controls or [row for row in plain if row.why == "base"]
