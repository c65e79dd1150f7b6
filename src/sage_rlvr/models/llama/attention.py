"""Attention over the tiles of a layout: plain batched products, forward and backward.

`scaled_dot_product_attention` would need k and v repeated for the heads that share them, and a mask as large as its weights.
Attention weights live for one tile; backward computes them again from q, k and v, but for those of short texts, which are
kept. Heads are gathered and scattered one by one, (row, head) -> D numbers, so that each grid is written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_rlvr.models.llama.layout import Layout, Tile
from sage_rlvr.models.llama.net import Net

KEPT_WEIGHTS = 1 << 22
"""Attention weights of a layer that are kept for backward at most."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A tile of n texts, t queries and u keys for a net with K kv heads that R = heads / K queries share.

    q (n K R t,), k and v (n K u,): places among the (rows x (heads + 2 K)) heads of qkv; outs (n K R t,): among the (rows x heads)
    heads of what attention gives. A query of nothing reads row 0, and `idle` (of the n K R t) says which these are; it writes to
    one row more than there are: q_to and outs_to.
    """

    shape: tuple[int, int, int, int, int]
    q: Tensor
    k: Tensor
    v: Tensor
    outs: Tensor
    q_to: Tensor
    outs_to: Tensor
    idle: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, net: Net, tile: Tile, rows: int) -> Grid:
        """rows: of the layout."""
        (texts, queries), keys = tile.asking.shape, tile.seen.shape[1]
        shared, every, device = net.heads // net.kv_heads, net.heads + 2 * net.kv_heads, tile.seen.device
        heads = torch.arange(net.heads, device=device).view(1, net.kv_heads, shared, 1)
        kv = torch.arange(net.kv_heads, device=device).view(1, -1, 1) + net.heads
        idle = torch.ones(texts * queries, dtype=torch.bool, device=device)
        idle[tile.places] = False
        reads = tile.asking.view(texts, 1, 1, queries)
        writes = torch.where(idle.view(reads.shape), rows, reads)
        seen = tile.seen[:, None, :] * every + kv
        return cls(
            (texts, net.kv_heads, shared, queries, keys),
            (reads * every + heads).flatten(),
            seen.flatten(),
            (seen + net.kv_heads).flatten(),
            (reads * net.heads + heads).flatten(),
            (writes * every + heads).flatten(),
            (writes * net.heads + heads).flatten(),
            idle.view(reads.shape).expand(-1, net.kv_heads, shared, -1).flatten().nonzero().squeeze(1),
            tile.hidden,
        )

    def read(self, net: Net, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (n K, R t, D), scaled; k, v (n K, u, D)."""
        heads, (texts, groups, *_, keys) = qkv.view(-1, net.width), self.shape
        q = heads.index_select(0, self.q).mul_(net.scale).view(texts * groups, -1, net.width)
        return q, *(heads.index_select(0, at).view(len(q), keys, net.width) for at in (self.k, self.v))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """(n K, R t, u), softmax over what each query sees."""
        scores = torch.bmm(q, k.mT)
        scores.view(self.shape).masked_fill_(self.hidden, -math.inf)
        return torch.softmax(scores, -1)


def grids(net: Net, layout: Layout) -> list[Grid]:
    """The tiles of a layout for a net."""
    return [Grid.of(net, tile, len(layout.ids)) for tile in layout.tiles]


def keeps(found: Sequence[Grid]) -> bool:
    """Whether the attention weights of a layer are few enough to be kept."""
    return sum(math.prod(grid.shape) for grid in found) <= KEPT_WEIGHTS


def attend(net: Net, qkv: Tensor, found: Sequence[Grid], kept: list[Tensor] | None = None) -> Tensor:
    """qkv (N, (heads + 2 kv heads) * D) of rows, q and k turned -> (N, heads * D). kept: where the weights of each tile go."""
    out = qkv.new_empty(len(qkv) + 1, net.heads * net.width)
    for grid in found:
        q, k, v = grid.read(net, qkv)
        weights = grid.weights(q, k)
        if kept is not None:
            kept.append(weights)
        out.view(-1, net.width).index_copy_(0, grid.outs_to, torch.bmm(weights, v).view(-1, net.width))
    return out[:-1]


def attend_backward(net: Net, qkv: Tensor, found: Sequence[Grid], by_out: Tensor, kept: Sequence[Tensor] = ()) -> Tensor:
    """by_out (N, heads * D) -> gradient by qkv, (N, (heads + 2 kv heads) * D). kept: as `attend` left them, or nothing."""
    asked = net.heads * net.width
    by_qkv = qkv.new_empty(len(qkv) + 1, qkv.shape[1])
    # float32, since a prompt's rows add up many terms. Only the heads of k and v are used: their places are those of qkv.
    by_kv = torch.zeros(qkv.shape, device=qkv.device)
    for number, grid in enumerate(found):
        q, k, v = grid.read(net, qkv)
        weights = kept[number] if kept else grid.weights(q, k)
        grad = by_out.reshape(-1, net.width).index_select(0, grid.outs)
        if len(grid.idle):
            grad.index_fill_(0, grid.idle, 0.0)
        grad = grad.view(q.shape)
        by_scores = torch.ops.aten._softmax_backward_data(torch.bmm(grad, v.mT), weights, -1, weights.dtype)
        by_q = torch.bmm(by_scores, k).mul_(net.scale)
        by_qkv.view(-1, net.width).index_copy_(0, grid.q_to, by_q.view(-1, net.width))
        _add(by_kv, grid.k, torch.bmm(by_scores.mT, q))  # q was scaled
        _add(by_kv, grid.v, torch.bmm(weights.mT, grad))
    by_qkv = by_qkv[:-1]
    by_qkv[:, asked:] = by_kv[:, asked:]
    return by_qkv


def _add(total: Tensor, places: Tensor, values: Tensor) -> None:
    """Adds values (n K, u, D) to the heads of `total` at places (n K u,).

    `scatter_add_` with an expanded index sorts it and adds what belongs together in order, in parallel.
    """
    flat = values.reshape(-1, values.shape[-1]).to(total.dtype)
    total.view(-1, flat.shape[1]).scatter_add_(0, places[:, None].expand(-1, flat.shape[1]), flat)
