"""A task as an evaluation by samples has it: problems by id, prompts, verdicts with the answer that was read, hashes.

    task -> chosen problems -> prompts (`sage_rlvr.models.asking`) -> completions -> verdicts, answers

The hashes are what a sample store holds to: of the problems, of what writes the prompt, and of the verifier with its limits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.sample import prompt_hash, unescape
from sage_rlvr.models.asking import Asking, Chat, Prompt
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks.base import (
    MAX_NEW_TOKENS,
    Task,
    answer_key,
    fingerprint,
    guess_floor,
    hash_of,
    verdicts,
    verifier_hash,
)
from sage_rlvr.tasks.countdown import Countdown, solutions
from sage_rlvr.tasks.countdown import Problem as CountdownProblem
from sage_rlvr.tasks.countdown import render as render_countdown
from sage_rlvr.tasks.knights_and_knaves import KnightsAndKnaves
from sage_rlvr.tasks.math import answered, mathematics_hash
from sage_rlvr.tasks.prompts import PromptFormat
from sage_rlvr.verifiers.pool import shared


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and the answer that it is about, in one spelling; None where there is no answer."""

    label: str
    reason: str
    answer: str | None = None


@dataclass(frozen=True)
class Chosen:
    """A task with the problems of an evaluation chosen, by id.

    task_hash: of these problems; verifier_hash: of what judges them. Both are what a sample store holds to.
    """

    task: Task
    problems: Mapping[str, Any]
    task_hash: str

    @property
    def name(self) -> str:
        """The task's."""
        return self.task.name

    @property
    def form(self) -> PromptFormat | None:
        """The prompt format; None where the task renders plain text itself."""
        return getattr(self.task, "form", None)

    @property
    def prompt(self) -> str:
        """The name of its prompt format."""
        return self.name if self.form is None else self.form.name

    @property
    def verifier_hash(self) -> str:
        """Of the code and the limits that decide a verdict."""
        return verifier_hash(self.task)

    @property
    def max_new_tokens(self) -> int:
        """What a completion may take unless somebody says otherwise."""
        return int(getattr(self.task, "max_new_tokens", MAX_NEW_TOKENS))

    @property
    def floor(self) -> Callable[[int], float] | None:
        """k -> share of problems that k blind guesses hit, None where no such law is fixed."""
        rows = list(self.problems.values())
        return None if guess_floor(self.task, rows, 1) is None else lambda k: guess_floor(self.task, rows, k) or 0.0

    def verdicts(self, ids: Sequence[str], texts: Sequence[str]) -> list[Judged]:
        """One verdict per completion; the shape that `SampleStore.reverify` asks for."""
        unknown = sorted(set(ids) - set(self.problems))
        if unknown:
            raise ConfigError(f"{self.name}: problem {unknown[0]!r} is not among these; give the settings of the store")
        pairs = [(self.problems[i], text) for i, text in zip(ids, texts, strict=True)]
        said = verdicts(self.task, pairs)
        return [Judged(v.label, v.reason, answer_key(self.task, *pair)) for v, pair in zip(said, pairs, strict=True)]


def choose(task: Task, split: str = "test", seed: int = 1, n: int | None = None, draw: str = "law") -> Chosen:
    """The problems of an evaluation: of a law (`Countdown`) n draws, default 300; of a list the first n, default all.

    One that is there twice is sampled twice, its id counted on.
    """
    law = getattr(task, "draw", None)
    rows = law(split, seed, 300 if n is None else n, draw) if law else task.problems(split)[:n]
    chosen: dict[str, Any] = {}
    for problem in rows:
        name, times = problem.problem_id, 1
        while name in chosen:
            times += 1
            name = f"{problem.problem_id} #{times}"
        chosen[name] = problem
    drawn = [getattr(task, "identity", task.name), split, seed, draw, list(chosen)]
    return Chosen(task, chosen, hash_of(drawn) if law else fingerprint(task, rows))


def prompts_of(chosen: Chosen, tokens: Tokens, chat: Chat = "model") -> tuple[dict[str, Prompt], str]:
    """({problem id: prompt}, hash of what wrote them). chat: see `sage_rlvr.models.asking.Asking`."""
    asking = Asking.of(chosen.task, tokens, chat)
    found = {name: asking(problem) for name, problem in chosen.problems.items()}
    unknown = tokens.tokenizer.unk_token_id
    for name, prompt in found.items():
        if unknown is not None and unknown in prompt.ids:
            warnings.warn(f"problem {name!r}: its prompt holds what the tokenizer does not know (its unknown token)")
            break
    return found, hash_of(asking.written)


# ------------------------------------------------------------------------------------------------------------------
# problems that are made again from a store alone


def judged_by(items: Sequence[tuple[str, str]], reading: Mapping[str, Any]) -> list[Judged]:
    """The mathematics verifier on (completion, gold) pairs, answers read at one place."""
    said = shared().verify(list(items), **reading)
    return [Judged(v.label, v.reason, answered(text, reading)) for v, (text, _) in zip(said, items, strict=True)]


def generated_docs(store: SampleStore) -> dict[str, dict[str, Any]]:
    """Problem id -> doc, target and prompt, of a store of a task whose problems are generated here; {} for other tasks.

    Countdown: a problem is its id, and the target one of its right expressions. Knights and Knaves: the puzzles by their
    seed. DataError where the store's prompts or puzzles are not those that this version makes.
    """
    ids = list(dict.fromkeys(map(unescape, store.table(("problem",))["problem"].to_pylist())))
    if store.identity.task == Countdown.name:
        return _countdown_docs(store, ids)
    if store.identity.task.startswith("knights_and_knaves"):
        return _knights_docs(store, ids)
    return {}


def _countdown_docs(store: SampleStore, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    rows = store.table(("problem", "prompt_hash"))
    asked = dict(zip(map(unescape, rows["problem"].to_pylist()), rows["prompt_hash"].to_pylist(), strict=True))
    found = {}
    for name in ids:
        numbers, _, target = name.partition(" #")[0].partition("=")
        problem = CountdownProblem(tuple(map(int, numbers.split("-"))), int(target))
        prompt = render_countdown(problem)
        if asked[name] != prompt_hash(prompt):
            raise DataError(
                f"{store.path}: problem {name!r} was asked otherwise than {prompt!r}, so its text cannot be made again; give --docs"
            )
        doc = {"id": name, "numbers": list(problem.numbers), "target": problem.target}
        found[name] = {"doc": doc, "target": solutions(problem)[0], "prompt": prompt}
    return found


def _knights_docs(store: SampleStore, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    task = KnightsAndKnaves(rule="strict" if store.identity.task.endswith("_strict") else "published")
    made = (choose(task, n=limit) for limit in (store.wanted().get("problems"), None))
    chosen = next((chosen for chosen in made if chosen.task_hash == store.identity.task_hash), None)
    if chosen is None:
        raise DataError(f"{store.path}: holds other puzzles than this version makes, so give their texts with --docs")
    return {
        name: {
            "doc": {"id": name, "quiz": chosen.problems[name].text, "solution": chosen.problems[name].answer},
            "target": chosen.problems[name].answer,
            "prompt": task.prompt(chosen.problems[name]),
        }
        for name in ids
    }


__all__ = ["Chosen", "Judged", "Prompt", "choose", "generated_docs", "judged_by", "mathematics_hash", "prompts_of"]
