"""Guidance in the repair world: the place of an edit, its kind, and why an attempt failed; never the edit itself."""

from __future__ import annotations

from collections.abc import Sequence

from sage_rlvr.contrib.tasks.repair.programs import EDIT, Broken, edit_to
from sage_rlvr.verifiers import Verdict

WORDS = {
    **{"start": "a first value", "compare": "a comparison", "operator": "an operation", "bound": "a limit"},
    **{"variable": "a variable", "result": "what is returned"},
}  # of a kind of defect
TRIED = 80  # characters of an attempt, and of its messages, that guidance repeats


def edits_in(completion: str) -> list[tuple[int, str]]:
    """(number of a line, its new text) of the edits of a completion."""
    matches = (EDIT.fullmatch(line) for line in completion.split("\n"))
    return [(int(edit[1]), edit[2].strip()) for edit in matches if edit]


def edited_lines(problem: Broken, text: str) -> str:
    """The lines that a completion edits, in words; "" without an edit."""
    numbers = sorted({number for number, _ in edits_in(text) if 1 <= number <= len(problem.source.splitlines())})
    return f"edit line {' and '.join(map(str, numbers))}" if numbers else ""


def pointed(problem: Broken) -> str:
    """The line of the defect and its kind."""
    return f"{edited_lines(problem, edit_to(problem.source, problem.fixed))}, {WORDS[problem.kind]}"


def explained(responses: Sequence[str], verdict: Verdict) -> str:
    """The last edit of an attempt, the message of its tests, and the kind of step to try."""
    tries = ["; ".join(f"{number}: {text}" for number, text in edits_in(turn)) for turn in responses]
    tried = next((one for one in reversed(tries) if one), "")[:TRIED]
    if not tried:
        return "nothing was edited: write LINE: its new text"
    step = "an index or a name" if "raised" in verdict.reason else "where it ends" if "longer" in verdict.reason else "another edit"
    return f"tried {tried}\n{verdict.reason[:TRIED]}; try {step}"


def leaked(problem: Broken, hint: str) -> bool:
    """Whether guidance contains the new text of a line that the undone change edits, ignoring spaces."""
    gold = edits_in(edit_to(problem.source, problem.fixed))
    return any("".join(text.split()) in "".join(hint.split()) for _, text in gold)


__all__ = ["TRIED", "WORDS", "edited_lines", "edits_in", "explained", "leaked", "pointed"]
