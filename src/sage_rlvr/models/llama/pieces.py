"""The operations between the products: norms, rotation, gate, and their gradients, for float32 and bfloat16.

Each takes some rows at a time, so that its temporaries stay in a core's cache; norms and rotation are float32 inside, as in
transformers. `unit` is Llama's RMS norm without its weight: x / sqrt(mean(x^2) + eps).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

NUMBERS = 1 << 17
"""Of one temporary: 512 KiB in float32. On a GPU, which has no such cache, all rows at once."""


def chunks(x: Tensor) -> Iterator[slice]:
    """Slices of the rows of x that hold about `NUMBERS` numbers each."""
    rows = max(1, NUMBERS // max(1, x[:1].numel())) if x.device.type == "cpu" else len(x)
    return (slice(first, first + rows) for first in range(0, len(x), max(1, rows)))


def unit(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """(N, ..., C) -> the same; times the norm's weight (C,) where it is given."""
    out = torch.empty_like(x)
    for part in chunks(x):
        wide = x[part].float()
        if weight is None:
            torch.mul(wide, _root(wide, eps), out=out[part])
        else:
            torch.mul(wide * _root(wide, eps), weight, out=out[part])
    return out


def unit_backward(x: Tensor, by_unit: Tensor, eps: float, weight: Tensor | None = None, by_out: Tensor | None = None) -> Tensor:
    """Gradient by x, plus `by_out`, that of what x is added to. weight: `by_unit` is the gradient by unit(x) * weight."""
    by_x = torch.empty_like(x)
    for part in chunks(x):
        wide, grad = x[part].float(), by_unit[part].float()
        grad = grad * weight if weight is not None else grad.clone() if grad.dtype == by_unit.dtype else grad
        root = _root(wide, eps)
        normed = wide * root
        grad.addcmul_(normed, torch.linalg.vecdot(grad, normed)[..., None], value=-1.0 / x.shape[-1])
        if by_out is None:
            torch.mul(grad, root, out=by_x[part])
        else:
            torch.addcmul(by_out[part], grad, root, out=by_x[part])
    return by_x


def _root(wide: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps), (n, ..., 1)."""
    width = wide.shape[-1]
    return (torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_() / width).add_(eps).rsqrt_()


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary positions in place: heads (N, H, D); cos, sin (N, 1, D / 2). With -sin it turns back."""
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
    for part in chunks(gate_up):
        gate, up = gate_up[part].chunk(2, 1)
        torch.mul(F.silu(gate), up, out=out[part])
    return out


def gated_backward(gate_up: Tensor, by_gated: Tensor) -> tuple[Tensor, Tensor]:
    """(gradient by gate_up, (N, 2 F); the gated values again)."""
    by_both, out = torch.empty_like(gate_up), torch.empty_like(by_gated)
    for part in chunks(gate_up):
        gate, up = gate_up[part].chunk(2, 1)
        by_gate, by_up = by_both[part].chunk(2, 1)
        opened = F.silu(gate)
        torch.mul(opened, up, out=out[part])
        torch.mul(by_gated[part], opened, out=by_up)
        torch.ops.aten.silu_backward.grad_input(by_gated[part] * up, gate, grad_input=by_gate)
    return by_both, out
