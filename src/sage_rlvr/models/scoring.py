"""Log-probs of given completions under a causal LM, with or without gradient.

A Llama-shaped model goes through the engine (`models/llama`): every distinct beginning of prompts and completions is one row, no
token is padded. A group of 8 ten-token completions of a 300-token prompt costs 380 rows, not 2,480. Any other model takes the stock
path: one padded row per completion through its own forward. Both give the same numbers up to float rounding
(tests/models/test_scoring.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from sage_rlvr.core import laws as laws_of
from sage_rlvr.core.laws import Laws
from sage_rlvr.errors import DataError
from sage_rlvr.models.head import chosen_logps, entropies_of
from sage_rlvr.models.llama.forward import states
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Net, supports
from sage_rlvr.models.sampler import logits_at, pad_right


@dataclass(frozen=True)
class Scores:
    """logps (B, T) of the given tokens, in graph when gradients are on; entropies (B, T) in nats, in graph where that was asked
    for, or None; log_probs (B, T, V) of every next token, in graph as the logps, or None; `Laws` where they would be more than
    `laws.NUMBERS`;
    hidden (B, T, C) float32, the last hidden states that predict each token, detached, or None.

    Entries off the mask are 0. All are those of the temperature-scaled distribution, as in TRL and verl.
    """

    logps: Tensor
    entropies: Tensor | None
    log_probs: Tensor | Laws | None = None
    hidden: Tensor | None = None


def completion_logits(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Tensor,
    mask: Tensor,
    owners: Tensor,
    *,
    engine: bool = True,
) -> Tensor:
    """Logits (N, V) that predict each counted token, in the order of `mask.nonzero()`.

    engine: False takes the stock path, whose graph several losses may go through, also batched; the engine's serves one backward.
    prompts: P token lists; tokens, mask (B, T), each row of the mask True up to the completion's end and False after it;
    owners (B,) the prompt of each row, ascending. Raises `DataError` where they are not so.
    """
    _check(prompts, tokens, mask, owners)
    if not (engine and engine_scores(model)):
        return _padded(model, prompts, tokens, mask, owners)[0]
    net, layout = Net(model), Layout.of(prompts, tokens, mask, owners)
    return F.linear(states(net, layout), net.head).index_select(0, layout.of_token)


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
    if engine_scores(model):
        net, layout = Net(model), Layout.of(prompts, tokens, mask, owners)
        found = states(net, layout)
        last = _laid(found.detach().index_select(0, layout.of_token), mask) if hidden else None
        many = len(targets) * len(net.head) > laws_of.NUMBERS
        if many or not log_probs:
            chosen, flat = chosen_logps(found, net.head, targets, temperature, entropies, gradient, layout.of_token)
            spread = None if flat is None else on_mask(mask, flat)
            every = laws_of.Laws(found, net.head, layout.of_token, mask, temperature) if log_probs else None
            return Scores(on_mask(mask, chosen), spread, every, last)
        logits = F.linear(found, net.head).index_select(0, layout.of_token)
    else:
        logits, own = _padded(model, prompts, tokens, mask, owners, hidden)
        last = None if own is None else _laid(own, mask)
    laws = torch.log_softmax(logits.float() / temperature, -1)
    whole = laws.new_zeros(*mask.shape, laws.shape[1]).index_put((mask,), laws) if log_probs else None
    spread = on_mask(mask, entropies_of(laws if gradient else laws.detach())) if entropies else None
    return Scores(on_mask(mask, laws.gather(1, targets[:, None]).squeeze(1)), spread, whole, last)


def logps_at(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Tensor,
    mask: Tensor,
    owners: Tensor,
    temperatures: Sequence[float],
) -> dict[float, Tensor]:
    """`score(...).logps` at several temperatures, from one forward."""
    _check(prompts, tokens, mask, owners)
    targets = tokens[mask]
    if engine_scores(model):
        net, layout = Net(model), Layout.of(prompts, tokens, mask, owners)
        found = states(net, layout)
        every = [chosen_logps(found, net.head, targets, t, rows=layout.of_token)[0] for t in temperatures]
    else:
        logits = _padded(model, prompts, tokens, mask, owners)[0].float()
        every = [torch.log_softmax(logits / t, -1).gather(1, targets[:, None]).squeeze(1) for t in temperatures]
    return {t: on_mask(mask, found) for t, found in zip(temperatures, every, strict=True)}


def distributions(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Tensor,
    mask: Tensor,
    owners: Tensor,
    temperature: float = 1.0,
) -> Callable[[slice], Tensor]:
    """The log-probs (m, V) float32 of every next token at a slice of the counted tokens, in the order of `mask.nonzero()`.

    The engine computes them slice by slice; the stock path holds the logits of all counted tokens, in the dtype of the weights.
    """
    _check(prompts, tokens, mask, owners)
    if engine_scores(model):
        net, layout = Net(model), Layout.of(prompts, tokens, mask, owners)
        return Laws(states(net, layout), net.head, layout.of_token, mask, temperature).at
    logits = _padded(model, prompts, tokens, mask, owners)[0]
    return lambda part: torch.log_softmax(logits[part].float() / temperature, -1)


def engine_scores(model: PreTrainedModel) -> bool:
    """Whether the engine scores the model: in training not one with attention dropout, or whose layers are to run again in
    backward."""
    dropout = getattr(model.config, "attention_dropout", 0.0)
    checkpointed = any(getattr(part, "gradient_checkpointing", False) for part in model.modules())
    return supports(model) and not (model.training and (dropout or checkpointed))


def _laid(states: Tensor, mask: Tensor) -> Tensor:
    """states (M, C) at the M counted places of mask (B, T), 0 elsewhere: (B, T, C) float32."""
    return torch.zeros(*mask.shape, states.shape[1], device=states.device).index_put((mask,), states.float())


def on_mask(mask: Tensor, values: Tensor) -> Tensor:
    """values (M,) at the M counted places of mask (B, T), 0 elsewhere."""
    return torch.zeros(mask.shape, device=values.device).masked_scatter(mask, values)


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


def _padded(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Tensor,
    mask: Tensor,
    owners: Tensor,
    hidden: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The stock path: logits (N, V) of the counted tokens, and the hidden states (N, C) behind them, detached, or None."""
    device, row = tokens.device, mask.nonzero()[:, 0]
    lengths = mask.sum(1).tolist()
    whole = [
        [*prompts[int(o)], *tokens[i, : max(n - 1, 0)].tolist()]
        for i, (o, n) in enumerate(zip(owners, lengths, strict=True))
    ]
    ids, used = pad_right(whole, device)
    seen = (torch.arange(ids.shape[1], device=device)[None, :] < used[:, None]).long()
    starts = torch.tensor([len(p) for p in prompts], device=device)[owners]
    columns = starts[row] + mask.nonzero()[:, 1] - 1
    logits, places = logits_at(model, columns, input_ids=ids, attention_mask=seen, use_cache=False)
    if not hidden:
        return logits[row, places], None
    with torch.no_grad():  # by a forward of its own: the one above shows only its logits
        last = model.base_model(input_ids=ids, attention_mask=seen, use_cache=False).last_hidden_state
    return logits[row, places], last[row, columns]
