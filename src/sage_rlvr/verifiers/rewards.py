"""Verdicts as rewards: r = 1 for right, 0 for wrong, None for undecided, in the signature of a TRL reward function.

`GRPOTrainer(reward_funcs=math_reward, ...)` wants a data set with one column `answer`, `solution` or `ground_truth`.
In TRL None means "no reward from this function" (since 1.16, a completion with no reward at all is left out of its
group; before, it counted as 0). This module does not import TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.verifiers.answers import AnswerPlace, AnswerReading, bare, extract, reading_options, span_of, spelling
from sage_rlvr.verifiers.golds import gold_of
from sage_rlvr.verifiers.pool import Pool, shared
from sage_rlvr.verifiers.reasons import Elsewhere, Reasons, elsewhere, location_in_words, watch_here
from sage_rlvr.verifiers.verdict import Verdict

COLUMNS = ("answer", "solution", "ground_truth")
REWARD = {"right": 1.0, "wrong": 0.0, "undecided": None}


def text_of(completion: Any) -> str:
    """The text of a completion: a string, or the assistant's last message of a conversation, its text parts joined.

    A conversation that ends with a tool's or a user's message has no answer: that message is not the policy's.
    """
    if isinstance(completion, str):
        return completion
    if not completion or completion[-1].get("role", "assistant") != "assistant":
        return ""
    content = completion[-1].get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    return content or ""


def golds_of(columns: dict[str, Any], column: str | None, count: int) -> list[str | None]:
    """The gold of each completion from the data set's columns; None if a row has none.

    Golds are read as `sage_rlvr.verifiers.golds` describes. Raises `DataError` unless exactly one accepted column exists (or
    `column` names one) with one gold per row.
    """
    present = [name for name in ((column,) if column else COLUMNS) if columns.get(name) is not None]
    if len(present) != 1:
        wanted = repr(column) if column else " or ".join(COLUMNS)
        raise DataError(
            f"gold answers: found {present or 'no column'} of {wanted} among the columns {sorted(columns)}. "
            "Rename one, or name it: MathReward(column=...)."
        )
    golds = columns[present[0]]
    if isinstance(golds, str) or len(golds) != count:
        raise DataError(f"column {present[0]}: {len(golds)} entries for {count} completions; give one per completion.")
    texts: list[str | None] = []
    for row, gold in enumerate(golds):
        try:
            texts.append(None if gold is None else gold_of(gold)[0])
        except ValueError as error:
            raise DataError(f"column {present[0]}, row {row}: {error}") from error
    return texts


def answered(text: str, reading: Mapping[str, Any]) -> str | None:
    """The answer of a completion at a place, in the canonical form in which answers are counted."""
    answer, _ = extract(text, AnswerReading(**reading))
    return None if answer is None or not bare(answer) else spelling(bare(answer))


@dataclass(frozen=True)
class MathReward:
    r"""A reward function for mathematics: callable, picklable, safe in threads, asyncio and Ray actors. Users and runs on TRL make
    it; TRL's trainers call it.

    answer_in, tag, closed  the place of the answer, as in `verify_math`
    thinking, in_thinking   the tag of the thinking, after which answers are read, and whether the prompt opens it
    column                  the column of golds, when the data set has more than one of answer, solution, ground_truth
    pool                    a pool with other limits; default: the one pool of this process (5 s, 1024 MB)
    """

    answer_in: AnswerPlace = "boxed"
    tag: str = "SOLUTION"
    closed: bool = True
    column: str | None = None
    pool: Pool | None = None
    thinking: str = "think"
    in_thinking: bool = False

    @property
    def reading(self) -> dict[str, Any]:
        """The options of `verify_math` for the place of the answer."""
        return reading_options(self)

    @property
    def __name__(self) -> str:
        """The name of the reward in TRL's metrics."""
        return "math_reward"

    def _call(
        self, completions: Sequence[Any], columns: dict[str, Any]
    ) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        golds = golds_of(columns, self.column, len(completions))
        items = [(text_of(completion), gold or "") for completion, gold in zip(completions, golds, strict=True)]
        return items, self.reading

    def answer_key(self, row: Mapping[str, Any], text: str) -> str | None:
        """The answer of a completion, in canonical form; for methods that compare answers."""
        return answered(text, self.reading)

    def reference_answer(self, row: Mapping[str, Any], text: str) -> tuple[str, tuple[int, int] | None]:
        """A row's gold, and the place of a completion's answer; for rewards without a verifier. Raises DataError without a gold."""
        (gold,) = golds_of({name: [value] for name, value in row.items()}, self.column, 1)
        if not gold:
            raise DataError(f"a row without a gold answer (columns {sorted(row)}): the reward is the policy's probability of it.")
        return gold, span_of(text, AnswerReading(**self.reading))[0]

    def verdicts(self, completions: Sequence[Any], **columns: Any) -> list[Verdict]:
        """The verdicts that give the rewards, with their reasons."""
        items, options = self._call(completions, columns)
        return (self.pool or shared()).verify(items, **options)

    async def rewards_async(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The rewards, without blocking the event loop."""
        items, options = self._call(completions, columns)
        return self._rewards(await (self.pool or shared()).verify_async(items, **options), items, columns)

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """1.0, 0.0 or None per completion (strings or conversations); golds from the only accepted column."""
        items, options = self._call(completions, columns)
        return self._rewards((self.pool or shared()).verify(items, **options), items, columns)

    def _rewards(
        self, verdicts: list[Verdict], items: list[tuple[str, str]], columns: dict[str, Any]
    ) -> list[float | None]:
        def search() -> Elsewhere | None:
            left = [item for item, verdict in zip(items, verdicts, strict=True) if verdict.unanswered]
            pool = self.pool or shared()
            return elsewhere([text for text, _ in left], lambda at, reading: pool.verify([left[i] for i in at], **reading))

        log_reasons(verdicts, columns, location_in_words(self.answer_in, self.tag), search)
        return [REWARD[verdict.label] for verdict in verdicts]


def log_reasons(
    verdicts: Sequence[Verdict],
    columns: Mapping[str, Any],
    location: str = "",
    search: Callable[[], Elsewhere | None] = lambda: None,
    cut: Sequence[bool] | None = None,
) -> None:
    """Report the fractions without an answer and undecided to TRL's `log_metric`, if the trainer passes it among the columns, and
    the completions to the watch of this context, which warns. location, search: of `Reasons.problems`; cut: which met the length
    limit.
    """
    watch, ids = watch_here(), columns.get("completion_ids")
    if cut is None and watch.ends and ids is not None:
        cut = [not (len(row) and row[-1] in watch.ends) for row in ids]
    reasons = Reasons.of(verdicts, cut)
    log = columns.get("log_metric")
    if callable(log) and verdicts:
        for name, fraction in reasons.metrics().items():
            log(name, fraction)
    if (state := columns.get("trainer_state")) is not None:  # from a trainer, not from a direct call
        watch.see(state.global_step, reasons, location, search)


math_reward = MathReward()  # the answer in the last \boxed{...}

__all__ = ["COLUMNS", "MathReward", "answered", "math_reward"]
