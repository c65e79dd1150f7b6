"""The judges of `compare --judge`: the mathematics verifier at a place of the answer, the exact text, or a user's function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, get_args

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.results.rejudged import key_of_answers
from sage_rlvr.verdicts.readers import CompletionJudge
from sage_rlvr.verdicts.readers.registry import Mark, UnmarkedCompletion
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import AnswerPlace
from sage_rlvr.verifiers.exact import canonical, verify_exact
from sage_rlvr.verifiers.golds import gold_of

if TYPE_CHECKING:
    from sage_rlvr.verifiers.pool import Pool

Job = TypeVar("Job")
BATCH = 2048  # completions that wait for the worker processes at a time
EXACT = "exact_match"


def judge_named(word: str, right_from: float | None = None) -> CompletionJudge:
    """Return the judge of a name.

    Args:
        word: A place where the mathematics verifier reads the answer (boxed, last_number, ...); exact_match, by which the whole
            text is the gold, numbers compared as fractions; or FILE.py:FUNCTION, which runs in worker processes with limits on
            time and memory, in any of the signatures of `sage_rlvr.verifiers.foreign`.
        right_from: For a function, the reward from which on a completion is right, 1 by default.

    Raises:
        ConfigError: If there is no such judge, file or function.
    """
    if ".py:" in word:
        from sage_rlvr.tasks.jsonl import reward_pool  # plugins, datasets

        marks = partial(_by_function, reward_pool(word), 1.0 if right_from is None else right_from)
        return CompletionJudge(word, marks, needs_gold=False)
    if right_from is not None:
        raise ConfigError(f"--right-from {right_from:g}: --judge {word} marks right or wrong; omit --right-from")
    if word == EXACT:
        return CompletionJudge(word, _by_text, key=canonical)
    if word in get_args(AnswerPlace):
        return CompletionJudge(word, partial(_by_mathematics, word), key=key_of_answers(word))
    known = ", ".join((*get_args(AnswerPlace), EXACT))
    raise ConfigError(f"--judge {word}: unknown; choose one of {known}, or FILE.py:FUNCTION")


def _by_mathematics(place: str, completions: Sequence[UnmarkedCompletion]) -> list[Mark]:
    from sage_rlvr.verifiers.pool import shared

    pairs = [(one.text, _gold(one)) for one in completions]
    return [_mark(one) for part in _batches(pairs) for one in shared().verify(part, answer_in=place)]


def _by_text(completions: Sequence[UnmarkedCompletion]) -> list[Mark]:
    return ["right" if verify_exact(one.text, _gold(one)).right else "wrong" for one in completions]


def _by_function(pool: Pool, right_from: float, completions: Sequence[UnmarkedCompletion]) -> list[Mark]:
    jobs = []
    for one in completions:
        jobs.append((one.text, {"id": one.problem, "prompt": one.prompt or ""}, one.prompt or "", one.gold))
    verdicts = [verdict for part in _batches(jobs) for verdict in pool.verify(part)]
    for one, verdict in zip(completions, verdicts, strict=True):
        if verdict.label != "undecided" and verdict.score is None:
            raise DataError(
                f"on problem {one.problem[:60]!r} and the completion {one.text!r:.100} the function {verdict.reason}; mend it: it "
                "must return a finite number (or None) for every text"
            )
    return ["undecided" if one.label == "undecided" else "right" if one.reward >= right_from else "wrong" for one in verdicts]


def _batches(items: Sequence[Job]) -> Iterator[Sequence[Job]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def _gold(one: UnmarkedCompletion) -> str:
    try:
        return gold_of(one.gold)[0]
    except ValueError as error:
        raise DataError(f"the gold of problem {one.problem[:60]!r}: {error}") from error


def _mark(verdict: Verdict) -> Mark:
    return "no answer" if verdict.unanswered else verdict.label
