"""Log-probs of chosen tokens and entropies from final hidden states, a bounded number of logits at a time.

For M states and a vocabulary of V autograd would keep the logits, their log-softmax and its gradient, (M, V) float32 each: 600 MB
per tensor for 3,000 states and a vocabulary of 50,000. Here states are split twice. A *part* has at most `KEPT_LOGITS` logits,
which are in memory at a time, in the dtype of the weights. A *piece* of a part has about `NUMBERS` of them: those that are
converted to float32 at a time. If there is one part only, its logits are kept, and backward overwrites them by their gradient;
else backward computes them again. Letters of shapes are those of `llama/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

KEPT_LOGITS = 1 << 28
"""Maximum number of logits in memory at a time: 512 MiB in bfloat16, 5,400 states at a vocabulary of 49,152."""

NUMBERS = 1 << 18
"""Numbers of one float32 temporary on a CPU, 1 MiB: several of them stay in a core's cache."""

LOWEST = torch.finfo(torch.float32).min
"""Replaces a log-prob of -inf before it is multiplied by its probability, 0: 0 log 0 is then 0 and not NaN."""


class FloatHead(nn.Linear):
    """An output head with unchanged weights and a float32 product. `devices.placed` puts it into a model in half precision.

    Only the stock path calls it. The engine multiplies by the same weights in their dtype, so that its bfloat16 logits, rounded
    to multiples of 1/8 above 16, differ from these by .03 to .06.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Hidden states (..., C) -> logits (..., V) in float32."""
        return F.linear(input.float(), self.weight.float(), None if self.bias is None else self.bias.float())


def chosen_logps(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    entropies: bool = False,
    entropy_grad: bool = False,
    state_of_target: Tensor | None = None,
    logits: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probs of the targets (n,) float32, in the graph, and entropies (n,) of softmax(states @ weight.T / temperature).

    Args:
        states: (M, C), after the final norm.
        weight: (V, C) of the head.
        targets: (n,) token ids.
        temperature: of the distribution.
        entropies: False returns None for them; they are in nats.
        entropy_grad: True puts them into the graph.
        state_of_target: (n,), the index of the state that predicts each target; None if the n states are in their order.
        logits: (M, V), states @ weight.T if known; backward overwrites them, so that it can run once.
    """
    if state_of_target is None:
        state_of_target = torch.arange(len(targets), device=targets.device)
    with_grad = entropies and entropy_grad
    logps, of_states = _Chosen.apply(states, weight, targets, state_of_target, temperature, entropies, with_grad, logits)
    return logps, of_states[state_of_target] if entropies else None


def entropies_of(log_probs: Tensor) -> Tensor:
    """Return entropies (M,) in nats of log-probs (M, V). 0 log 0 = 0 (`LOWEST`)."""
    return -torch.linalg.vecdot(log_probs.exp(), log_probs.clamp_min(LOWEST))


def measured(logits: Tensor, temperature: float, entropies: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return for logits (M, V) in any dtype three tensors (M,) float32: top, log_sum, and the entropy in nats or None.

    With z = logits / temperature: top = max z, log_sum = log sum exp(z - top), so that log p = (z - top) - log_sum. The two are not
    added up: their sum would be rounded to 2e-6 at logits of 20, and the probability of a certain token could be above 1.
    """
    tops, logs = (torch.empty(len(logits), device=logits.device) for _ in range(2))
    entropy = torch.empty_like(tops) if entropies else None
    for part in pieces(logits):
        wide = _scaled(logits[part], temperature)
        tops[part] = wide.amax(1)
        wide.sub_(tops[part, None])
        logs[part] = wide.exp().sum(1).log()
        if entropy is not None:
            entropy[part] = entropies_of(wide.sub_(logs[part, None]))
    return tops, logs, entropy


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature in float32, always a new tensor, which callers change in place."""
    wide = logits.float()
    if temperature != 1.0:
        return wide / temperature
    return wide.clone() if wide is logits else wide


def pieces(logits: Tensor) -> Iterator[slice]:
    """Return slices of the rows of logits (M, V) with about `NUMBERS` numbers each; on a GPU one of all rows."""
    size = max(1, NUMBERS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    return (slice(first, first + size) for first in range(0, len(logits), max(1, size)))


class _Chosen(Function):
    """Autograd function of `chosen_logps`. Returns log-probs (n,) and the entropy of each state (M,); (0,) without `entropies`.

    A state may predict several targets: `order` (n,) sorts the targets by state, so that those of a slice of the states are a slice
    of `order`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        state_of: Tensor,
        temperature: float,
        entropies: bool,
        entropy_grad: bool,
        known: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """state_of: `state_of_target` (n,). known: `logits` of `chosen_logps`, or None."""
        most = KEPT_LOGITS // len(weight) if known is None else len(states)
        most = max(1, most)  # states of a part; 1 if there are none
        order = state_of.argsort(stable=True)
        firsts = range(0, len(states), most)
        bounds = torch.searchsorted(state_of[order], torch.tensor([*firsts, len(states)], device=order.device)).tolist()
        logps = torch.empty(len(targets), device=states.device)
        tops, logs = (torch.empty(len(states), device=states.device) for _ in range(2))
        state_entropies = torch.empty_like(tops) if entropies else tops.new_empty(0)
        logits = None
        for number, first in enumerate(firsts):
            part, tokens = slice(first, first + most), order[bounds[number] : bounds[number + 1]]
            logits = F.linear(states[part], weight) if known is None else known
            tops[part], logs[part], own = measured(logits, temperature, entropies)
            if own is not None:
                state_entropies[part] = own
            predictors = state_of[tokens]
            chosen = logits[predictors - first, targets[tokens]].float() / temperature
            logps[tokens] = (chosen - tops[predictors]) - logs[predictors]
        kept = logits if len(firsts) == 1 and any(ctx.needs_input_grad) else None
        ctx.save_for_backward(states, weight, targets, state_of, order, tops, logs, kept, state_entropies if entropy_grad else None)
        ctx.temperature, ctx.most = temperature, most
        if not entropy_grad:
            ctx.mark_non_differentiable(state_entropies)
        return logps, state_entropies

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_logps: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        """d logp_a / d logit_j = [j = a] - p_j,   d H / d logit_j = -p_j (log p_j + H), each over the temperature."""
        states, weight, targets, state_of, order, tops, logs, kept, entropies = ctx.saved_tensors
        slopes = grad_logps / ctx.temperature  # (n,)
        slope_of_state = torch.zeros_like(tops).index_add_(0, state_of, slopes)  # (M,)
        entropy_slopes = None if entropies is None else grad_entropies / ctx.temperature  # (M,)
        grad_states, grad_weight = torch.empty_like(states), None
        states_in_order = state_of[order].cpu()  # the targets of each piece are looked up on the CPU: one copy, not one per piece
        for first in range(0, len(states), ctx.most):
            part = slice(first, first + ctx.most)
            logits = F.linear(states[part], weight) if kept is None else kept
            pieces_of_part = list(pieces(logits))
            starts = torch.tensor([*(first + piece.start for piece in pieces_of_part), first + len(logits)])
            bounds = torch.searchsorted(states_in_order, starts).tolist()
            for number, piece in enumerate(pieces_of_part):  # overwrites the logits of each piece by their gradient
                here = slice(first + piece.start, first + piece.start + len(logits[piece]))
                log_probs = _scaled(logits[piece], ctx.temperature).sub_(tops[here, None]).sub_(logs[here, None])
                if entropy_slopes is None:
                    grad_logits = log_probs.exp_().mul_(-slope_of_state[here, None])
                else:
                    probs, own = log_probs.exp(), entropy_slopes[here, None]
                    scale = slope_of_state[here, None] + own * entropies[here, None]
                    grad_logits = -(scale + own * log_probs.clamp_min_(LOWEST)) * probs
                # 1 - p of a chosen token in float32, before the one rounding: in bfloat16 it would be 0 above p = .998
                tokens = order[bounds[number] : bounds[number + 1]]
                grad_logits.index_put_((state_of[tokens] - here.start, targets[tokens]), slopes[tokens], accumulate=True)
                logits[piece] = grad_logits
            torch.mm(logits, weight, out=grad_states[part])
            own_weight = logits.t() @ states[part]
            if grad_weight is None:
                grad_weight = own_weight
            else:  # of several parts, in float32
                grad_weight = grad_weight.float().add_(own_weight)
        grad_weight = torch.zeros_like(weight) if grad_weight is None else grad_weight  # of no token at all
        return grad_states, grad_weight.to(weight.dtype), None, None, None, None, None, None
