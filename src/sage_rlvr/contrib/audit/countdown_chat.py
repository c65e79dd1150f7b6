"""The audit of Countdown in words: `countdown.py`, and right expressions in the forms of a chat model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache, partial

from sage_rlvr.contrib.audit import countdown
from sage_rlvr.contrib.audit.reference_parser import second_opinion_on_any_spelling
from sage_rlvr.tasks.checks import Case, Check
from sage_rlvr.tasks.countdown import Problem, draws
from sage_rlvr.tasks.countdown.chat import CountdownChat
from sage_rlvr.tasks.countdown.expressions import MAX_NUMBERS

AUDITED, AUDITED_OF_FIVE = 200, 20  # most test problems; five numbers have up to thousands of right answers each
AUDITED_DRY = 2  # blocks of draws without a new problem


def cases(task: CountdownChat, k: int) -> Iterator[Case | Check]:
    """Every right expression, in canonical and in other forms; wrong ones by kind; a second verifier; the guess floor."""
    rows = _audited(task)
    right = [(p, text) for p in rows for text in task.answers(p)]
    spelled = [(p, text) for p in rows for text in _spellings(task.answers(p)[0], p.target)]
    wrong = countdown.wrong(rows) | {
        "another total behind it": [(p, f"{task.answers(p)[0]}={p.target + 1}") for p in rows],
        "words around it": [(p, f"{before}{task.answers(p)[0]}{behind}") for p in rows for before, behind in _AROUND],
    }
    yield Case("every right expression is right", right)
    yield Case("in another spelling too", spelled)
    yield Case("", wrong, "wrong")
    texts = [*right, *spelled, *(pair for pairs in wrong.values() for pair in pairs)]
    yield countdown.second(task.verify, partial(_second, task.operators), texts)
    yield countdown.apart(task, 2000)
    yield countdown.floor([1 / task.choices(p) for p in rows], k)


def _second(operators: str, problem: Problem, text: str) -> bool:
    return second_opinion_on_any_spelling(problem.numbers, problem.target, text, operators)


def head(task: CountdownChat) -> str:
    """Describe the subject of `cases`."""
    return f"{len(_audited(task))} test problems, seed {countdown.SEED}; {task.described(task.identity)}"


@lru_cache(maxsize=8)
def _audited(task: CountdownChat) -> list[Problem]:
    """The first different test problems; for a small world nearly all, without the draws that would find the last one."""
    most = AUDITED_OF_FIVE if max(task.counts) == MAX_NUMBERS else AUDITED
    return draws.kept_at_most(task.world, task.keep, "test", countdown.SEED, most, AUDITED_DRY)


_AROUND = (("Answer: ", ""), ("", " is it"), ("**", "**"), ("$", "$"))


@lru_cache(maxsize=AUDITED)
def _spellings(text: str, target: int) -> tuple[str, ...]:
    spaced = re.sub(r"([-+*/])", r" \1 ", text)
    return (
        f" {text}\n", f"({text})", spaced, f"{spaced} = {target}", f"{text}={target}",
        text.translate(str.maketrans("*/-", "×÷−")), re.sub(r"([0-9]+)", r"(\1)", text, count=1),
    )  # fmt: skip


__all__ = ["cases", "head"]
