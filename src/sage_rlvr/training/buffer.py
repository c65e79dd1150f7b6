"""The replay buffer of a run: warm start before step 0, additions from each rollout, and the loss term of an update.

    fill (base, file, oracle) -> [ rollout -> add -> draw, score, term of the loss ] per step       core/extras/replay has the rules

Its content is a value of the loop's running state, replaced after a complete step: a step that diverges adds nothing.
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
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.reference import check_vocabularies
from sage_rlvr.training.rollouts import answers_of, problems_of_step, rewards_of
from sage_rlvr.training.state import undone_if_diverged
from sage_rlvr.training.steps import mean_of

DRAWS = "buffer"  # of the run's key, by which stored answers are drawn
BEFORE = -1  # the step of what was stored before step 0


def stored(loop: TrainState) -> Answers:
    """Return the content of a run's buffer after its last step."""
    assert loop.method.buffer is not None
    return Answers.of(loop.parts[loop.method.buffer.slot])


def problem_numbers(loop: TrainState, problems: Sequence[Any]) -> Tensor:
    """Return the (P,) numbers of training problems."""
    return torch.tensor([loop.numbers[str(problem.problem_id)] for problem in problems], dtype=torch.long)


# ---- before step 0


def fill(loop: TrainState, say: Say = tell) -> bool:
    """Fill the buffer from the base, the file and the task, within the bounds; return False if the method asks for none of these.

    `say` gets a line with the cost of each. The result is a function of the recipe: the completions of a problem depend only on
    (seed, problem, sample).
    """
    buffer = loop.method.buffer
    if buffer is None or not (buffer.base or buffer.file or buffer.oracle or buffer.base_above is not None):
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
    if buffer.base_above is not None:
        before = len(kept)
        kept = buffer.rule.add(kept, stored_answers(loop, buffer.base_above))
        problems = len(torch.unique(kept.problem[before:]))
        found = f"{len(kept) - before:,} answers of {problems:,} problems"
        say(f"buffer: {found} stored, of which more than {buffer.base_above:g} of the base samples are right")
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
def base_answers(loop: TrainState, buffer: Buffer) -> Iterator[Answers]:
    """Yield the correct ones of `base` samples of each problem, some problems at a time."""
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


def base_of(loop: TrainState) -> PreTrainedModel:
    """Return the run's base model; this is the policy itself if the run starts from its base, as long as no step was made."""
    config = loop.config
    if config.base == config.model:
        return loop.policy
    model, tokens = load_policy(config.base, dtype_of(config.engine))
    check_vocabularies((config.model, loop.policy, loop.tokens), (config.base, model, tokens))
    return placed(model, config.engine.device).eval()


def rollout_answers(
    numbers: Tensor, rewards: Tensor, answers: Tensor, rollout: Rollout, step: int, advantages: Tensor | None = None
) -> Answers:
    """Return the correct completions of a rollout's groups, with the log-probs under which they were sampled."""
    tokens, mask, logps = (part.cpu() for part in (rollout.tokens, rollout.mask, rollout.logps))
    kept = None if advantages is None else advantages.cpu()
    return Answers.of_rollout(numbers, rewards.cpu(), answers.cpu(), tokens, mask, logps, step, kept)


def stored_answers(loop: TrainState, above: float) -> Answers:
    """Return the correct ones of the run's base samples, of training problems with more than the share `above` of correct samples.

    Raise DataError for a text that the tokenizer cannot encode: the samples are of a policy with another one.
    """
    base, numbers = loop.base, loop.numbers
    assert base is not None, "a buffer's needs have 'base_counts'"
    found = base.answers(base.above(above, numbers))
    pairs = [(loop.problems[numbers[problem]], text) for problem, text in found]
    where = [f"base_samples = {base.where}, problem {problem!r}" for problem, _ in found]
    return _of_texts(loop, pairs, spelled_ids(loop, pairs, where))


def spelled_ids(loop: TrainState, pairs: list[tuple[Any, str]], where: Sequence[str]) -> list[list[int]]:
    """Return the tokens of completions, end token included.

    Raise DataError that names the place of a text that they cannot encode.
    """
    ids = [[*loop.tokens.encode(text), loop.tokens.eos_id] for _, text in pairs]
    for (_, text), back, place in zip(pairs, loop.tokens.decode(ids, [True] * len(ids)), where, strict=True):
        if back != text:
            raise DataError(
                f"{place}: the tokenizer encodes {text[:80]!r} as {back[:80]!r}; use only characters of its vocabulary"
            )
    return ids


def file_answers(loop: TrainState, file: str) -> Answers:
    """Return the answers of a file with lines {"problem": id, "completion": text}, each checked by the verifier.

    Raise DataError that names file and line for a problem that the run does not train on, a completion that is not correct, or one
    that the tokenizer cannot encode.
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
    for where, (problem, text), verdict in zip(lines, pairs, verdicts(loop.task, pairs), strict=True):
        if not verdict.right:
            raise DataError(
                f"{where}: the completion of problem {problem.problem_id!r} is {verdict.label} ({verdict.reason}): "
                f"{text[:80]!r}; remove or correct the line: a buffer holds only correct answers"
            )
    return _of_texts(loop, pairs, spelled_ids(loop, pairs, lines))


def true_answers(loop: TrainState) -> Answers:
    """Return every correct completion that the task lists of each training problem.

    Raise ConfigError for a task that lists none.
    """
    task = loop.task
    if not isinstance(task, Enumerable):
        raise ConfigError(
            f"{type(loop.method.buffer).__name__}: oracle: {loop.task.name} cannot list its correct completions (Task.solutions); "
            f"pass them as a file (file: FILE, lines {LINE}), or use a task that can list them, such as countdown"
        )
    solvable = [loop.problems[number] for number in loop.numbers.values()]
    pairs = [(problem, text) for problem in solvable for text in task.solutions(problem)]
    return _of_texts(loop, pairs, [[*loop.tokens.encode(text), loop.tokens.eos_id] for _, text in pairs])


def _of_texts(loop: TrainState, pairs: list[tuple[Any, str]], ids: list[list[int]]) -> Answers:
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


@dataclass
class ReplayStep:
    """The replay of one step: the answers in the buffer before it, and after its rollouts."""

    loop: TrainState
    buffer: Buffer
    step: int
    before: Answers
    after: Answers = field(init=False)

    def __post_init__(self) -> None:
        self.after = self.before

    def see(self, groups: Groups, advantages: Tensor | None = None) -> None:
        """Add groups of a rollout. A part that stores advantages (P, G) adds them only once these are known."""
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
        """Finish the step: store what was added, with `parts`, the state of all other parts. Return `metrics` with the buffer's.

        Tokens that were sampled before step 0 count among those of step 0.
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
        """Return the numbers of the step's own problems, for draw = "step"."""
        if self.buffer.draw != "step":
            return None
        wanted = self.loop.config.rollout.prompts_per_step
        return problem_numbers(self.loop, problems_of_step(self.loop, self.step, 0, wanted))

    def rows(self, number: int) -> StoredAnswers:
        """Return the stored answers that update `number` of the run trains on."""
        kept = self.after if self.buffer.fresh else self.before
        return self.buffer.rows(kept, number, self.loop.key.fold(DRAWS), self._now())

    def descends(self, number: int) -> bool:
        """Return True if update `number` has a term of stored answers: a weight other than 0, and rows."""
        return self.buffer.weight_at(self.step, self.loop.config.steps) != 0.0 and len(self.rows(number)) > 0

    def updates(self) -> dict[str, float]:
        """Run the step's updates on stored answers only and return their metrics; none if nothing is stored."""
        loop, count, collected = self.loop, self.loop.config.updates.per_step, []
        with nullcontext() if count == 1 else undone_if_diverged(loop):
            for number in range(self.step * count, (self.step + 1) * count):
                metrics = self.descend(number)
                collected.append(metrics | loop.optimizer.step(number) if metrics["replay/rows"] else metrics)
        return mean_of(collected)

    def descend(self, number: int) -> dict[str, float]:
        """Add the gradient of weight * term to that of update `number`; return the term's metrics, and its part of the loss.

        If the weight is 0 or there are no rows, nothing is computed. Raise TrainingDiverged for a term that is not finite.
        """
        config = self.loop.config
        if not self.descends(number):
            return {"replay/rows": 0.0, "loss": 0.0}
        weight, rows = self.buffer.weight_at(self.step, config.steps), self.rows(number)
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
        """Yield `updates.micro_batch` prompts at a time, or all of them."""
        prompts = int(rows.owners.max()) + 1
        size = self.loop.config.updates.micro_batch or prompts
        return (rows.of_owners(first, first + size) for first in range(0, prompts, size))

    def logps(self, rows: StoredAnswers) -> Tensor:
        """Return (R, T) log-probs of the stored texts under the policy, in the graph."""
        loop, kept, device = self.loop, rows.answers, self.loop.policy.device
        heads = torch.searchsorted(rows.owners, torch.arange(int(rows.owners.max()) + 1))
        prompts = [list(loop.ask(loop.problems[i]).ids) for i in kept.problem[heads].tolist()]
        tokens, mask, owners = (one.to(device) for one in (kept.tokens, kept.mask, rows.owners))
        return score(loop.policy, prompts, tokens, mask, owners, temperature=loop.config.rollout.temperature).logps


def _pairs(kept: Answers) -> Tensor:
    return pair_ids(kept.problem, kept.answer)
