"""Abilities of a task beyond `sage_rlvr.Task`: protocols of members that belong together, tested by isinstance.

    if isinstance(task, Enumerable):
        right = task.solutions(problem)

A task does not inherit these: it has an ability as soon as it has its members. Members that every task has, with a default that
a task may override, are those of `Task` (`base.py`). `Any` is the task's problem type; `WithId`, `WithAnswer` and `WithGuidance`
describe such a problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sage_rlvr.verifiers import Verdict

if TYPE_CHECKING:
    from sage_rlvr.tasks.checks import Case, Check
    from sage_rlvr.tasks.forms import Form
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
        """Return the problem with this id. Raise DataError for a text that is not an id of this task."""
        ...


@runtime_checkable
class Generated(Protocol):
    """Problems are drawn from a distribution instead of listed."""

    def draw(self, split: str, seed: int, n: int, sampling: str = "iid") -> Sequence[Any]:
        """n problems of an evaluation."""
        ...

    def first(self, split: str, n: int) -> Sequence[Any]:
        """The first n of `problems(split)`."""
        ...


@runtime_checkable
class Described(Protocol):
    """The problems of a record can be described in words, for pages and plans."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Settings that determine the problems of an evaluation, as stored in a record."""
        ...

    def described(self, identity: Mapping[str, Any]) -> str:
        """Describe those problems in a line."""
        ...


@runtime_checkable
class Classified(Protocol):
    """Right answers are classified into kinds, which a report counts if the task is also `Enumerable` and `Recoverable`."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """Name of each classification -> how its kinds are written, or ""."""
        ...

    def kinds_of(self, problem: Any, text: str) -> list[str]:
        """The kind of a right completion in each classification."""
        ...


@runtime_checkable
class Formed(Protocol):
    """Completions, right or wrong, have forms that a report counts if the task is also `Recoverable`: the answers that a policy
    still tries."""

    @property
    def answer_marks(self) -> tuple[str, ...]:
        """Names of features that an answer may have."""
        ...

    def answer_form(self, problem: Any, text: str) -> Form:
        """The family and the marks of a completion."""
        ...

    def families(self, problem: Any) -> Collection[str]:
        """The families of all well-formed answers."""
        ...

    def answers(self, problem: Any) -> Sequence[str]:
        """All right answers, each in canonical form."""
        ...


@runtime_checkable
class ClassifiesStates(Protocol):
    """The states of a completion fall into classes by the next token's role, for guides and measures per kind of state."""

    @property
    def state_classes(self) -> tuple[str, ...]:
        """The names of the classes; every state belongs to one of them."""
        ...

    def state_class(self, text: str) -> str:
        """The class of the state after `text`, the completion so far."""
        ...


@runtime_checkable
class Conversational(Protocol):
    """The prompt can be asked as a conversation, for policies with a chat template."""

    def messages(self, problem: Any) -> Any:
        """The prompt as messages, {"role": ..., "content": ...} each."""
        ...


@runtime_checkable
class ReadsAnswers(Protocol):
    """The place of the answer in a completion is an option of `verify_all`."""

    @property
    def reading(self) -> dict[str, Any]:
        """The place of an answer: answer_in, tag, closed."""
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
    """The well-formed answers of a blind guesser can be counted."""

    def candidates(self, problem: Any) -> int:
        """Number of well-formed answers of a problem, right and wrong."""
        ...


@runtime_checkable
class Guessed(Protocol):
    """More guessers than the one that draws any well-formed answer, for the chance floor."""

    def guesses(self, problem: Any) -> tuple[float, ...]:
        """The probability that one guess is right, for each of these guessers; () if it is not known."""
        ...


@runtime_checkable
class HasGolds(Protocol):
    """Each problem has one gold answer, which a guesser knows for the other problems."""

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
    """The task has checks of its verifier (`sage_rlvr.tasks.checks`)."""

    def audit_cases(self, k: int) -> Iterator[Case | Check]:
        """The checks; k: guesses of the guess floors."""
        ...

    def audited(self) -> str:
        """Describe the subject of the checks in a line."""
        ...


@runtime_checkable
class Worked(Protocol):
    """Worked examples exist, to train a policy on before RL."""

    def examples(self, split: str, seed: int, start: int, n: int) -> Sequence[tuple[Any, str | tuple[Turn, ...]]]:
        """Examples start..start+n-1 of an endless stream: a problem, and a right completion or the turns of an episode."""
        ...


@runtime_checkable
class Spelled(Protocol):
    """All characters of prompts and completions are known; with worked examples, a policy can be trained from scratch."""

    @property
    def characters(self) -> Sequence[str]:
        """All characters of prompts and completions; an entry of several characters is one token."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A completion is an episode of several turns, between which an environment (a tool, a test, a user) answers.

    `reply` and `judge` read only the policy's text and replay the environment from it, so that the policy cannot write a fake
    reply. `answer_key` and `verify_all` then take a tuple of texts instead of a text.
    """

    @property
    def turns(self) -> int:
        """The most turns of the policy; 1: a completion is one text."""
        ...

    def reply(self, problem: Any, responses: Sequence[str]) -> str | None:
        """The environment's reply after these turns of the policy; None: the episode is over."""
        ...

    def judge(self, problem: Any, responses: Sequence[str]) -> Verdict:
        """The verdict on the policy's turns."""
        ...


@runtime_checkable
class ParallelEnvironment(Protocol):
    """An `Environment` that computes many replies and verdicts at once."""

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
        """The place and kind of the reference answer's step, but not the step."""
        ...


@runtime_checkable
class Locating(Protocol):
    """The task can name the place at which a completion acts, for the teacher `policy`."""

    def where(self, problem: Any, text: str) -> str:
        """The place at which a completion acts, but not how; "" if it does nothing."""
        ...


@runtime_checkable
class WithId(Protocol):
    """A problem with an id, by which stores and metrics identify it. Every task's problems have one."""

    @property
    def problem_id(self) -> str:
        """Differs from that of every other problem of the task."""
        ...


@runtime_checkable
class WithAnswer(Protocol):
    """A problem with its gold answer, for audits and for printing."""

    @property
    def answer(self) -> Any:
        """The gold."""
        ...


@runtime_checkable
class WithGuidance(Protocol):
    """A problem with a hint in its prompt, as `Task.guided` makes it. A dataclass, since another hint may replace it."""

    @property
    def guidance(self) -> Any:
        """The hint, "" for none."""
        ...


ABILITIES = (
    Enumerable, Recoverable, Generated, Described, Classified, Formed, ClassifiesStates, Conversational, ReadsAnswers, Referenced,
    Counted, HasGolds, Documented, Audited, Worked, Spelled, Environment, ParallelEnvironment, Pointing, Locating,
)  # fmt: skip

__all__ = [
    "ABILITIES",
    "Audited",
    "Classified",
    "ClassifiesStates",
    "Conversational",
    "Counted",
    "Described",
    "Documented",
    "Enumerable",
    "Environment",
    "Formed",
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
