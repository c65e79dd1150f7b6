"""The replay buffer of a run: warm start before step 0, additions from each rollout, and the loss term of an update.

    fill (base, file, oracle) -> [ rollout -> add -> draw, score, term of the loss ] per step       core/extras/replay has the rules

Its content is a value of the loop's running state, replaced when a step is done: one that diverges adds nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.core.extras.replay.answers import Answers
from sage_rlvr.core.extras.replay.base import LINE, Buffer, StoredAnswers, buffer_budget, buffer_loss
from sage_rlvr.core.keys import pair_ids
from sage_rlvr.core.method import credit
from sage_rlvr.core.state import State
from sage_rlvr.errors import ConfigError, DataError, TrainingDiverged
from sage_rlvr.models.devices import dtype_of, placed
from sage_rlvr.models.policy import load_policy
from sage_rlvr.models.sampler import Rollout, sample
from sage_rlvr.models.scoring import score
from sage_rlvr.safe_io import read_json_lines
from sage_rlvr.tasks.abilities import Enumerable
from sage_rlvr.tasks.base import answer_id, verdicts
from sage_rlvr.tasks.rows import Say, tell
from sage_rlvr.training.groups import Groups, rows_of_groups
from sage_rlvr.training.loop_state import Loop
from sage_rlvr.training.reference import check_vocabularies
from sage_rlvr.training.rollouts import answers_of, problems_of_step, rewards_of
from sage_rlvr.training.state import undone_if_diverged
from sage_rlvr.training.steps import mean_of

DRAWS = "buffer"  # of the run's key, by which stored answers are drawn
BEFORE = -1  # the step of what was stored before step 0


def stored(loop: Loop) -> Answers:
    """What the buffer of a run holds after its last step."""
    assert loop.method.buffer is not None
    return Answers.of(loop.parts[loop.method.buffer.slot])


def numbered(problems: Sequence[Any]) -> dict[str, int]:
    """Id of a training problem -> its number; of several with one id, the first."""
    numbers: dict[str, int] = {}
    for number, problem in enumerate(problems):
        numbers.setdefault(str(problem.problem_id), number)
    return numbers


def problem_numbers(loop: Loop, problems: Sequence[Any]) -> Tensor:
    """(P,) numbers of training problems."""
    return torch.tensor([loop.numbers[str(problem.problem_id)] for problem in problems], dtype=torch.long)


# ---- before step 0


def fill(loop: Loop, say: Say = tell) -> bool:
    """Put into the buffer what base, file and task give, within the bounds; False where the method asks for none of these.

    `say` gets a line with the cost of each. A function of the recipe: the completions of a problem depend on (seed, problem,
    sample) only.
    """
    buffer = loop.method.buffer
    if buffer is None or not (buffer.base or buffer.file or buffer.oracle):
        return False
    kept, began = Answers.none(), time.perf_counter()
    if buffer.base:
        for part in base_answers(loop, buffer):
            kept = buffer.rule.add(kept, part)
        tried = int(kept.tried[:, 1].sum())
        say(
            f"buffer: {tried:,} completions of {len(kept.tried):,} problems sampled from the base model in "
            f"{time.perf_counter() - began:,.0f} s, {int(kept.sampled):,} tokens; {int(kept.tried[:, 2].sum()):,} "
            f"right, {len(kept):,} answers of {len(torch.unique(kept.problem)):,} problems stored"
        )
    if buffer.file is not None:
        before = len(kept)
        kept = buffer.rule.add(kept, file_answers(loop, buffer.file))
        say(f"buffer: {len(kept) - before:,} answers loaded from {buffer.file}")
    if buffer.oracle:
        before = len(kept)
        kept = buffer.rule.add(kept, true_answers(loop))
        say(f"buffer: {len(kept) - before:,} correct answers stored from the list of {loop.task.name} (an oracle)")
    loop.parts = {**loop.parts, buffer.slot: kept.tensors()}
    return True


@torch.no_grad()
def base_answers(loop: Loop, buffer: Buffer) -> Iterator[Answers]:
    """The right ones of `base` samples of each problem, some problems at a time."""
    config, size = loop.config.rollout, buffer.base
    model, key = base_of(loop), loop.key.fold("replay/base")
    problems = list(loop.numbers.values())[: buffer.base_prompts]
    at_once = max(1, config.completions // size)
    for first in range(0, len(problems), at_once):
        numbers = torch.tensor(problems[first : first + at_once])
        batch = [loop.problems[i] for i in numbers.tolist()]
        rollout = sample(
            model,
            [list(loop.ask(problem).ids) for problem in batch],
            group_size=size,
            max_new_tokens=config.max_new_tokens,
            eos_id=loop.tokens.eos_ids,
            pad_id=loop.tokens.pad_id,
            key=key,
            temperature=config.temperature,
            row_ids=rows_of_groups(numbers, size),
            entropies=False,
        )
        right = rollout_answers(numbers, rewards_of(loop, batch, rollout)[0], answers_of(loop, batch, rollout), rollout, BEFORE)
        yield replace(right, sampled=rollout.lengths.sum().cpu())


def base_of(loop: Loop) -> PreTrainedModel:
    """The run's base model: the policy itself, before its first step, where the run starts from its base."""
    config = loop.config
    name = config.model if config.base_model is None else config.base_model
    if name == config.model:
        return loop.policy
    model, tokens = load_policy(name, dtype_of(config.engine))
    check_vocabularies((config.model, loop.policy, loop.tokens), (name, model, tokens))
    return placed(model, config.engine.device).eval()


def rollout_answers(
    numbers: Tensor, rewards: Tensor, answers: Tensor, rollout: Rollout, step: int, advantages: Tensor | None = None
) -> Answers:
    """The right completions of a rollout's groups, with the log-probs under which they were sampled."""
    tokens, mask, logps = (part.cpu() for part in (rollout.tokens, rollout.mask, rollout.logps))
    kept = None if advantages is None else advantages.cpu()
    return Answers.of_rollout(numbers, rewards.cpu(), answers.cpu(), tokens, mask, logps, step, kept)


def file_answers(loop: Loop, file: str) -> Answers:
    """Lines {"problem": id, "completion": text} of a file, each held against the verifier.

    DataError that names file and line: of a problem that the run does not train on, a completion that is not right, or one
    that the tokenizer cannot spell.
    """
    numbers, lines, pairs = loop.numbers, [], []
    for line, row in read_json_lines(file, advice=f"each line must be {LINE}"):
        where, problem, text = f"{file}:{line}", row.get("problem"), row.get("completion")
        if not isinstance(text, str) or not isinstance(problem, str | int):
            raise DataError(f"{where}: give {LINE}, not {str(row)[:80]}")
        if str(problem) not in numbers:
            raise DataError(
                f"{where}: problem {problem!r} is none of the {len(numbers):,} training problems of {loop.task.name}; "
                "use the problem id of the task"
            )
        lines.append(where)
        pairs.append((loop.problems[numbers[str(problem)]], text))
    if not pairs:
        raise DataError(f"{file}: contains no answers; write lines {LINE}, or remove the key file")
    ids = [[*loop.tokens.encode(text), loop.tokens.eos_id] for _, text in pairs]
    spelled = loop.tokens.decode(ids, [True] * len(ids))
    for where, (problem, text), verdict, back in zip(lines, pairs, verdicts(loop.task, pairs), spelled, strict=True):
        if not verdict.right:
            raise DataError(
                f"{where}: the completion of problem {problem.problem_id!r} is {verdict.label} ({verdict.reason}): "
                f"{text[:80]!r}; remove or correct the line: a buffer holds only correct answers"
            )
        if back != text:
            raise DataError(
                f"{where}: the tokenizer encodes {text[:80]!r} as {back[:80]!r}; use only characters of its vocabulary"
            )
    return _of_texts(loop, pairs, ids)


def true_answers(loop: Loop) -> Answers:
    """Every right completion that the task lists of each training problem. ConfigError for a task that lists none."""
    task = loop.task
    if not isinstance(task, Enumerable):
        raise ConfigError(
            f"{type(loop.method.buffer).__name__}: oracle: {loop.task.name} cannot list its correct completions (Task.solutions); "
            f"pass them as a file (file: FILE, lines {LINE}), or use a task that can list them, such as countdown"
        )
    solvable = [loop.problems[number] for number in loop.numbers.values()]
    pairs = [(problem, text) for problem in solvable for text in task.solutions(problem)]
    return _of_texts(loop, pairs, [[*loop.tokens.encode(text), loop.tokens.eos_id] for _, text in pairs])


def _of_texts(loop: Loop, pairs: list[tuple[Any, str]], ids: list[list[int]]) -> Answers:
    lengths = torch.tensor([len(row) for row in ids], dtype=torch.long)
    width = max(map(len, ids), default=0)
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in ids], dtype=torch.long).reshape(len(ids), width)
    answers = [answer_id(loop.task.answer_key(problem, text)) for problem, text in pairs]
    ones = torch.ones(len(ids), dtype=torch.long)
    return Answers(
        problem_numbers(loop, [problem for problem, _ in pairs]), torch.tensor(answers, dtype=torch.long), BEFORE * ones, ones,
        ones.float(), 0.0 * ones.float(), lengths, tokens, torch.zeros(tokens.shape),
        torch.zeros(0, 3, dtype=torch.long), torch.tensor(0),
    )  # fmt: skip


# ---- in a step


def recall(loop: Loop, step: int) -> Memory | NoMemory:
    """The buffer of the run's method as a step finds it."""
    buffer = loop.method.buffer
    return NoMemory(loop) if buffer is None else Memory(loop, buffer, step, stored(loop))


@dataclass
class NoMemory:
    """The memory of a method without a buffer: it stores nothing, and adds nothing to a loss."""

    loop: Loop

    def see(self, groups: Groups, advantages: Tensor | None = None) -> None:
        """Stores nothing."""

    def descend(self, number: int) -> dict[str, float]:
        """The term of no stored answer."""
        return {"loss": 0.0}

    def updates(self) -> dict[str, float]:
        """Without a rollout and without stored answers nothing moves."""
        return {}

    def commit(self, metrics: dict[str, float], parts: State) -> dict[str, float]:
        """The step is done: `parts` is the running state after it."""
        self.loop.parts = parts
        return metrics


@dataclass
class Memory:
    """The buffer in one step: what it held before, and holds after what the step has seen."""

    loop: Loop
    buffer: Buffer
    step: int
    before: Answers
    after: Answers = field(init=False)

    def __post_init__(self) -> None:
        self.after = self.before

    def see(self, groups: Groups, advantages: Tensor | None = None) -> None:
        """Groups of a rollout. A part that stores advantages (P, G) adds it once these are known; every other at once."""
        buffer = self.buffer
        if buffer.alone and buffer.reads_advantages:
            advantages = credit(self.loop.method, groups.rewards, step=self.step, total_steps=self.loop.config.steps).grouped
        if not buffer.policy or buffer.reads_advantages is (advantages is None):
            return
        assert groups.answers is not None, "a buffer's needs have 'answers'"
        numbers = problem_numbers(self.loop, groups.problems)
        right = rollout_answers(numbers, groups.rewards, groups.answers, groups.rollout, self.step, advantages)
        self.after = buffer.rule.add(self.after, right)

    def commit(self, metrics: dict[str, float], parts: State) -> dict[str, float]:
        """The step is done: what was added stays, beside `parts`, the others' state. `metrics` and those of what is stored.

        The tokens that were sampled before step 0 count among those of step 0.
        """
        loop, after = self.loop, self.after
        loop.parts = {**parts, self.buffer.slot: after.tensors()}
        prompts = len(torch.unique(after.problem))
        added = int((~torch.isin(_pairs(after), _pairs(self.before))).sum())
        earlier = float(after.sampled) if self.step == 0 else 0.0
        return metrics | {
            "rollout/tokens": metrics["rollout/tokens"] + earlier,
            "replay/answers": float(len(after)),
            "replay/prompts": float(prompts),
            "replay/prompt_frac": prompts / len(loop.numbers),
            "replay/added": float(added),
            "replay/evicted": float(len(self.before) + added - len(after)),
            "replay/sampled": float(after.sampled),
        }

    def _now(self) -> Tensor | None:
        """Numbers of the step's own problems, for draw = "step"."""
        if self.buffer.draw != "step":
            return None
        wanted = self.loop.config.rollout.prompts_per_step
        return problem_numbers(self.loop, problems_of_step(self.loop, self.step, 0, wanted))

    def rows(self, number: int) -> StoredAnswers:
        """The stored answers that update `number` of the run trains on."""
        kept = self.after if self.buffer.fresh else self.before
        return self.buffer.rows(kept, number, self.loop.key.fold(DRAWS), self._now())

    def updates(self) -> dict[str, float]:
        """The step's updates on stored answers only, and their metrics; none where nothing is stored."""
        loop, count, collected = self.loop, self.loop.config.updates.per_step, []
        with nullcontext() if count == 1 else undone_if_diverged(loop):
            for number in range(self.step * count, (self.step + 1) * count):
                metrics = self.descend(number)
                collected.append(metrics | loop.optimizer.step(number) if metrics["replay/rows"] else metrics)
        return mean_of(collected)

    def descend(self, number: int) -> dict[str, float]:
        """Add the gradient of weight * term to that of update `number`; the term's metrics, and its part of the loss.

        Where the weight is 0, or nothing is drawn, nothing is computed. TrainingDiverged for a term that is not finite.
        """
        config = self.loop.config
        weight, rows = self.buffer.weight_at(self.step, config.steps), self.rows(number)
        if weight == 0.0 or not len(rows):
            return {"replay/rows": 0.0, "loss": 0.0}
        budget = buffer_budget(self.buffer, rows, config.rollout.max_new_tokens)
        collected = []
        for part in self.parts(rows):
            loss, metrics = buffer_loss(self.buffer, self.logps(part), part, budget)
            if not math.isfinite(metrics["replay/loss"]):
                raise TrainingDiverged(f"loss of the buffer is {metrics['replay/loss']} at step {self.step}")
            (weight * loss).backward()
            collected.append(metrics)
        sums = {name: sum(metrics[name] for metrics in collected) for name in collected[0]}
        return sums | {"replay/rows": float(len(rows)), "loss": weight * sums["replay/loss"]}

    def parts(self, rows: StoredAnswers) -> Iterator[StoredAnswers]:
        """`updates.micro_batch` prompts at a time, or all of them."""
        prompts = int(rows.owners.max()) + 1
        size = self.loop.config.updates.micro_batch or prompts
        return (rows.of_owners(first, first + size) for first in range(0, prompts, size))

    def logps(self, rows: StoredAnswers) -> Tensor:
        """(R, T) log-probs of the stored texts under the policy, in the graph."""
        loop, kept, device = self.loop, rows.answers, self.loop.policy.device
        heads = torch.searchsorted(rows.owners, torch.arange(int(rows.owners.max()) + 1))
        prompts = [list(loop.ask(loop.problems[i]).ids) for i in kept.problem[heads].tolist()]
        tokens, mask, owners = (one.to(device) for one in (kept.tokens, kept.mask, rows.owners))
        return score(loop.policy, prompts, tokens, mask, owners, temperature=loop.config.rollout.temperature).logps


def _pairs(kept: Answers) -> Tensor:
    return pair_ids(kept.problem, kept.answer)
