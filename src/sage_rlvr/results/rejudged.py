"""Completions of files of rows, judged again by a verifier beside the score that their file has (`compare --verify`).

    rejudge(given, judge)      one `Rejudged` per arm, training seed and file
    lines(rejudged)              agreement of each, then the disagreements that say most
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers import AnswerKey
from sage_rlvr.verdicts.row_counts import labeled_tables
from sage_rlvr.verdicts.sources import GivenRows, GivenTable
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.exact import canonical
from sage_rlvr.verifiers.golds import gold_of
from sage_rlvr.verifiers.rewards import MathReward

SHOWN = 10
TAIL = 80  # characters of a completion that are shown
JudgeTexts = Callable[[Sequence[tuple[str, str]]], Sequence[Verdict]]
"""(completion, gold) pairs to verdicts, in their order."""


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A completion on which file and verifier differ. sample: its place among those of its problem, from 1."""

    name: str
    problem: str
    sample: int
    correct: bool
    verdict: Verdict
    gold: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Rejudged:
    """The completions of one set of samples. counts: (correct in the file, label of the verifier) -> completions; pass1: pass@1 by
    the file and by the verifier, which counts undecided completions as wrong."""

    name: str
    counts: Mapping[tuple[bool, str], int]
    pass1: tuple[float, float]
    disagreements: tuple[Disagreement, ...]

    @property
    def only_file(self) -> int:
        """Completions that the file counts as correct and the verifier as wrong."""
        return self.counts[True, "wrong"]

    @property
    def only_verifier(self) -> int:
        """Completions that the verifier counts as correct and the file as wrong."""
        return self.counts[False, "right"]

    @property
    def undecided(self) -> int:
        """Completions without a verdict."""
        return self.counts[True, "undecided"] + self.counts[False, "undecided"]

    @property
    def decided(self) -> int:
        """Completions with a verdict."""
        return sum(self.counts.values()) - self.undecided

    def tree(self) -> dict[str, object]:
        """Return the tree for JSON, by docs/reference/verdict.schema.json."""
        return {
            "name": self.name, "decided": self.decided, "only_file": self.only_file, "only_verifier": self.only_verifier,
            "undecided": self.undecided, "pass1_file": self.pass1[0], "pass1_verifier": self.pass1[1],
        }  # fmt: skip


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
            name=given.name, problem=problem, sample=sample, correct=correct, verdict=verdict, gold=gold, text=text
        )
        for (problem, sample, correct, text, gold), verdict in zip(rows, verdicts, strict=True)
        if verdict.label != "undecided" and correct != verdict.right
    )
    return Rejudged(name=given.name, counts=counts, pass1=(by_file, by_verifier), disagreements=tuple(apart))


def most_telling(rejudged: Sequence[Rejudged], shown: int = SHOWN) -> list[Disagreement]:
    """Disagreements of both directions in turn, the shortest completions first, which are read fastest; of completions with the
    same gold, verdict and end only one."""
    apart = {(d.correct, d.gold, d.verdict.reason, d.text[-TAIL:]): d for one in rejudged for d in one.disagreements}
    ways = [sorted((d for d in apart.values() if d.correct == side), key=lambda d: len(d.text)) for side in (True, False)]
    return [d for d in chain.from_iterable(zip_longest(*ways)) if d is not None][:shown]


def lines(rejudged: Sequence[Rejudged]) -> Iterator[str]:
    """For a terminal."""
    yield "judged again by the mathematics verifier (the verdict above is by the files' scores):"
    for one in rejudged:
        agreed = one.decided - one.only_file - one.only_verifier
        share = f" ({agreed / one.decided:.1%})" if one.decided else ""
        yield (
            f"{one.name}: file and verifier agree on {agreed:,} of {one.decided:,} completions{share}; correct by the file alone "
            f"{one.only_file:,}, by the verifier alone {one.only_verifier:,}; undecided {one.undecided:,}; pass@1 "
            f"{one.pass1[0]:.3f} by the file, {one.pass1[1]:.3f} by the verifier"
        )
    telling = most_telling(rejudged)
    if telling:
        yield f"where they differ, {len(telling)} of {sum(len(one.disagreements) for one in rejudged):,}:"
    for d in telling:
        file = "correct" if d.correct else "wrong"
        end = " ".join(d.text[-TAIL:].split())
        yield (
            f"  {d.name}, problem {d.problem}, sample {d.sample}: file {file}, verifier {d.verdict.label} ({d.verdict.reason}); "
            f"gold {d.gold}; ends with: {end}"
        )
