"""Log-probs of given completions under a causal LM, with or without gradient: the prompt is computed once for its group.

`ragged` feeds one row that holds all prompts once and all completions after them, without a padding token; only inside the
attention are they laid out as grids, where a completion sees its prompt and itself. A group of 8 ten-token completions of a
300-token prompt costs 380 tokens, not 2,480. `padded` is the textbook layout, one row per completion, and the fallback for
models whose attention cannot be replaced. Both give the same numbers up to float rounding (tests/models/test_scoring.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from sage_rlvr.errors import DataError
from sage_rlvr.models.sampler import attention, logits_at, pad_right, refuse_unknown_terms, supports_shared_prefix

RAGGED = "sage_ragged"


@dataclass(frozen=True)
class Scores:
    """logps (B, T) of the given tokens, in graph when gradients are on; entropies (B, T) in nats, detached, or None;
    log_probs (B, T, V) of every next token, in graph as the logps, or None.

    Entries off the mask are 0. All are those of the temperature-scaled distribution, as in TRL and verl.
    """

    logps: Tensor
    entropies: Tensor | None
    log_probs: Tensor | None = None


def completion_logits(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor
) -> Tensor:
    """Logits (N, V) that predict each counted token, in the order of `mask.nonzero()`.

    prompts: P token lists; tokens, mask (B, T), each row of the mask True up to the completion's end and False after it;
    owners (B,) the prompt of each row, ascending. Raises `DataError` where they are not so.
    """
    _check(prompts, tokens, mask, owners)
    # Checkpointed layers run again during backward, when the attention has been put back: they take the plain layout.
    recomputes = model.training and any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    if supports_shared_prefix(model) and not recomputes:
        return _ragged_logits(model, prompts, tokens, mask, owners)
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
    log_probs: bool = False,
) -> Scores:
    """Log-probs of `tokens` (B, T) where `mask` (B, T) counts them; `log_probs` asks for those of every next token too.

    Shapes and errors are those of `completion_logits`.
    """
    logits = completion_logits(model, prompts, tokens, mask, owners).float()
    laws = torch.log_softmax(logits / temperature if temperature != 1.0 else logits, -1)
    chosen = laws.gather(1, tokens[mask][:, None]).squeeze(1)
    logps = torch.zeros(mask.shape, device=chosen.device).masked_scatter(mask, chosen)
    whole = laws.new_zeros(*mask.shape, laws.shape[1]).index_put((mask,), laws) if log_probs else None
    if not entropies:
        return Scores(logps, None, whole)
    with torch.no_grad():
        flat = torch.special.entr(laws.detach().exp()).sum(-1)
    return Scores(logps, torch.zeros(mask.shape, device=flat.device).masked_scatter(mask, flat), whole)


def _check(prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor) -> None:
    """What the layouts take for granted: were it not so, the numbers would be wrong without a word."""
    if tokens.shape != mask.shape or owners.shape != tokens.shape[:1] or mask.dtype != torch.bool:
        raise DataError(
            f"tokens {tuple(tokens.shape)}, mask {tuple(mask.shape)} {mask.dtype}, owners {tuple(owners.shape)}: give "
            "(B, T), (B, T) of torch.bool and (B,)"
        )
    if bool((owners[1:] < owners[:-1]).any()) or bool(((owners < 0) | (owners >= len(prompts))).any()):
        raise DataError(
            f"owners must ascend from 0 to at most {len(prompts) - 1}, the number of the last prompt; sort the rows: "
            "order = owners.argsort(stable=True)"
        )
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        row = int((mask[:, 1:] & ~mask[:, :-1]).any(1).nonzero()[0])
        raise DataError(f"mask: row {row} has a gap; a completion is counted from its first token on without a hole")
    if any(len(p) == 0 for p in prompts):
        raise DataError("a prompt has no tokens, so nothing predicts its first; give it at least one (its BOS, say)")


def _ragged_logits(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor
) -> Tensor:
    layout = Ragged.of(prompts, mask, owners)
    flat = [torch.tensor([t for p in prompts for t in p], device=tokens.device), tokens[layout.fed]]
    with attention(model, RAGGED):
        ids, positions = torch.cat(flat)[None], layout.positions[None]
        logits, places = logits_at(
            model, layout.predictor, input_ids=ids, position_ids=positions, use_cache=False, ragged=layout
        )
    return logits[0, places]


@dataclass(frozen=True)
class Ragged:
    """Where the N tokens of one ragged row belong: first all prompts, then all completions less their last tokens.

    positions (N,) place of a token in its own text; predictor (M,) which of the N outputs predicts each counted token, in
    the order of `mask.nonzero()`; fed (B, T) bool, the completion tokens that are fed; prompt_slots (N_p,) into the P x S
    grid of prompts; own_slots (N_c,) into the B x T grid of completions; members (P,) completions of each prompt; visible
    (T, S + T), or (B, 1, T, S + T) where prompts differ in length: what a completion token sees of prompt and completion.
    """

    positions: Tensor
    predictor: Tensor
    fed: Tensor
    prompt_slots: Tensor
    own_slots: Tensor
    prompt_shape: tuple[int, int]
    own_shape: tuple[int, int]
    members: Tensor
    visible: Tensor

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], mask: Tensor, owners: Tensor) -> Ragged:
        """prompts: ids of each of P prompts; mask (B, T) of the completions' tokens; owners (B,) their prompts' numbers."""
        device, (_, width) = mask.device, mask.shape
        prompt_lengths = torch.tensor([len(p) for p in prompts], device=device)
        fed_lengths = (mask.sum(1) - 1).clamp_min(0)  # the last token of a completion predicts nothing
        fed = torch.arange(width, device=device)[None, :] < fed_lengths[:, None]
        longest, widest = int(prompt_lengths.max()), max(1, int(fed_lengths.max()))
        in_prompt = torch.arange(longest, device=device)[None, :] < prompt_lengths[:, None]
        row, t = fed.nonzero(as_tuple=True)
        p_row, p_col = in_prompt.nonzero(as_tuple=True)
        first = len(p_row) + fed_lengths.cumsum(0) - fed_lengths  # (B,) where a completion starts in the ragged row
        counted, at = mask.nonzero(as_tuple=True)
        past = torch.ones(widest, widest, dtype=torch.bool, device=device).tril()
        prompt = in_prompt[owners][:, None].expand(-1, widest, -1)
        visible = torch.cat([prompt, past.expand(len(owners), -1, -1)], 2)[:, None]
        return cls(
            positions=torch.cat([p_col, prompt_lengths[owners[row]] + t]),
            predictor=torch.where(at == 0, prompt_lengths.cumsum(0)[owners[counted]] - 1, first[counted] + at - 1),
            fed=fed,
            prompt_slots=p_row * longest + p_col,
            own_slots=row * widest + t,
            prompt_shape=(len(prompts), longest),
            own_shape=(len(owners), widest),
            members=torch.bincount(owners, minlength=len(prompts)),
            visible=visible[0, 0] if bool(in_prompt.all()) else visible,
        )


def _attend_ragged(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    ragged: Ragged | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query (1, Hq, N, D), key and value (1, H, N, D): prompts attend causally, completions to their prompt and themselves."""
    assert ragged is not None, "this attention runs only inside sage_rlvr.models.scoring"
    refuse_unknown_terms(module, kwargs)
    repeat = query.shape[1] // key.shape[1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # (N, H, D)
    if repeat > 1:
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    n, (prompts, longest) = len(ragged.prompt_slots), ragged.prompt_shape
    qp, kp, vp = (_spread(x[:n], ragged.prompt_slots, (prompts, longest)).transpose(1, 2) for x in (q, k, v))
    over_prompts = torch.nn.functional.scaled_dot_product_attention(qp, kp, vp, is_causal=True, scale=scale)
    of_prompts = over_prompts.transpose(1, 2).flatten(0, 1)[ragged.prompt_slots]
    qc, kc, vc = (_spread(x[n:], ragged.own_slots, ragged.own_shape).transpose(1, 2) for x in (q, k, v))
    kc, vc = (torch.cat([p.repeat_interleave(ragged.members, 0), c], 2) for p, c in ((kp, kc), (vp, vc)))
    over_own = torch.nn.functional.scaled_dot_product_attention(qc, kc, vc, attn_mask=ragged.visible, scale=scale)
    of_own = over_own.transpose(1, 2).flatten(0, 1)[ragged.own_slots]
    return torch.cat([of_prompts, of_own])[None], None


def _spread(rows: Tensor, slots: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(n, H, D) -> (*shape, H, D), zeros where no row belongs."""
    size = torch.Size(shape).numel()
    return rows.new_zeros(size, *rows.shape[1:]).index_copy(0, slots, rows).reshape(*shape, *rows.shape[1:])


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
    row, t = mask.nonzero(as_tuple=True)
    starts = torch.tensor([len(p) for p in prompts], device=device)[owners]
    logits, places = logits_at(
        model, starts[row] + t - 1, input_ids=ids, attention_mask=attention.long(), use_cache=False
    )
    return logits[row, places]


AttentionInterface.register(RAGGED, _attend_ragged)
