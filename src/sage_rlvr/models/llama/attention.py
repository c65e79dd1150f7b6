"""Attention over the tiles of a layout: plain batched products, forward and backward.

`scaled_dot_product_attention` (with `enable_gqa`) would need a mask (I, 1, J, U) for every tile, which its fastest kernels do not
take, and only autograd can call its backward.

The attention weights of a tile are freed after it, and backward computes them again from q and k, unless they are so few that all
tiles' are kept (`few_weights`). Heads are gathered and scattered one by one, D numbers of a (node, head), so that q, k and v of a
tile are copied once, straight into the order of their product.

In bfloat16 the scores q k^T are rounded before softmax, as in transformers' eager attention; a fused kernel keeps them in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sage_rlvr.models.llama.layout import Layout, Tile
from sage_rlvr.models.llama.net import Net

VECTOR = 32
"""Numbers that a softmax in bfloat16 on a CPU computes at once; each one left over costs as much as seven in a vector."""

KEPT_WEIGHTS = 1 << 22
"""Maximum number of attention weights of a layer, all heads and tiles, that are kept for backward."""


def missing(keys: int, dtype: torch.dtype) -> int:
    """Return how many masked keys to add for a softmax of whole vectors; 0 if their products would cost more than they save."""
    extra = -keys % VECTOR
    return extra if dtype == torch.bfloat16 and extra <= VECTOR // 2 else 0


@dataclass(frozen=True, eq=False)
class Grid:
    """Indices of a tile of I texts, J queries and U keys for a net with K key-value heads, each shared by R query heads.

    shape: (I, K, R, J, U); U includes the keys that `missing` adds. q (I K R J,), k and v (I K U,): which of the N (H + 2 K) heads
    of qkv, one of D numbers after another. outs (I K R J,): which of the N H heads of the result of attention. A place without a
    query reads node 0; idle: which of the I K R J these are. q_to, outs_to: as q and outs, to write to; a place without a query
    writes to node N, which is cut off. masked (I, 1, 1, J, U'): as in `Tile`, with the added keys.
    """

    shape: tuple[int, int, int, int, int]
    q: Tensor
    k: Tensor
    v: Tensor
    outs: Tensor
    q_to: Tensor
    outs_to: Tensor
    idle: Tensor
    masked: Tensor

    @classmethod
    def of(cls, net: Net, tile: Tile, nodes: int) -> Grid:
        """nodes: N of the layout."""
        extra = missing(tile.key_nodes.shape[1], net.dtype)
        key_nodes, masked = F.pad(tile.key_nodes, (0, extra)), F.pad(tile.masked, (0, extra), value=True)
        (texts, queries), keys = tile.query_nodes.shape, key_nodes.shape[1]
        shared, of_node, device = net.query_heads // net.kv_heads, net.query_heads + 2 * net.kv_heads, tile.key_nodes.device
        heads = torch.arange(net.query_heads, device=device).view(1, net.kv_heads, shared, 1)
        kv = torch.arange(net.kv_heads, device=device).view(1, -1, 1) + net.query_heads
        idle = torch.ones(texts * queries, dtype=torch.bool, device=device)
        idle[tile.places] = False
        reads = tile.query_nodes.view(texts, 1, 1, queries)
        writes = torch.where(idle.view(reads.shape), nodes, reads)
        keys_at = key_nodes[:, None, :] * of_node + kv
        return cls(
            (texts, net.kv_heads, shared, queries, keys),
            (reads * of_node + heads).flatten(),
            keys_at.flatten(),
            (keys_at + net.kv_heads).flatten(),
            (reads * net.query_heads + heads).flatten(),
            (writes * of_node + heads).flatten(),
            (writes * net.query_heads + heads).flatten(),
            idle.view(reads.shape).expand(-1, net.kv_heads, shared, -1).flatten().nonzero().squeeze(1),
            masked,
        )

    def read(self, net: Net, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return copies of q (I K, R J, D), times the net's scale, and of k and v (I K, U, D). qkv: (N, (H + 2 K) * D)."""
        heads, (texts, groups, *_, keys) = qkv.view(-1, net.head_dim), self.shape
        q = heads.index_select(0, self.q).mul_(net.scale).view(texts * groups, -1, net.head_dim)
        return q, *(heads.index_select(0, at).view(len(q), keys, net.head_dim) for at in (self.k, self.v))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the attention weights (I K, R J, U): softmax over the keys that each query sees, 0 for the others."""
        scores = torch.bmm(q, k.mT)
        maskable = scores.view(self.shape)[..., self.shape[-1] - self.masked.shape[-1] :]
        maskable.masked_fill_(self.masked, -math.inf)
        return torch.softmax(scores, -1)


def grids_of(net: Net, layout: Layout) -> list[Grid]:
    """Return the indices of each tile of a layout for a net."""
    return [Grid.of(net, tile, len(layout.ids)) for tile in layout.tiles]


def few_weights(grids: Sequence[Grid]) -> bool:
    """Return True if the attention weights of a layer are few enough to be kept for backward."""
    return sum(math.prod(grid.shape) for grid in grids) <= KEPT_WEIGHTS


def attend(net: Net, qkv: Tensor, grids: Sequence[Grid], kept: list[Tensor] | None = None) -> Tensor:
    """qkv (N, (H + 2 K) * D), q and k turned -> (N, H * D). kept: a list to which the weights of each tile are appended."""
    out = qkv.new_empty(len(qkv) + 1, net.query_heads * net.head_dim)
    for grid in grids:
        q, k, v = grid.read(net, qkv)
        weights = grid.weights(q, k)
        if kept is not None:
            kept.append(weights)
        out.view(-1, net.head_dim).index_copy_(0, grid.outs_to, torch.bmm(weights, v).view(-1, net.head_dim))
    return out[:-1]


def attend_backward(net: Net, qkv: Tensor, grids: Sequence[Grid], grad_out: Tensor, kept: Sequence[Tensor] = ()) -> Tensor:
    """grad_out (N, H * D) -> grad_qkv (N, (H + 2 K) * D), of the turned q and k. kept: the weights that `attend` kept, or none."""
    q_width = net.query_heads * net.head_dim
    grad_qkv = qkv.new_empty(len(qkv) + 1, qkv.shape[1])
    # float32, since the keys of a prompt add up many terms. As wide as qkv, so that `k` and `v` index it; the part of q is unused.
    grad_kv = torch.zeros(qkv.shape, device=qkv.device)
    for number, grid in enumerate(grids):
        q, k, v = grid.read(net, qkv)
        weights = kept[number] if kept else grid.weights(q, k)
        grad = grad_out.reshape(-1, net.head_dim).index_select(0, grid.outs)
        if len(grid.idle):  # these read node 0, whose gradient would reach keys and values once more
            grad.index_fill_(0, grid.idle, 0.0)
        grad = grad.view(q.shape)
        grad_scores = torch.ops.aten._softmax_backward_data(torch.bmm(grad, v.mT), weights, -1, weights.dtype)
        grad_q = torch.bmm(grad_scores, k).mul_(net.scale)
        grad_qkv.view(-1, net.head_dim).index_copy_(0, grid.q_to, grad_q.view(-1, net.head_dim))
        _add(grad_kv, grid.k, torch.bmm(grad_scores.mT, q))  # this q is scaled already
        _add(grad_kv, grid.v, torch.bmm(weights.mT, grad))
    grad_qkv = grad_qkv[:-1]
    grad_qkv[:, q_width:] = grad_kv[:, q_width:]
    return grad_qkv


def _add(total: Tensor, places: Tensor, values: Tensor) -> None:
    """Add values (I K, U, D) to the heads at places (I K U,) of `total` (N, (H + 2 K) * D).

    `scatter_add_` with an expanded index sorts the index and adds the values of one place in order, in parallel over places.
    """
    flat = values.reshape(-1, values.shape[-1]).to(total.dtype)
    total.view(-1, flat.shape[1]).scatter_add_(0, places[:, None].expand(-1, flat.shape[1]), flat)
