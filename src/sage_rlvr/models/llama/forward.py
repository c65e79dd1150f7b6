"""The forward pass of a Llama-shaped model on a CPU without its module machinery: what scoring spends its time on.

In a stock pass at a million parameters half of the time is not its products: it is the norms, the rotations and the gates
between them, each of which writes a tensor to memory and reads it back. Here a block is two functions with gradients of
their own, which take `ROWS` tokens at a time, so that what a product leaves is still in the cache when the next operation
reads it. What backward needs is computed again where that is cheap: of a block of width C with F gates the inputs, one
product (N, 2 F) and the attention's operands are kept, a third of what the modules keep. Weights are packed as for
decoding (`llama/decoder.py`), in the graph, so that gradients reach the parameters. Equal to the stock pass up to float
rounding, gradients too (tests/models/test_scoring.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import PreTrainedModel

from sage_rlvr.models.llama.decoder import LlamaWeights, supports

ROWS = 4096

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def takes(model: PreTrainedModel) -> bool:
    """Whether `last_states` computes this model: one of the shapes of `decoder.supports`, on a CPU."""
    return model.device.type == "cpu" and supports(model)


def last_states(weights: LlamaWeights, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
    """ids, positions (N,) of tokens -> (N, hidden) behind the last block and its norm, in the graph of the model.

    attend: queries (N, heads, D), already scaled, keys and values (N, kv heads, D) -> (N, heads * D).
    """
    x = F.embedding(ids, weights.embedding, weights.padding)  # a padding token has no gradient, as in the stock pass
    turns = weights.turns(int(positions.max()) + 1)[positions]
    for qkv, qkv_bias, out, out_bias, gate_up, down in weights.layers:
        heads = _Projected.apply(x, qkv, qkv_bias, turns, weights)
        x = torch.addmm(x, attend(*heads), out)
        x = x if out_bias is None else x + out_bias
        x = _Gated.apply(x, gate_up, down, weights.floor)
    return _Normed.apply(x, weights.floor) * weights.final_norm


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(first, first + ROWS) for first in range(0, rows, ROWS))


def _norm(x: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """(x / sqrt(|x|^2 + floor^2), that root) of each row."""
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True).hypot_(floor)
    return x / length, length


def _norm_backward(grad: Tensor, normed: Tensor, length: Tensor) -> Tensor:
    """Gradient by x of what `_norm` made of it; overwrites `grad`."""
    along = torch.linalg.vecdot(normed, grad)[:, None]
    return grad.addcmul_(normed, along, value=-1).div_(length)


class _Normed(Function):
    """(N, C) -> (N, C), `_norm`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, floor: Tensor) -> Tensor:
        normed, length = _norm(x, floor)
        ctx.save_for_backward(normed, length)
        return normed

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _norm_backward(grad.clone(), *ctx.saved_tensors), None


class _Projected(Function):
    """x (N, C) -> queries (N, heads, D), keys and values (N, kv heads, D) of its norm, queries and keys turned."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, qkv: Tensor, bias: Tensor | None, turns: Tensor, weights: LlamaWeights
    ) -> tuple[Tensor, Tensor, Tensor]:
        counts = [weights.heads, weights.kv_heads, weights.kv_heads]
        q, k, v = (x.new_empty(len(x), count, weights.width) for count in counts)
        for part in _chunks(len(x)):
            mixed = _norm(x[part], weights.floor)[0] @ qkv
            if bias is not None:
                mixed += bias
            _turned(mixed, weights).mul_(turns[part])
            for whole, new in zip((q, k, v), mixed.unflatten(1, (-1, weights.width)).split(counts, 1), strict=True):
                whole[part] = new
        ctx.save_for_backward(x, qkv, turns)
        ctx.weights, ctx.biased = weights, bias is not None
        return q, k, v

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        (x, qkv, turns), weights = ctx.saved_tensors, ctx.weights
        by_x, by_qkv = torch.empty_like(x), torch.zeros_like(qkv.t()).t()
        by_bias = qkv.new_zeros(qkv.shape[1]) if ctx.biased else None
        for part in _chunks(len(x)):
            grad = torch.cat([g[part] for g in grads], 1).flatten(1)
            _turned(grad, weights).mul_(turns[part].conj())
            normed, length = _norm(x[part], weights.floor)
            by_qkv.addmm_(normed.t(), grad)
            if by_bias is not None:
                by_bias += grad.sum(0)
            by_x[part] = _norm_backward(grad @ qkv.t(), normed, length)
        return by_x, by_qkv, by_bias, None, None


def _turned(mixed: Tensor, weights: LlamaWeights) -> Tensor:
    """The queries and keys among (n, (heads + 2 kv heads) * D), as complex numbers (n, heads + kv heads, D / 2) in place."""
    pairs = mixed.view(len(mixed), -1, weights.width // 2, 2)
    return torch.view_as_complex(pairs)[:, : weights.heads + weights.kv_heads]


class _Gated(Function):
    """x (N, C) -> x + silu(gate) * up @ down of its norm, with (gate, up) = norm @ gate_up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, floor: Tensor) -> Tensor:
        keeps = any(ctx.needs_input_grad)
        out = torch.empty_like(x)
        both = x.new_empty(len(x) if keeps else min(ROWS, len(x)), gate_up.shape[1])
        for part in _chunks(len(x)):
            here = both[part] if keeps else both[: len(x[part])]
            torch.mm(_norm(x[part], floor)[0], gate_up, out=here)
            gate, up = here.chunk(2, 1)
            torch.addmm(x[part], F.silu(gate).mul_(up), down, out=out[part])
        if keeps:
            ctx.save_for_backward(x, both, gate_up, down, floor)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, both, gate_up, down, floor = ctx.saved_tensors
        by_x, by_gate_up, by_down = torch.empty_like(x), torch.zeros_like(gate_up.t()).t(), torch.zeros_like(down.t()).t()
        for part in _chunks(len(x)):
            gate, up = both[part].chunk(2, 1)
            open_, by_both = F.silu(gate), torch.empty_like(both[part])
            by_down.addmm_((open_ * up).t(), grad[part])
            by_gate, by_up = by_both.chunk(2, 1)
            inner = grad[part] @ down.t()
            torch.mul(inner, open_, out=by_up)
            torch.ops.aten.silu_backward.grad_input(inner.mul_(up), gate, grad_input=by_gate)
            normed, length = _norm(x[part], floor)
            by_gate_up.addmm_(normed.t(), by_both)
            by_x[part] = _norm_backward(by_both @ gate_up.t(), normed, length) + grad[part]
        return by_x, by_gate_up, by_down, None
