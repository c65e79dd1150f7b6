"""Log-probs of chosen tokens and entropies from hidden states, some rows of logits at a time.

Of M tokens and a vocabulary of V the stock way keeps the logits, their log-softmax and its gradient, (M, V) float32 each: at
3,000 tokens and 32,000 words 384 MB a tensor. Here at most `BUDGET` numbers of one are alive at a time, and backward
computes them again. Where all of them fit the budget their probabilities are kept instead, and nothing is computed twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from sage_rlvr.models.devices import FloatHead
from sage_rlvr.models.llama.decoder import SHAPED

BUDGET = 1 << 22
"""Logits that are alive at a time: 16 MiB of float32, 131 rows of a vocabulary of 32,000."""

LOWEST = torch.finfo(torch.float32).min


def plain_head(model: PreTrainedModel) -> bool:
    """Whether the logits are one product of the last hidden states and nothing else, so that `chosen_logps` gives them."""
    head: Any = model.get_output_embeddings()
    return type(model).__name__ in SHAPED and type(head) in (torch.nn.Linear, FloatHead) and head.bias is None


def chosen_logps(
    states: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0, entropies: bool = False, gradient: bool = False
) -> tuple[Tensor, Tensor | None]:
    """states (M, C), weight (V, C), targets (M,) -> log-probs of the targets (M,) float32, in graph, and entropies (M,).

    Both are of softmax(states @ weight.T / temperature); entropies in nats, in the graph with `gradient`, or None if not
    asked for.
    """
    logps, found = _Chosen.apply(states, weight, targets, temperature, entropies, entropies and gradient)
    return logps, found if entropies else None


def entropies_of(laws: Tensor) -> Tensor:
    """Log-probs (M, V) -> nats (M,). 0 log 0 = 0: a probability is 0 in float32 long before its logarithm is this low."""
    return -torch.linalg.vecdot(laws.exp(), laws.clamp_min(LOWEST))


def factors(model: PreTrainedModel, states: Tensor) -> tuple[Tensor, Tensor]:
    """States and the head's weight as they are multiplied: in float32 where the model's head does that."""
    head: Any = model.get_output_embeddings()
    return (states.float(), head.weight.float()) if type(head) is FloatHead else (states, head.weight)


class _Chosen(Function):
    """`chosen_logps`; its entropies are empty if they are not asked for."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, temperature: float, entropies: bool, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        rows = max(1, BUDGET // len(weight))
        logps = states.new_empty(len(states), dtype=torch.float32)
        found = torch.empty_like(logps) if entropies else logps.new_empty(0)
        laws = logps.new_empty(0)
        for first in range(0, len(states), rows):
            part = slice(first, first + rows)
            laws = _laws(states[part], weight, temperature)
            torch.gather(laws, 1, targets[part, None], out=logps[part, None])
            if entropies:
                found[part] = entropies_of(laws)
        whole = len(states) <= rows and any(ctx.needs_input_grad)
        kept = (laws if gradient else laws.exp_()) if whole else None
        ctx.save_for_backward(states, weight, targets, kept, found if gradient else None)
        ctx.temperature, ctx.rows = temperature, rows
        if not gradient:
            ctx.mark_non_differentiable(found)
        return logps, found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor, by_entropy: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        """d logp_a / d logit_j = [j = a] - p_j,   d H / d logit_j = -p_j (log p_j + H), each over the temperature."""
        states, weight, targets, kept, entropies = ctx.saved_tensors
        by_states, by_weight = torch.empty_like(states), torch.zeros_like(weight, dtype=torch.float32)
        for first in range(0, len(states), ctx.rows):
            part = slice(first, first + ctx.rows)
            found = _laws(states[part], weight, ctx.temperature) if kept is None else kept
            slope = grad[part, None] / ctx.temperature
            if entropies is None:
                pull = (found.exp_() if kept is None else found) * -slope
            else:
                lift = by_entropy[part, None] / ctx.temperature
                probs = found.exp()
                pull = -(slope + lift * entropies[part, None]) * probs - lift * (probs * found.clamp_min(LOWEST))
            by_logits = pull.scatter_add_(1, targets[part, None], slope).to(weight.dtype)
            torch.mm(by_logits, weight, out=by_states[part])
            by_weight += by_logits.t() @ states[part]
        return by_states, by_weight.to(weight.dtype), None, None, None, None


def _laws(states: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """(m, V) float32 log-probs."""
    logits = (states @ weight.t()).float()
    return torch.log_softmax(logits if temperature == 1.0 else logits.div_(temperature), -1)
