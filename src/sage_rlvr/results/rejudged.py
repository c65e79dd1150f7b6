"""Completions of files of rows, judged again by a verifier beside the score that their file has (`compare --verify`).

    rejudge(given, judge)      one `Rejudged` per arm, training seed and file (verdicts/text/rejudged.py has the lines)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers import AnswerKey
from sage_rlvr.verdicts.rejudged import Disagreement, Rejudged
from sage_rlvr.verdicts.row_counts import labeled_tables
from sage_rlvr.verdicts.sources import GivenRows, GivenTable
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.exact import canonical
from sage_rlvr.verifiers.golds import gold_of
from sage_rlvr.verifiers.rewards import MathReward

JudgeTexts = Callable[[Sequence[tuple[str, str]]], Sequence[Verdict]]
"""(completion, gold) pairs to verdicts, in their order."""


def rejudge(given: Sequence[GivenRows], judge: JudgeTexts) -> list[Rejudged]:
    """Judge every completion of the files of rows. Raises DataError for a file without texts or golds."""
    if not given:
        raise DataError("--verify: only for files of rows; `sage-rlvr eval ... --rejudge` judges the samples of a store again")
    return [_rejudged(one, judge) for one in labeled_tables(given)]


def key_of_answers(answer_in: str) -> AnswerKey:
    """A text to its answer as the mathematics verifier reads it there, numbers as exact fractions."""
    reward = MathReward(answer_in=answer_in)  # type: ignore[arg-type]

    def key(text: str) -> str | None:
        answer = reward.answer_key({}, text)
        return None if answer is None else canonical(answer)

    return key


def _rejudged(given: GivenTable, judge: JudgeTexts) -> Rejudged:
    table = given.table
    if table.texts is None or table.right is None:
        raise DataError(f"{given.name}: --verify needs the text of every completion, and the rows have none; omit --verify")
    if lacking := [problem for problem in table.problems if problem not in table.golds]:
        raise DataError(
            f"{given.name}: --verify needs the gold of every problem; {lacking[0]!r} has none; add \"gold\" to its rows"
        )
    rows: list[tuple[str, int, bool, str, str]] = []
    for problem, texts, right in zip(table.problems, table.texts, table.right, strict=True):
        try:
            gold, _ = gold_of(table.golds[problem])
        except ValueError as error:
            raise DataError(f"{given.name}: gold of problem {problem!r}: {error}") from error
        for sample, (text, correct) in enumerate(zip(texts, right.tolist(), strict=True), 1):
            if text is None:
                raise DataError(f"{given.name}: --verify: sample {sample} of problem {problem!r} has no text")
            rows.append((problem, sample, correct, text, gold))
    verdicts = judge([(text, gold) for *_, text, gold in rows])
    counts: Counter[tuple[bool, str]] = Counter(
        (correct, verdict.label) for (_, _, correct, _, _), verdict in zip(rows, verdicts, strict=True)
    )
    verified: Counter[str] = Counter(problem for (problem, *_), verdict in zip(rows, verdicts, strict=True) if verdict.right)
    by_file = float(np.mean(table.c / table.n))
    by_verifier = float(np.mean([verified[problem] for problem in table.problems] / table.n))
    apart = (
        Disagreement(
            name=given.name, problem=problem, sample=sample, correct=correct, label=verdict.label, reason=verdict.reason,
            gold=gold, text=text,
        )
        for (problem, sample, correct, text, gold), verdict in zip(rows, verdicts, strict=True)
        if verdict.label != "undecided" and correct != verdict.right
    )
    return Rejudged(name=given.name, counts=counts, pass1=(by_file, by_verifier), disagreements=tuple(apart))
