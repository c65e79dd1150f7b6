"""What a task is, to training on both engines, exact and sampled evaluation, and the audit.

    problem -> prompt -> completion -> verdict

`Task` has four members. What a task can do beyond them it has as further methods, and who needs one asks for it:

    solutions(problem) -> [text]       all right completions, for exact evaluation
    problem_of(problem_id) -> problem  the problem of an id, for who reads stored numbers
    kinds                              {name: how it is spelled, or ""} of the ways in which right answers are told apart, and
    kinds_of(problem, text) -> [kind]  the kind of a right completion in each of them; a page counts kinds (with `solutions` and
                                       `problem_of`)
    described(identity) -> str         a line on the problems that a record says it is of, for pages and plans (`identity`)
    messages(problem) -> [message]     the prompt as a conversation, for policies with a chat template
    form                               the `PromptFormat` of those messages, where one of `FORMATS` writes them
    needs_chat_template                True: a policy whose tokenizer has no chat template gets an error, and no plain prompt
    verify_all([(problem, text)])      many verdicts at once, where the verifier works in parallel
    answer_key(problem, text)          equal for two completions that give the same answer; None for one without an answer
    reference(problem) -> text         one right answer as a completion would write it, for rewards without a verifier
    answer_span(problem, text)         where a completion's own answer stands, (first, behind) in characters; None without one
    reading -> {option: value}         where an answer is read (answer_in, tag, closed); `verify_all` takes other values as options
    token_classes                      ((class, regex), ...) of the tokens of completions that are not in words: no reasoning
                                       patterns are read in them
    choices(problem) -> number         how many answers a blind guess chooses among for each right one, or None
    candidates(problem) -> int         how many it chooses among in all, where right ones are counted already
    golds(problems) -> [text]          their gold answers, for a guesser that knows the golds of the other problems
    worlds {name: task}                of the class: its named worlds, NAME:WORLD of the command line; the bare name is a run's own
    doc(problem) -> {name: text}       a generated problem as a row of a set, for tools that read samples beside their documents
    audit_cases(k) -> [Case or Check]  what an audit asks of the verifier (`sage_rlvr.tasks.checks`)
    fingerprint(problems) -> str       of the problems, what a sample store holds to
    verifier_hash -> str               of the code and the limits that decide a verdict
    examples(split, seed, start, n)    right completions with their problems, to train a policy from scratch on; `characters`: all
                                       that prompts and completions are written with, an entry of several characters as one token
    guided(problem, guidance)          a problem that is asked with guidance in its prompt; where a task has none, `Guided`
    explain(problem, said, verdict)    why an attempt failed and what kind of step to try, in words, for the teacher `rules`
    pointer(problem)                   where its reference answer acts and what kind of step it takes, for the teacher `patch`
    where(problem, text)               where a completion acts, and not how, for the teacher `policy`
    leaks(problem, hint) -> bool       whether guidance holds the reference answer
    first(split, n)                    the first n of problems(split), where making all of them takes long
    draw(split, seed, n, law)          the problems of an evaluation, where they are drawn and not listed
    max_new_tokens -> int              what a completion may take unless somebody says otherwise
    files() -> {name: hash}            of the files it is made of, so that a resume notices others
    ready(say, split)                  what is to be refused, or said, before anything is trained or sampled on a split

An episode is a completion of several turns, between which an environment (a tool, a test, a user) answers. Its task has besides

    turns -> int                       the most turns of the policy; 1, or absent: a completion is one text
    reply(problem, said) -> str | None what the environment says after these turns of the policy; None: the episode is over
    judge(problem, said) -> Verdict    the verdict on the policy's turns
    reply_all, judge_all ([(problem, said)])   many at once, where they are found in parallel

Both read the policy's own words alone, and replay the environment from them: nothing that the policy writes can pass for a reply.
`answer_key`, `examples` and `verify_all` are then of turns: a tuple of texts in the place of one, and of `Turn`s in an example.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

import sage_rlvr.verifiers
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import marked_span, span_of

# Appended to a completion that never ended or holds an id without text, so that no verifier accepts it.
NO_ANSWER = "\N{REPLACEMENT CHARACTER}"
MAX_NEW_TOKENS = 3072
Said = str | tuple[str, ...]
"""What a policy wrote: a completion, or its turns of an episode."""


@dataclass(frozen=True)
class Turn:
    """A turn of an episode. learned: whether fine-tuning on it learns a turn of the policy; a reply is read, never learned."""

    who: Literal["policy", "environment"]
    text: str
    learned: bool = True


class Task(Protocol):
    """A family of problems with a checkable answer. `Any` is the task's own problem type, which has a `problem_id`."""

    @property
    def name(self) -> str:
        """What tables, stores and reports call it."""
        ...

    def problems(self, split: str) -> Sequence[Any]:
        """Those of "train", "validation" or "test"; a set that has no splits gives all of them."""
        ...

    def prompt(self, problem: Any) -> str:
        """The prompt as plain text."""
        ...

    def verify(self, problem: Any, completion: str) -> Verdict:
        """The verdict on a completion. It answers every text and never raises on one."""
        ...


class Asked:
    """What tasks have in common that a `PromptFormat` asks and reads. problem.asked: its text, or its messages."""

    form: Any
    verify_all: Any

    def messages(self, problem: Any) -> Any:
        """The prompt as a conversation."""
        return self.form.messages(problem.asked)

    def prompt(self, problem: Any) -> str:
        """The prompt as plain text, for a tokenizer without a chat template: messages, empty lines between, and an opening."""
        return str(self.form.plain(problem.asked))

    def verify(self, problem: Any, completion: str) -> Any:
        """The verdict on a completion, found in a worker process with limits on time and memory."""
        return self.verify_all([(problem, completion)])[0]

    def reference(self, problem: Any) -> str:
        """The row's gold."""
        return str(problem.answer)

    def answer_span(self, problem: Any, text: str) -> tuple[int, int] | None:
        """Where the format reads the answer; without a format behind the last mark of one."""
        return marked_span(text) if self.form is None else span_of(text, **self.form.reading)[0]


def ready(task: Task, say: Callable[[str], None], split: str) -> None:
    """What a task refuses or says of the problems of a split before anything is trained or sampled on them. DataError where those
    of a task from outside have no ids that differ, by which stores and metrics tell them apart."""
    if not type(task).__module__.startswith("sage_rlvr."):
        counted = Counter(getattr(problem, "problem_id", None) for problem in task.problems(split))
        name, times = counted.most_common(1)[0] if counted else ("", 0)
        who = f"task {task.name}, {split} problems:"
        if None in counted:
            raise DataError(f"{who} {counted[None]} have no problem_id; give each problem one, which no other problem has")
        if times > 1:
            raise DataError(f"{who} the id {name!r} is there {times} times; ids must differ: number the problems, or drop repeats")
    if own := getattr(task, "ready", None):
        own(say, split)


def problems_of(task: Any, split: str, seed: int, n: int | None, sampling: str = "iid") -> list[Any]:
    """The problems of an evaluation: n draws of the task's law (None: 300), or the first n of its list (None: all).

    Of the split train always of the list: the problems that a run on this task trains on, whatever seed and sampling.
    """
    law = getattr(task, "draw", None)
    if law and split != "train":
        return list(law(split, seed, 300 if n is None else n, sampling))
    first = getattr(task, "first", None)
    return list(task.problems(split)[:n] if n is None or first is None else first(split, n))


def limit_of(task: Any) -> int:
    """Tokens that a completion may take unless somebody says otherwise."""
    return int(getattr(task, "max_new_tokens", MAX_NEW_TOKENS))


def turns_of(task: Any) -> int:
    """The most turns of a policy in an episode of a task; 1 where a completion is one text."""
    return int(getattr(task, "turns", 1))


def replies(task: Any, pairs: Sequence[tuple[Any, tuple[str, ...]]]) -> list[str | None]:
    """What the environment of a task says after the turns of a policy; None where the episode is over."""
    many = getattr(task, "reply_all", None)
    return list(many(pairs)) if many else [task.reply(problem, said) for problem, said in pairs]


def verdicts(task: Any, pairs: Sequence[tuple[Any, Said]]) -> list[Verdict]:
    """One verdict per (problem, completion), or per (problem, turns of the policy) of an episode. DataError where the task's member
    gives anything else."""
    one = "verify" if not pairs or isinstance(pairs[0][1], str) else "judge"
    many = getattr(task, f"{one}_all", None)
    found = list(many(pairs)) if many else [getattr(task, one)(problem, said) for problem, said in pairs]
    who = f"task {getattr(task, 'name', '')}: {type(task).__name__}.{one}{'_all' if many else ''} must return"
    if len(found) != len(pairs):
        raise DataError(f"{who} a Verdict for each of {len(pairs)} completions, got {len(found)}")
    for verdict, (problem, _) in zip(found, pairs, strict=True):
        if not isinstance(verdict, Verdict):
            raise DataError(
                f"{who} a Verdict (sage_rlvr.verifiers), as Verdict('right', 'why') or Verdict('wrong', 'why'; score= where it is "
                f"graded), got {type(verdict).__name__} {verdict!r:.80} on problem {problem.problem_id!r}"
            )
    return found


def check_members(who: str, kind: type) -> None:
    """ConfigError for the class of a task that lacks a member of `Task`. who: what messages call it."""
    lacking = [name for name in ("name", "problems", "prompt", "verify") if not hasattr(kind, name)]
    lacking = [name for name in lacking if name not in getattr(kind, "__dataclass_fields__", ())]
    if lacking:
        raise ConfigError(
            f"{who}: {kind.__name__} lacks {', '.join(lacking)}; a task has name: ClassVar[str], problems(split), prompt(problem) "
            "and verify(problem, completion) -> Verdict (docs/extending.md)"
        )


def answer_key(task: Any, problem: Any, said: Said) -> str | None:
    """What a completion answers, in the spelling by which answers are counted: the task's own or its verifier's, else the text."""
    own: Callable[[Any, Said], str | None] | None = getattr(task, "answer_key", None)
    return own(problem, said) if own else " ".join("".join(said).split()) or None


def reference(task: Task, problem: Any) -> str:
    """One right answer of a problem. ConfigError for a task that has none to give, DataError for a problem without one."""
    own = getattr(task, "reference", None)
    if own is None:
        raise ConfigError(
            f"task {task.name}: {type(task).__name__} has no reference(problem), the right answer that the policy's probability "
            "is asked for; add it to the task, or train by a method that asks its verifier"
        )
    text = str(own(problem))
    if not text.strip():
        raise DataError(
            f"task {task.name}, problem {problem.problem_id!r}: no reference answer, and the reward is the policy's probability of "
            "it; give the row one, name its column (answer_column), or leave the row out"
        )
    return text


def gold_of(task: Task, problem: Any) -> str | None:
    """The answer that a problem's row or document gives, to be shown; None where it gives none, as Countdown's, of which any right
    expression is an answer."""
    found = getattr(problem, "answer", None)
    if found is None and hasattr(task, "doc"):
        found = task.doc(problem).get("answer")
    return None if found is None else str(found) or None


def answer_span(task: Task, problem: Any, text: str) -> tuple[int, int] | None:
    """Where a completion's own answer stands in its text: as the task says, else behind the last mark of an answer."""
    own = getattr(task, "answer_span", None)
    found: tuple[int, int] | None = own(problem, text) if own else marked_span(text)
    return found


def answer_id(key: str | None) -> int:
    """A key of `answer_key` as a number of 64 bits, the same on every machine; 0 where there is no answer."""
    if key is None:
        return 0
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)


@dataclass(frozen=True)
class Guided:
    """A problem that is asked with guidance in its prompt: in the default wording, of a task that has no `guided` of its own.

    Only prompts are made of it; verdicts, answers and references are those of the plain problem.
    """

    problem: Any
    guidance: str

    @property
    def problem_id(self) -> str:
        """The plain problem's."""
        return str(self.problem.problem_id)


def guided(task: Task, problem: Any, guidance: str) -> Any:
    """The problem with guidance in its prompt, as the task words it, else as a `Guided`; itself where there is none to give."""
    own = getattr(task, "guided", None)
    return problem if not guidance else own(problem, guidance) if own else Guided(problem, guidance)


def prompt_text(task: Task, problem: Any) -> str:
    """The prompt as plain text; guidance in the default wording stands before it, as a prompt may end in an opening."""
    if isinstance(problem, Guided):
        return f"Guidance: {problem.guidance}\n\n{task.prompt(problem.problem)}"
    return task.prompt(problem)


def prompt_messages(task: Any, problem: Any) -> list[dict[str, str]]:
    """The prompt as a conversation; guidance in the default wording ends its last message."""
    if not isinstance(problem, Guided):
        return list(task.messages(problem))
    *before, last = task.messages(problem.problem)
    return [*before, {**last, "content": f"{last['content']}\n\nGuidance: {problem.guidance}"}]


def leaks(task: Task, problem: Any, hint: str) -> bool:
    """Whether guidance holds the reference answer: as the task says, else as a whole word of it, spaces aside.

    False for a task or a problem that has no reference answer.
    """
    if own := getattr(task, "leaks", None):
        return bool(own(problem, hint))
    given = getattr(task, "reference", None)
    gold = " ".join(str(given(problem)).split()) if given else ""
    return bool(gold) and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", " ".join(hint.split())) is not None


def fingerprint(task: Task, problems: Sequence[Any]) -> str:
    """Of the problems as they are asked: the task's own, else of their ids and prompts."""
    own = getattr(task, "fingerprint", None)
    return str(own(problems)) if own else hash_of([[p.problem_id, task.prompt(p)] for p in problems])


def verifier_hash(task: Task) -> str:
    """Of what decides a verdict: the task's own, else of the module that the task is written in."""
    own = getattr(task, "verifier_hash", None)
    if own is not None:
        return str(own)
    module = sys.modules[type(task).__module__]
    return hash_of(inspect.getsource(module))


def code_hash(modules: Iterable[str], **facts: Any) -> str:
    """Of the source of modules of `sage_rlvr.verifiers`, and of whatever else decides their verdicts."""
    folder = Path(sage_rlvr.verifiers.__file__).parent
    source = {name: hashlib.sha256((folder / f"{name}.py").read_bytes()).hexdigest() for name in modules}
    return hash_of({"source": source, **facts})


def hash_of(value: Any) -> str:
    """SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------------------
# how generated problems are drawn: counter-based streams of bits, pure functions of their path, and the first that differ


def stream(*path: int) -> np.random.Philox:
    """A counter-based bit stream; only its raw 64-bit words are used, which every numpy version gives alike."""
    return np.random.Philox(np.random.SeedSequence(list(path)))


def words(*path: int) -> Iterator[int]:
    """The endless 64-bit words of a stream, as whole numbers from 0 to 2^64 - 1."""
    bits = stream(*path)
    while True:
        yield from (int(word) for word in bits.random_raw(64))


def different(
    blocks: Iterable[Sequence[tuple[Any, str]]], n: int, dry: int, by: Callable[[Any], Any] = attrgetter("problem_id")
) -> list[Any]:
    """The first n problems of blocks of examples that differ in `by`; fewer where `dry` blocks in a row bring none."""
    found: dict[str, Any] = {}
    stale = 0
    for drawn in blocks:
        before = len(found)
        for problem, _ in drawn:
            found.setdefault(by(problem), problem)
        stale = 0 if len(found) > before else stale + 1
        if len(found) >= n or stale == dry:
            break
    return list(found.values())[:n]


__all__ = [
    "MAX_NEW_TOKENS", "NO_ANSWER", "Asked", "Guided", "Said", "Task", "Turn", "answer_id", "answer_key", "answer_span",
    "check_members", "code_hash", "different", "fingerprint", "gold_of", "guided", "hash_of", "leaks", "limit_of",
    "prompt_messages", "prompt_text", "ready", "reference", "replies", "stream", "turns_of", "verdicts", "verifier_hash",
    "words",
]  # fmt: skip
