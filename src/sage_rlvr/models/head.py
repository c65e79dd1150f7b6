"""Log-probs of chosen tokens and entropies from final hidden states, a bounded number of logits at a time.

Of M rows and a vocabulary of V the stock way keeps the logits, their log-softmax and its gradient, (M, V) float32 each: at 3,000
rows and 50,000 words 600 MB a tensor. Here logits are in the dtype of the weights, at most `KEPT_LOGITS` of them are alive, and on
a CPU float32 temporaries are smaller still. Where all logits fit, backward turns them into their gradient in place; else it
computes them again.
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
"""Logits that are alive at a time: 512 MiB in bfloat16, 5,400 rows of a vocabulary of 49,152."""

NUMBERS = 1 << 20
"""Of one float32 temporary, 4 MiB: a pass over it stays near the processor."""

LOWEST = torch.finfo(torch.float32).min


class FloatHead(nn.Linear):
    """An output head whose weights stay as they are and whose product is float32."""

    def forward(self, input: Tensor) -> Tensor:
        """Hidden states (..., d) -> logits (..., V) in float32."""
        return F.linear(input.float(), self.weight.float(), None if self.bias is None else self.bias.float())


def chosen_logps(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    entropies: bool = False,
    gradient: bool = False,
    rows: Tensor | None = None,
    logits: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """states (M, C), weight (V, C), targets (n,) -> log-probs of the targets (n,) float32, in graph, and entropies (n,).

    Both are of softmax(states @ weight.T / temperature); entropies in nats, in the graph with `gradient`, or None if not
    asked for. rows (n,): the state behind each target; None: one each. logits (M, V): states @ weight.T where that is known; they
    are overwritten by backward.
    """
    rows = torch.arange(len(targets), device=targets.device) if rows is None else rows
    logps, found = _Chosen.apply(states, weight, targets, rows, temperature, entropies, entropies and gradient, logits)
    return logps, found[rows] if entropies else None


def entropies_of(laws: Tensor) -> Tensor:
    """Log-probs (M, V) -> nats (M,). 0 log 0 = 0: a probability is 0 in float32 long before its logarithm is this low."""
    return -torch.linalg.vecdot(laws.exp(), laws.clamp_min(LOWEST))


def measured(logits: Tensor, temperature: float, entropies: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits (M, V) in any dtype -> of each row, float32: the largest of logit / temperature; the log of the sum of exp of all less
    the largest; and the entropy, nats, or None. The first two stay apart, since their sum is rounded to 2e-6 at logits of 20, and
    the probability of a certain token would be above 1."""
    tops, logs = (torch.empty(len(logits), device=logits.device) for _ in range(2))
    found = torch.empty_like(tops) if entropies else None
    for part in pieces(logits):
        wide = _scaled(logits[part], temperature)
        tops[part] = wide.amax(1)
        wide.sub_(tops[part, None])
        logs[part] = wide.exp().sum(1).log()
        if found is not None:
            found[part] = entropies_of(wide.sub_(logs[part, None]))
    return tops, logs, found


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """In float32, a tensor of its own."""
    wide = logits.float()
    if temperature != 1.0:
        return wide / temperature
    return wide.clone() if wide is logits else wide


def pieces(logits: Tensor) -> Iterator[slice]:
    """Slices of rows (M, V) that hold about `NUMBERS` numbers each; on a GPU all of them."""
    rows = max(1, NUMBERS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    return (slice(first, first + rows) for first in range(0, len(logits), max(1, rows)))


class _Chosen(Function):
    """`chosen_logps`, its entropies of each state; empty if they are not asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        rows: Tensor,
        temperature: float,
        entropies: bool,
        gradient: bool,
        known: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        most = KEPT_LOGITS // len(weight) if known is None else len(states)
        most = max(1, most)  # also of no state at all
        order = rows.argsort(stable=True)  # the tokens of a part of the states lie together
        firsts = range(0, len(states), most)
        bounds = torch.searchsorted(rows[order], torch.tensor([*firsts, len(states)], device=rows.device)).tolist()
        logps = torch.empty(len(targets), device=states.device)
        tops, logs = (torch.empty(len(states), device=states.device) for _ in range(2))
        found = torch.empty_like(tops) if entropies else tops.new_empty(0)
        logits = None
        for number, first in enumerate(firsts):
            part, tokens = slice(first, first + most), order[bounds[number] : bounds[number + 1]]
            logits = F.linear(states[part], weight) if known is None else known
            tops[part], logs[part], own = measured(logits, temperature, entropies)
            if own is not None:
                found[part] = own
            chosen = logits[rows[tokens] - first, targets[tokens]].float() / temperature
            logps[tokens] = (chosen - tops[rows[tokens]]) - logs[rows[tokens]]
        kept = logits if len(firsts) == 1 and any(ctx.needs_input_grad) else None
        ctx.save_for_backward(states, weight, targets, rows, order, tops, logs, kept, found if gradient else None)
        ctx.temperature, ctx.most = temperature, most
        if not gradient:
            ctx.mark_non_differentiable(found)
        return logps, found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor, by_entropy: Tensor) -> tuple[Tensor | None, ...]:
        """d logp_a / d logit_j = [j = a] - p_j,   d H / d logit_j = -p_j (log p_j + H), each over the temperature."""
        states, weight, targets, rows, order, tops, logs, kept, entropies = ctx.saved_tensors
        slopes = grad / ctx.temperature
        slope_of_row = torch.zeros_like(tops).index_add_(0, rows, slopes)
        lift = None if entropies is None else by_entropy / ctx.temperature
        by_states, by_weight = torch.empty_like(states), None
        for first in range(0, len(states), ctx.most):
            part = slice(first, first + ctx.most)
            logits = F.linear(states[part], weight) if kept is None else kept
            held = list(pieces(logits))
            starts = torch.tensor([*(first + piece.start for piece in held), first + len(logits)], device=rows.device)
            ends = torch.searchsorted(rows[order], starts).tolist()
            for number, piece in enumerate(held):  # from here on `logits` holds the gradient by itself
                here = slice(first + piece.start, first + piece.start + len(logits[piece]))
                laws = _scaled(logits[piece], ctx.temperature).sub_(tops[here, None]).sub_(logs[here, None])
                if lift is None:
                    by_logits = laws.exp_().mul_(-slope_of_row[here, None])
                else:
                    probs, own = laws.exp(), lift[here, None]
                    scale = slope_of_row[here, None] + own * entropies[here, None]
                    by_logits = -(scale + own * laws.clamp_min_(LOWEST)) * probs
                # 1 - p of a chosen token in float32, before the one rounding: in bfloat16 it would be 0 above p = .998
                tokens = order[ends[number] : ends[number + 1]]
                by_logits.index_put_((rows[tokens] - here.start, targets[tokens]), slopes[tokens], accumulate=True)
                logits[piece] = by_logits
            torch.mm(logits, weight, out=by_states[part])
            own_weight = logits.t() @ states[part]
            if by_weight is None:
                by_weight = own_weight
            else:  # of several parts, in float32
                by_weight = by_weight.float().add_(own_weight)
        by_weight = torch.zeros_like(weight) if by_weight is None else by_weight  # of no token at all
        return by_states, by_weight.to(weight.dtype), None, None, None, None, None, None
