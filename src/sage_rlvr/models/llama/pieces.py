"""The operations between the products: norms, rotation, gate, softmax, and their gradients, for float32 and bfloat16.

Each takes some rows at a time, so that its float32 temporaries stay in a core's cache; inside is float32, outside the dtype of the
weights. `norm` is Llama's RMS norm: x / sqrt(mean(x^2) + eps) * weight.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

NUMBERS = 1 << 17
"""Of one temporary: 512 KiB in float32. On a GPU, which has no such cache, all rows at once."""


def chunks(x: Tensor, most: int = NUMBERS) -> Iterator[slice]:
    """Slices of the rows of x (N, W) that hold about `most` numbers each."""
    rows = max(1, most // max(1, x[0].numel())) if x.device.type == "cpu" and len(x) else len(x)
    return (slice(first, first + rows) for first in range(0, len(x), max(1, rows)))


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """(N, C) -> (N, C)."""
    out = torch.empty_like(x)
    for part in chunks(x):
        wide = x[part].float()
        out[part] = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight
    return out


def norm_backward(x: Tensor, by_normed: Tensor, weight: Tensor, eps: float, by_out: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(gradient by x, plus that of the residual `by_out`; the norm of x again; gradient by the weight, float32)."""
    by_x, normed = torch.empty_like(x), torch.empty_like(x)
    by_weight = torch.zeros(x.shape[-1], device=x.device)
    for part in chunks(x):
        wide, grad = x[part].float(), by_normed[part].float()
        root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        unit = wide * root
        normed[part] = unit * weight
        by_weight += (grad * unit).flatten(0, -2).sum(0)
        pulled = grad * weight
        own = root * (pulled - unit * (pulled * unit).mean(-1, keepdim=True))
        by_x[part] = own if by_out is None else own.add_(by_out[part])
    return by_x, normed, by_weight


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary positions in place: heads (N, H, D); cos, sin (N, 1, D / 2). With -sin it turns back."""
    for part in chunks(heads):
        first, second = heads[part].float().chunk(2, -1)
        c, s = cos[part], sin[part]
        heads[part] = torch.cat([first * c - second * s, second * c + first * s], -1)


def gated(gate_up: Tensor) -> Tensor:
    """(N, 2 F) -> silu(gate) * up, (N, F)."""
    out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    for part in chunks(gate_up):
        gate, up = gate_up[part].float().chunk(2, 1)
        out[part] = F.silu(gate).mul_(up)
    return out


def gated_backward(gate_up: Tensor, by_gated: Tensor) -> tuple[Tensor, Tensor]:
    """(gradient by gate_up, (N, 2 F); the gated values again)."""
    by_both, out = torch.empty_like(gate_up), torch.empty_like(by_gated)
    for part in chunks(gate_up):
        gate, up = gate_up[part].float().chunk(2, 1)
        grad, opened = by_gated[part].float(), torch.sigmoid(gate)
        passed = gate * opened
        by_gate, by_up = by_both[part].chunk(2, 1)
        out[part] = passed * up
        by_up.copy_(grad * passed)
        by_gate.copy_(grad.mul_(up).mul_(passed.sub_(passed * opened).add_(opened)))  # silu' = s + g s (1 - s)
    return by_both, out
