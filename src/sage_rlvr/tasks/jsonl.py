"""User data judged by a user's reward function: recipe `task: {name: jsonl, file: my.jsonl, reward: my.py:score}`.

    score(completion: str, row: dict) -> float        or a signature of TRL, verl or verifiers (`sage_rlvr.verifiers.foreign`)

`row["answer"]` is the gold as it is in the file (a number, a text with its blanks, a worked solution), as the audit passes it too.

The function runs in worker processes with a limit on time and memory (`sage_rlvr.verifiers.pool`), one completion per call, so that
a reward that hangs or dies is "undecided" and counts as 0. One that raises an error (or calls sys.exit), or returns no finite
number, stops the run with the id of the row: such a reward is a mistake, and a 0 instead of it would be trained on. None (TRL's "no
reward") is undecided. If most completions are undecided a run warns at once; if all are, it stops (`RunDir.log`). A completion is
right from `right_from` on. A completion cut off at the length limit is passed unchanged.

Without `reward` the rows are mathematics: a gold, judged by `sage_rlvr.verifiers.math`. Instead of a file's function, `reward` may
be the name of a registered verifier of (completion, gold), such as "exact".
"""

from __future__ import annotations

import ast
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from sage_rlvr.errors import ConfigError, RewardFailed, refuse, require, wrong
from sage_rlvr.paths import not_in
from sage_rlvr.plugins import executed, source_sha256
from sage_rlvr.safe_io import read_text
from sage_rlvr.tasks.base import NO_ANSWER, TASKS, PromptedTask, hash_of
from sage_rlvr.tasks.datasets import Examples, remembered
from sage_rlvr.tasks.math import MathTask
from sage_rlvr.tasks.prompts import FORMATS, AnswerIn, Message, PromptFormat
from sage_rlvr.tasks.rows import DataSource, Say, facts, sha256_of, value_at
from sage_rlvr.tasks.verifiers import VERIFIERS
from sage_rlvr.verifiers import Label, Reading, Verdict
from sage_rlvr.verifiers.foreign import RewardCall, call, line_of, outcome, signature_of
from sage_rlvr.verifiers.pool import DIED, Pool
from sage_rlvr.verifiers.versions import VERSIONS, version_hash

# ---- in the worker


def __getattr__(name: str) -> Any:
    """ "judge|REWARD", the function of a worker: the reward is loaded when it is looked up, before the time limit starts."""
    if name.startswith("judge|"):
        return partial(_judge, _loaded(name.removeprefix("judge|")))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _loaded(reward: str) -> Callable[..., Any]:
    where, _, name = reward.rpartition("|")
    if not where:
        verifier = VERIFIERS[name]
        return lambda completion, row: verifier(completion, row["answer"])
    try:
        module = executed(Path(where), f"reward_{Path(where).stem}")
    except BaseException as error:  # sys.exit too, which would end the worker silently
        raise ConfigError(f"{where}{line_of(error, where)}: {type(error).__name__}: {error}") from error
    function: Callable[..., Any] = getattr(module, name)
    return function


def _judge(function: Callable[..., Any], completion: str, row: dict[str, Any], question: Any, gold: Any) -> Verdict:
    """The `outcome` of the reward for one completion. A function of no known signature is called as score(completion, row)."""
    signature = signature_of(function)
    if signature is None:
        return outcome(lambda: function(completion, row if gold is None else row | {"answer": gold}), function)
    given = RewardCall(completion, row, gold, question, chat=not isinstance(question, str))
    return outcome(lambda: call(function, signature, [given])[0], function)


# ---- in the caller


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row. question: its problem, text or messages; answer: its gold, "" without one; row: all columns, as in JSON; raw: the
    gold's value in the row, None without one, which a reward gets. `RewardTask.problems` makes it; its prompts and the reward read
    it."""

    problem_id: str
    question: str | tuple[Message, ...]
    answer: str
    row: Mapping[str, Any] = field(repr=False, compare=False)
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class RewardTask(PromptedTask):
    """The rows of a data set under a reward of the user's; the fields are those of `jsonl`."""

    file: str
    reward: str
    test_file: str | None = None
    form: PromptFormat | None = None
    problem_column: str | None = None
    answer_column: str | None = None
    right_from: float = 1.0
    seconds: float = 10.0
    memory_mb: ClassVar[int] = 8192

    def __post_init__(self) -> None:
        require(math.isfinite(self.right_from), "right_from", self.right_from, "a finite number is needed")
        require(self.seconds > 0, "seconds", self.seconds, "must be above 0")
        _file_and_function(self.reward)

    @property
    def name(self) -> str:
        """The file's name."""
        return Path(self.file).stem

    def source(self, split: str = "train") -> DataSource:
        """The source of a split: `test_file` for all but "train", if there is one."""
        path = self.file if split == "train" else self.test_file or self.file
        columns: dict[str, Any] = {"problem_column": self.problem_column, "answer_column": self.answer_column}
        return DataSource(path=path, split=split, key="task", **columns)

    def _read(self, split: str) -> Examples:
        named = not _file_and_function(self.reward)[0]  # a registered verifier judges by a gold
        return remembered(self.source(split), self.form is None, named or self.answer_column is not None or None)

    def problems(self, split: str = "test") -> tuple[RowProblem, ...]:
        """The rows of `file`, or, except for "train", those of `test_file` if there is one."""
        loaded, made = self._read(split), []
        for one in loaded.examples:
            row = json.loads(json.dumps(one.row, default=str))
            question = one.problem if isinstance(one.problem, str) else tuple(one.problem)
            raw = next((value for name in loaded.gold if (value := value_at(row, name)) is not None), None)
            made.append(RowProblem(one.problem_id, question, one.answer, row, raw))
        return tuple(made)

    def messages(self, problem: RowProblem) -> list[Message]:
        """The prompt as a conversation: the format's, or the row's messages."""
        return (self.form or FORMATS["as_is"]).messages(problem.question)

    def prompt(self, problem: RowProblem) -> str:
        """The row's text, or the format's prompt."""
        if self.form is not None:
            return self.form.plain(problem.question)
        return "\n\n".join(message["content"] for message in self.messages(problem))

    def verify_all(self, pairs: Sequence[tuple[RowProblem, str]]) -> list[Verdict]:
        """The verdicts on many (problem, completion) at once. Raises RewardFailed if the reward raises an error or returns no
        finite number."""
        pool = reward_pool(self.reward, self.seconds, self.memory_mb)
        texts = [text.removesuffix(NO_ANSWER) for _, text in pairs]
        named = not _file_and_function(self.reward)[0]  # a registered verifier compares with the gold that was read
        given = [(dict(p.row), p.question, p.answer if named else p.raw) for p, _ in pairs]
        verdicts = pool.verify((text, *more) for text, more in zip(texts, given, strict=True))
        return [self._verdict(p, text, verdict) for (p, _), text, verdict in zip(pairs, texts, verdicts, strict=True)]

    def _verdict(self, problem: RowProblem, text: str, verdict: Verdict) -> Verdict:
        if verdict.label == "undecided":
            return verdict
        if verdict.score is None:
            raise RewardFailed(
                f"reward {Path(self.reward).name}: on row {problem.problem_id!r} of {Path(self.file).name} it {verdict.reason}; "
                f"the completion was {text!r:.200}. Mend the function: it must give a finite number (or None) for every text"
            )
        label: Label = "right" if verdict.score >= self.right_from else "wrong"
        return Verdict(label, verdict.reason or f"reward {verdict.score:g}", verdict.score)

    def audited(self) -> str:
        """The rows and columns of an audit."""
        return str(self._read("test"))

    def ready(self, say: Say, split: str = "train") -> None:
        """Report the columns, and call the reward once, with an empty completion: it must return a number, and not end or
        disturb its worker."""
        say(str(self._read(split)))
        problem = self.problems(split)[0]
        verdict = self.verify(problem, "")
        if verdict.label == "undecided" and verdict.reason.startswith(DIED):
            raise RewardFailed(
                f"reward {Path(self.reward).name}: on row {problem.problem_id!r} of {Path(self.file).name} and an empty completion "
                f"the {verdict.reason}. Mend the function: it must return, and not call os._exit or write to file descriptors"
            )

    def answer_span(self, problem: RowProblem, text: str) -> tuple[int, int] | None:
        """The span of `PromptedTask`; the full text under the verifier "exact", which compares all of it."""
        whole = self.form is None and _file_and_function(self.reward) == ("", "exact")
        return (0, len(text)) if whole else super().answer_span(problem, text)

    @property
    def _answer(self) -> Callable[[str], str | None] | None:
        """A registered verifier's function that reads an answer; None if the reward does not read answers."""
        path, name = _file_and_function(self.reward)
        verifier = None if path else VERIFIERS[name]
        return verifier.answer if isinstance(verifier, Reading) else None

    @property
    def keyed(self) -> bool:
        """Whether the reward is a registered verifier that reads answers."""
        return self._answer is not None

    def answer_key(self, problem: RowProblem, completion: str) -> str | None:
        """The answer that a registered verifier reads; otherwise the text with normalized spaces."""
        reading = self._answer
        return super().answer_key(problem, completion) if reading is None else reading(completion.removesuffix(NO_ANSWER))

    @property
    def _verifier_version(self) -> str:
        """Hash of the reward (a file's code, or a verifier's version) and of all other settings that decide a verdict."""
        if _is_versioned(self.reward):
            return version_hash(self.reward, right_from=self.right_from, seconds=self.seconds, memory_mb=self.memory_mb)
        return hash_of([reward_hash(self.reward), self.right_from, self.seconds, "gold as in the row"])

    def files(self) -> dict[str, str]:
        """SHA-256 of the rows, and `reward_hash`."""
        return facts(self.source()) | facts(self.source("test")) | {self.reward: reward_hash(self.reward)}


def reward_pool(reward: str, seconds: float = 10.0, memory_mb: int = RewardTask.memory_mb) -> Pool:
    """Worker processes that call a reward, FILE.py:FUNCTION or a registered verifier, with (completion, row, prompt, gold).
    Raises ConfigError if there is no such file, function or verifier."""
    return _pool("|".join(_file_and_function(reward)), seconds, memory_mb)


@lru_cache(maxsize=8)
def _pool(reward: str, seconds: float, memory_mb: int) -> Pool:
    return Pool(seconds=seconds, memory_mb=memory_mb, function=f"{__name__}:judge|{reward}")


def _file_and_function(reward: str) -> tuple[str, str]:
    """(file, function), or ("", name of a registered verifier). Raises ConfigError if neither exists."""
    path, colon, name = reward.rpartition(":")
    if not colon:
        if reward not in VERIFIERS:
            raise wrong("reward", reward, f"write FILE.py:FUNCTION, or the name of a verifier: {', '.join(VERIFIERS)}")
        return "", reward
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise wrong("reward", reward, f"there is no file {file.name} in {not_in(file)}")
    try:
        tree = ast.parse(read_text(file, error=ConfigError))
    except (SyntaxError, ValueError) as error:
        raise wrong("reward", reward, f"{file} is no Python: {error}") from error
    names = (
        {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
        | {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        | {a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    )
    if name not in names:
        offered = {
            target.id
            for n in tree.body
            if isinstance(n, ast.Assign) and isinstance(n.value, ast.Lambda | ast.Call | ast.Name | ast.Attribute)
            for target in n.targets
            if isinstance(target, ast.Name)
        } | {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}  # not a variable
        near = get_close_matches(name, offered, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(offered)) or 'no function'}"
        raise wrong("reward", reward, f"{file} defines no {name!r}{hint}")
    return str(file), name


def _is_versioned(reward: str) -> bool:
    """Whether a reward is a verifier of this package, which has a version; a plugin's is identified by its file. The code's file
    distinguishes them: functools.wraps copies the module's name."""
    if reward not in VERSIONS or reward not in VERIFIERS:
        return False
    function = VERIFIERS[reward]
    return inspect.isfunction(function) and Path(function.__code__.co_filename).is_relative_to(Path(__file__).parents[1])


def reward_hash(reward: str) -> str:
    """Identity of a reward: `version_hash` of a verifier of this package; otherwise the SHA-256 of the code, for a file
    together with its imports from the same folder, for a plugin's verifier of its module."""
    path, name = _file_and_function(reward)
    if path:
        return source_sha256(Path(path))
    return version_hash(name) if _is_versioned(reward) else sha256_of(Path(inspect.getfile(VERIFIERS[name])))


@TASKS.register
def jsonl(
    file: str,
    *,
    reward: str | None = None,
    test_file: str | None = None,
    prompt: Literal["sage", "boxed", "as_is"] | None = None,
    answer_in: AnswerIn | None = None,
    tag: str | None = None,
    problem_column: str | None = None,
    answer_column: str | None = None,
    right_from: float = 1.0,
    seconds: float = 10.0,
    thinking: str | None = None,
    in_thinking: bool = False,
) -> RewardTask | MathTask:
    """User data: a .jsonl, .json, .csv or .parquet file, a folder of such, or a Hub id.

    reward: FILE.py:FUNCTION, or a registered verifier; None is mathematics. test_file: rows to evaluate on; None is `file`.
    prompt: a prompt format; None is "boxed" for mathematics, and with a reward the prompts of the rows. answer_in, tag: for
        mathematics, where the answer is read instead of the format's place, as rows with complete prompts need it. right_from: the
        reward from which on a completion counts as right. seconds: time limit of the reward for one completion. thinking,
        in_thinking: for mathematics, the tag after which the answer is read (null: all known; "": none), and whether the prompt
    opens it.
    """
    if reward is not None:
        placed = answer_in is not None or tag is not None or thinking is not None or in_thinking
        refuse((placed, "answer_in, tag, thinking, in_thinking: of mathematics; the reward reads the completion itself"))
        form = None if prompt in (None, "as_is") else FORMATS[prompt]
        return RewardTask(file, reward, test_file, form, problem_column, answer_column, right_from, seconds)
    source = DataSource(path=file, problem_column=problem_column, answer_column=answer_column, key="task")
    held_out = None if test_file is None else replace(source, path=test_file, split="test")
    return MathTask(source, FORMATS[prompt or "boxed"].read_at(answer_in, tag, thinking, in_thinking), test=held_out)


__all__ = ["RewardTask", "jsonl", "reward_hash"]
