"""Which rows a forward computes: every distinct beginning of the given texts once, a tree of prefixes.

The prompts of a task begin alike (template, instruction), and the completions of a group share their prompt and often their first
tokens. A row of the engine is a node of that tree: one token behind one beginning. Norms and products see the rows and nothing
else; only attention lays them out as grids, tile by tile: some texts' queries against the keys of the same texts from their start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

QUERIES = 128
"""Of a text in one tile at most: later queries see more keys, so a tile as long as the text would compute twice what is read."""

TILE_WEIGHTS = 1 << 23
"""Attention weights of one head in one tile at most: 16 MiB in bfloat16."""


@dataclass(frozen=True, eq=False)
class Tile:
    """n texts with t queries each against their first u keys; query j of text i sees the keys 0 to start[i] + j.

    asking (n, t), seen (n, u): rows of queries and keys, 0 where there is none; hidden (n, 1, 1, t, u) bool: keys that a query must
    not see; rows (m,): those whose query is computed here, and places (m,) where among the n * t.
    """

    asking: Tensor
    seen: Tensor
    hidden: Tensor
    rows: Tensor
    places: Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """N rows of P prompts and B completions, of which n tokens are counted.

    ids, positions (N,): a token and its place in its text. tiles: every row asks in exactly one. outputs (M,): rows whose next
    token is counted, each once; of_token (n,): for each counted token, in the order of `mask.nonzero()`, its place in `outputs`.
    prompt_rows (P, S): the rows of each prompt, 0 behind its end.
    """

    ids: Tensor
    positions: Tensor
    tiles: tuple[Tile, ...]
    outputs: Tensor
    of_token: Tensor
    prompt_rows: Tensor

    @classmethod
    def of(
        cls, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, owners: Tensor, distinct: bool = True
    ) -> Layout:
        """prompts: ids of each of P; tokens, mask (B, T) of the completions; owners (B,) their prompts' numbers, ascending.

        The last token of a completion predicts nothing and has no row. distinct: what several completions of a prompt begin
        with alike has its rows once; else the completions' rows are in the order in which a sampler computes them, all first
        tokens, then all second ones.
        """
        device, width = mask.device, mask.shape[1]
        lengths = torch.tensor([len(p) for p in prompts])
        prompt_rows, prompt_new = _prompt_rows(prompts, lengths)
        count = int(prompt_new.sum())
        fed = torch.arange(width)[None, :] < (mask.sum(1).cpu() - 1).clamp_min(0)[:, None]
        words, owner = tokens.cpu(), owners.cpu()
        if distinct:
            begun = torch.cat([owner[:, None], words.masked_fill(~fed, -1)], 1)
            own_rows, own_new = _numbered(begun.numpy(), fed, lead=1)
        else:
            in_time = fed.t().flatten()
            own_rows, own_new = (in_time.cumsum(0) - 1).view(width, -1).t(), fed
        own_rows = torch.where(fed, own_rows + count, 0)
        ids, positions = _texts_of(prompts, lengths, prompt_rows, prompt_new, words, own_rows, own_new, owner)
        counted, at = mask.cpu().nonzero(as_tuple=True)
        last = prompt_rows[torch.arange(len(prompts)), lengths - 1]
        predictor = torch.where(at == 0, last[owner[counted]], own_rows[counted, at - 1])
        outputs, of_token = predictor.unique(return_inverse=True)
        tiles = _prompt_tiles(prompt_rows, prompt_new, lengths)
        tiles += _own_tiles(prompt_rows, lengths, own_rows, own_new, fed, owner)
        return cls(
            ids.to(device),
            positions.to(device),
            tuple(_on(tile, device) for tile in tiles),
            outputs.to(device),
            of_token.to(device),
            prompt_rows.to(device),
        )

    @classmethod
    def of_prompts(cls, prompts: Sequence[Sequence[int]], device: torch.device) -> Layout:
        """P prompts without completions; outputs: the rows that predict each prompt's first token, of_token (P,)."""
        empty = torch.zeros(len(prompts), 1, dtype=torch.long, device=device)
        return cls.of(prompts, empty, torch.ones_like(empty, dtype=torch.bool), torch.arange(len(prompts), device=device))


def _numbered(words: np.ndarray, used: Tensor, lead: int = 0) -> tuple[Tensor, Tensor]:
    """words (n, lead + w), used (n, w) bool -> the node of each place (n, w), numbered from 0, and which places are its first.

    In the alphabetical order of the texts those that begin alike lie together, so each is held against the one before it.
    """
    order = np.lexsort(words.T[::-1])
    texts, places = words[order], torch.from_numpy(order)
    equal = texts[1:] == texts[:-1]
    again = equal.cumprod(1, dtype=bool)[:, lead:]
    new = used[places]  # a copy
    new[1:] &= ~torch.from_numpy(again)
    counted = torch.where(new, new.flatten().cumsum(0).view(new.shape) - 1, 0)
    rows, first = torch.empty_like(counted), torch.empty_like(new)
    rows[places], first[places] = counted.cummax(0).values, new
    return rows, first


def _prompt_rows(prompts: Sequence[Sequence[int]], lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (P, S) of the prompts, and which of them are a row's first place."""
    words = np.full((len(prompts), int(lengths.max())), -1, dtype=np.int64)
    for i, prompt in enumerate(prompts):
        words[i, : len(prompt)] = prompt
    used = torch.from_numpy(words >= 0)
    rows, new = _numbered(words, used)
    return torch.where(used, rows, 0), new


def _texts_of(
    prompts: Sequence[Sequence[int]],
    lengths: Tensor,
    prompt_rows: Tensor,
    prompt_new: Tensor,
    words: Tensor,
    own_rows: Tensor,
    own_new: Tensor,
    owner: Tensor,
) -> tuple[Tensor, Tensor]:
    """ids and positions (N,) of all rows."""
    total = int(prompt_new.sum()) + int(own_new.sum())
    ids, positions = torch.empty(total, dtype=torch.long), torch.empty(total, dtype=torch.long)
    text, at = prompt_new.nonzero(as_tuple=True)
    starts = lengths.cumsum(0) - lengths
    flat = torch.tensor([i for p in prompts for i in p])
    rows = prompt_rows[text, at]
    ids[rows], positions[rows] = flat[starts[text] + at], at
    text, at = own_new.nonzero(as_tuple=True)
    rows = own_rows[text, at]
    ids[rows], positions[rows] = words[text, at], lengths[owner[text]] + at
    return ids, positions


def _prompt_tiles(rows: Tensor, new: Tensor, lengths: Tensor) -> list[Tile]:
    """Tiles of the prompts; what all of them begin with alike is a text of its own, computed in one prompt only."""
    shared = (~new).int().cumprod(1).sum(1)  # its leading places without a row of their own
    begins_alike = len(rows) > 1 and int((shared > 0).sum()) == len(rows) - 1
    tiles = []
    if begins_alike:
        trunk = int(shared[shared > 0].min())
        first = int((shared == 0).nonzero()[0])
        tiles += _tiles(rows[first : first + 1], torch.zeros(1, dtype=torch.long), torch.tensor([trunk]))
        shared = shared.clamp_min(trunk)
    return tiles + _tiles(rows, shared, lengths)


def _own_tiles(prompt_rows: Tensor, lengths: Tensor, own: Tensor, new: Tensor, fed: Tensor, owner: Tensor) -> list[Tile]:
    """Tiles of the completions: each text is the prompt's rows and its own behind them, without a gap."""
    shared, ends = (fed & ~new).int().cumprod(1).sum(1), fed.sum(1)
    asks = (ends > shared).nonzero().squeeze(1)
    if len(asks) == 0:
        return []
    start, own, own_ends = lengths[owner[asks]], own[asks], ends[asks]
    longest = int((start + own_ends).max())
    at = torch.arange(longest)[None, :].expand(len(asks), -1)
    of_prompt = prompt_rows[owner[asks]].gather(1, at.clamp_max(prompt_rows.shape[1] - 1))
    of_own = own.gather(1, (at - start[:, None]).clamp(0, own.shape[1] - 1))
    text = torch.where(at < start[:, None], of_prompt, of_own)
    return _tiles(text, start + shared[asks], start + own_ends)


def _tiles(texts: Tensor, starts: Tensor, ends: Tensor) -> list[Tile]:
    """Tiles of n texts (n, longest) as rows, of which the places from starts (n,) to ends (n,) ask.

    Those that ask most come first: of a tile of later queries only the first texts are left.
    """
    counts = ends - starts
    order = counts.argsort(descending=True, stable=True)
    order = order[counts[order] > 0]
    texts, starts, counts = texts[order], starts[order], counts[order]
    tiles = []
    for first in range(0, int(counts.max()) if len(counts) else 0, QUERIES):
        some = int((counts > first).sum())
        width = min(QUERIES, int(counts[0]) - first)
        keys = int((starts[:some] + (first + width)).clamp_max(starts[:some] + counts[:some]).max())
        size = max(1, TILE_WEIGHTS // (width * keys))
        tiles += [_tile(texts, starts, counts, slice(a, min(a + size, some)), first, width) for a in range(0, some, size)]
    return tiles


def _tile(texts: Tensor, starts: Tensor, counts: Tensor, part: slice, first: int, width: int) -> Tile:
    texts, starts, counts = texts[part], starts[part] + first, (counts[part] - first).clamp_max(width)
    width, keys = int(counts.max()), int((starts + counts).max())
    asks = torch.arange(width)[None, :] < counts[:, None]
    at = (starts[:, None] + torch.arange(width)).clamp_max(texts.shape[1] - 1)
    asking = torch.where(asks, texts.gather(1, at), 0)
    limit = torch.where(asks, starts[:, None] + torch.arange(width), 0)  # a query of nothing sees one key: no row is empty
    hidden = torch.arange(keys)[None, None, :] > limit[:, :, None]
    seen = torch.where(torch.arange(keys)[None, :] < (starts + counts)[:, None], texts[:, :keys], 0)
    places = asks.flatten().nonzero().squeeze(1)
    return Tile(asking, seen, hidden[:, None, None], asking.flatten()[places], places)


def _on(tile: Tile, device: torch.device) -> Tile:
    return Tile(*(getattr(tile, name).to(device) for name in ("asking", "seen", "hidden", "rows", "places")))
