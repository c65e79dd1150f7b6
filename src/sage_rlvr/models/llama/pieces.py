"""The operations between the products: norms, rotation, gate, and their gradients, for float32 and bfloat16.

Each takes some rows of its first dimension at a time, so that its temporaries stay in a core's cache. `unit` is Llama's RMS norm,
x / sqrt(mean(x^2) + eps), with or without its weight. Gradients are called grad_x = dL/dx.

In bfloat16 norms and rotation are float32 inside and round once, at their end. transformers rounds more often: its norm rounds
before it multiplies by the weight, and its rotation rounds cos and sin, and computes in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

BYTES = 1 << 19
"""Bytes of one temporary. A GPU, which has no such cache, takes all rows at once."""


def chunks(x: Tensor, dtype: torch.dtype = torch.float32) -> Iterator[slice]:
    """Slices of the rows of x that take about `BYTES` each in this dtype, that of the temporaries."""
    rows = max(1, BYTES // max(1, x[:1].numel() * dtype.itemsize)) if x.device.type == "cpu" else len(x)
    return (slice(first, first + rows) for first in range(0, len(x), max(1, rows)))


def unit(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """(N, ..., C) -> the same shape; times the norm's weight (C,) where that is given."""
    out = torch.empty_like(x)
    for part in chunks(x):
        wide = x[part].float()
        if weight is None:
            torch.mul(wide, _root(wide, eps), out=out[part])
        else:
            torch.mul(wide * _root(wide, eps), weight, out=out[part])
    return out


def unit_backward(x: Tensor, grad_unit: Tensor, eps: float, weight: Tensor | None = None, grad_out: Tensor | None = None) -> Tensor:
    """grad_x, plus `grad_out`, the gradient of what x is added to. weight: `grad_unit` is the gradient of unit(x) * weight."""
    grad_x = torch.empty_like(x)
    for part in chunks(x):
        wide, grad = (whole[part].to(torch.float32, copy=True) for whole in (x, grad_unit))
        if weight is not None:
            grad.mul_(weight)
        root = _root(wide, eps)
        normed = wide.mul_(root)
        grad.addcmul_(normed, torch.linalg.vecdot(grad, normed)[..., None], value=-1.0 / x.shape[-1])
        if grad_out is None:
            torch.mul(grad, root, out=grad_x[part])
        else:
            torch.addcmul(grad_out[part], grad, root, out=grad_x[part])
    return grad_x


def _root(wide: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps), (n, ..., 1)."""
    width = wide.shape[-1]
    return (torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_() / width).add_(eps).rsqrt_()


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary positions in place: heads (N, H + K, D) of q and k; cos, sin (N, 1, D / 2). With -sin it turns back."""
    for part in chunks(heads):
        wide, c, s = heads[part].float(), cos[part], sin[part]
        first, second = wide.chunk(2, -1)
        turned = torch.mul(first, c).addcmul_(second, s, value=-1.0)
        second.mul_(c).addcmul_(first, s)
        first.copy_(turned)
        if wide.dtype != heads.dtype:
            heads[part] = wide


def gated(gate_up: Tensor) -> Tensor:
    """(N, 2 F) -> silu(gate) * up, (N, F)."""
    out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    for part in chunks(out, out.dtype):
        gate, up = gate_up[part].chunk(2, 1)
        torch.mul(F.silu(gate), up, out=out[part])
    return out


def gated_backward(gate_up: Tensor, grad_gated: Tensor) -> tuple[Tensor, Tensor]:
    """(the gradient of gate_up, (N, 2 F); the gated values again)."""
    grad_both, out = torch.empty_like(gate_up), torch.empty_like(grad_gated)
    for part in chunks(out, out.dtype):
        gate, up = gate_up[part].chunk(2, 1)
        grad_gate, grad_up = grad_both[part].chunk(2, 1)
        opened = F.silu(gate)
        torch.mul(opened, up, out=out[part])
        torch.mul(grad_gated[part], opened, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad_gated[part] * up, gate, grad_input=grad_gate)
    return grad_both, out
