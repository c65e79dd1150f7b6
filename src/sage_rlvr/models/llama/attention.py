"""Attention over the tiles of a layout: plain batched products, forward and backward.

`scaled_dot_product_attention` (with `enable_gqa`) would need a mask (I, 1, J, U) for every tile, which its fastest kernels do not
take, and its backward is open to autograd only, while backward is written out here.

Attention weights live for one tile; backward computes them again from q, k and v, but for those of short texts, which are
kept. Heads are gathered and scattered one by one, (node, head) -> D numbers, so that each grid is written once.

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
"""Numbers that a softmax in bfloat16 on a CPU takes at once; each of those left over costs as much as seven in a vector."""

KEPT_WEIGHTS = 1 << 22
"""Attention weights of a layer that are kept for backward at most."""


def missing(keys: int, dtype: torch.dtype) -> int:
    """Return how many keys to add, so that a softmax leaves none over; 0 if their products would cost more than they save."""
    behind = -keys % VECTOR
    return behind if dtype == torch.bfloat16 and behind <= VECTOR // 2 else 0


@dataclass(frozen=True, eq=False)
class Grid:
    """A tile of I texts, J queries and U keys for a net with K key-value heads, each shared by R query heads.

    q (I K R J,), k and v (I K U,): places among the N * (H + 2 K) heads of qkv; outs (I K R J,): among the N * H heads of what
    attention returns. A place without a query reads node 0; `idle` lists these places among the I K R J. q_to and outs_to are the
    places to write to: those without a query write to one node more than there are.
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
        """nodes: how many the layout has."""
        behind = missing(tile.key_nodes.shape[1], net.dtype)  # keys that no query sees
        key_nodes, masked = F.pad(tile.key_nodes, (0, behind)), F.pad(tile.masked, (0, behind), value=True)
        (texts, queries), keys = tile.query_nodes.shape, key_nodes.shape[1]
        shared, every, device = net.query_heads // net.kv_heads, net.query_heads + 2 * net.kv_heads, tile.key_nodes.device
        heads = torch.arange(net.query_heads, device=device).view(1, net.kv_heads, shared, 1)
        kv = torch.arange(net.kv_heads, device=device).view(1, -1, 1) + net.query_heads
        idle = torch.ones(texts * queries, dtype=torch.bool, device=device)
        idle[tile.places] = False
        reads = tile.query_nodes.view(texts, 1, 1, queries)
        writes = torch.where(idle.view(reads.shape), nodes, reads)
        keys_at = key_nodes[:, None, :] * every + kv
        return cls(
            (texts, net.kv_heads, shared, queries, keys),
            (reads * every + heads).flatten(),
            keys_at.flatten(),
            (keys_at + net.kv_heads).flatten(),
            (reads * net.query_heads + heads).flatten(),
            (writes * every + heads).flatten(),
            (writes * net.query_heads + heads).flatten(),
            idle.view(reads.shape).expand(-1, net.kv_heads, shared, -1).flatten().nonzero().squeeze(1),
            masked,
        )

    def read(self, net: Net, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (I K, R J, D), scaled; k, v (I K, U, D)."""
        heads, (texts, groups, *_, keys) = qkv.view(-1, net.head_dim), self.shape
        q = heads.index_select(0, self.q).mul_(net.scale).view(texts * groups, -1, net.head_dim)
        return q, *(heads.index_select(0, at).view(len(q), keys, net.head_dim) for at in (self.k, self.v))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """(I K, R J, U), softmax over what each query sees."""
        scores = torch.bmm(q, k.mT)
        scores.view(self.shape)[..., self.shape[-1] - self.masked.shape[-1] :].masked_fill_(self.masked, -math.inf)
        return torch.softmax(scores, -1)


def grids_of(net: Net, layout: Layout) -> list[Grid]:
    """The tiles of a layout for a net."""
    return [Grid.of(net, tile, len(layout.ids)) for tile in layout.tiles]


def few_weights(grids: Sequence[Grid]) -> bool:
    """Return True if the attention weights of a layer are few enough to be kept for backward."""
    return sum(math.prod(grid.shape) for grid in grids) <= KEPT_WEIGHTS


def attend(net: Net, qkv: Tensor, grids: Sequence[Grid], kept: list[Tensor] | None = None) -> Tensor:
    """qkv (N, (H + 2 K) * D) of nodes, q and k turned -> (N, H * D). kept: where the weights of each tile go."""
    out = qkv.new_empty(len(qkv) + 1, net.query_heads * net.head_dim)
    for grid in grids:
        q, k, v = grid.read(net, qkv)
        weights = grid.weights(q, k)
        if kept is not None:
            kept.append(weights)
        out.view(-1, net.head_dim).index_copy_(0, grid.outs_to, torch.bmm(weights, v).view(-1, net.head_dim))
    return out[:-1]


def attend_backward(net: Net, qkv: Tensor, grids: Sequence[Grid], grad_out: Tensor, kept: Sequence[Tensor] = ()) -> Tensor:
    """grad_out (N, H * D) -> grad_qkv (N, (H + 2 K) * D). kept: the weights that `attend` kept, or nothing."""
    q_width = net.query_heads * net.head_dim
    grad_qkv = qkv.new_empty(len(qkv) + 1, qkv.shape[1])
    # float32, since the nodes of a prompt add up many terms. Only the heads of k and v are used: their places are those of qkv.
    grad_kv = torch.zeros(qkv.shape, device=qkv.device)
    for number, grid in enumerate(grids):
        q, k, v = grid.read(net, qkv)
        weights = kept[number] if kept else grid.weights(q, k)
        grad = grad_out.reshape(-1, net.head_dim).index_select(0, grid.outs)
        if len(grid.idle):
            grad.index_fill_(0, grid.idle, 0.0)
        grad = grad.view(q.shape)
        grad_scores = torch.ops.aten._softmax_backward_data(torch.bmm(grad, v.mT), weights, -1, weights.dtype)
        grad_q = torch.bmm(grad_scores, k).mul_(net.scale)
        grad_qkv.view(-1, net.head_dim).index_copy_(0, grid.q_to, grad_q.view(-1, net.head_dim))
        _add(grad_kv, grid.k, torch.bmm(grad_scores.mT, q))  # `read` has scaled q
        _add(grad_kv, grid.v, torch.bmm(weights.mT, grad))
    grad_qkv = grad_qkv[:-1]
    grad_qkv[:, q_width:] = grad_kv[:, q_width:]
    return grad_qkv


def _add(total: Tensor, places: Tensor, values: Tensor) -> None:
    """Add values (I K, U, D) to the heads of `total` at places (I K U,).

    `scatter_add_` with an expanded index sorts it and adds what belongs together in order, in parallel.
    """
    flat = values.reshape(-1, values.shape[-1]).to(total.dtype)
    total.view(-1, flat.shape[1]).scatter_add_(0, places[:, None].expand(-1, flat.shape[1]), flat)
