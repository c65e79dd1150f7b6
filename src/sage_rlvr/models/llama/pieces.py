"""The operations between the products: norms, rotation, gate, and their gradients, for float32 and bfloat16.

Each computes some rows of its first dimension at a time, so that its temporaries stay in a core's cache. `unit` is the RMS norm,
x / sqrt(mean(x^2) + eps), with or without its weight; `turn` is the rotation of q and k; `gated` is silu(gate) * up. Gradients are
called grad_x = dL/dx.

In bfloat16 norms and rotation are float32 inside and round once, at their end. transformers rounds more often: its norm rounds
before it multiplies by the weight, and its rotation rounds cos and sin, and computes in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

BYTES = 1 << 19
"""Bytes of one temporary on a CPU. On a GPU all rows are computed at once."""


def chunks(x: Tensor, dtype: torch.dtype = torch.float32) -> Iterator[slice]:
    """Return slices of the rows of x whose numbers have about `BYTES` bytes in `dtype`, that of the temporaries."""
    rows = max(1, BYTES // max(1, x[:1].numel() * dtype.itemsize)) if x.device.type == "cpu" else len(x)
    return (slice(first, first + rows) for first in range(0, len(x), max(1, rows)))


def unit(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """RMS norm of x over its last dimension, times the norm's weight if given: (N, ..., C), (C,) -> (N, ..., C)."""
    out = torch.empty_like(x)
    for part in chunks(x):
        wide = x[part].float()
        if weight is None:
            torch.mul(wide, _root(wide, eps), out=out[part])
        else:
            torch.mul(wide * _root(wide, eps), weight, out=out[part])
    return out


def unit_backward(x: Tensor, grad_unit: Tensor, eps: float, weight: Tensor | None = None, grad_out: Tensor | None = None) -> Tensor:
    """Return grad_x of a residual block x + f(unit(x)), (N, ..., C): the gradient through `unit`, plus `grad_out` if given.

    grad_unit: the gradient of `unit(x, eps, weight)`. grad_out: that of the sum, (N, ..., C).
    """
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
    """Return 1 / sqrt(mean(x^2) + eps) over the last dimension, which stays with size 1."""
    width = wide.shape[-1]
    return (torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_() / width).add_(eps).rsqrt_()


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Apply rotary positions in place: heads (N, H + K, D) of q and k; cos, sin (N, 1, D / 2) float32. With -sin it undoes them."""
    for part in chunks(heads):
        wide, c, s = heads[part].float(), cos[part], sin[part]
        first, second = wide.chunk(2, -1)
        turned = torch.mul(first, c).addcmul_(second, s, value=-1.0)
        second.mul_(c).addcmul_(first, s)
        first.copy_(turned)
        if wide.dtype != heads.dtype:
            heads[part] = wide


def gated(gate_up: Tensor) -> Tensor:
    """gate_up (N, 2 F), gate first -> silu(gate) * up, (N, F)."""
    out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    for part in chunks(out, out.dtype):
        gate, up = gate_up[part].chunk(2, 1)
        torch.mul(F.silu(gate), up, out=out[part])
    return out


def gated_backward(gate_up: Tensor, grad_gated: Tensor) -> tuple[Tensor, Tensor]:
    """gate_up (N, 2 F), grad_gated (N, F) -> grad_gate_up (N, 2 F), and `gated(gate_up)` (N, F), which backward needs too."""
    grad_gate_up, out = torch.empty_like(gate_up), torch.empty_like(grad_gated)
    for part in chunks(out, out.dtype):
        gate, up = gate_up[part].chunk(2, 1)
        grad_gate, grad_up = grad_gate_up[part].chunk(2, 1)
        activated = F.silu(gate)
        torch.mul(activated, up, out=out[part])
        torch.mul(grad_gated[part], activated, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad_gated[part] * up, gate, grad_input=grad_gate)
    return grad_gate_up, out
