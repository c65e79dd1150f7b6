"""The tokens that a forward computes: every distinct beginning of the given texts once, a tree of prefixes.

The prompts of a task begin alike (template, instruction), and the completions of a group share their prompt and often their first
tokens. A *node* of that tree is one token after one beginning, and the engine computes N nodes instead of a padded batch. Norms
and products see nodes and nothing else; only attention lays them out as grids, tile by tile: the queries of some texts against the
keys of the same texts from their start. The letters of shapes are those of `llama/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

QUERIES = 128
"""Queries of a text in one tile at most. Later ones see more keys, so that one tile for a long text computes twice what is read."""

TILE_WEIGHTS = 1 << 23
"""Attention weights of one head in one tile at most, 16 MiB in bfloat16. A tile computes its H heads at once: H times that."""


@dataclass(frozen=True, eq=False)
class Tile:
    """I texts with J queries each against their first U keys: query j of text i sees the keys from the start of the text to itself.
    `Layout` makes it; attention reads it.

    query_nodes (I, J), key_nodes (I, U): nodes of queries and keys, 0 where there is none; masked (I, 1, 1, J, U') bool: of the
    last U' keys those that a query must not see, while every query sees all before them; nodes (m,): those whose query is computed
    here, and places (m,) where among the I * J.
    """

    query_nodes: Tensor
    key_nodes: Tensor
    masked: Tensor
    nodes: Tensor
    places: Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """N nodes of P prompts and B completions, of which n tokens are counted. `Layout.of` makes it of prompts and completions;
    forward, attention and scores read it.

    ids, positions (N,): a token and its place in its text. tiles: every node is a query in exactly one. outputs (M,): nodes whose
    next token is counted, each once; of_token (n,): of each counted token, in the order of `mask.nonzero()`, its place in
    `outputs`. prompt_nodes (P, S): the nodes of each prompt, 0 after its end.
    """

    ids: Tensor
    positions: Tensor
    tiles: tuple[Tile, ...]
    outputs: Tensor
    of_token: Tensor
    prompt_nodes: Tensor

    @classmethod
    def of(
        cls, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor, distinct: bool = True
    ) -> Layout:
        """prompts: ids of each of P; tokens, mask (B, T) of the completions; owners (B,) their prompts' numbers, ascending.

        The last token of a completion predicts nothing and has no node. distinct: what several completions of a prompt begin
        with alike has its nodes once; else the completions' nodes are in the order in which a sampler computes them, all first
        tokens, then all second ones.
        """
        device, width = mask.device, mask.shape[1]
        lengths = torch.tensor([len(p) for p in prompts])
        prompt_nodes, prompt_new = _prompt_nodes(prompts, lengths)
        count = int(prompt_new.sum())
        fed = torch.arange(width)[None, :] < (mask.sum(1).cpu() - 1).clamp_min(0)[:, None]
        tokens, owner = tokens.cpu(), owners.cpu()
        if distinct:
            begun = torch.cat([owner[:, None], tokens.masked_fill(~fed, -1)], 1)
            own_nodes, own_new = _numbered(begun.numpy(), fed, lead=1)
        else:
            numbers = fed.t().flatten().cumsum(0) - 1  # first tokens of all completions, then second ones
            own_nodes = numbers.view(width, -1).t()
            own_new = fed
        own_nodes = torch.where(fed, own_nodes + count, 0)
        ids, positions = _texts_of(prompts, lengths, prompt_nodes, prompt_new, tokens, own_nodes, own_new, owner)
        # The node before a counted token predicts it: for the first of a completion, the last node of its prompt.
        counted, at = mask.cpu().nonzero(as_tuple=True)
        last = prompt_nodes[torch.arange(len(prompts)), lengths - 1]
        predictor = torch.where(at == 0, last[owner[counted]], own_nodes[counted, at - 1])
        outputs, of_token = predictor.unique(return_inverse=True)
        tiles = _prompt_tiles(prompt_nodes, prompt_new, lengths)
        tiles += _own_tiles(prompt_nodes, lengths, own_nodes, own_new, fed, owner)
        return cls(
            ids.to(device),
            positions.to(device),
            tuple(_on(tile, device) for tile in tiles),
            outputs.to(device),
            of_token.to(device),
            prompt_nodes.to(device),
        )

    @classmethod
    def of_prompts(cls, prompts: Sequence[Sequence[int]], device: torch.device) -> Layout:
        """P prompts without completions; outputs: the nodes that predict each prompt's first token, of_token (P,)."""
        empty = torch.zeros(len(prompts), 1, dtype=torch.long, device=device)
        return cls.of(prompts, empty, torch.ones_like(empty, dtype=torch.bool), torch.arange(len(prompts), device=device))


def _numbered(tokens: np.ndarray, used: Tensor, lead: int = 0) -> tuple[Tensor, Tensor]:
    """tokens (I, lead + w), used (I, w) bool -> the node of each place (I, w), numbered from 0, and which places are its first.

    In the sorted order of the texts those that begin alike are neighbors, so each is compared with the one before it.
    """
    order = np.lexsort(tokens.T[::-1])
    texts, places = tokens[order], torch.from_numpy(order)
    equal = texts[1:] == texts[:-1]
    again = equal.cumprod(1, dtype=bool)[:, lead:]
    new = used[places]  # a copy
    new[1:] &= ~torch.from_numpy(again)
    numbers = torch.where(new, new.flatten().cumsum(0).view(new.shape) - 1, 0)
    nodes, first = torch.empty_like(numbers), torch.empty_like(new)
    # Within a column of the sorted texts a place that is not new has the node of the last new place above it. Numbers grow from
    # text to text, so that this node is the largest number so far. (Unused places get a number too, which the caller drops.)
    nodes[places], first[places] = numbers.cummax(0).values, new
    return nodes, first


def _prompt_nodes(prompts: Sequence[Sequence[int]], lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes (P, S) of the prompts, and which places are a node's first."""
    tokens = np.full((len(prompts), int(lengths.max())), -1, dtype=np.int64)
    for i, prompt in enumerate(prompts):
        tokens[i, : len(prompt)] = prompt
    used = torch.from_numpy(tokens >= 0)
    nodes, new = _numbered(tokens, used)
    return torch.where(used, nodes, 0), new


def _texts_of(
    prompts: Sequence[Sequence[int]],
    lengths: Tensor,
    prompt_nodes: Tensor,
    prompt_new: Tensor,
    tokens: Tensor,
    own_nodes: Tensor,
    own_new: Tensor,
    owner: Tensor,
) -> tuple[Tensor, Tensor]:
    """ids and positions (N,) of all nodes."""
    total = int(prompt_new.sum()) + int(own_new.sum())
    ids, positions = torch.empty(total, dtype=torch.long), torch.empty(total, dtype=torch.long)
    text, at = prompt_new.nonzero(as_tuple=True)
    starts = lengths.cumsum(0) - lengths
    flat = torch.tensor([i for p in prompts for i in p])
    nodes = prompt_nodes[text, at]
    ids[nodes], positions[nodes] = flat[starts[text] + at], at
    text, at = own_new.nonzero(as_tuple=True)
    nodes = own_nodes[text, at]
    ids[nodes], positions[nodes] = tokens[text, at], lengths[owner[text]] + at
    return ids, positions


def _prompt_tiles(nodes: Tensor, new: Tensor, lengths: Tensor) -> list[Tile]:
    """Tiles of the prompts; what all of them begin with alike is a text of its own, computed in one prompt only."""
    shared = (~new).int().cumprod(1).sum(1)  # its leading places without a node of their own
    begins_alike = len(nodes) > 1 and int((shared > 0).sum()) == len(nodes) - 1
    tiles = []
    if begins_alike:
        trunk = int(shared[shared > 0].min())
        first = int((shared == 0).nonzero()[0])
        tiles += _tiles(nodes[first : first + 1], torch.zeros(1, dtype=torch.long), torch.tensor([trunk]))
        shared = shared.clamp_min(trunk)
    return tiles + _tiles(nodes, shared, lengths)


def _own_tiles(prompt_nodes: Tensor, lengths: Tensor, own: Tensor, new: Tensor, fed: Tensor, owner: Tensor) -> list[Tile]:
    """Tiles of the completions: each text is the prompt's nodes and then its own, without a gap."""
    shared, ends = (fed & ~new).int().cumprod(1).sum(1), fed.sum(1)
    asks = (ends > shared).nonzero().squeeze(1)
    if len(asks) == 0:
        return []
    start, own, own_ends = lengths[owner[asks]], own[asks], ends[asks]
    longest = int((start + own_ends).max())
    at = torch.arange(longest)[None, :].expand(len(asks), -1)
    of_prompt = prompt_nodes[owner[asks]].gather(1, at.clamp_max(prompt_nodes.shape[1] - 1))
    of_own = own.gather(1, (at - start[:, None]).clamp(0, own.shape[1] - 1))
    text = torch.where(at < start[:, None], of_prompt, of_own)
    return _tiles(text, start + shared[asks], start + own_ends)


def _tiles(texts: Tensor, starts: Tensor, ends: Tensor) -> list[Tile]:
    """Tiles of texts (I, longest) of nodes, of which the places from starts (I,) to ends (I,) are queries.

    Texts with the most queries come first: of a tile of later queries only the first texts are left.
    """
    counts = ends - starts
    order = counts.argsort(descending=True, stable=True)
    order = order[counts[order] > 0]
    texts, starts, counts = texts[order], starts[order], counts[order]
    tiles = []
    most = int(counts[0]) if len(counts) else 0
    for first in range(0, most, QUERIES):
        some = int((counts > first).sum())
        width = min(QUERIES, most - first)
        behind = starts[:some] + counts[:some].clamp_max(first + width)  # the last query's place + 1: the keys of each text
        size = max(1, TILE_WEIGHTS // (width * int(behind.max())))
        for begin in range(0, some, size):
            tiles.append(_tile(texts, starts, counts, slice(begin, min(begin + size, some)), first, width))
    return tiles


def _tile(texts: Tensor, starts: Tensor, counts: Tensor, part: slice, first: int, width: int) -> Tile:
    """The tile of some texts (`part`) with at most `width` queries of each, those from number `first` on. counts (I,): of all."""
    texts, starts, counts = texts[part], starts[part] + first, (counts[part] - first).clamp_max(width)
    queries, keys = torch.arange(int(counts.max())), torch.arange(int((starts + counts).max()))
    asks = queries[None, :] < counts[:, None]
    at = starts[:, None] + queries[None, :]
    query_nodes = torch.where(asks, texts.gather(1, at.clamp_max(texts.shape[1] - 1)), 0)
    # A place without a query sees what all see: softmax over no key at all would be NaN. A mask of all keys would grow with T^2.
    common = int(starts.min())
    last_seen = torch.where(asks, at, common)
    masked = keys[None, None, common + 1 :] > last_seen[:, :, None]
    key_nodes = torch.where(keys[None, :] < (starts + counts)[:, None], texts[:, : len(keys)], 0)
    places = asks.flatten().nonzero().squeeze(1)
    return Tile(query_nodes, key_nodes, masked[:, None, None], query_nodes.flatten()[places], places)


def _on(tile: Tile, device: torch.device) -> Tile:
    parts = (tile.query_nodes, tile.key_nodes, tile.masked, tile.nodes, tile.places)
    return Tile(*(part.to(device) for part in parts))
