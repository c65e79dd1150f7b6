"""Distinct correct answers of prompts as a value, with pure operations that add, bound and sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.advantages.base import require_binary
from sage_rlvr.core.keys import Key

Representative = Literal["first", "newest", "shortest", "likeliest"]
Evict = Literal["oldest", "newest", "commonest"]
Draw = Literal["any", "step", "hard"]


@dataclass(frozen=True, eq=False)
class Answers:
    """N stored answers, no two of a prompt alike, in order of arrival; all on the CPU.

    problem, answer (N,)  number of the training problem, and `answer_id` of the answer
    step (N,)             step of the rollout that the stored text is from; -1 before the run
    found (N,)            how often the answer was found in total
    share (N,)            fraction of the prompt's completions in that rollout with this answer; float32
    advantage (N,)        advantage of the text in that rollout; 0 if it came from no rollout
    lengths (N,), tokens, logps (N, T)  the text, and log-probs under the policy that wrote it; 0 after its end
    tried (K, 3)          problem, number of its completions seen, number of correct ones; ascending by problem
    sampled ()            tokens sampled before the run to fill it
    """

    problem: Int[Tensor, " N"]
    answer: Int[Tensor, " N"]
    step: Int[Tensor, " N"]
    found: Int[Tensor, " N"]
    share: Float[Tensor, " N"]
    advantage: Float[Tensor, " N"]
    lengths: Int[Tensor, " N"]
    tokens: Int[Tensor, "N T"]
    logps: Float[Tensor, "N T"]
    tried: Int[Tensor, "K 3"]
    sampled: Int[Tensor, ""]

    @classmethod
    def none(cls) -> Answers:
        """Return an empty value: no answers, nothing tried."""
        whole, real = torch.zeros(0, dtype=torch.long), torch.zeros(0)
        return cls(
            whole, whole, whole, whole, real, real, whole, whole.reshape(0, 0), real.reshape(0, 0),
            whole.reshape(0, 3), torch.tensor(0),
        )  # fmt: skip

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Answers:
        """Return the answers from their tensors: the inverse of `tensors`."""
        return cls(**{field.name: tensors[field.name].cpu() for field in fields(cls)})

    @classmethod
    def of_rollout(
        cls,
        problems: Int[Tensor, " P"],
        rewards: Float[Tensor, "P G"],
        answers: Int[Tensor, "P G"],
        tokens: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        logps: Float[Tensor, "B T"],
        step: int,
        advantages: Float[Tensor, "P G"] | None = None,
    ) -> Answers:
        """Return the correct completions of P groups of G, B = P * G rows. Raise DataError for a reward other than 0 and 1.

        Args:
            problems: one number per completion, like rewards, answers and advantages.
            tokens: (B, T), the completions.
            mask: (B, T), true at their tokens.
            logps: (B, T), under the policy that wrote them.
            step: the step of the rollout.
        """
        require_binary(rewards, "the buffer", "rewards of 0 and 1, because it stores right answers")
        known, index = torch.unique(problems, return_inverse=True)
        size, right = rewards.shape[1], rewards > 0
        zeros = torch.zeros_like(known)
        seen = zeros.index_add(0, index, torch.full_like(index, size))
        hits = zeros.index_add(0, index, right.sum(1))
        rows = right.reshape(-1).nonzero()[:, 0]
        counted, advantage = mask[rows], torch.zeros(rewards.shape) if advantages is None else advantages
        return cls(
            problem=problems.repeat_interleave(size)[rows],
            answer=answers.reshape(-1)[rows],
            step=torch.full_like(rows, step),
            found=torch.ones_like(rows),
            share=1.0 / seen[index].repeat_interleave(size)[rows].float(),
            advantage=advantage.detach().float().reshape(-1)[rows],
            lengths=counted.sum(1),
            tokens=torch.where(counted, tokens[rows], 0),
            logps=torch.where(counted, logps[rows].detach().float(), 0.0),
            tried=torch.stack([known, seen, hits], 1),
            sampled=torch.tensor(0),
        )

    def __len__(self) -> int:
        return len(self.problem)

    @property
    def mask(self) -> Bool[Tensor, "N T"]:
        """True at the tokens of each text."""
        return torch.arange(self.tokens.shape[1])[None] < self.lengths[:, None]

    @property
    def sequence_logps(self) -> Float[Tensor, " N"]:
        """Log-prob of each text under the policy that wrote it, nats."""
        return self.logps.double().sum(1).float()

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, for a checkpoint."""
        return {field.name: getattr(self, field.name).contiguous() for field in fields(self)}

    def take(self, rows: Tensor) -> Answers:
        """Return the answers at `rows` (numbers or (N,) bool), in that order. `tried` does not change."""
        places = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows  # found once, not for every column
        columns = [f.name for f in fields(self) if f.name not in ("tried", "sampled")]
        return replace(self, **{name: getattr(self, name).index_select(0, places) for name in columns})

    def joined(self, other: Answers) -> Answers:
        """Return these answers followed by those of `other`, duplicates included. `tried` and `sampled` are added up."""
        width = max(self.tokens.shape[1], other.tokens.shape[1])

        def both(name: str) -> Tensor:
            pair = [getattr(self, name), getattr(other, name)]
            narrow = [one.dim() == 2 and one.shape[1] < width for one in pair]
            return torch.cat([F.pad(one, (0, width - one.shape[1])) if pad else one for one, pad in zip(pair, narrow, strict=True)])

        tried = torch.cat([self.tried, other.tried])
        known, index = torch.unique(tried[:, 0], return_inverse=True)
        sums = torch.zeros(len(known), 2, dtype=torch.long).index_add(0, index, tried[:, 1:])
        columns = {f.name: both(f.name) for f in fields(self) if f.name not in ("tried", "sampled")}
        return Answers(
            **columns, tried=torch.cat([known[:, None], sums], 1), sampled=self.sampled + other.sampled
        )

    def solve_rates(self, problems: Int[Tensor, " K"]) -> Float[Tensor, " K"]:
        """Return (right + 1) / (tried + 2) of each problem, float64: one half for a problem not tried."""
        if not len(self.tried):
            return torch.full((len(problems),), 0.5, dtype=torch.float64)
        index = torch.searchsorted(self.tried[:, 0].contiguous(), problems).clamp(max=len(self.tried) - 1)
        there = self.tried[index, 0] == problems
        tried, right = (torch.where(there, self.tried[index, i], 0).double() for i in (1, 2))
        return (right + 1) / (tried + 2)


@dataclass(frozen=True)
class Bounds:
    """Limits of what is stored: `answers` per prompt, `pool` prompts, the text that represents an answer, the order of eviction."""

    answers: int
    pool: int
    representative: Representative
    evict: Evict

    def add(self, kept: Answers, new: Answers) -> Answers:
        """Return `kept` followed by `new`, each answer once, within the bounds. Prompts without a new answer do not change."""
        touched = torch.isin(kept.problem, new.problem)
        fresh = self._bounded(self._distinct(replace(kept.take(touched), tried=kept.tried).joined(new)))
        rest = replace(kept.take(~touched), tried=kept.tried[:0], sampled=torch.tensor(0))
        return self._pooled(rest.joined(fresh))

    def _distinct(self, answers: Answers) -> Answers:
        """Return each answer of a prompt once, at its first place."""
        if not len(answers):
            return answers
        entry = torch.arange(len(answers))
        pairs = torch.stack([answers.problem, answers.answer], 1)
        kinds, of = torch.unique(pairs, dim=0, return_inverse=True)
        preferred = {
            "first": entry,
            "newest": -answers.step,
            "shortest": answers.lengths,
            "likeliest": -answers.sequence_logps,
        }[self.representative]
        order = sorted_by(of, preferred, entry)
        chosen = order[_first_of_runs(of[order])]  # by kind, ascending
        same_rollout = answers.step == answers.step[chosen][of]
        share = torch.zeros(len(kinds)).index_add(0, of, torch.where(same_rollout, answers.share, 0.0))
        count = torch.zeros(len(kinds), dtype=torch.long).index_add(0, of, answers.found)
        first = torch.full((len(kinds),), len(answers)).scatter_reduce(0, of, entry, "amin")
        once = replace(answers.take(chosen), share=share, found=count)
        return once.take(first.argsort())

    def _bounded(self, answers: Answers) -> Answers:
        entry = torch.arange(len(answers))
        stays = {"oldest": -answers.step, "newest": entry, "commonest": answers.found}[self.evict]
        return answers.take(_rank(answers.problem, stays, entry) < self.answers)

    def _pooled(self, answers: Answers) -> Answers:
        if len(answers) <= self.pool:
            return answers
        problems, of = torch.unique(answers.problem, return_inverse=True)
        if len(problems) <= self.pool:
            return answers
        last = torch.full((len(problems),), -2).scatter_reduce(0, of, answers.step, "amax")
        stay = sorted_by(-last, problems)[: self.pool]
        return answers.take(torch.isin(answers.problem, problems[stay]))


def drawn(
    kept: Answers, draw: Draw, prompts: int, take: int | None, number: int, key: Key, now: Int[Tensor, " K"] | None
) -> tuple[Int[Tensor, " R"], Int[Tensor, " R"]]:
    """Return which stored answers update `number` trains on, and the index (0, 1, ...) of each one's prompt among those sampled.

    Prompts are the ones with the smallest -log(u) / w, u a random number of (seed, update, problem): w is 1, or the failure rate
    1 - p under "hard".

    Args:
        kept: the stored answers.
        draw: which prompts; "step" admits only problems in `now`.
        prompts: number of prompts.
        take: answers per prompt, at random; None takes all.
        number: number of the update.
        key: the run's key.
        now: the problems of the step.
    """
    problems = torch.unique(kept.problem)
    if draw == "step":
        assert now is not None, "draw = 'step' needs the problems of the step"
        problems = problems[torch.isin(problems, now)]
    weights = 1.0 - kept.solve_rates(problems) if draw == "hard" else torch.ones(len(problems), dtype=torch.float64)
    race = -key.uniform64(number, "buffer/prompt", problems, 0)[:, 0].log() / weights
    chosen = problems[race.argsort(stable=True)[:prompts]]
    sorted_problems, local = chosen.sort()
    rows = torch.isin(kept.problem, chosen).nonzero()[:, 0]
    owners = local[torch.searchsorted(sorted_problems, kept.problem[rows])]
    if take is not None:
        chance = key.uniform64(number, "buffer/answer", kept.problem[rows], kept.answer[rows][:, None])[:, 0]
        few = _rank(owners, chance, rows) < take
        rows, owners = rows[few], owners[few]
    order = sorted_by(owners, rows)
    return rows[order], owners[order]


def sorted_by(*keys: Tensor) -> Int[Tensor, " N"]:
    """Return the stable order by the first key, then by the second, and so on."""
    order = torch.arange(len(keys[0]))
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order


def _rank(groups: Tensor, *keys: Tensor) -> Int[Tensor, " N"]:
    """Return the place of each row within its group, in the order of `keys`."""
    order = sorted_by(groups, *keys)
    starts = _first_of_runs(groups[order])
    position = torch.arange(len(order))
    begun = torch.zeros_like(position)
    begun[starts] = position[starts]
    rank = torch.empty_like(position)
    rank[order] = position - begun.cummax(0).values if len(position) else position
    return rank


def _first_of_runs(values: Tensor) -> Int[Tensor, " U"]:
    """Return the places at which a sorted tensor takes a new value."""
    new = torch.ones(len(values), dtype=torch.bool)
    new[1:] = values[1:] != values[:-1]
    return new.nonzero()[:, 0]
