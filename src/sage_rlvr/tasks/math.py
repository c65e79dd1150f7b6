"""Mathematics problems with one gold answer: the published sets (`sage_rlvr.tasks.math_sets.SETS`), or rows of your own.

    right iff the answer at the place that the prompt format names equals the gold (`sage_rlvr.verifiers.math`)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.base import PromptedTask
from sage_rlvr.tasks.datasets import remembered
from sage_rlvr.tasks.golds import check_golds
from sage_rlvr.tasks.math_sets import ENVIRONMENT, SETS, MathProblem, MathSource, digest, problem_of, published
from sage_rlvr.tasks.prompts import BOXED, PromptFormat, location_in_words
from sage_rlvr.tasks.rows import SUFFIXES, DataRows, DataSource, Say, facts
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.pool import Pool, shared
from sage_rlvr.verifiers.rewards import answered
from sage_rlvr.verifiers.versions import version_hash


@dataclass(frozen=True)
class MathTask(PromptedTask):
    """A set of `SETS`, or rows of your own.

    source  its key in `SETS`, or a file, a folder or a Hub id (`sage_rlvr.tasks.datasets`)
    form    how a problem is asked and where its answer is read (`sage_rlvr.tasks.prompts.FORMATS`)
    folder  a folder with the data files of `SETS`; default: what SAGE_RLVR_DATA names; "" for the pinned files
    pool    limits of its own for the verifier; default: the shared pool of this process
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
        """Where the set comes from; None for rows of your own."""
        return None if isinstance(self.source, DataSource) else SETS[self.source]

    @property
    def integers(self) -> tuple[int, int] | None:
        """The golds' range, where the rules of the contest fix one."""
        return None if self.published is None else self.published.integers

    def _source(self, split: str) -> str | DataSource:
        return self.test if self.test is not None and split != "train" else self.source

    @property
    def _folder(self) -> str:
        return os.environ.get(ENVIRONMENT, "") if self.folder is None else self.folder

    def problems(self, split: str = "test") -> tuple[MathProblem, ...]:
        """All problems in the order of their source. `DataError` where they cannot be had."""
        source = self._source(split)
        if isinstance(source, str):
            return published(source, self._folder)
        return tuple(problem_of(one) for one in remembered(source, self.form.name == "as_is").examples)

    @property
    def pinned(self) -> bool:
        """Whether these rows are the published ones (`MathSource.sha256`); a file of your own never is."""
        return self.published is not None and digest(self.problems()) == self.published.sha256

    @property
    def reading(self) -> dict[str, Any]:
        """Where an answer is read."""
        return self.form.reading

    def verify_all(self, pairs: Sequence[tuple[MathProblem, str]], **options: Any) -> list[Verdict]:
        """The verdicts on many (problem, completion) at once; `options` of `verify_math` override the format's reading."""
        items = [(completion, problem.answer) for problem, completion in pairs]
        return (self.pool or shared()).verify(items, **(self.reading | options))

    def answer_key(self, problem: MathProblem, text: str) -> str | None:
        """What a completion answers where the format asks for it, in the spelling by which answers are counted."""
        return answered(text, self.form.reading)

    def choices(self, problem: MathProblem) -> int | None:
        """How many integers the contest allows; None where it fixes none."""
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
        """SHA-256 of the files, for rows of your own."""
        own = [data for data in (self.source, self.test) if isinstance(data, DataSource)]
        return {name: sha for data in own for name, sha in facts(data).items()}

    @property
    def whose(self) -> str:
        """Whose rows these are, in words."""
        if self.published is None:
            return "rows of your own"
        return "the published ones" if self.pinned else "other rows than the published ones"

    @property
    def taken(self) -> str:
        """Which columns of rows of your own are read, behind a semicolon; "" for a published set."""
        source = self._source("test")
        return "" if isinstance(source, str) else f"; {remembered(source, self.form.name == 'as_is').taken}"

    def ready(self, say: Say, split: str = "train") -> None:
        """Says which rows and columns are read; DataError where the verifier cannot judge by more than 1 % of their golds.

        The published rows, whose golds `sage-rlvr audit` has judged, are not asked about.
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


def mathematics_hash(reading: Mapping[str, Any], pool: Pool | None = None) -> str:
    """The version of the mathematics verifier that reads answers so, under the limits of the pool (None: the shared one)."""
    limits = pool or shared()
    return version_hash("math", reading=reading, seconds=limits.seconds, memory_mb=limits.memory_mb)


__all__ = ["ENVIRONMENT", "SETS", "MathProblem", "MathSource", "MathTask", "digest", "mathematics_hash"]
