"""The audit of a mathematics task in one prompt format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sage_rlvr.audit.checks import (
    Audit,
    Check,
    Finding,
    check_of,
    duplicates,
    is_right,
    others_floor,
    rejected,
    uniform_floor,
)
from sage_rlvr.audit.wrong import wrong_answers
from sage_rlvr.tasks.math import TASKS, MathTask, Problem
from sage_rlvr.tasks.prompts import PromptFormat
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import Place
from sage_rlvr.verifiers.exact import number, verify_exact

# Working that a sloppy extraction would take for the answer. No gold of a task above is one of its numbers.
WORKING = "At first sight it is 7919, or $\\frac{7919}{8191}$; that is refuted by 8191 - 7919 = 272.0001."
_PROBE = "7919.25"  # an answer that no gold is spelled like: judging it makes the verifier parse the gold


def audit_mathematics(task: MathTask, forms: Sequence[PromptFormat], k: int, answer_in: Place | None) -> Audit:
    """All checks of `task`, asked in each of `forms`. k, answer_in: as in `sage_rlvr.audit.audit`."""
    problems = task.problems()
    ids = [problem.problem_id for problem in problems]
    checks = [*_golds(task, problems, ids)]
    for form in forms:
        checks += _format(task, problems, ids, form, form.reading | ({"answer_in": answer_in} if answer_in else {}))
    checks += _false_accepts(task, problems)
    checks.append(duplicates("rows that stand once", ((p.problem_id, p.text, p.answer) for p in problems)))
    checks += _floors(task.name, [problem.answer for problem in problems], k)
    published = "the published ones" if task.pinned else "other rows than the published ones"
    read = ", ".join(f"{form.name} ({_place(form, answer_in)})" for form in forms)
    head = f"{task.name}: {len(problems)} rows ({published}); formats and where the answer is read: {read}"
    return Audit(task.name, head, tuple(checks))


def _place(form: PromptFormat, answer_in: Place | None) -> str:
    place = answer_in or form.answer_in
    return f"tag {form.tag}" if place == "tag" else place.replace("_", " ")


def _golds(task: MathTask, problems: Sequence[Problem], ids: Sequence[str]) -> list[Check]:
    """What the verifier makes of each gold."""

    def judged(texts: Iterable[str], **options: bool) -> list[Verdict]:
        return task.verify_all(list(zip(problems, texts, strict=True)), answer_in="whole", **options)

    golds = [problem.answer for problem in problems]
    probed = judged([_PROBE] * len(golds), algebra_only=True)
    found = [
        check_of("gold right against itself", ids, judged(golds), is_right, bar=True),
        check_of("the same by algebra, not by spelling", ids, judged(golds, algebra_only=True), is_right, bar=True),
        check_of("gold can be parsed", ids, probed, lambda v: v.label != "undecided"),
    ]
    solved = [problem for problem in problems if problem.solved]
    if solved:
        verdicts = task.verify_all([(problem, problem.solved) for problem in solved], answer_in="whole")
        found.append(
            check_of("answer of the source's worked solution", [p.problem_id for p in solved], verdicts, is_right)
        )
    return found


def _format(
    task: MathTask, problems: Sequence[Problem], ids: Sequence[str], form: PromptFormat, reading: dict[str, Any]
) -> list[Check]:
    """The ceiling of a prompt format: a demonstration with the gold, read as a completion is; and one without an answer."""
    perfect = [(problem, form.assistant(WORKING, problem.answer)) for problem in problems]
    empty = task.verify_all([(problem, WORKING) for problem in problems], form, **reading)
    name = f"format {form.name!r}: perfect answer"
    return [
        check_of(name, ids, task.verify_all(perfect, form, **reading), is_right, bar=True),
        check_of(f"format {form.name!r}: working without an answer earns nothing", ids, empty, lambda v: not v.right),
    ]


def _false_accepts(task: MathTask, problems: Sequence[Problem]) -> list[Check]:
    """Wrong answers by kind, and where the second verifier contradicts the first on any of these or on the golds."""
    cases = [
        (kind, problem, answer)
        for i, problem in enumerate(problems)
        for kind, answer in wrong_answers(problem.answer, problems[i - 1].answer)
    ]
    verdicts = task.verify_all([(problem, answer) for _, problem, answer in cases], answer_in="whole")
    by_kind: dict[str, list[tuple[str, Verdict]]] = defaultdict(list)
    for (kind, problem, _), verdict in zip(cases, verdicts, strict=True):
        by_kind[kind].append((problem.problem_id, verdict))
    pairs = [pair for found in by_kind.values() for pair in found]
    checks = [rejected("all wrong answers rejected", pairs, bar=True)]
    checks += [rejected(f"  {kind}", found) for kind, found in by_kind.items()]
    known = [("gold", problem, problem.answer) for problem in problems]
    known += [("worked solution", problem, problem.solved) for problem in problems if problem.solved]
    alone = task.verify_all([(problem, text) for _, problem, text in known], answer_in="whole", algebra_only=True)
    return [*checks, _second_opinion([*cases, *known], [*verdicts, *alone])]


def _second_opinion(cases: Sequence[tuple[str, Problem, str]], verdicts: Sequence[Verdict]) -> Check:
    rows, asked = [], 0
    for (kind, problem, answer), verdict in zip(cases, verdicts, strict=True):
        second = verify_exact(answer, problem.answer)
        if "undecided" in (verdict.label, second.label):
            continue
        asked += 1
        if second.right != verdict.right:
            why = f"{kind}: math-verify {verdict.label}, exact {second.label} ({second.reason})"
            rows.append(Finding(problem.problem_id, "disagreement", why))
    note = f"where both decide, of {len(cases)} answers right and wrong"
    return Check("second verifier agrees", asked - len(rows), asked, tuple(rows), note=note)


def _floors(name: str, golds: Sequence[str], k: int) -> list[Check]:
    """Shares that guessing reaches, as checks without a bar: `good` are the hits."""
    integers = TASKS[name].integers if name in TASKS else None
    found = []
    if integers is not None:
        values = integers[1] - integers[0] + 1
        share = uniform_floor(values, k)
        note = f"1 - (1 - 1/{values})^{k} = {share:.3f} of any such problem"
        found.append(
            Check(
                f"guess floor: {k} uniform guesses in {integers[0]}..{integers[1]}",
                share * len(golds),
                len(golds),
                note=note,
            )
        )
    small = sum((value := number(gold)) is not None and value.denominator == 1 and 0 <= value < k for gold in golds)
    found.append(Check(f"guess floor: the integers 0..{k - 1}", small, len(golds)))
    hits = sum(others_floor(golds, k))
    found.append(Check(f"guess floor: the {k} most frequent golds of the other rows", hits, len(golds)))
    return found


__all__ = ["WORKING", "audit_mathematics"]
