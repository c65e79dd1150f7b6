"""Attention over the tiles of a layout: plain batched products, forward and backward.

CPU kernels of `scaled_dot_product_attention` take a mask only at the price of a slow path, and their backward costs twice this one
(benchmarks/real.py). Attention weights live for one tile and are computed again in backward from q, k and v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sage_rlvr.models.llama.layout import Tile
from sage_rlvr.models.llama.net import Net


def attend(net: Net, qkv: Tensor, tiles: Sequence[Tile]) -> Tensor:
    """qkv (N, (heads + 2 kv heads) * D) of rows, q and k turned -> (N, heads * D)."""
    out = qkv.new_empty(len(qkv), net.heads * net.width)
    for tile in tiles:
        q, k, v = _grids(net, qkv, tile)
        mixed = torch.bmm(_weights(net, q, k, tile), v)
        out.index_copy_(0, tile.rows, _by_query(net, mixed, tile))
    return out


def attend_backward(net: Net, qkv: Tensor, tiles: Sequence[Tile], by_out: Tensor) -> Tensor:
    """by_out (N, heads * D) -> gradient by qkv, (N, (heads + 2 kv heads) * D)."""
    asked = net.heads * net.width
    by_qkv = torch.empty_like(qkv)
    by_kv = torch.zeros(len(qkv), 2 * net.kv_heads * net.width, device=qkv.device)  # float32: a prompt's rows add up many terms
    for tile in tiles:
        q, k, v = _grids(net, qkv, tile)
        weights = _weights(net, q, k, tile)
        (texts, queries), shared = tile.asking.shape, net.heads // net.kv_heads
        grad = by_out.new_zeros(texts * queries, asked).index_copy_(0, tile.places, by_out.index_select(0, tile.rows))
        grad = grad.view(texts, queries, net.kv_heads, shared, net.width).permute(0, 2, 3, 1, 4).reshape(q.shape)
        by_scores = torch.ops.aten._softmax_backward_data(torch.bmm(grad, v.mT), weights, -1, weights.dtype)
        by_q = _by_query(net, torch.bmm(by_scores, k).mul_(net.scale), tile)
        by_qkv[:, :asked].index_copy_(0, tile.rows, by_q)
        parts = (torch.bmm(by_scores.mT, q), torch.bmm(weights.mT, grad))  # of k, whose q was scaled, and of v
        pulled = torch.stack([part.view(texts, net.kv_heads, -1, net.width).transpose(1, 2) for part in parts], 2)
        _add_rows(by_kv, tile.seen.flatten(), pulled.view(-1, by_kv.shape[1]))
    by_qkv[:, asked:] = by_kv
    return by_qkv


def _grids(net: Net, qkv: Tensor, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    """q (n * kv heads, shared * t, D), scaled; k, v (n * kv heads, u, D)."""
    (texts, queries), asked = tile.asking.shape, net.heads * net.width
    q = qkv[:, :asked].index_select(0, tile.asking.flatten()).view(texts, queries, net.kv_heads, -1, net.width)
    kv = qkv[:, asked:].index_select(0, tile.seen.flatten()).view(texts, -1, 2, net.kv_heads, net.width)
    keys, values = kv.permute(2, 0, 3, 1, 4)  # (n, kv heads, u, D) each
    q = (q.permute(0, 2, 3, 1, 4) * net.scale).reshape(texts * net.kv_heads, -1, net.width)
    return q, keys.reshape(len(q), -1, net.width), values.reshape(len(q), -1, net.width)


def _weights(net: Net, q: Tensor, k: Tensor, tile: Tile) -> Tensor:
    """(n * kv heads, shared * t, u), softmax over what each query sees."""
    scores = torch.bmm(q, k.mT)
    texts, queries = tile.asking.shape
    scores.view(texts, net.kv_heads, -1, queries, k.shape[1]).masked_fill_(tile.hidden, -math.inf)
    return torch.softmax(scores, -1)


def _by_query(net: Net, grid: Tensor, tile: Tile) -> Tensor:
    """(n * kv heads, shared * t, D) -> (m, heads * D) in the order of `tile.rows`."""
    texts, queries = tile.asking.shape
    rows = grid.view(texts, net.kv_heads, -1, queries, net.width).permute(0, 3, 1, 2, 4).reshape(texts * queries, -1)
    return rows if len(tile.places) == len(rows) else rows.index_select(0, tile.places)


def _add_rows(total: Tensor, rows: Tensor, values: Tensor) -> None:
    """total[rows[i]] += values[i]. `scatter_add_` with an expanded index sorts it and adds rows in order, in parallel."""
    total.scatter_add_(0, rows[:, None].expand(-1, total.shape[1]), values.to(total.dtype))
