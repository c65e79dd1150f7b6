"""The audit of Knights and Knaves under one of its rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sage_rlvr.audit.checks import Audit, Check, check_of, duplicates, is_right, rejected, uniform_floor
from sage_rlvr.tasks.knights_and_knaves import KnightsAndKnaves, Puzzle
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.knights_and_knaves import conclusion


def audit_knights(name: str, task: KnightsAndKnaves, k: int) -> Audit:
    """All checks of `task`, judged by its rule; `name` is what the audit is called."""
    puzzles = task.problems()
    ids = [puzzle.problem_id for puzzle in puzzles]

    def judged(texts: Iterable[str]) -> list[Verdict]:
        return [task.verify(puzzle, text) for puzzle, text in zip(puzzles, texts, strict=True)]

    working = "If Agnes lied, then (1) and (2) could not hold. "
    checks = [
        check_of("gold right against itself", ids, judged(p.answer for p in puzzles), is_right, bar=True),
        check_of(
            "perfect answer in the published format",
            ids,
            judged(f"{working}\n{p.answer}" for p in puzzles),
            is_right,
            bar=True,
        ),
    ]
    kinds = _wrong_conclusions(puzzles)
    by_kind = {kind: list(zip(ids, judged(texts), strict=True)) for kind, texts in kinds.items()}
    checks.append(
        rejected("all wrong answers rejected", [pair for found in by_kind.values() for pair in found], bar=True)
    )
    checks += [rejected(f"  {kind}", found) for kind, found in by_kind.items()]
    checks.append(duplicates("puzzles that stand once", ((p.problem_id, str(p.statements), p.answer) for p in puzzles)))
    for people in sorted(task.people):
        share = uniform_floor(2**people, k)
        checks.append(
            Check(
                f"guess floor: {people} people, {k} guesses",
                share * task.count,
                task.count,
                note=f"1 - (1 - 2^-{people})^{k} = {share:.3f}",
            )
        )
    span = f"{min(task.people)} to {max(task.people)} people"
    head = f"{name}: {len(puzzles)} puzzles of {span}, seed {task.seed}; rule {task.rule!r}"
    return Audit(name, head, tuple(checks))


def _wrong_conclusions(puzzles: Sequence[Puzzle]) -> dict[str, list[str]]:
    def told(puzzle: Puzzle, solution: Sequence[bool]) -> str:
        return conclusion(puzzle.names, solution)

    return {
        "one person turned": [told(p, [not p.solution[0], *p.solution[1:]]) for p in puzzles],
        "everybody turned": [told(p, [not knight for knight in p.solution]) for p in puzzles],
        "the last person missing": [p.answer.rpartition("\n")[0] for p in puzzles],
        "another puzzle's": [puzzles[i - 1].answer for i in range(len(puzzles))],
        "everybody called both": [
            f"{p.answer}\n" + told(p, [not knight for knight in p.solution]).partition("\n")[2] for p in puzzles
        ],
    }


__all__ = ["audit_knights"]
