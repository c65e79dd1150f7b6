r"""Tasks of the reasoning-gym package (the extra `tasks`), each a generator with a scorer of its own.

    right iff the package's score of the answer in the completion is 1; partial credit is none

The scorers compare texts, so an answer is scored as it is written and without its LaTeX (\text{Yes}), and the better score counts.
Tasks with many right answers (graph_color, rubiks_cube, ...) name none of them: their scorer alone decides, and `answer` is "".

An entry is a pure function of (name, seed, size, settings, index), so a worker makes it again instead of being sent it, and
what the package scores runs under the limits of a `Pool`.
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
from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.base import PromptedTask
from sage_rlvr.tasks.prompts import BOXED, FORMATS, AnswerIn, PromptFormat
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import extract
from sage_rlvr.verifiers.pool import Pool
from sage_rlvr.verifiers.style import undressed
from sage_rlvr.verifiers.units import plain
from sage_rlvr.verifiers.versions import version_hash


def library() -> Any:
    """The package. ConfigError where it is not installed."""
    try:
        return importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def version() -> str:
    """The package's version, without loading it. ConfigError where it is not installed."""
    try:
        return importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing(error) from error


def _missing(error: Exception) -> ConfigError:
    return ConfigError(f'reasoning-gym is not installed ({error}); its tasks need the extra: pip install "sage-rlvr[tasks]"')


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
    """The verdict by the package's scorer of an entry, which gets each spelling of the answer. Raises what the scorer raises, where
    it raises on all of them."""
    scores, failed = [], None
    for text in dict.fromkeys((answer, undressed(answer), plain(undressed(answer)))):
        try:
            scores.append(float(dataset.score_answer(text, entry)))
        except Exception as error:  # of a text that its scorer cannot read; another spelling may be one that it can
            failed = error
    if not scores and failed is not None:
        raise failed
    return Verdict("right", "right") if max(scores) >= 1 else Verdict("wrong", "value")


def _gold(answer: Any) -> str:
    return "" if answer is None else str(answer)


def __getattr__(name: str) -> Any:
    """`judge`, what a worker runs: the library is loaded when it is looked up, before any limit on time counts."""
    if name == "judge":
        library()
        return _judge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True, slots=True)
class GymProblem:
    """Entry `index` of a task under a seed: its question and one right answer, "" where the package names none. `ReasoningGym`
    makes it; its scorers read it."""

    problem_id: str
    question: str
    answer: str
    index: int
    seed: int = 0


@dataclass(frozen=True)
class ReasoningGym(PromptedTask):
    """A task of reasoning-gym by its name there, such as "leg_counting".

    count, seed  how many problems, and of which seed
    settings     what else its configuration takes; what JSON can carry
    form         how a problem is asked and where its answer is read
    """

    name: str
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
        """Those of `seed`; to train on, those of the next one. `ConfigError` for a missing package, an unknown name or setting."""
        seed = self.seed + (split == "train")
        dataset = _dataset(self.name, self._settings(seed))
        entries = [(i, dataset[i]) for i in range(self.count)]
        return tuple(
            GymProblem(f"{self.name}-{seed}-{i}", str(entry["question"]), _gold(entry["answer"]), i, seed)
            for i, entry in entries
        )

    @property
    def reading(self) -> dict[str, Any]:
        """Where an answer is read."""
        return self.form.reading

    def verify_all(self, pairs: Sequence[tuple[GymProblem, str]], **options: Any) -> list[Verdict]:
        """The verdicts on many (problem, completion) at once; `options` override the format's reading."""
        extracted = [extract(completion, **(self.reading | options)) for _, completion in pairs]
        items = [
            (answer.strip(), self.name, self._settings(problem.seed), problem.index)
            for (problem, _), (answer, _) in zip(pairs, extracted, strict=True)
            if answer is not None
        ]
        judged = iter(self.pool.verify(items))
        return [Verdict("wrong", why) if answer is None else next(judged) for answer, why in extracted]

    @property
    def _verifier_version(self) -> str:
        """The verifier's version, the release of the package that scores, where an answer is read, and the pool's limits."""
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
    """A generator of the package reasoning-gym by its name there; right where its own scorer gives 1.

    count, seed: how many problems, and of which seed. settings: what else the generator takes. answer_in, tag: where the answer is
    read in place of the format's own.
    """
    return ReasoningGym(dataset, count, seed, settings or {}, FORMATS[prompt].read_at(answer_in, tag))


__all__ = ["GymProblem", "ReasoningGym", "library", "reasoning_gym", "version"]
