"""The tokens that a forward computes: each distinct prefix of the given texts once, as a tree.

The prompts of a task begin alike (template, instruction), and the completions of a group share their prompt and often their first
tokens. A *node* of the tree is one token after one prefix, and the engine computes N nodes instead of a padded batch. Everything
but attention works on nodes, (N, ...); attention copies them into grids, tile by tile: the queries of some texts against the keys
of the same texts from their start.

A *place* (text, position) is a token of one text. Texts that begin alike share nodes: a place is *new* if its node belongs to no
text before it, in sorted order. Once a place of a text is new, all later ones are. Nodes of prompts come first, then those of
completions; an index tensor holds 0 at places without a node, and what is read there is masked or dropped. Layouts are built on
the CPU and moved once. The letters of shapes are those of `llama/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

QUERIES = 128
"""Maximum number of queries of a text in a tile. A tile has the keys of its last query, and half of what it computes for a long
text is masked: several tiles of fewer queries compute less."""

TILE_WEIGHTS = 1 << 23
"""Maximum number of attention weights of a tile for one head, 16 MiB in bfloat16; all H heads of a tile are computed at once."""


@dataclass(frozen=True, eq=False)
class Tile:
    """I texts with J queries each against their first U keys; a query sees the keys from the start of its text to its own.

    `Layout` makes it; attention reads it.

    query_nodes (I, J), key_nodes (I, U): nodes of queries and keys, 0 if there is none; query u is not key u, since the queries
    of a text need not begin at its start. masked (I, 1, 1, J, U') bool: of the last U' <= U keys those that a query must not see;
    every query sees all keys before these. places (m,): which of the I * J places have a query.
    """

    query_nodes: Tensor
    key_nodes: Tensor
    masked: Tensor
    places: Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """N nodes of P prompts and B completions, of which n tokens are counted. Forward, attention and scores read it.

    ids, positions (N,): the token of a node and its position in its text. tiles: each node is a query in exactly one of them.
    outputs (M,): nodes that predict a counted token, ascending, each once. of_token (n,): for each counted token, in the order of
    `mask.nonzero()`, the index in `outputs` of the node that predicts it. prompt_nodes (P, S): nodes of each prompt, 0 after its
    end. All on the device of the mask.
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
        """Lay out prompts and completions. The last token of a completion predicts nothing and has no node.

        Args:
            prompts: ids of P prompts, none of them empty.
            tokens: (B, T) of the completions.
            mask: (B, T), the counted tokens of a completion: its first ones, without a gap.
            owners: (B,), the number of each completion's prompt, ascending.
            distinct: True has the common prefix of several completions of a prompt once; False has nodes of its own for each
                completion, in the order in which a sampler computes them: all first tokens, then all second ones.
        """
        device, width = mask.device, mask.shape[1]
        lengths = torch.tensor([len(p) for p in prompts])
        prompt_nodes, prompt_new = _prompt_nodes(prompts, lengths)
        count = int(prompt_new.sum())
        # "fed", as input to the model: the tokens of completions that have a node. "own": of completions, without their prompts.
        fed = torch.arange(width)[None, :] < (mask.sum(1).cpu() - 1).clamp_min(0)[:, None]
        tokens, owner = tokens.cpu(), owners.cpu()
        if distinct:
            owner_and_tokens = torch.cat([owner[:, None], tokens.masked_fill(~fed, -1)], 1)
            own_nodes, own_new = _numbered(owner_and_tokens.numpy(), fed, lead=1)
        else:
            numbers = fed.t().flatten().cumsum(0) - 1  # first tokens of all completions, then second ones
            own_nodes = numbers.view(width, -1).t()
            own_new = fed
        own_nodes = torch.where(fed, own_nodes + count, 0)
        ids, positions = _ids_and_positions(prompts, lengths, prompt_nodes, prompt_new, tokens, own_nodes, own_new, owner)
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
        """Lay out P prompts without completions. outputs: their last nodes, once if prompts are equal; of_token (P,)."""
        # Completions of one token: it is counted, and the last node of the prompt predicts it.
        empty = torch.zeros(len(prompts), 1, dtype=torch.long, device=device)
        return cls.of(prompts, empty, torch.ones_like(empty, dtype=torch.bool), torch.arange(len(prompts), device=device))


def _numbered(tokens: np.ndarray, used: Tensor, lead: int = 0) -> tuple[Tensor, Tensor]:
    """Return the node of each place (I, w), numbered from 0, and which places are new (I, w) bool.

    tokens: (I, lead + w), -1 in unused places; the first `lead` columns set texts apart and have no nodes. used: (I, w) bool.

    In the sorted order of the texts those that begin alike are neighbors, so each is compared with the one before it.
    """
    order = np.lexsort(tokens.T[::-1])  # by the first column, then the second, ...
    texts, rows = tokens[order], torch.from_numpy(order)
    equal = texts[1:] == texts[:-1]
    again = equal.cumprod(1, dtype=bool)[:, lead:]  # equal from the start to here
    new = used[rows]  # a copy
    new[1:] &= ~torch.from_numpy(again)
    numbers = torch.where(new, new.flatten().cumsum(0).view(new.shape) - 1, 0)
    nodes, in_given_order = torch.empty_like(numbers), torch.empty_like(new)
    # Within a column of the sorted texts a place that is not new has the node of the last new place above it. Numbers grow from
    # text to text, so that this node is the largest number so far. (Unused places get a number too, which the caller drops.)
    nodes[rows], in_given_order[rows] = numbers.cummax(0).values, new
    return nodes, in_given_order


def _prompt_nodes(prompts: Sequence[Sequence[int]], lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes (P, S) of the prompts, 0 after their ends, and which places are new (P, S) bool. lengths: (P,)."""
    tokens = np.full((len(prompts), int(lengths.max())), -1, dtype=np.int64)
    for i, prompt in enumerate(prompts):
        tokens[i, : len(prompt)] = prompt
    used = torch.from_numpy(tokens >= 0)
    nodes, new = _numbered(tokens, used)
    return torch.where(used, nodes, 0), new


def _ids_and_positions(
    prompts: Sequence[Sequence[int]],
    lengths: Tensor,
    prompt_nodes: Tensor,
    prompt_new: Tensor,
    tokens: Tensor,
    own_nodes: Tensor,
    own_new: Tensor,
    owner: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return ids and positions (N,) of all nodes: lengths (P,); prompt_* (P, S); tokens, own_* (B, T); owner (B,)."""
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
    """Return the tiles of the prompts: nodes, new (P, S); lengths (P,). What all prompts begin with is a tile of its own.

    Else the first prompt in sorted order, which computes these nodes, would have many more queries than the others: a tile has as
    many places for each text as its longest has queries.
    """
    shared = (~new).int().cumprod(1).sum(1)  # how many leading nodes of a prompt another one computes
    begins_alike = len(nodes) > 1 and int((shared > 0).sum()) == len(nodes) - 1
    tiles = []
    if begins_alike:
        trunk = int(shared[shared > 0].min())
        first = int((shared == 0).nonzero()[0])
        tiles += _tiles(nodes[first : first + 1], torch.zeros(1, dtype=torch.long), torch.tensor([trunk]))
        shared = shared.clamp_min(trunk)
    return tiles + _tiles(nodes, shared, lengths)


def _own_tiles(prompt_nodes: Tensor, lengths: Tensor, own: Tensor, new: Tensor, fed: Tensor, owner: Tensor) -> list[Tile]:
    """Return the tiles of the completions: prompt_nodes (P, S), lengths (P,), own, new, fed (B, T), owner (B,).

    A text is a completion with its prompt, without a gap between them; its queries are the completion's new places.
    """
    shared, ends = (fed & ~new).int().cumprod(1).sum(1), fed.sum(1)
    rows = (ends > shared).nonzero().squeeze(1)  # completions with a new place
    if len(rows) == 0:
        return []
    starts, own, own_ends = lengths[owner[rows]], own[rows], ends[rows]
    longest = int((starts + own_ends).max())
    at = torch.arange(longest)[None, :].expand(len(rows), -1)
    of_prompt = prompt_nodes[owner[rows]].gather(1, at.clamp_max(prompt_nodes.shape[1] - 1))
    of_own = own.gather(1, (at - starts[:, None]).clamp(0, own.shape[1] - 1))
    texts = torch.where(at < starts[:, None], of_prompt, of_own)
    return _tiles(texts, starts + shared[rows], starts + own_ends)


def _tiles(texts: Tensor, starts: Tensor, ends: Tensor) -> list[Tile]:
    """Return the tiles of texts (I, longest) of nodes, of which the places from starts (I,) to before ends (I,) are queries.

    Texts are sorted by their number of queries, the most first: the first `some` of them have a query number `first`.
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
        keys = starts[:some] + counts[:some].clamp_max(first + width)  # of each text, up to its last query
        size = max(1, TILE_WEIGHTS // (width * int(keys.max())))
        for begin in range(0, some, size):
            tiles.append(_tile(texts, starts, counts, slice(begin, min(begin + size, some)), first, width))
    return tiles


def _tile(texts: Tensor, starts: Tensor, counts: Tensor, part: slice, first: int, width: int) -> Tile:
    """Return the tile of the texts of a slice (`part`) with at most `width` queries of each, those from number `first` on.

    texts (I, longest), starts and counts (I,): of all texts, the nodes, the first query and the number of queries.
    """
    texts, starts, counts = texts[part], starts[part] + first, (counts[part] - first).clamp_max(width)
    queries, keys = torch.arange(int(counts.max())), torch.arange(int((starts + counts).max()))
    is_query = queries[None, :] < counts[:, None]
    at = starts[:, None] + queries[None, :]
    query_nodes = torch.where(is_query, texts.gather(1, at.clamp_max(texts.shape[1] - 1)), 0)
    # Only keys after `common` are masked for some query: a mask of all keys would grow with T^2.
    common = int(starts.min())
    last_seen = torch.where(is_query, at, common)  # a place without a query sees some keys too: softmax over none would be NaN
    masked = keys[None, None, common + 1 :] > last_seen[:, :, None]
    key_nodes = torch.where(keys[None, :] < (starts + counts)[:, None], texts[:, : len(keys)], 0)
    return Tile(query_nodes, key_nodes, masked[:, None, None], is_query.flatten().nonzero().squeeze(1))


def _on(tile: Tile, device: torch.device) -> Tile:
    """Return the tile on a device."""
    return Tile(*(part.to(device) for part in (tile.query_nodes, tile.key_nodes, tile.masked, tile.places)))
