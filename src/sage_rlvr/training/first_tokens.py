"""Completions whose first token a rollout plan has chosen (`core/rollout_plans/spread.py`), on the loop and on TRL.

    logits of the first tokens  ->  plan.first  ->  the policy continues after prompt + first token

Prompts of a group with different first tokens share the prompt in the engine's tree of prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.core.keys import Key
from sage_rlvr.core.rollout_plans.spread import Spread, first_shares
from sage_rlvr.models.sampler import PrefillByLength, Rollout, evaluating, prefill, sample
from sage_rlvr.training.groups import RolloutBatch


@torch.no_grad()
def first_logits(policy: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Return (P, V) logits of the first token after each prompt."""
    with evaluating(policy):
        ready = prefill(policy, prompts)
    if not isinstance(ready, PrefillByLength):
        return ready.logits
    order = torch.cat(ready.groups).argsort().to(ready.parts[0].logits.device)
    return torch.cat([part.logits for part in ready.parts])[order]


@torch.no_grad()
def sample_behind(
    policy: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    logits: Tensor,
    first: Tensor,
    *,
    eos_id: Sequence[int],
    pad_id: int,
    max_new_tokens: int,
    temperature: float,
    key: Key,
    step: int,
    row_ids: Tensor,
) -> Rollout:
    """Return completions that begin with `first` (P, G); the rest is sampled from the policy.

    `Rollout.logps` of a first token are the policy's, as if it had been sampled.

    Args:
        policy: the model.
        prompts: P token lists.
        logits: (P, V) of the first tokens.
        first: (P, G).
        eos_id: as in `sample`, like the keywords that follow.
        row_ids: (P * G,), as in `sample`.
    """
    size, begun = first.shape[1], first.reshape(-1)
    logps = torch.log_softmax(logits.float() / temperature, dim=1).repeat_interleave(size, 0).gather(1, begun[:, None])
    over = torch.isin(begun, torch.tensor(list(eos_id), device=begun.device))
    tokens, mask, finished = begun[:, None], torch.ones_like(begun[:, None], dtype=torch.bool), over.clone()
    rows = (~over).nonzero().squeeze(1)
    if max_new_tokens == 1 or not len(rows):
        return Rollout(tokens, mask, logps, None, finished)
    rest = sample(
        policy,
        [[*prompts[row // size], int(begun[row])] for row in rows.tolist()],
        group_size=1,
        max_new_tokens=max_new_tokens - 1,
        eos_id=eos_id,
        pad_id=pad_id,
        key=key,
        step=step,
        temperature=temperature,
        row_ids=row_ids.cpu()[rows.cpu()],
        entropies=False,
    )

    def behind(head: Tensor, tail: Tensor, fill: float) -> Tensor:
        whole = head.new_full((len(head), tail.shape[1]), fill).index_copy(0, rows, tail.to(head))
        return torch.cat([head, whole], dim=1)

    finished[rows] = rest.finished
    tokens, mask, logps = behind(tokens, rest.tokens, pad_id), behind(mask, rest.mask, False), behind(logps, rest.logps, 0.0)
    return Rollout(tokens, mask, logps, None, finished)


def first_token_weights(plan: Spread, rows: RolloutBatch, logps: Tensor) -> tuple[Tensor | None, dict[str, float]]:
    """Return each completion's weight (B,), None if all are 1; and metrics. logps (B, T): of the policy that sampled."""
    (groups,) = rows.groups  # of one size
    shares = first_shares(groups.rollout.tokens[:, 0].reshape(groups.rewards.shape)).reshape(-1)
    chances = logps.detach()[:, 0].exp()
    weights = chances / shares
    # sum over a group's distinct first tokens of pi = sum over its completions of pi / (share G)
    metrics: dict[str, Any] = {"first_token/mass": float(weights.mean()), "first_token/weight_max": float(weights.max())}
    return (weights if plan.weighs else None), metrics
