"""Mathematics problems with one gold answer: the published sets (`sage_rlvr.tasks.math_sets.SETS`), or user data.

    right iff the answer at the place that the prompt format names equals the gold (`sage_rlvr.verifiers.math`)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.base import TASKS, PromptedTask
from sage_rlvr.tasks.datasets import remembered
from sage_rlvr.tasks.golds import check_golds
from sage_rlvr.tasks.math_sets import ENVIRONMENT, SETS, MathProblem, MathSource, digest, problem_of, published
from sage_rlvr.tasks.prompts import BOXED, FORMATS, AnswerIn, PromptFormat, location_in_words
from sage_rlvr.tasks.rows import SUFFIXES, DataRows, DataSource, Say, facts
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.pool import Pool, shared
from sage_rlvr.verifiers.rewards import answered
from sage_rlvr.verifiers.versions import version_hash


@dataclass(frozen=True)
class MathTask(PromptedTask):
    """A set of `SETS`, or user data.

    source  its key in `SETS`, or a file, a folder or a Hub id (`sage_rlvr.tasks.datasets`)
    form    the format of prompts and answers (`sage_rlvr.tasks.prompts.FORMATS`)
    folder  a folder with the data files of `SETS`; default: the folder in SAGE_RLVR_DATA; "" for the pinned files
    pool    a pool with other limits for the verifier; default: the shared pool of this process
    test    other rows for every split but "train"; default: the same
    """

    source: str | DataSource
    form: PromptFormat = BOXED
    folder: str | None = None
    pool: Pool | None = field(default=None, compare=False)
    test: DataSource | None = None

    def __post_init__(self) -> None:
        source = self.source
        if isinstance(source, str) and source not in SETS:
            if "/" not in source and not source.endswith(SUFFIXES):
                raise ConfigError(
                    f"task {source!r}: choose one of {', '.join(SETS)}, or give a file ({', '.join(SUFFIXES)}) or a Hub id"
                )
            object.__setattr__(self, "source", DataSource(path=source))

    @property
    def name(self) -> str:
        """The set's key, or the file's name."""
        return Path(self.source.path).stem if isinstance(self.source, DataSource) else self.source

    @property
    def published(self) -> MathSource | None:
        """The origin of the set; None for user data."""
        return None if isinstance(self.source, DataSource) else SETS[self.source]

    @property
    def integers(self) -> tuple[int, int] | None:
        """The golds' range, if the rules of the contest fix one."""
        return None if self.published is None else self.published.integers

    def _source(self, split: str) -> str | DataSource:
        return self.test if self.test is not None and split != "train" else self.source

    @property
    def _folder(self) -> str:
        return os.environ.get(ENVIRONMENT, "") if self.folder is None else self.folder

    def problems(self, split: str = "test") -> tuple[MathProblem, ...]:
        """All problems in the order of their source. Raises `DataError` if they are not available."""
        source = self._source(split)
        if isinstance(source, str):
            return published(source, self._folder)
        return tuple(problem_of(one) for one in remembered(source, self.form.name == "as_is").examples)

    @property
    def pinned(self) -> bool:
        """Whether these rows are the published ones (`MathSource.sha256`); a user's file never is."""
        return self.published is not None and digest(self.problems()) == self.published.sha256

    @property
    def reading(self) -> dict[str, Any]:
        """The place of an answer."""
        return self.form.reading

    def verify_all(self, pairs: Sequence[tuple[MathProblem, str]], **options: Any) -> list[Verdict]:
        """The verdicts on many (problem, completion) at once; `options` of `verify_math` override the format's reading."""
        items = [(completion, problem.answer) for problem, completion in pairs]
        return (self.pool or shared()).verify(items, **(self.reading | options))

    def answer_key(self, problem: MathProblem, text: str) -> str | None:
        """The answer of a completion at the format's place, in canonical form."""
        return answered(text, self.form.reading)

    def choices(self, problem: MathProblem) -> int | None:
        """The number of integers that the contest allows; None if it fixes none."""
        return None if self.integers is None else self.integers[1] - self.integers[0] + 1

    def golds(self, problems: Sequence[MathProblem]) -> list[str]:
        """Their gold answers."""
        return [problem.answer for problem in problems]

    def fingerprint(self, problems: Sequence[MathProblem]) -> str:
        """`digest(problems)`."""
        return digest(problems)

    @property
    def _verifier_version(self) -> str:
        """`mathematics_hash` of the format's reading."""
        return mathematics_hash(self.form.reading, self.pool)

    def files(self) -> dict[str, str]:
        """SHA-256 of the files, for user data."""
        own = [data for data in (self.source, self.test) if isinstance(data, DataSource)]
        return {name: sha for data in own for name, sha in facts(data).items()}

    @property
    def whose(self) -> str:
        """The origin of these rows, in words."""
        if self.published is None:
            return "rows of your own"
        return "the published ones" if self.pinned else "other rows than the published ones"

    @property
    def taken(self) -> str:
        """The columns of user data that are read, after a semicolon; "" for a published set."""
        source = self._source("test")
        return "" if isinstance(source, str) else f"; {remembered(source, self.form.name == 'as_is').taken}"

    def ready(self, say: Say, split: str = "train") -> None:
        """Report the rows and columns; raise DataError if the verifier cannot judge by more than 1 % of their golds.

        The published rows, whose golds `sage-rlvr audit` has judged, are not checked.
        """
        source = self._source(split)
        if isinstance(source, DataSource):
            loaded = remembered(source, self.form.name == "as_is")
            check_golds(loaded.rows, [one.answer for one in loaded.examples], say=say)
            read = location_in_words(self.form.answer_in, self.form.tag)
            say(f"{loaded}; prompt format: {self.form.name}; answers are read {read}")
        elif not self.pinned:
            rows, name = self.problems(split), f"{source} of {ENVIRONMENT}={self._folder}"
            say(f"{name}: {len(rows):,} rows, {self.whose}")
            locations = [f"{source}, row {problem.problem_id}" for problem in rows]
            check_golds(DataRows(name, [], locations), [problem.answer for problem in rows], say=say)


@TASKS.register(name="math")
def published_set(
    set: Literal[tuple(SETS)],  # type: ignore[valid-type]
    *,
    prompt: Literal["sage", "boxed", "as_is"] = "boxed",
    answer_in: AnswerIn | None = None,
    tag: str | None = None,
    thinking: str | None = None,
    in_thinking: bool = False,
) -> MathTask:
    """Mathematics problems with one gold answer: a published set, in a prompt format.

    answer_in, tag: where the answer is read, instead of the format's place. thinking: the tag after which it is read (null: all
        that are known; "": none). in_thinking: whether the prompt opens it, so that a completion that never closes it has no
        answer.
    """
    return MathTask(set, FORMATS[prompt].read_at(answer_in, tag, thinking, in_thinking))


def mathematics_hash(reading: Mapping[str, Any], pool: Pool | None = None) -> str:
    """The version of the mathematics verifier with this reading, under the limits of the pool (None: the shared one)."""
    limits = pool or shared()
    return version_hash("math", reading=reading, seconds=limits.seconds, memory_mb=limits.memory_mb)


__all__ = ["ENVIRONMENT", "SETS", "MathProblem", "MathSource", "MathTask", "digest", "mathematics_hash"]
