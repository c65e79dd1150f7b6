"""What a task may be beyond `sage_rlvr.Task`: protocols of the members that go together, asked for by isinstance.

    if isinstance(task, Enumerable):
        right = task.solutions(problem)

A task does not inherit these: it has an ability as soon as it has its members. Members that every task has, with a default that
a task may override, are those of `Task` (`base.py`). `Any` is the task's own problem type; `WithId`, `WithAnswer` and
`WithGuidance` are what such a problem may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sage_rlvr.verifiers import Verdict

if TYPE_CHECKING:
    from sage_rlvr.tasks.checks import Case, Check
    from sage_rlvr.tasks.turns import Response, Turn


@runtime_checkable
class Enumerable(Protocol):
    """All right completions can be listed, for exact evaluation."""

    def solutions(self, problem: Any) -> list[str]:
        """All right completions of a problem."""
        ...


@runtime_checkable
class Recoverable(Protocol):
    """A problem can be made from its id, for readers of stored numbers."""

    def problem_of(self, problem_id: str) -> Any:
        """The problem of an id. DataError for a text that is no id of this task."""
        ...


@runtime_checkable
class Generated(Protocol):
    """Problems are drawn by a law instead of listed."""

    def draw(self, split: str, seed: int, n: int, sampling: str = "iid") -> Sequence[Any]:
        """n problems of an evaluation."""
        ...

    def first(self, split: str, n: int) -> Sequence[Any]:
        """The first n of `problems(split)`."""
        ...


@runtime_checkable
class Described(Protocol):
    """The problems that a record says it is of can be put in words, for pages and plans."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the problems of an evaluation, as a record keeps it."""
        ...

    def described(self, identity: Mapping[str, Any]) -> str:
        """Those problems in a line."""
        ...


@runtime_checkable
class Classified(Protocol):
    """Right answers are told apart in kinds, which a report counts if the task is also `Enumerable` and `Recoverable`."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """Name of each way to tell answers apart -> how its kinds are spelled, or ""."""
        ...

    def kinds_of(self, problem: Any, text: str) -> list[str]:
        """The kind of a right completion in each of those ways."""
        ...


@runtime_checkable
class Conversational(Protocol):
    """The prompt can be asked as a conversation, for policies with a chat template."""

    def messages(self, problem: Any) -> Any:
        """The prompt as messages, {"role": ..., "content": ...} each."""
        ...


@runtime_checkable
class ReadsAnswers(Protocol):
    """The answer is read at a place of the completion that `verify_all` can be told to change."""

    @property
    def reading(self) -> dict[str, Any]:
        """Where an answer is read: answer_in, tag, closed."""
        ...

    def verify_all(self, pairs: Sequence[tuple[Any, str]], **options: Any) -> list[Verdict]:
        """The verdicts on many (problem, completion); options override `reading`."""
        ...


@runtime_checkable
class Referenced(Protocol):
    """A right answer of each problem is known, for rewards without a verifier and for hints."""

    def reference(self, problem: Any) -> str:
        """One right answer as a completion would write it."""
        ...


@runtime_checkable
class Counted(Protocol):
    """The answers that a blind guess chooses among can be counted."""

    def candidates(self, problem: Any) -> int:
        """Number of well-formed answers of a problem, right and wrong."""
        ...


@runtime_checkable
class HasGolds(Protocol):
    """Each problem has one gold answer, which a guesser of the other problems knows."""

    def golds(self, problems: Sequence[Any]) -> list[str]:
        """The gold answers of these problems."""
        ...


@runtime_checkable
class Documented(Protocol):
    """A problem can be written as a row of a data set, for tools that read samples with their documents."""

    def doc(self, problem: Any) -> Mapping[str, str]:
        """Column -> text."""
        ...


@runtime_checkable
class Audited(Protocol):
    """The task has its own checks of its verifier (`sage_rlvr.tasks.checks`)."""

    def audit_cases(self, k: int) -> Iterator[Case | Check]:
        """The checks; k: guesses of the guess floors."""
        ...

    def audited(self) -> str:
        """What the checks look at, in a line."""
        ...


@runtime_checkable
class Worked(Protocol):
    """There are worked examples, to train a policy on before RL."""

    def examples(self, split: str, seed: int, start: int, n: int) -> Sequence[tuple[Any, str | tuple[Turn, ...]]]:
        """Examples start..start+n-1 of an endless stream: a problem, and a right completion or the turns of an episode."""
        ...


@runtime_checkable
class Spelled(Protocol):
    """All characters of prompts and completions are known; with worked examples, a policy can be trained from scratch."""

    @property
    def characters(self) -> Sequence[str]:
        """All that prompts and completions are written with; an entry of several characters is one token."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A completion is an episode of several turns, between which an environment (a tool, a test, a user) answers.

    `reply` and `judge` read the policy's own words and replay the environment from them, so that nothing that the policy writes
    can pass for a reply. `answer_key` and `verify_all` then take a tuple of texts instead of a text.
    """

    @property
    def turns(self) -> int:
        """The most turns of the policy; 1: a completion is one text."""
        ...

    def reply(self, problem: Any, responses: Sequence[str]) -> str | None:
        """What the environment says after these turns of the policy; None: the episode is over."""
        ...

    def judge(self, problem: Any, responses: Sequence[str]) -> Verdict:
        """The verdict on the policy's turns."""
        ...


@runtime_checkable
class ParallelEnvironment(Protocol):
    """An `Environment` that finds many replies and verdicts at once."""

    def reply_all(self, pairs: Sequence[tuple[Any, Sequence[str]]]) -> list[str | None]:
        """`reply` of many (problem, turns of the policy)."""
        ...

    def judge_all(self, pairs: Sequence[tuple[Any, Response]]) -> list[Verdict]:
        """`judge` of many (problem, turns of the policy)."""
        ...


@runtime_checkable
class Pointing(Protocol):
    """The task can point at the step that a problem needs, for the teacher `patch`."""

    def pointer(self, problem: Any) -> str:
        """Where the reference answer acts and what kind of step it takes, but not the step."""
        ...


@runtime_checkable
class Locating(Protocol):
    """The task can say where a completion acts, for the teacher `policy`."""

    def where(self, problem: Any, text: str) -> str:
        """Where a completion acts, but not how; "" for one that does nothing."""
        ...


@runtime_checkable
class WithId(Protocol):
    """A problem: it has an id, by which stores and metrics tell it from others. Every task's problems are."""

    @property
    def problem_id(self) -> str:
        """Differs from that of every other problem of the task."""
        ...


@runtime_checkable
class WithAnswer(Protocol):
    """A problem that has its gold answer, for audits and to be shown."""

    @property
    def answer(self) -> Any:
        """The gold."""
        ...


@runtime_checkable
class WithGuidance(Protocol):
    """A problem with a hint in its prompt, as `Task.guided` makes it. A dataclass, since another hint may take its place."""

    @property
    def guidance(self) -> Any:
        """The hint, "" for none."""
        ...


ABILITIES = (
    Enumerable, Recoverable, Generated, Described, Classified, Conversational, ReadsAnswers, Referenced, Counted, HasGolds,
    Documented, Audited, Worked, Spelled, Environment, ParallelEnvironment, Pointing, Locating,
)  # fmt: skip

__all__ = [
    "ABILITIES",
    "Audited",
    "Classified",
    "Conversational",
    "Counted",
    "Described",
    "Documented",
    "Enumerable",
    "Environment",
    "Generated",
    "HasGolds",
    "Locating",
    "ParallelEnvironment",
    "Pointing",
    "ReadsAnswers",
    "Recoverable",
    "Referenced",
    "Spelled",
    "WithAnswer",
    "WithGuidance",
    "WithId",
    "Worked",
]  # fmt: skip
