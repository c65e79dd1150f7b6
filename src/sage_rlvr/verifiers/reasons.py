r"""Reasons why completions get no reward: the fractions without an answer, truncated and undecided, and other places of answers.

    verdicts, which were cut  -> Reasons      counts and fractions, for metrics and tables
    texts without an answer   -> Elsewhere    the place (boxed, tag, stated, last_number) at which most of them have one
    both                      -> problems     [(kind, sentence)] of each fraction above a half, with the next step

Training on all engines, evaluation, reports and audits use these counts and sentences.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sage_rlvr.errors import CUT_OFF, UNJUDGED
from sage_rlvr.verifiers.answers import AnswerReading, bare, extract
from sage_rlvr.verifiers.verdict import Verdict, is_unanswered

HALF = 0.5
LOOKED = 200  # largest number of texts that are searched at other places
SHOWN = 3  # reasons that a sentence names
NO_ANSWER, CUT, UNDECIDED = "no answer", "cut", "undecided"  # kinds of warnings in run.json
TAGS = ("SOLUTION", "answer", "solution", "final_answer", "result")
PLACES = (("boxed", ""), *(("tag", tag) for tag in TAGS), ("stated", ""), ("last_number", ""))
ReasonCounts = Mapping[tuple[str, str, bool | None], int]
"""(label, reason, whether it met the length limit; None: not recorded) -> completions."""
JudgeElsewhere = Callable[[Sequence[int], Mapping[str, Any]], Sequence[Verdict]]
"""Numbers of texts, and a reading (answer_in, tag, closed) -> their verdicts."""
Warn = Callable[[str, int, str], None]
"""kind, step, sentence, as `RunDir.warn`."""


def location_in_words(answer_in: str, tag: str) -> str:
    """A place of answers in the words of messages."""
    words = {"boxed": r"in \boxed{}", "tag": f"in <{tag}>", "stated": 'behind "Answer:"', "last_number": "as the last number"}
    return words.get(answer_in, answer_in)


@dataclass(frozen=True)
class Reasons:
    """Completions by verdict, reason and end. Training, evaluation and audits make it from verdicts, results from stored counts;
    metrics, tables and warnings read it. A truncated completion has a verdict too, most often "no answer"."""

    counted: ReasonCounts

    @classmethod
    def of(cls, verdicts: Sequence[Any], cut: Sequence[bool | None] | None = None) -> Reasons:
        """verdicts: with label and reason. cut: which completions met the length limit; None if that is not known."""
        ends = [None] * len(verdicts) if cut is None else cut
        return cls(Counter((one.label, one.reason, end) for one, end in zip(verdicts, ends, strict=True)))

    @classmethod
    def sum(cls, parts: Iterable[Reasons]) -> Reasons:
        """Join the counts of several sets of completions."""
        total: Counter[tuple[str, str, bool | None]] = Counter()
        for part in parts:
            total.update(part.counted)
        return cls(total)

    @property
    def total(self) -> int:
        """All completions."""
        return sum(self.counted.values())

    @property
    def unanswered(self) -> int:
        """Completions without text at the place of the answer."""
        return sum(self._unanswered.values())

    @property
    def undecided(self) -> int:
        """Completions that are neither right nor wrong."""
        return sum(self._undecided.values())

    @property
    def cut(self) -> int:
        """Completions that met the length limit."""
        return sum(n for (*_, end), n in self.counted.items() if end)

    @property
    def ends(self) -> int:
        """Completions with a known end."""
        return sum(n for (*_, end), n in self.counted.items() if end is not None)

    @property
    def cut_frac(self) -> float | None:
        """The fraction that was truncated, among completions with a known end; None if there are none."""
        return self.cut / self.ends if self.ends else None

    def metrics(self) -> dict[str, float]:
        """The two fractions that are metrics of training; engines report `completions/unfinished_frac` themselves."""
        total = max(self.total, 1)
        return {"verifier/no_answer_frac": self.unanswered / total, "verifier/undecided_frac": self.undecided / total}

    def fractions(self) -> dict[str, float | None]:
        """All three fractions, for tables."""
        metrics = self.metrics()
        return {
            "no_answer_frac": metrics["verifier/no_answer_frac"],
            "cut_frac": self.cut_frac,
            "undecided_frac": metrics["verifier/undecided_frac"],
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds above a half: among `UNDECIDED`, `CUT`, `NO_ANSWER`."""
        parts = {UNDECIDED: (self.undecided, self.total), CUT: (self.cut, self.ends), NO_ANSWER: (self.unanswered, self.total)}
        return tuple(kind for kind, (many, of) in parts.items() if many > HALF * of)

    def often(self, kind: str) -> str:
        """The most frequent reasons of `NO_ANSWER` or `UNDECIDED`, in brackets; "" if there are none, or only that one word."""
        reasons = self._undecided if kind == UNDECIDED else self._unanswered
        return f" ({_most(reasons)})" if set(reasons) - {kind} else ""

    def problems(
        self,
        *,
        location: str = "",
        search: Callable[[], Elsewhere | None] = lambda: None,
        limit: str = "max_new_tokens",
        kinds: Sequence[str] | None = None,
    ) -> list[tuple[str, str]]:
        """A sentence for each fraction above a half. location: where answers are read, in words; search: searches other places,
        and is called if a sentence needs it; limit: the setting of the length limit; kinds: the requested ones, default `kinds`."""
        sentences: dict[str, Callable[[], str]] = {
            UNDECIDED: self._about_undecided,
            CUT: lambda: self._about_cut(limit),
            NO_ANSWER: lambda: self._about_none(location, search),
        }
        return [(kind, sentences[kind]()) for kind in (self.kinds if kinds is None else kinds)]

    # ---- sentences

    def _about_undecided(self) -> str:
        return (
            f"{_of(self.undecided, self.total)} completions are undecided and earn 0 ({_most(self._undecided)}). {UNJUDGED}"
        )

    def _about_cut(self, limit: str) -> str:
        return CUT_OFF.format(cut=self.cut, ends=self.ends, limit=limit)

    def _about_none(self, location: str, search: Callable[[], Elsewhere | None]) -> str:
        at_place = set(self._unanswered) <= {"no answer", "answer cut off"}
        named = f"no answer {location}".rstrip() if at_place else f"no answer ({_most(self._unanswered)})"
        message = f"{named} in {_of(self.unanswered, self.total)} completions, so these earn 0"
        cut = sum(n for (label, reason, end), n in self.counted.items() if end and is_unanswered(label, reason))
        message += f" ({cut:,} of them were cut at the length limit)" * bool(cut)
        there = search()
        if there is not None:
            return f"{message}; {there.words(location)}"
        return message if cut > HALF * self.unanswered else f"{message}. {_LEARN}"

    @property
    def _unanswered(self) -> Counter[str]:
        return self._by_reason(is_unanswered)

    @property
    def _undecided(self) -> Counter[str]:
        return self._by_reason(lambda label, reason: label == "undecided")

    def _by_reason(self, wanted: Callable[[str, str], bool]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (label, reason, _), n in self.counted.items():
            if wanted(label, reason):
                counts[reason] += n
        return counts


_LEARN = (
    "Read some completions; then ask for that format in the prompt (prompt: of task or data), or train the policy on it first "
    "(sage-rlvr sft)"
)


def _of(some: int, all_of: int) -> str:
    return f"{some:,} of {all_of:,}"


def _most(reasons: Counter[str]) -> str:
    often = sorted(reasons, key=lambda reason: (-reasons[reason], reason))[:SHOWN]
    return ", ".join(f"{reason}: {reasons[reason]:,}" for reason in often)


# ------------------------------------------------------------------------------------------------------------------
# other places


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """The answers of `looked` texts at the place at which most have a right one; `right` is None without golds.
    `elsewhere` makes it; `Reasons.problems` ends its sentence with it."""

    looked: int
    answer_in: str
    tag: str
    answers: int
    right: int | None

    def words(self, location: str = "") -> str:
        """A sentence: how many were found at that place, and the next step."""
        where = location_in_words(self.answer_in, self.tag)
        message = f"of {self.looked:,} such texts {self.answers:,} have one {where}"
        ask = f"ask for it {location}" if location else "ask for it at the place that is read"
        if self.right == 0:
            return f"{message}, none of them right. {_LEARN}"
        message += " (not judged there)" if self.right is None else f", {self.right:,} of them right"
        read = f"answer_in: {self.answer_in}" + (f", tag: {self.tag}" if self.answer_in == "tag" else "")
        forms = {"boxed": "boxed", "tag": "sage" if self.tag == "SOLUTION" else "as_is"}  # a format names its place
        read += f", with prompt: {forms[self.answer_in]}" if self.answer_in in forms else ""
        keys = "keys of task or data in a recipe; MathReward(answer_in=...)"
        return f"{message}: set {read} ({keys}), or {ask}"


def elsewhere(texts: Sequence[str], judge: JudgeElsewhere | None = None) -> Elsewhere | None:
    """The place at which the first `LOOKED` of these texts have an answer; None if they have none at any place.

    texts: complete texts of completions without an answer at the task's place, which therefore is never the result. judge: returns
        the
    verdicts at another place; None without golds.
    """
    texts = texts[:LOOKED]
    candidates = []
    for answer_in, tag in PLACES:
        reading: dict[str, Any] = {"answer_in": answer_in, "tag": tag or "SOLUTION", "closed": True}
        have = [i for i, text in enumerate(texts) if bare(extract(text, AnswerReading(**reading))[0] or "")]
        if have:
            right = None if judge is None else sum(one.right for one in judge(have, reading))
            candidates.append(Elsewhere(looked=len(texts), answer_in=answer_in, tag=tag, answers=len(have), right=right))
    return max(candidates, key=lambda one: (one.right or 0, one.answers), default=None)


# ------------------------------------------------------------------------------------------------------------------
# during training


def warned(kind: str, step: int, message: str) -> None:
    """Issue only a UserWarning, if no run directory stores it."""
    warnings.warn(message, UserWarning, stacklevel=4)


@dataclass
class ReasonWatch:
    """Warns at the first step at which more than half of the completions are undecided, truncated or without an answer, once per
    kind. Each engine makes one per run; its loop, or the reward (`log_reasons`), passes it the verdicts of every step.

    tell: see `Warn`. ends: tokens that end a completion, if the watch needs them. limit: the setting of the length limit.
    """

    tell: Warn = warned
    ends: tuple[int, ...] = ()
    limit: str = "rollout.max_new_tokens"
    warned_of: set[str] = field(default_factory=set)

    def see(
        self, step: int, reasons: Reasons, location: str = "", search: Callable[[], Elsewhere | None] = lambda: None
    ) -> None:
        """Record the completions of step `step`, from 0."""
        kinds = [kind for kind in reasons.kinds if kind not in self.warned_of]
        self.warned_of.update(kinds)
        for kind, sentence in reasons.problems(location=location, search=search, limit=self.limit, kinds=kinds):
            self.tell(kind, step, f"step {step}: {sentence}")


_WATCH: ContextVar[ReasonWatch] = ContextVar("watch")
_PROCESS = ReasonWatch(limit="max_completion_length")  # for trainers that set none, such as a plain GRPOTrainer


@contextmanager
def watching(watch: ReasonWatch) -> Iterator[None]:
    """Context in which rewards report their verdicts to this watch; outside they report to one of the process."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def watch_here() -> ReasonWatch:
    """The watch of this context."""
    return _WATCH.get(_PROCESS)


__all__ = [
    "CUT", "NO_ANSWER", "UNDECIDED", "Elsewhere", "ReasonWatch", "Reasons", "elsewhere", "location_in_words", "warned",
    "watch_here", "watching",
]  # fmt: skip
