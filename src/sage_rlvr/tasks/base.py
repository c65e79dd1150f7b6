"""The interface of a task for training on all engines, exact and sampled evaluation, and the audit.

    problem -> prompt -> completion -> verdict

`Task` is the base class: four members that a task must have, and members with a default that it may override. Further abilities
(enumerable, generated, with worked examples, an environment of several turns, ...) are the protocols of
`sage_rlvr.tasks.abilities`. A class with a misspelled or a missing member is a ConfigError.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sage_rlvr import members
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.ids import name_id
from sage_rlvr.registry import Registry
from sage_rlvr.tasks.abilities import (
    ABILITIES,
    Conversational,
    Documented,
    Environment,
    Generated,
    ParallelEnvironment,
    Referenced,
    WithAnswer,
    WithId,
)
from sage_rlvr.tasks.turns import Response, Turn
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import AnswerReading, marked_span, span_of

if TYPE_CHECKING:
    from sage_rlvr.tasks.prompts import PromptFormat

# Appended to a completion that was cut off or has an id without text, so that no verifier accepts it.
NO_ANSWER = "\N{REPLACEMENT CHARACTER}"
MAX_NEW_TOKENS = 3072


class Task(ABC):
    """A family of problems with a checkable answer. `Any` is the task's problem type, which has a `problem_id`.

    A subclass is usually a frozen dataclass; its fields are the settings of a recipe. Raises ConfigError for one with a public name
    that resembles the name of a member (`members.check_names`).
    """

    worlds: ClassVar[Mapping[str, Any]] = {}
    """Named worlds of the class, NAME:WORLD of the command line; the name without WORLD is a run's task."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in tables, stores and reports. Required."""

    @property
    def max_new_tokens(self) -> int:
        """Tokens that a completion may take, by default 3072."""
        return MAX_NEW_TOKENS

    @property
    def form(self) -> PromptFormat | None:
        """The format that writes `messages`, if one of `FORMATS` does."""
        return None

    @property
    def needs_chat_template(self) -> bool:
        """Whether a policy without a chat template gets an error instead of a plain prompt."""
        return False

    @property
    def token_classes(self) -> tuple[tuple[str, str], ...] | None:
        """(class, regex) of the tokens of completions that are not in words: no reasoning patterns are read in them."""
        return None

    @property
    def identity(self) -> Mapping[str, Any]:
        """Settings that determine the problems of an evaluation, as stored in a record."""
        return {"name": self.name}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        members.check_fields(cls, "task")
        members.check_names(cls, Task, "task", *ABILITIES, singular=True)

    @abstractmethod
    def problems(self, split: str) -> Sequence[Any]:
        """The problems of "train", "validation" or "test"; a set without splits returns all of them."""

    @abstractmethod
    def prompt(self, problem: Any) -> str:
        """The prompt as plain text."""

    @abstractmethod
    def verify(self, problem: Any, completion: str) -> Verdict:
        """The verdict on a completion. It accepts every text and never raises an error for one."""

    def first(self, split: str, n: int) -> Sequence[Any]:
        """The first n of `problems(split)`; override it if making all of them takes long."""
        return self.problems(split)[:n]

    def verify_all(self, pairs: Sequence[tuple[Any, str]]) -> list[Verdict]:
        """Many verdicts at once; override it if they are computed in parallel."""
        return [self.verify(problem, completion) for problem, completion in pairs]

    def answer_key(self, problem: Any, completion: Any) -> str | None:
        """The answer in a completion, equal for two with the same answer; None without one. By default the text with normalized
        spaces."""
        return " ".join("".join(completion).split()) or None

    @property
    def keyed(self) -> bool:
        """Whether the task defines which completions give the same answer, by overriding `answer_key`."""
        return type(self).answer_key is not Task.answer_key

    def answer_span(self, problem: Any, text: str) -> tuple[int, int] | None:
        """Span of a completion's answer, (first, end) in characters; None without one. By default the text after the last mark
        of an answer."""
        return marked_span(text)

    def choices(self, problem: Any) -> float | None:
        """Number of answers per right one that a blind guesser chooses from; None if unknown."""
        return None

    def guided(self, problem: Any, guidance: str) -> Any:
        """The problem with guidance in its prompt; by default in the wording of `Guided`."""
        return Guided(problem, guidance)

    def leaks(self, problem: Any, hint: str) -> bool:
        """Whether guidance contains the reference answer; by default as a complete word of it, with normalized spaces, and False
        for a task or problem without a reference answer."""
        gold = " ".join(str(self.reference(problem)).split()) if isinstance(self, Referenced) else ""
        return bool(gold) and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", " ".join(hint.split())) is not None

    def explain(self, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """The reason why an attempt failed, for the teacher `rules`; by default its answer and the verdict's reason."""
        tried = self.answer_key(problem, tuple(responses) if turns_of(self) > 1 else responses[-1])
        attempt = "gave no answer" if tried is None else f"answered {tried}"
        return f"An earlier attempt {attempt}: {verdict.reason}. Try another way."

    def fingerprint(self, problems: Sequence[Any]) -> str:
        """Hash of problems with their prompts, which a sample store compares; by default of ids and prompts."""
        return hash_of([[p.problem_id, self.prompt(p)] for p in problems])

    @property
    def verifier_hash(self) -> str:
        """Identity of the verifier and its limits: for a task of this package the version (`sage_rlvr.verifiers.versions`), for
        others the hash of their module, after the version if they inherit from a task of this package.
        Raises ConfigError if Python has no source."""
        sources = _sources_outside(type(self))
        if not sources:
            return self._verifier_version
        source = hash_of(sources[0] if len(sources) == 1 else sources)
        return f"{self._verifier_version}-source-{source[:16]}" if self._verifier_version else source

    @property
    def _verifier_version(self) -> str:
        """`version_hash` of a verifier of this package, under the task's settings; "" if the task has its own."""
        return ""

    def files(self) -> dict[str, str]:
        """Name -> SHA-256 of the task's files, so that a resume notices changes."""
        return {}

    def ready(self, say: Callable[[str], None], split: str) -> None:  # noqa: B027  (most tasks have nothing to report)
        """Report facts about a split before training or sampling on it, and raise an error if that cannot work."""

    def audited(self) -> str:
        """Describe the subject of an audit in a line."""
        return f"{len(self.problems('test'))} problems"


_REQUIRED = ("name", "problems", "prompt", "verify")
_NEEDS = "name: ClassVar[str], problems(split), prompt(problem) and verify(problem, completion) -> Verdict (docs/extending.md)"


def check_task(task: Any) -> None:
    """Raise ConfigError for a task with an invalid class (`check_class`); called before anything is trained, evaluated or
    sampled."""
    check_class(f"task {type(task).__name__}", type(task))


def check_class(who: str, kind: Any) -> None:
    """Raise ConfigError for a class that does not inherit `Task`, lacks a member of it, or has only some of the methods of an
    ability.

    who: its name in error messages.
    """
    members.check_inherits(who, kind, Task, "sage_rlvr", _NEEDS)
    own = members.names(kind, below=object)
    if lacking := [name for name in _REQUIRED if name not in own or name in kind.__abstractmethods__]:
        raise ConfigError(f"{who}: {kind.__name__} lacks {', '.join(lacking)}; a task has {_NEEDS}")
    for ability in ABILITIES:
        methods, wanted = members.methods_of(ability), members.names(ability, below=object)
        given = methods & (own - members.names(Task, below=object))
        if given and (rest := sorted(wanted - own)):
            raise ConfigError(
                f"{who}: {kind.__name__} has {', '.join(sorted(given))} but not {', '.join(rest)}, and they go together "
                f"(sage_rlvr.tasks.abilities.{ability.__name__}); add {', '.join(rest)}"
            )


TASKS: Registry[Any] = Registry("task", check=check_class)


def is_outside(kind: type) -> bool:
    """Whether a class is defined outside this package and Python's standard library."""
    return kind.__module__.partition(".")[0] not in {"sage_rlvr", *sys.stdlib_module_names}


def _sources_outside(kind: type) -> list[str]:
    """The source of the modules of a class and its bases outside this package. Raises ConfigError without a source."""
    names = dict.fromkeys(one.__module__ for one in kind.__mro__ if is_outside(one))
    try:
        return [inspect.getsource(sys.modules[name]) for name in names]
    except (OSError, TypeError, KeyError) as error:
        raise ConfigError(
            f"task {kind.__name__}: Python has no source of {', '.join(names)}, by which its verifier is told from others; write "
            "the class in a file, or give it a verifier_hash of its own"
        ) from error


class PromptedTask(Task):
    """A task with a `PromptFormat` for prompts and answers. problem.question: its text, or its messages."""

    @abstractmethod
    def verify_all(self, pairs: Sequence[tuple[Any, str]]) -> list[Verdict]:
        """The verdicts on many (problem, completion), computed in worker processes with limits on time and memory."""

    def messages(self, problem: Any) -> Any:
        """The prompt as a conversation."""
        return self._format.messages(problem.question)

    def prompt(self, problem: Any) -> str:
        """The prompt as plain text, for a tokenizer without a chat template: messages, empty lines between, and an opening."""
        return self._format.plain(problem.question)

    @property
    def _format(self) -> PromptFormat:
        """The format; a task with `form` None writes its prompts itself."""
        assert self.form is not None
        return self.form

    def verify(self, problem: Any, completion: str) -> Verdict:
        """`verify_all` of one."""
        return self.verify_all([(problem, completion)])[0]

    def reference(self, problem: Any) -> str:
        """The row's gold."""
        return str(problem.answer)

    def answer_span(self, problem: Any, text: str) -> tuple[int, int] | None:
        """The place where the format reads the answer; without a format after the last mark of one."""
        return marked_span(text) if self.form is None else span_of(text, AnswerReading(**self.form.reading))[0]


def ready(task: Task, say: Callable[[str], None], split: str) -> None:
    """Run `Task.ready` of a split before anything is trained or sampled on it, after `check_task` and `check_ids`."""
    check_task(task)
    check_ids(task, split)
    task.ready(say, split)


def check_ids(task: Task, split: str, problems: Sequence[Any] | None = None) -> None:
    """Raise DataError if the problems of a task from outside have no distinct ids, by which stores and metrics identify them.

    problems: by default all of the split, if they are listed; those of a `Generated` task are a list only in training, and a sample
    of them may repeat.
    """
    if not is_outside(type(task)):
        return
    if problems is None:
        problems = [] if isinstance(task, Generated) and split != "train" else task.problems(split)
    counted = Counter(problem.problem_id if isinstance(problem, WithId) else None for problem in problems)
    name, times = counted.most_common(1)[0] if counted else ("", 0)
    who = f"task {task.name}, {split} problems:"
    if None in counted:
        raise DataError(f"{who} {counted[None]} have no problem_id; give each problem one, which no other problem has")
    if times > 1:
        raise DataError(f"{who} the id {name!r} is there {times} times; ids must differ: number the problems, or drop repeats")


def problems_of(task: Task, split: str, seed: int, n: int | None, sampling: str = "iid") -> list[Any]:
    """The problems of an evaluation: n draws of the task's law (None: 300), or the first n of its list (None: all).

    For the split train always from the list: the training problems of a run on this task, for any seed and sampling.
    """
    check_task(task)
    if isinstance(task, Generated) and split != "train":
        return list(task.draw(split, seed, 300 if n is None else n, sampling))
    return list(task.problems(split) if n is None else task.first(split, n))


def turns_of(task: Task) -> int:
    """The most turns of a policy in an episode of a task; 1 if a completion is one text."""
    return task.turns if isinstance(task, Environment) else 1


def replies(task: Task, pairs: Sequence[tuple[Any, tuple[str, ...]]]) -> list[str | None]:
    """The replies of a task's environment after the turns of a policy; None if the episode is over."""
    if isinstance(task, ParallelEnvironment):
        return list(task.reply_all(pairs))
    return [environment_of(task).reply(problem, responses) for problem, responses in pairs]


def environment_of(task: Task) -> Environment:
    """The task as an environment. Raises ConfigError for a task without turns."""
    if not isinstance(task, Environment):
        raise ConfigError(
            f"task {task.name}: {type(task).__name__} has no episodes, so it has no verdict on several turns; give it turns, "
            "reply(problem, responses) and judge(problem, responses)"
        )
    return task


def verdicts(task: Task, pairs: Sequence[tuple[Any, Response]]) -> list[Verdict]:
    """One verdict per (problem, completion), or per (problem, turns of the policy) of an episode. Raises DataError if the task's
    member returns anything else."""
    results, member = _judged(task, pairs)
    who = f"task {task.name}: {type(task).__name__}.{member} must return"
    if len(results) != len(pairs):
        raise DataError(f"{who} a Verdict for each of {len(pairs)} completions, got {len(results)}")
    for verdict, (problem, _) in zip(results, pairs, strict=True):
        if not isinstance(verdict, Verdict):
            raise DataError(
                f"{who} a Verdict (sage_rlvr.verifiers), as Verdict('right', 'why') or Verdict('wrong', 'why'; score= where it is "
                f"graded), got {type(verdict).__name__} {verdict!r:.80} on problem {problem.problem_id!r}"
            )
    return results


def _judged(task: Task, pairs: Sequence[tuple[Any, Any]]) -> tuple[list[Any], str]:
    """The results of the task's member, and the name of that member."""
    if not pairs or isinstance(pairs[0][1], str):
        own = type(task).verify_all is not Task.verify_all
        return list(task.verify_all(pairs)), "verify_all" if own else "verify"
    if isinstance(task, ParallelEnvironment):
        return list(task.judge_all(pairs)), "judge_all"
    return [environment_of(task).judge(problem, responses) for problem, responses in pairs], "judge"


def reference(task: Task, problem: Any) -> str:
    """One right answer of a problem. Raises ConfigError for a task without reference answers, DataError for a problem without
    one."""
    if not isinstance(task, Referenced):
        raise ConfigError(
            f"task {task.name}: {type(task).__name__} has no reference(problem), the right answer that the policy's probability "
            "is asked for; add it to the task, or train by a method that asks its verifier"
        )
    text = str(task.reference(problem))
    if not text.strip():
        raise DataError(
            f"task {task.name}, problem {problem.problem_id!r}: no reference answer, and the reward is the policy's probability of "
            "it; give the row one, name its column (answer_column), or leave the row out"
        )
    return text


def gold_of(task: Task, problem: Any) -> str | None:
    """The gold answer in a problem's row or document, for printing; None without one, as for Countdown, where any right
    expression is an answer."""
    answer = problem.answer if isinstance(problem, WithAnswer) else None
    if answer is None and isinstance(task, Documented):
        answer = task.doc(problem).get("answer")
    return None if answer is None else str(answer) or None


def answer_id(key: str | None) -> int:
    """A key of `answer_key` as a number of 64 bits, the same on every machine; 0 without an answer."""
    return 0 if key is None else name_id(key)


@dataclass(frozen=True)
class Guided:
    """A problem with guidance in its prompt: in the default wording, for a task without `guided`.

    `Task.guided` makes it; `prompt_text` and `prompt_messages` read it. It is used only for prompts; verdicts, answers and
    references are those of the plain problem.
    """

    problem: Any
    guidance: str

    @property
    def problem_id(self) -> str:
        """The plain problem's id."""
        return str(self.problem.problem_id)


def guided(task: Task, problem: Any, guidance: str) -> Any:
    """The problem with guidance in its prompt; the unchanged problem without guidance."""
    return task.guided(problem, guidance) if guidance else problem


def prompt_text(task: Task, problem: Any) -> str:
    """The prompt as plain text; guidance in the default wording precedes it, as a prompt may end in an opening."""
    if isinstance(problem, Guided):
        return f"Guidance: {problem.guidance}\n\n{task.prompt(problem.problem)}"
    return task.prompt(problem)


def prompt_messages(task: Conversational, problem: Any) -> list[dict[str, str]]:
    """The prompt as a conversation; guidance in the default wording ends its last message."""
    if not isinstance(problem, Guided):
        return list(task.messages(problem))
    *before, last = task.messages(problem.problem)
    return [*before, {**last, "content": f"{last['content']}\n\nGuidance: {problem.guidance}"}]


def hash_of(value: Any) -> str:
    """SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------------------
# sampling of generated problems: counter-based streams of bits, pure functions of their path, and the first distinct problems


def stream(*path: int) -> np.random.Philox:
    """A counter-based bit stream; only its raw 64-bit words are used, which are the same in every numpy version."""
    return np.random.Philox(np.random.SeedSequence(list(path)))


def words(*path: int) -> Iterator[int]:
    """The endless 64-bit words of a stream, as integers from 0 to 2^64 - 1."""
    bits = stream(*path)
    while True:
        yield from (int(word) for word in bits.random_raw(64))


def different(
    blocks: Iterable[Sequence[tuple[Any, str]]], n: int, dry: int, by: Callable[[Any], Any] = attrgetter("problem_id")
) -> list[Any]:
    """The first n problems of blocks of examples that differ in `by`; fewer if `dry` blocks in a row contain no new one."""
    problems: dict[str, Any] = {}
    stale = 0
    for drawn in blocks:
        before = len(problems)
        for problem, _ in drawn:
            problems.setdefault(by(problem), problem)
        stale = 0 if len(problems) > before else stale + 1
        if len(problems) >= n or stale == dry:
            break
    return list(problems.values())[:n]


__all__ = [
    "MAX_NEW_TOKENS",
    "NO_ANSWER",
    "TASKS",
    "Guided",
    "PromptedTask",
    "Response",
    "Task",
    "Turn",
    "answer_id",
    "check_class",
    "check_ids",
    "check_task",
    "different",
    "environment_of",
    "gold_of",
    "guided",
    "hash_of",
    "problems_of",
    "prompt_messages",
    "prompt_text",
    "ready",
    "reference",
    "replies",
    "stream",
    "turns_of",
    "verdicts",
    "words",
]  # fmt: skip
