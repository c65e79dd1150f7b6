"""Log-probs of given completions under a causal LM, with or without gradient: the prompt is computed once for its group.

`ragged` feeds one row that holds all prompts once and all completions after them, without a padding token; only inside the
attention are they laid out as grids, where a completion sees its prompt and itself. A group of 8 ten-token completions of a
300-token prompt costs 380 tokens, not 2,480. `padded` is the textbook layout, one row per completion, and the fallback for
models whose attention cannot be replaced. Both give the same numbers up to float rounding (tests/models/test_scoring.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from sage_rlvr.errors import DataError
from sage_rlvr.models.head import chosen_logps, entropies_of, factors, plain_head
from sage_rlvr.models.llama.decoder import LlamaWeights
from sage_rlvr.models.llama.forward import last_states, takes
from sage_rlvr.models.sampler import logits_at, pad_right
from sage_rlvr.models.shared_prefix import attention, refuse_unknown_terms, supports_shared_prefix

RAGGED = "sage_ragged"


@dataclass(frozen=True)
class Scores:
    """logps (B, T) of the given tokens, in graph when gradients are on; entropies (B, T) in nats, in graph where that was asked
    for, or None; log_probs (B, T, V) of every next token, in graph as the logps, or None;
    hidden (B, T, C) float32, the last hidden states that predict each token, detached, or None.

    Entries off the mask are 0. All are those of the temperature-scaled distribution, as in TRL and verl.
    """

    logps: Tensor
    entropies: Tensor | None
    log_probs: Tensor | None = None
    hidden: Tensor | None = None


def completion_logits(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor
) -> Tensor:
    """Logits (N, V) that predict each counted token, in the order of `mask.nonzero()`.

    prompts: P token lists; tokens, mask (B, T), each row of the mask True up to the completion's end and False after it;
    owners (B,) the prompt of each row, ascending. Raises `DataError` where they are not so.
    """
    _check(prompts, tokens, mask, owners)
    if supports_shared_prefix(model) and not _recomputes(model):
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
    gradient: bool = False,
    hidden: bool = False,
) -> Scores:
    """Log-probs of `tokens` (B, T) where `mask` (B, T) counts them; `log_probs` asks for those of every next token too.

    gradient: entropies in the graph. hidden: the last hidden states too, those that predict each token. Shapes and errors are
    those of `completion_logits`.
    """
    _check(prompts, tokens, mask, owners)
    targets = tokens[mask]
    ragged = supports_shared_prefix(model) and not _recomputes(model)
    if ragged and plain_head(model) and not log_probs:
        states = _states(model, Ragged.of(prompts, tokens, mask, owners, distinct=True))
        chosen, flat = chosen_logps(*factors(model, states), targets, temperature, entropies, gradient)
        last = _laid(states.detach(), mask) if hidden else None
        return Scores(_on(mask, chosen), None if flat is None else _on(mask, flat), None, last)
    last = _hidden_alone(model, prompts, tokens, mask, owners, ragged) if hidden else None
    logits = completion_logits(model, prompts, tokens, mask, owners).float()
    laws = torch.log_softmax(logits / temperature if temperature != 1.0 else logits, -1)
    whole = laws.new_zeros(*mask.shape, laws.shape[1]).index_put((mask,), laws) if log_probs else None
    found = _on(mask, entropies_of(laws if gradient else laws.detach())) if entropies else None
    return Scores(_on(mask, laws.gather(1, targets[:, None]).squeeze(1)), found, whole, last)


def _laid(states: Tensor, mask: Tensor) -> Tensor:
    """states (M, C) at the M counted places of mask (B, T), 0 elsewhere: (B, T, C) float32."""
    return torch.zeros(*mask.shape, states.shape[1], device=states.device).index_put((mask,), states.float())


@torch.no_grad()
def _hidden_alone(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor, ragged: bool
) -> Tensor:
    """The hidden states by a forward of their own, where the one for the log-probs shows only its logits."""
    if not ragged:
        raise DataError(
            f"hidden states of {type(model).__name__} are not available: its attention cannot be replaced by the "
            "ragged layout; use a method without hidden states, or a Llama-shaped model without gradient checkpointing"
        )
    return _laid(_states(model, Ragged.of(prompts, tokens, mask, owners)), mask)


def _on(mask: Tensor, values: Tensor) -> Tensor:
    """values (M,) at the M counted places of mask (B, T), 0 elsewhere."""
    return torch.zeros(mask.shape, device=values.device).masked_scatter(mask, values)


def _recomputes(model: PreTrainedModel) -> bool:
    """Checkpointed layers run again during backward, when the attention has been put back: they take the plain layout."""
    return model.training and any(getattr(m, "gradient_checkpointing", False) for m in model.modules())


def _states(model: PreTrainedModel, layout: Ragged) -> Tensor:
    """(M, C) last hidden states that predict each counted token: by `llama.forward` where it takes the model."""
    if takes(model):
        weights, attend = LlamaWeights(model), partial(_over_ragged, layout=layout, scale=1.0)
        states = last_states(weights, layout.ids, layout.positions, attend)
    else:
        core: Any = model.model
        with attention(model, RAGGED):
            out = core(input_ids=layout.ids[None], position_ids=layout.positions[None], use_cache=False, ragged=layout)
        states = out.last_hidden_state[0]
    return states.index_select(0, layout.predictor)


def _check(prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor) -> None:
    """What the layouts take for granted: were it not so, the numbers would be wrong silently."""
    if tokens.shape != mask.shape or owners.shape != tokens.shape[:1] or mask.dtype != torch.bool:
        raise DataError(
            f"tokens {tuple(tokens.shape)}, mask {tuple(mask.shape)} {mask.dtype}, owners {tuple(owners.shape)}: "
            "expected shapes (B, T), (B, T) of torch.bool and (B,)"
        )
    if bool((owners[1:] < owners[:-1]).any()) or bool(((owners < 0) | (owners >= len(prompts))).any()):
        raise DataError(
            f"owners must ascend from 0 to at most {len(prompts) - 1}, the number of the last prompt; sort the rows: "
            "order = owners.argsort(stable=True)"
        )
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        row = int((mask[:, 1:] & ~mask[:, :-1]).any(1).nonzero()[0])
        raise DataError(f"mask: row {row} has a gap; the mask of a completion must be contiguous from its first token")
    if any(len(p) == 0 for p in prompts):
        raise DataError("a prompt has no tokens, so nothing predicts its first token; add at least one (for example BOS)")


def _ragged_logits(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor
) -> Tensor:
    layout = Ragged.of(prompts, tokens, mask, owners)
    with attention(model, RAGGED):
        logits, places = logits_at(
            model,
            layout.predictor,
            input_ids=layout.ids[None],
            position_ids=layout.positions[None],
            use_cache=False,
            ragged=layout,
        )
    return logits[0, places]


@dataclass(frozen=True)
class Ragged:
    """Where the N tokens of one ragged row belong: first all prompts, then all completions less their last tokens.

    ids, positions (N,) of the tokens, each position that in its own text; predictor (M,) which of the N outputs predicts
    each counted token, in the order of `mask.nonzero()`. Into the grids of P prompts and B completions: from_prompts
    (P, S), asking (B, T) and seen (B, S + T) name the token whose query (or key and value) a place takes, 0 where there is
    none; prompt_slots (N_p,) and own_slots (N_c,) the places where the outputs of the tokens then lie. visible
    (T, S + T), or (B, 1, T, S + T) where prompts differ in length: what a completion token sees of prompt and completion.
    """

    ids: Tensor
    positions: Tensor
    predictor: Tensor
    from_prompts: Tensor
    asking: Tensor
    seen: Tensor
    prompt_slots: Tensor
    own_slots: Tensor
    visible: Tensor

    @classmethod
    def of(
        cls, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor, distinct: bool = False
    ) -> Ragged:
        """prompts: ids of each of P prompts; tokens, mask (B, T) of the completions; owners (B,) their prompts' numbers.

        distinct: what several completions of a prompt begin with alike is in the row once, for all of them.
        """
        device, (_, width) = mask.device, mask.shape
        prompt_lengths = torch.tensor([len(p) for p in prompts], device=device)
        fed_lengths = (mask.sum(1) - 1).clamp_min(0)  # the last token of a completion predicts nothing
        fed = torch.arange(width, device=device)[None, :] < fed_lengths[:, None]
        longest, widest = int(prompt_lengths.max()), max(1, int(fed_lengths.max()))
        in_prompt = torch.arange(longest, device=device)[None, :] < prompt_lengths[:, None]
        p_row, p_col = in_prompt.nonzero(as_tuple=True)
        from_prompts = torch.zeros_like(in_prompt, dtype=torch.long)
        from_prompts[in_prompt] = torch.arange(len(p_row), device=device)
        row, t, numbers = _distinct(tokens, fed, owners) if distinct else _each(fed)
        asking = torch.where(fed, numbers + len(p_row), 0)
        counted, at = mask.nonzero(as_tuple=True)
        past = torch.ones(widest, widest, dtype=torch.bool, device=device).tril()
        prompt = in_prompt[owners][:, None].expand(-1, widest, -1)
        visible = torch.cat([prompt, past.expand(len(owners), -1, -1)], 2)[:, None]
        last = prompt_lengths.cumsum(0) - 1
        return cls(
            ids=torch.cat([torch.tensor([i for p in prompts for i in p], device=device), tokens[row, t]]),
            positions=torch.cat([p_col, prompt_lengths[owners[row]] + t]),
            predictor=torch.where(at == 0, last[owners[counted]], asking[counted, at - 1]),
            from_prompts=from_prompts,
            asking=asking[:, :widest],
            seen=torch.cat([from_prompts[owners], asking[:, :widest]], 1),
            prompt_slots=p_row * longest + p_col,
            own_slots=row * widest + t,
            visible=visible[0, 0] if bool(in_prompt.all()) else visible,
        )


def _each(fed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, columns) of the fed tokens, (B, T) bool, and the number of each place among them, (B, T)."""
    row, t = fed.nonzero(as_tuple=True)
    return row, t, fed.flatten().cumsum(0).view(fed.shape) - 1


def _distinct(tokens: Tensor, fed: Tensor, owners: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `_each`, of the fed tokens that are not behind the same prompt and tokens as one that is counted already.

    In the alphabetical order of the rows those that begin alike lie together, so each is held against the one before it.
    """
    words = torch.cat([owners[:, None], tokens.masked_fill(~fed, -1)], 1).cpu().numpy()
    order = np.lexsort(words.T[::-1])
    again = (words[order][1:] == words[order][:-1]).cumprod(1, dtype=bool)[:, 1:]
    places, fed = torch.from_numpy(order).to(fed.device), fed[torch.from_numpy(order).to(fed.device)]
    new = fed & ~F.pad(torch.from_numpy(again).to(fed.device), (0, 0, 1, 0))
    row, t, counted = _each(new)
    numbers = torch.empty_like(counted)
    numbers[places] = torch.where(new, counted, 0).cummax(0).values
    return places[row], t, numbers


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
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    heads = (x[0].transpose(0, 1) for x in (query, key, value))
    return _over_ragged(*heads, layout=ragged, scale=scale).unflatten(1, (query.shape[1], -1))[None], None


def _over_ragged(q: Tensor, k: Tensor, v: Tensor, layout: Ragged, scale: float) -> Tensor:
    """q (N, Hq, D), k and v (N, H, D) of a ragged row -> (N, Hq * D)."""
    repeat = q.shape[1] // k.shape[1]
    if repeat > 1:
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    qp, kp, vp = (_laid_out(x, layout.from_prompts) for x in (q, k, v))
    over_prompts = F.scaled_dot_product_attention(qp, kp, vp, is_causal=True, scale=scale)
    qc, kc, vc = (_laid_out(x, places) for x, places in ((q, layout.asking), (k, layout.seen), (v, layout.seen)))
    over_own = F.scaled_dot_product_attention(qc, kc, vc, attn_mask=layout.visible, scale=scale)
    outputs = ((over_prompts, layout.prompt_slots), (over_own, layout.own_slots))
    return torch.cat([o.transpose(1, 2).flatten(0, 1).flatten(1).index_select(0, slots) for o, slots in outputs])


def _laid_out(x: Tensor, places: Tensor) -> Tensor:
    """(N, H, D), places (n, t) -> (n, H, t, D)."""
    return x.flatten(1).index_select(0, places.flatten()).view(*places.shape, *x.shape[1:]).transpose(1, 2)


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
