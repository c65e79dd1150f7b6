"""What an evaluation by samples asks of a task: problems by id, prompts, verdicts with the answer that was read, hashes.

    problem -> prompt (chat template of the policy's tokenizer, else plain text) -> completion -> verdict, answer

Countdown, the mathematics tasks and Knights and Knaves under one shape. The hashes are what a sample store holds to: of the
problems, of what writes the prompt, and of the verifier with its limits (the code of its modules and of math-verify).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import sage_rlvr.verifiers
from sage_rlvr.config import WorldConfig
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.evaluate import evaluation_problems, world_identity
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.sample import prompt_hash, unescape
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks.chat import fit_tokenizer, render
from sage_rlvr.tasks.countdown import Problem as CountdownProblem
from sage_rlvr.tasks.countdown import render as render_countdown
from sage_rlvr.tasks.countdown import solutions
from sage_rlvr.tasks.countdown.expressions import MAX_NUMBERS, expressions_over
from sage_rlvr.tasks.knights_and_knaves import KnightsAndKnaves
from sage_rlvr.tasks.math import TASKS, MathTask, digest
from sage_rlvr.tasks.prompts import AS_IS, FORMATS, Message, PromptFormat
from sage_rlvr.verifiers import MATHEMATICS, Verdict
from sage_rlvr.verifiers.answers import bare, extract, spelling
from sage_rlvr.verifiers.knights_and_knaves import HEADING
from sage_rlvr.verifiers.pool import Pool, shared

COUNTDOWN, KNIGHTS = "countdown", "knights_and_knaves"
SAMPLED_TASKS = (COUNTDOWN, *TASKS, KNIGHTS)

Chat = Literal["model", "format"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and the answer that it is about, in one spelling; None where there is no answer."""

    label: str
    reason: str
    answer: str | None = None


@dataclass(frozen=True)
class SampledTask:
    """A task with its problems chosen. max_new_tokens: what a completion may take unless somebody says otherwise.

    form        the prompt format; None where the task renders plain text itself
    talk        problem -> messages, None where only plain text is there; render: problem -> plain text
    judge       (problem, completion) pairs -> verdicts with answers
    floor       k -> share of problems that k uniform guesses hit, None where no such law is fixed
    """

    name: str
    problems: Mapping[str, Any]
    task_hash: str
    verifier_hash: str
    judge: Callable[[Sequence[tuple[Any, str]]], list[Judged]]
    render: Callable[[Any], str]
    talk: Callable[[Any], list[Message]] | None = None
    form: PromptFormat | None = None
    floor: Callable[[int], float] | None = None
    max_new_tokens: int = 3072

    @property
    def prompt(self) -> str:
        """The name of its prompt format."""
        return self.name if self.form is None else self.form.name

    def verdicts(self, ids: Sequence[str], texts: Sequence[str]) -> list[Judged]:
        """One verdict a completion; the shape that `SampleStore.reverify` asks for."""
        unknown = sorted(set(ids) - set(self.problems))
        if unknown:
            raise ConfigError(f"{self.name}: problem {unknown[0]!r} is not among these; give the settings of the store")
        return self.judge([(self.problems[i], text) for i, text in zip(ids, texts, strict=True)])


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt and its token ids, the first a start token where the tokenizer or template puts one."""

    text: str
    ids: tuple[int, ...]


def prompts_of(task: SampledTask, tokens: Tokens, chat: Chat = "model") -> tuple[dict[str, Prompt], str]:
    """({problem id: prompt}, hash of what wrote them).

    chat "model": by the chat template of the policy's tokenizer; where it has none, that of the format (as fine-tuning
    gives it), and plain text for tasks with a frame of their own. "format": always the format's own template, so that
    policies whose tokenizers differ are asked alike.
    """
    tokenizer = tokens.tokenizer
    chats = task.talk is not None and (task.form is not None or tokenizer.chat_template is not None)
    if not chats or task.talk is None:
        made = {i: task.render(problem) for i, problem in task.problems.items()}
        written = {"plain": task.name}
        return _spelled(made, tokens, tokens.encode_prompt), _hash(written)
    form = task.form or AS_IS
    if chat == "format":
        tokenizer.chat_template = form.chat_template
    fit_tokenizer(tokenizer, form)
    made = {i: render(tokenizer, task.talk(problem), opened=True) for i, problem in task.problems.items()}
    written = {"chat_template": tokenizer.chat_template, "form": json.dumps(asdict(form), sort_keys=True)}
    return _spelled(made, tokens, tokens.encode), _hash(written)


def _spelled(made: Mapping[str, str], tokens: Tokens, encode: Callable[[str], list[int]]) -> dict[str, Prompt]:
    """Texts as prompts. ConfigError where the tokenizer has no token for a character."""
    try:
        found = {i: Prompt(text, tuple(encode(text))) for i, text in made.items()}
    except Exception as error:  # tokenizers raises plain Exceptions
        raise ConfigError(
            f"tokenizer {tokens.tokenizer.name_or_path!r} cannot spell the prompts of this task ({error}); evaluate a policy "
            "whose tokenizer knows their characters"
        ) from error
    unknown = tokens.tokenizer.unk_token_id
    for i, prompt in found.items():
        if unknown is not None and unknown in prompt.ids:
            warnings.warn(f"problem {i!r}: its prompt holds what the tokenizer does not know (its unknown token)")
            break
    return found


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def code_hash(modules: Iterable[str], **facts: Any) -> str:
    """Of some verifier modules' source, and of whatever else decides their verdicts."""
    folder = Path(sage_rlvr.verifiers.__file__).parent
    source = {name: hashlib.sha256((folder / f"{name}.py").read_bytes()).hexdigest() for name in modules}
    return _hash({"source": source, **facts})


# ------------------------------------------------------------------------------------------------------------------
# the tasks


def countdown(world: WorldConfig, split: str, problems: int, seed: int, draw: str) -> SampledTask:
    """Problems of a Countdown world as `eval` draws them. One that the law drew twice is sampled twice, its id counted on."""
    task = world.build()
    chosen: dict[str, Any] = {}
    for problem in evaluation_problems(task, split, seed, problems, draw):
        name, times = task.problem_id(problem), 1
        while name in chosen:
            times += 1
            name = f"{task.problem_id(problem)} #{times}"
        chosen[name] = problem

    def judge(pairs: Sequence[tuple[Any, str]]) -> list[Judged]:
        return [_with(task.verify(problem, text), text) for problem, text in pairs]

    identity = [world_identity(world), split, seed, draw, list(chosen)]
    tries = [expressions_over(p.numbers) / len(solutions(p)) for p in chosen.values() if len(p.numbers) < MAX_NUMBERS]
    floor = partial(_guessed, tries) if len(tries) == len(chosen) else None  # five numbers would take a minute
    hashes = _hash(identity), code_hash(["countdown"])
    return SampledTask(COUNTDOWN, chosen, *hashes, judge, task.render, max_new_tokens=32, floor=floor)


def _with(verdict: Verdict, answer: str | None) -> Judged:
    return Judged(verdict.label, verdict.reason, answer)


def mathematics(name: str, template: str = "boxed", limit: int | None = None, pool: Pool | None = None) -> SampledTask:
    """A task of `sage_rlvr.tasks.math`, or a .jsonl file, asked and read in a prompt format. limit: the first rows."""
    if template not in FORMATS:
        raise ConfigError(f"template {template!r}: choose one of {', '.join(FORMATS)}")
    form = FORMATS[template]
    task = MathTask(name, form, pool=pool)
    rows = task.problems()[:limit]

    def judge(pairs: Sequence[tuple[Any, str]]) -> list[Judged]:
        verdicts = task.verify_all(list(pairs))
        return [_with(v, answer_of(text, form)) for v, (_, text) in zip(verdicts, pairs, strict=True)]

    judged = mathematics_hash(form.reading, pool)
    integers = TASKS[name].integers if name in TASKS else None
    values = None if integers is None else integers[1] - integers[0] + 1
    return SampledTask(
        name if name in TASKS else Path(name).stem,
        {problem.problem_id: problem for problem in rows},
        digest(rows),
        judged,
        judge,
        task.render,
        talk=task.messages,
        form=form,
        floor=None if values is None else partial(_guessed, (values,)),
    )


def mathematics_hash(reading: Mapping[str, Any], pool: Pool | None = None) -> str:
    """Of the mathematics verifier that reads answers so: its code, limits and libraries."""
    limits = pool or shared()
    return code_hash(
        MATHEMATICS,
        reading=reading,
        seconds=limits.seconds,
        memory_mb=limits.memory_mb,
        libraries={lib: importlib.metadata.version(lib) for lib in ("math-verify", "latex2sympy2_extended", "sympy")},
    )


def judged_by(items: Sequence[tuple[str, str]], reading: Mapping[str, Any]) -> list[Judged]:
    """The mathematics verifier on (completion, gold) pairs, answers read at one place."""
    verdicts = shared().verify(list(items), **reading)
    return [_with(v, _answer(text, reading)) for v, (text, _) in zip(verdicts, items, strict=True)]


def answer_of(completion: str, form: PromptFormat) -> str | None:
    """What a completion answers where the format asks for it, in the spelling by which answers are counted."""
    return _answer(completion, form.reading)


def _answer(completion: str, reading: Mapping[str, Any]) -> str | None:
    found, _ = extract(completion, **reading)
    return None if found is None or not bare(found) else spelling(bare(found))


def knights_and_knaves(limit: int | None = None, strict: bool = False) -> SampledTask:
    """The puzzles of `sage_rlvr.tasks.knights_and_knaves` in the published frame; by chat template where there is one.

    strict: judged by the rule "strict" instead of the published one, and called so.
    """
    task = KnightsAndKnaves(rule="strict" if strict else "published")
    puzzles = task.problems()[:limit]

    def judge(pairs: Sequence[tuple[Any, str]]) -> list[Judged]:
        return [_with(task.verify(puzzle, text), _concluded(text)) for puzzle, text in pairs]

    asked = {puzzle.problem_id: [puzzle.text, puzzle.answer] for puzzle in puzzles}
    return SampledTask(
        f"{KNIGHTS}_strict" if strict else KNIGHTS,
        {puzzle.problem_id: puzzle for puzzle in puzzles},
        _hash([asked, task.instruction]),
        code_hash(["knights_and_knaves"], rule=task.rule),
        judge,
        task.render,
        talk=task.messages,
        floor=partial(_guessed, tuple(2 ** len(puzzle.names) for puzzle in puzzles)),
    )


def _concluded(text: str) -> str | None:
    _, heading, said = text.partition(HEADING)
    return " ".join(said.split()) if heading else None


def _guessed(values: Sequence[float], k: int) -> float:
    """Mean over problems of 1 - (1 - 1/values)^k: what k uniform guesses among that many answers hit."""
    return sum(1 - (1 - 1 / v) ** k for v in values) / len(values)


# ------------------------------------------------------------------------------------------------------------------
# problems that are made again from a store alone


def generated_docs(store: SampleStore) -> dict[str, dict[str, Any]]:
    """Problem id -> doc, target and prompt, of a store of a task whose problems are generated here; {} for other tasks.

    Countdown: a problem is its id, and the target one of its right expressions. Knights and Knaves: the puzzles by their
    seed. DataError where the store's prompts or puzzles are not those that this version makes.
    """
    ids = list(dict.fromkeys(map(unescape, store.table(("problem",))["problem"].to_pylist())))
    if store.identity.task == COUNTDOWN:
        return _countdown_docs(store, ids)
    if store.identity.task.removesuffix("_strict") == KNIGHTS:
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
    strict = store.identity.task.endswith("_strict")
    made = (knights_and_knaves(limit, strict) for limit in (store.wanted().get("problems"), None))
    task = next((task for task in made if task.task_hash == store.identity.task_hash), None)
    if task is None:
        raise DataError(f"{store.path}: holds other puzzles than this version makes, so give their texts with --docs")
    return {
        name: {
            "doc": {"id": name, "quiz": task.problems[name].text, "solution": task.problems[name].answer},
            "target": task.problems[name].answer,
            "prompt": task.render(task.problems[name]),
        }
        for name in ids
    }


__all__ = [
    "COUNTDOWN",
    "KNIGHTS",
    "SAMPLED_TASKS",
    "Judged",
    "Prompt",
    "SampledTask",
    "answer_of",
    "code_hash",
    "countdown",
    "generated_docs",
    "knights_and_knaves",
    "mathematics",
    "prompts_of",
]
