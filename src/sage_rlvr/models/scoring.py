"""Log-probs of given completions under a causal LM, with or without gradient.

A Llama-shaped model goes through the engine (`models/llama`): every distinct beginning of prompts and completions is one node, and
no token is padded. A group of 8 ten-token completions of a 300-token prompt costs at most 372 nodes instead of 2,472 tokens (the
last token of a completion predicts nothing). Any other model takes the stock path: prompt and completion in one padded row each,
through its own forward. In float32 both compute the same numbers up to rounding (tests/models/test_scoring.py). In bfloat16 they
differ in where they round: see `llama/pieces.py`, and `lm_head.FloatHead` for the logits.

The engine bounds the memory of logits (`lm_head.KEPT_LOGITS`) and of every next token's log-probs (`laws.NUMBERS`). The stock path
does not: it builds the logits of all counted columns (B, columns, V), and log-probs (B, T, V).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from sage_rlvr.core import laws
from sage_rlvr.core.laws import Laws
from sage_rlvr.errors import DataError
from sage_rlvr.models.llama.forward import states
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Net, supports
from sage_rlvr.models.lm_head import chosen_logps, entropies_of
from sage_rlvr.models.sampler import logits_at, pad_right


@dataclass(frozen=True)
class TokenScores:
    """Scores of given tokens. `score` makes it; the loop's updates, references and metrics read it.

    logps      (B, T), in the graph if gradients are on
    entropies  (B, T) in nats, in the graph with `entropy_grad`, or None
    log_probs  (B, T, V) of every next token, in the graph like the logps, or None; from the engine `Laws` if the tensor
               would be larger than `laws.NUMBERS`
    hidden     (B, T, C) float32, the last hidden states that predict each token, detached, or None

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
    """Return logits (n, V) that predict each counted token, in the order of `mask.nonzero()`.

    Args:
        model: the policy.
        prompts: P token lists.
        tokens: (B, T).
        mask: (B, T), of each completion True up to its end and False after it.
        owners: (B,), the prompt of each completion, ascending. Raises `DataError` for any others.
        engine: False uses the stock path, whose graph several losses may go through, also batched; the engine's graph is freed by
            its first backward.
    """
    _check(prompts, tokens, mask, owners)
    if not (engine and engine_scores(model)):
        return _padded(model, prompts, tokens, mask, owners)[0]
    lm_head, layout, last_states = _by_engine(model, prompts, tokens, mask, owners)
    return F.linear(last_states, lm_head).index_select(0, layout.of_token)


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
    entropy_grad: bool = False,
    hidden: bool = False,
) -> TokenScores:
    """Return log-probs of the counted `tokens` (B, T); `log_probs` also asks for those of every next token.

    entropy_grad: entropies in the graph. hidden: also the last hidden states that predict each token. Shapes and errors are
    those of `completion_logits`.
    """
    _check(prompts, tokens, mask, owners)
    targets = tokens[mask]
    if engine_scores(model):
        lm_head, layout, last_states = _by_engine(model, prompts, tokens, mask, owners)
        last = _laid(last_states.detach().index_select(0, layout.of_token), mask) if hidden else None
        many = len(targets) * len(lm_head) > laws.NUMBERS
        if many or not log_probs:
            chosen, flat = chosen_logps(last_states, lm_head, targets, temperature, entropies, entropy_grad, layout.of_token)
            spread = None if flat is None else on_mask(mask, flat)
            every = Laws(last_states, lm_head, layout.of_token, mask, temperature) if log_probs else None
            return TokenScores(on_mask(mask, chosen), spread, every, last)
        logits = F.linear(last_states, lm_head).index_select(0, layout.of_token)
    else:
        logits, own = _padded(model, prompts, tokens, mask, owners, hidden)
        last = None if own is None else _laid(own, mask)
    flat_log_probs = torch.log_softmax(logits.float() / temperature, -1)  # float32 first: bfloat16 keeps 8 bits of a logit
    whole = None
    if log_probs:
        whole = flat_log_probs.new_zeros(*mask.shape, logits.shape[1]).index_put((mask,), flat_log_probs)
    spread = on_mask(mask, entropies_of(flat_log_probs if entropy_grad else flat_log_probs.detach())) if entropies else None
    return TokenScores(on_mask(mask, flat_log_probs.gather(1, targets[:, None]).squeeze(1)), spread, whole, last)


def logps_at(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Tensor,
    mask: Tensor,
    owners: Tensor,
    temperatures: Sequence[float],
) -> dict[float, Tensor]:
    """Return `score(...).logps` at several temperatures, from one forward."""
    _check(prompts, tokens, mask, owners)
    targets = tokens[mask]
    if engine_scores(model):
        lm_head, layout, last_states = _by_engine(model, prompts, tokens, mask, owners)
        every = [chosen_logps(last_states, lm_head, targets, t, state_of_target=layout.of_token)[0] for t in temperatures]
    else:
        logits = _padded(model, prompts, tokens, mask, owners)[0].float()
        every = [torch.log_softmax(logits / t, -1).gather(1, targets[:, None]).squeeze(1) for t in temperatures]
    return {t: on_mask(mask, logps) for t, logps in zip(temperatures, every, strict=True)}


def distributions(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Tensor,
    mask: Tensor,
    owners: Tensor,
    temperature: float = 1.0,
) -> Callable[[slice], Tensor]:
    """Return a function: the log-probs (m, V) float32 of every next token at a slice of the counted tokens (`mask.nonzero()`).

    The engine computes them slice by slice; the stock path holds the logits of all counted tokens, in the dtype of the weights.
    """
    _check(prompts, tokens, mask, owners)
    if engine_scores(model):
        lm_head, layout, last_states = _by_engine(model, prompts, tokens, mask, owners)
        return Laws(last_states, lm_head, layout.of_token, mask, temperature).at
    logits = _padded(model, prompts, tokens, mask, owners)[0]
    return lambda part: torch.log_softmax(logits[part].float() / temperature, -1)


def _by_engine(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor
) -> tuple[Tensor, Layout, Tensor]:
    """Return (lm_head (V, C), layout, the final states (M, C) of its outputs) of a model that `engine_scores`."""
    net, layout = Net(model), Layout.of(prompts, tokens, mask, owners)
    return net.lm_head, layout, states(net, layout)


def engine_scores(model: PreTrainedModel) -> bool:
    """True if the engine scores the model now: in training mode not if it has attention dropout or gradient checkpointing."""
    dropout = getattr(model.config, "attention_dropout", 0.0)
    checkpointed = any(getattr(part, "gradient_checkpointing", False) for part in model.modules())
    return supports(model) and not (model.training and (dropout or checkpointed))


def _laid(states: Tensor, mask: Tensor) -> Tensor:
    """Return states (n, C) at the n counted places of mask (B, T), 0 elsewhere: (B, T, C) float32."""
    return torch.zeros(*mask.shape, states.shape[1], device=states.device).index_put((mask,), states.float())


def on_mask(mask: Tensor, values: Tensor) -> Tensor:
    """Return values (n,) at the n counted places of mask (B, T), 0 elsewhere."""
    # masked_scatter fills row by row, which is the order of tokens[mask] and of mask.nonzero()
    return torch.zeros(mask.shape, device=values.device).masked_scatter(mask, values)


def _check(prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor) -> None:
    """Raise DataError for input that the layouts do not support: the numbers would be wrong without an error."""
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
    """Return logits (n, V) of the counted tokens on the stock path, and the hidden states (n, C) that predict them, or None."""
    device, row = tokens.device, mask.nonzero()[:, 0]
    lengths = mask.sum(1).tolist()
    whole = [
        [*prompts[int(o)], *tokens[i, : max(n - 1, 0)].tolist()]
        for i, (o, n) in enumerate(zip(owners, lengths, strict=True))
    ]
    ids, used = pad_right(whole, device)
    seen = (torch.arange(ids.shape[1], device=device)[None, :] < used[:, None]).long()
    starts = torch.tensor([len(p) for p in prompts], device=device)[owners]
    columns = starts[row] + mask.nonzero()[:, 1] - 1  # - 1: a token is predicted by the position before it
    inputs: list[Tensor] = []  # of the head: the last hidden states, whichever adapters and wrappers the model has
    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach())) if hidden else None
    try:
        logits, places = logits_at(model, columns, input_ids=ids, attention_mask=seen, use_cache=False)
    finally:
        if hook is not None:
            hook.remove()
    return logits[row, places], inputs[0][row, places] if hidden else None
