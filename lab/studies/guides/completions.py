"""The completions of a policy with all that a guide can read: right ones listed and teacher-forced, wrong ones sampled.

For each problem every right completion (one canonical spelling, its end token included) has its exact probability under the
policy. The wrong ones share the rest: n completions are drawn, and each different wrong one stands for (1 - p) times its
share among the wrong draws. So an expectation over completions is exact in its right part and sampled in the other only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from lab.theory.reweighting import Floats, Masses
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.sampler import sample
from sage_rlvr.models.scoring import completion_logits
from sage_rlvr.tasks.base import Task

INVERSE_TEMPERATURES = tuple(round(0.4 + 0.05 * i, 2) for i in range(49))  # 1 / T from 0.4 to 2.8; 1 is among them
PROMPTS_PER_DRAW = 4
ROWS_PER_SCORE = 1024


@dataclass(frozen=True, eq=False)
class Atoms:
    """A completions of P problems, sorted by problem; T columns; everything of the policy at temperature 1 unless said.

    masses: which are right and what they weigh. mask (A, T) bool; surprisals, ref_surprisals, entropies, ref_entropies (A, T)
    nats, 0 off the mask. tempered (A, K) log-probs of whole completions under the policy at 1 / INVERSE_TEMPERATURES, and
    ref_tempered under the reference. rewards (A,) 1 right, 0 wrong. drawn (A,) how often a wrong one was drawn, 0 for right
    ones. alone (A,) tokens at the end that lie on no other completion's path and lead to this one almost surely.
    sampled_right (P,) right ones among the draws, checked (P,) of `draws` drawn.
    """

    masses: Masses
    mask: NDArray[np.bool_]
    surprisals: Floats
    ref_surprisals: Floats
    entropies: Floats
    ref_entropies: Floats
    tempered: Floats
    ref_tempered: Floats
    drawn: Floats
    alone: NDArray[np.int64]
    sampled_right: Floats
    draws: int

    @property
    def logps(self) -> Floats:
        """(A,) log pi of whole completions."""
        return -self.surprisals.sum(1)

    @property
    def ref_logps(self) -> Floats:
        """(A,) log pi_ref of whole completions."""
        return -self.ref_surprisals.sum(1)

    @property
    def token_mass(self) -> Floats:
        """(A, T) weight of each token in a batch drawn from the policy; sums to 1."""
        m = self.masses
        weight = (m.mass * m.repeats[m.problem])[:, None] * self.mask
        return np.asarray(weight / weight.sum())

    def signals(self) -> Signals:
        """What the guides of core/guides read, the completions numbered as they stand."""
        parts = {"entropies": self.entropies, "ref_entropies": self.ref_entropies}
        tensors = {name: torch.from_numpy(value) for name, value in parts.items()}
        rewards = torch.from_numpy(self.masses.right.astype(np.float32))
        logps, ref_logps = torch.from_numpy(-self.surprisals), torch.from_numpy(-self.ref_surprisals)
        mask = torch.from_numpy(self.mask)
        return Signals(logps, ref_logps, mask, torch.arange(len(mask)), rewards=rewards, **tensors)

    def at(self, inverse: float, of: str = "tempered") -> Floats:
        """(A,) log-probs of whole completions at temperature 1 / `inverse`, between the grid's values linearly."""
        grid = np.array(INVERSE_TEMPERATURES)
        place = int(np.clip(np.searchsorted(grid, inverse) - 1, 0, len(grid) - 2))
        share = (inverse - grid[place]) / (grid[place + 1] - grid[place])
        table: Floats = getattr(self, of)
        return np.asarray((1 - share) * table[:, place] + share * table[:, place + 1])

    def redrawn(self, chance: np.random.Generator) -> Atoms:
        """The same with the wrong draws of each problem drawn again from themselves: the error of the sampled part."""
        m, mass = self.masses, self.masses.mass.copy()
        ends = np.append(m.starts[1:], len(m.problem))
        for start, end in zip(m.starts, ends, strict=True):
            counts = self.drawn[start:end]
            if counts.sum() > 0:
                total = mass[start:end][~m.right[start:end]].sum()
                again = chance.multinomial(int(counts.sum()), counts / counts.sum()) / counts.sum() * total
                mass[start:end] = np.where(m.right[start:end], mass[start:end], again)
        return replace(self, masses=replace(m, mass=mass))


@torch.no_grad()
def collect(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    tokens: Tokens,
    task: Task,
    problems: Sequence[Any],
    *,
    samples: int,
    max_new_tokens: int,
    seed: int,
    progress: Callable[[int], None] = lambda n: None,
) -> Atoms:
    """Atoms of the problems, those that recur once with their number of repeats. Pure in its arguments."""
    policy.eval()
    ids = Counter(p.problem_id for p in problems)
    once = list({p.problem_id: p for p in problems}.values())
    key = Key(seed).fold("guides")
    parts: list[dict[str, Any]] = []
    for first in range(0, len(once), PROMPTS_PER_DRAW):
        chunk = once[first : first + PROMPTS_PER_DRAW]
        prompts = [tokens.encode_prompt(task.prompt(p)) for p in chunk]
        rollout = sample(
            policy, prompts, group_size=samples, max_new_tokens=max_new_tokens, eos_id=tokens.eos_ids,
            pad_id=tokens.pad_id, key=key, step=first, entropies=False,
        )  # fmt: skip
        rows, lengths = rollout.tokens.tolist(), rollout.lengths.tolist()
        for j, problem in enumerate(chunk):
            drawn = Counter(tuple(rows[r][: lengths[r]]) for r in range(j * samples, (j + 1) * samples))
            right = [(*tokens.encode(text), end) for text in task.solutions(problem) for end in tokens.eos_ids]
            known = frozenset(right)
            wrong = [row for row in drawn if row not in known]
            part = _scored(policy, reference, prompts[j], [*right, *wrong], max_new_tokens)
            part["right"] = np.arange(len(right) + len(wrong)) < len(right)
            part["drawn"] = np.array([0.0] * len(right) + [float(drawn[row]) for row in wrong])
            part["alone"] = _alone([*right, *wrong], part["surprisals"])
            part["sampled_right"] = sum(drawn[row] for row in known if row in drawn)
            parts.append(part)
        progress(len(chunk))
    return _together(parts, np.array([float(ids[p.problem_id]) for p in once]), samples)


def _scored(
    policy: PreTrainedModel, reference: PreTrainedModel, prompt: list[int], rows: list[tuple[int, ...]], width: int
) -> dict[str, Any]:
    """(B, T) arrays of both models for these completions of one prompt."""
    found: dict[str, list[Floats]] = {}
    for first in range(0, len(rows), ROWS_PER_SCORE):
        some = rows[first : first + ROWS_PER_SCORE]
        ids = torch.tensor([[*row, *([0] * (width - len(row)))] for row in some])
        mask = torch.arange(width)[None, :] < torch.tensor([len(row) for row in some])[:, None]
        owners = torch.zeros(len(some), dtype=torch.long)
        for name, model in (("", policy), ("ref_", reference)):
            logits = completion_logits(model, [prompt], ids, mask, owners).double()
            for what, value in _read(logits, ids, mask).items():
                found.setdefault(name + what, []).append(value.numpy())
        found.setdefault("mask", []).append(mask.numpy())
    return {name: np.concatenate(values) for name, values in found.items()}


def _read(logits: Tensor, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """logits (N, V) float64 of the counted tokens -> surprisals, entropies (B, T) and tempered (B, K)."""
    rows = mask.nonzero()[:, 0]
    chosen = logits.gather(1, ids[mask][:, None]).squeeze(1)
    laws = torch.log_softmax(logits, -1)

    def laid(values: Tensor) -> Tensor:
        return torch.zeros(mask.shape, dtype=torch.float64).masked_scatter(mask, values)

    tempered = torch.zeros(len(mask), len(INVERSE_TEMPERATURES), dtype=torch.float64)
    narrow = (logits - logits.amax(-1, keepdim=True)).float()
    for i, inverse in enumerate(INVERSE_TEMPERATURES):
        norm = (narrow * inverse).exp_().sum(-1).log_().double()
        value = inverse * (chosen - logits.amax(-1)) - norm
        tempered[:, i].index_add_(0, rows, value)
    surprisals = laid(-laws.gather(1, ids[mask][:, None]).squeeze(1))
    return {
        "surprisals": surprisals,
        "entropies": laid(-(laws.exp() * laws).sum(-1)),
        "tempered": tempered,
    }


def _alone(rows: list[tuple[int, ...]], surprisals: Floats) -> NDArray[np.int64]:
    """(B,) tokens at a row's end whose prefix is that of no other row and goes on as this row with probability 0.99."""
    prefixes = Counter(row[:n] for row in rows for n in range(1, len(row) + 1))
    found = np.zeros(len(rows), dtype=np.int64)
    for i, row in enumerate(rows):
        after = 0.0
        for n in range(len(row), 0, -1):
            if prefixes[row[:n]] > 1 or after > -np.log(0.99):
                break
            found[i] += 1
            after += surprisals[i, n - 1]
    return found


def _together(parts: list[dict[str, Any]], repeats: Floats, draws: int) -> Atoms:
    """The problems one after the other, and what each completion weighs."""
    joined = {
        name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name not in ("sampled_right",)
    }
    problem = np.repeat(np.arange(len(parts)), [len(part["right"]) for part in parts])
    right, drawn = joined["right"], joined["drawn"]
    exact = np.where(right, np.exp(-joined["surprisals"].sum(1)), 0.0)
    rest = np.maximum(1.0 - np.bincount(problem, exact), 0.0)
    wrong = np.maximum(np.bincount(problem, drawn), 1.0)
    mass = np.where(right, exact, (rest / wrong)[problem] * drawn)
    return Atoms(
        masses=Masses(problem, right, mass, repeats),
        mask=joined["mask"], surprisals=joined["surprisals"], ref_surprisals=joined["ref_surprisals"],
        entropies=joined["entropies"], ref_entropies=joined["ref_entropies"], tempered=joined["tempered"],
        ref_tempered=joined["ref_tempered"], drawn=drawn, alone=joined["alone"],
        sampled_right=np.array([float(part["sampled_right"]) for part in parts]), draws=draws,
    )  # fmt: skip
