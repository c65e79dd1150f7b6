"""Log-probs of given completions under a causal LM, with or without gradient: the prompt is computed once for its group.

`packed` puts a prompt and all its completions into one row, tight, and lets each completion see the prompt and itself
only (a 4-D mask, positions restarted after the prompt): a group of 8 ten-token completions of a 300-token prompt costs
380 tokens, not 2,480. `padded` is the textbook layout, one row a completion, and the fallback for models that do not take
a 4-D mask. Both give the same numbers up to float rounding (tests/engines/test_scoring.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.engines.sampler import pad_right, supports_shared_prefix


@dataclass(frozen=True)
class Scores:
    """logps (B, T) of the given tokens, in graph when gradients are on; entropies (B, T) in nats, detached, or None.

    Entries off the mask are 0. Both are those of the temperature-scaled distribution, as in TRL and verl.
    """

    logps: Tensor
    entropies: Tensor | None


def completion_logits(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor
) -> Tensor:
    """Logits (N, V) that predict each counted token, in the order of `mask.nonzero()`.

    prompts: P token lists; tokens, mask (B, T); owners (B,) the prompt of each row, ascending.
    """
    if supports_shared_prefix(model) and model.config._attn_implementation in ("sdpa", "eager"):
        return _packed_logits(model, prompts, tokens, mask, owners)
    return _padded_logits(model, prompts, tokens, mask, owners)


def score(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Tensor,
    mask: Tensor,
    owners: Tensor,
    *,
    temperature: float = 1.0,
    entropies: bool = False,
) -> Scores:
    """Log-probs of `tokens` (B, T) where `mask` (B, T) counts them. See `completion_logits` for the other shapes."""
    logits = completion_logits(model, prompts, tokens, mask, owners).float()
    log_probs = torch.log_softmax(logits / temperature if temperature != 1.0 else logits, -1)
    chosen = log_probs.gather(1, tokens[mask][:, None]).squeeze(1)
    logps = torch.zeros(mask.shape, device=chosen.device).masked_scatter(mask, chosen)
    if not entropies:
        return Scores(logps, None)
    with torch.no_grad():
        flat = torch.special.entr(log_probs.detach().exp()).sum(-1)
    return Scores(logps, torch.zeros(mask.shape, device=flat.device).masked_scatter(mask, flat))


def _packed_logits(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor
) -> Tensor:
    device = tokens.device
    prompt_ids, prompt_lengths = pad_right(prompts, device)
    lengths = mask.sum(1)
    fed = (lengths - 1).clamp_min(0)  # the last token of a completion predicts nothing
    before = fed.cumsum(0) - fed
    first_of_owner = torch.searchsorted(owners, torch.arange(len(prompts), device=device))
    has_rows = torch.bincount(owners, minlength=len(prompts)) > 0
    base = torch.where(has_rows, before[first_of_owner.clamp_max(len(owners) - 1)], 0)
    start = prompt_lengths[owners] + before - base[owners]  # (B,) column of a completion's first token
    used = prompt_lengths + torch.zeros_like(prompt_lengths).index_add_(0, owners, fed)
    width = int(used.max())

    ids = torch.zeros(len(prompts), width, dtype=torch.long, device=device)
    segment = torch.full_like(ids, -1)  # -1 padding, 0 prompt, 1 + row its completion
    positions = torch.zeros_like(ids)
    columns = torch.arange(prompt_ids.shape[1], device=device)
    in_prompt = columns[None, :] < prompt_lengths[:, None]
    p_row, p_col = in_prompt.nonzero(as_tuple=True)
    ids[p_row, p_col], segment[p_row, p_col], positions[p_row, p_col] = prompt_ids[in_prompt], 0, p_col
    row, t = mask.nonzero(as_tuple=True)  # the mask counts a prefix of each row
    inner = t < fed[row]
    r, s = row[inner], t[inner]
    at = (owners[r], start[r] + s)
    ids[at], segment[at], positions[at] = tokens[r, s], 1 + r, prompt_lengths[owners[r]] + s

    same = segment[:, :, None] == segment[:, None, :]
    visible = (same | (segment[:, None, :] == 0)) & torch.ones(width, width, dtype=torch.bool, device=device).tril()
    attention = visible[:, None]
    if model.config._attn_implementation == "eager":
        dtype = next(model.parameters()).dtype
        attention = torch.zeros(attention.shape, dtype=dtype, device=device).masked_fill_(
            ~attention, torch.finfo(dtype).min
        )
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False).logits
    predictor = torch.where(t == 0, prompt_lengths[owners[row]] - 1, start[row] + t - 1)
    return logits[owners[row], predictor]


def _padded_logits(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor
) -> Tensor:
    device = tokens.device
    lengths = mask.sum(1).tolist()
    whole = [
        [*prompts[int(o)], *tokens[i, : max(n - 1, 0)].tolist()]
        for i, (o, n) in enumerate(zip(owners, lengths, strict=True))
    ]
    ids, used = pad_right(whole, device)
    attention = torch.arange(ids.shape[1], device=device)[None, :] < used[:, None]
    logits = model(input_ids=ids, attention_mask=attention.long(), use_cache=False).logits
    row, t = mask.nonzero(as_tuple=True)
    starts = torch.tensor([len(p) for p in prompts], device=device)[owners]
    return logits[row, starts[row] + t - 1]
