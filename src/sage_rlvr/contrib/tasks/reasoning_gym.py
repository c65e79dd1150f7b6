r"""Tasks of the reasoning-gym package (the extra `tasks`), each a generator with a scorer.

    right iff the package's score of the answer in the completion is 1; there is no partial credit

The scorers compare texts, so an answer is scored as written and without its LaTeX (\text{Yes}), and the better score counts.
Tasks with many right answers (graph_color, rubiks_cube, ...) name none of them: only their scorer decides, and `answer` is "".

An entry is a pure function of (name, seed, size, settings, index), so a worker makes it again instead of receiving it, and the
package's scorers run under the limits of a `Pool`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from sage_rlvr.errors import ConfigError
from sage_rlvr.extras import install
from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.base import PromptedTask
from sage_rlvr.tasks.prompts import BOXED, FORMATS, AnswerIn, PromptFormat
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import AnswerReading, extract
from sage_rlvr.verifiers.latex import plain
from sage_rlvr.verifiers.pool import Pool
from sage_rlvr.verifiers.style import undressed
from sage_rlvr.verifiers.versions import version_hash


def library() -> Any:
    """The package. Raises ConfigError if it is not installed."""
    try:
        return importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def version() -> str:
    """The package's version, without loading it. Raises ConfigError if it is not installed."""
    try:
        return importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing(error) from error


def _missing(error: Exception) -> ConfigError:
    return ConfigError(f"reasoning-gym is not installed ({error}), which its tasks need; {install('tasks')}")


@lru_cache(maxsize=8)
def _dataset(name: str, settings: str) -> Any:
    try:
        return library().create_dataset(name, **json.loads(settings))
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"reasoning-gym task {name!r} with {settings}: {error}") from error


def _judge(answer: str, name: str, settings: str, index: int) -> Verdict:
    dataset = _dataset(name, settings)
    return scored(dataset, dataset[index], answer)


def scored(dataset: Any, entry: Any, answer: str) -> Verdict:
    """The verdict by the package's scorer of an entry, which gets each form of the answer. Re-raises the scorer's error
    if it raises one for all of them."""
    scores, failed = [], None
    for text in dict.fromkeys((answer, undressed(answer), plain(undressed(answer)))):
        try:
            scores.append(float(dataset.score_answer(text, entry)))
        except Exception as error:  # for a text that its scorer cannot read; another form may be readable
            failed = error
    if not scores and failed is not None:
        raise failed
    return Verdict("right", "right") if max(scores) >= 1 else Verdict("wrong", "value")


def _gold(answer: Any) -> str:
    return "" if answer is None else str(answer)


def __getattr__(name: str) -> Any:
    """`judge`, the function of a worker: the library is loaded when it is looked up, before any time limit starts."""
    if name == "judge":
        library()
        return _judge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True, slots=True)
class GymProblem:
    """Entry `index` of a task under a seed: its question and one right answer, "" if the package names none. `ReasoningGym`
    makes it; its scorers read it."""

    problem_id: str
    question: str
    answer: str
    index: int
    seed: int = 0


@dataclass(frozen=True)
class ReasoningGym(PromptedTask):
    """A task of reasoning-gym by its name in that package, such as "leg_counting".

    count, seed  the number of problems, and their seed
    settings     other values of its configuration, as JSON values
    form         the format of prompts and answers
    """

    name: str = ""
    count: int = 100
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    form: PromptFormat = BOXED
    pool: Pool = field(
        default_factory=lambda: Pool(memory_mb=4096, function="sage_rlvr.contrib.tasks.reasoning_gym:judge"), compare=False
    )

    def _settings(self, seed: int) -> str:
        return json.dumps(self.settings | {"size": self.count, "seed": seed}, sort_keys=True)

    def problems(self, split: str = "test") -> tuple[GymProblem, ...]:
        """The problems of `seed`, or of the next one for training. Raises ConfigError for a missing package, an unknown name, a
        setting."""
        seed = self.seed + (split == "train")
        dataset = _dataset(self.name, self._settings(seed))
        entries = [(i, dataset[i]) for i in range(self.count)]
        return tuple(
            GymProblem(f"{self.name}-{seed}-{i}", str(entry["question"]), _gold(entry["answer"]), i, seed)
            for i, entry in entries
        )

    @property
    def reading(self) -> dict[str, Any]:
        """The place of an answer."""
        return self.form.reading

    def verify_all(self, pairs: Sequence[tuple[GymProblem, str]], **options: Any) -> list[Verdict]:
        """The verdicts on many (problem, completion) at once; `options` override the format's reading."""
        extracted = [extract(completion, AnswerReading(**(self.reading | options))) for _, completion in pairs]
        items = [
            (answer.strip(), self.name, self._settings(problem.seed), problem.index)
            for (problem, _), (answer, _) in zip(pairs, extracted, strict=True)
            if answer is not None
        ]
        judged = iter(self.pool.verify(items))
        return [Verdict("wrong", why) if answer is None else next(judged) for answer, why in extracted]

    @property
    def _verifier_version(self) -> str:
        """The verifier's version, the release of the scoring package, the place of an answer, and the pool's limits."""
        pool = {"seconds": self.pool.seconds, "memory_mb": self.pool.memory_mb}
        return version_hash("reasoning_gym", reading=self.form.reading, library=version(), **pool)


@TASKS.register(name="reasoning_gym")
def reasoning_gym(
    dataset: str,
    *,
    count: int = 100,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    prompt: Literal["sage", "boxed", "as_is"] = "boxed",
    answer_in: AnswerIn | None = None,
    tag: str | None = None,
) -> ReasoningGym:
    """A generator of the package reasoning-gym by its name in that package; right if its scorer returns 1.

    count, seed: the number of problems, and their seed. settings: other settings of the generator. answer_in, tag: where the answer
        is read, instead of the format's place.
    """
    return ReasoningGym(dataset, count, seed, settings or {}, FORMATS[prompt].read_at(answer_in, tag))


__all__ = ["GymProblem", "ReasoningGym", "library", "reasoning_gym", "version"]
