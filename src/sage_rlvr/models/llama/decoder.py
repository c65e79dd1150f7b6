"""Decoding with a Llama-shaped model without its module machinery: P prompts x G completions, one token of each a step.

A completion's keys and values are read from end to end, a prompt's once for all completions of its group. Attention writes into
buffers that stay as long as no completion leaves and the room suffices. Two ways through the weights (`Folded`, `Plain`):

    folded  small float32 models, whose time is that of calling operations: weights are copied at the start of a rollout, the norms
            multiplied into the projections that follow, coordinates that turn together side by side, a rotation one complex product
    plain   everything else: the parameters themselves; in bfloat16 on a CPU, for few completions, a copy in oneDNN's own layout
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from sage_rlvr.models.llama.attention import missing
from sage_rlvr.models.llama.forward import Activations, normed_heads
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Layer, Net, stacked
from sage_rlvr.models.llama.pieces import gated, unit

LEAST_ROOM, ROOM_STEP = 16, 8  # tokens of a completion; below 16 the product of weights and values takes a slow path

FOLDED = 100_000_000
"""Parameters above which folded weights only cost memory: they are copies, and the time of calling operations no longer counts."""

REPACKED_COMPLETIONS = 128
"""Completions up to which a bfloat16 product on a CPU takes weights in oneDNN's own layout; with more the copies no longer pay."""


def weights_of(model: PreTrainedModel) -> Folded | Plain:
    """The weights as they are now, for decoding until an update moves them."""
    small = sum(p.numel() for p in model.parameters()) < FOLDED
    net = Net(model)
    heads_normed = net.layers[0].head_norms is not None  # a norm between projection and rotation cannot be folded into either
    return Folded(net) if small and net.dtype == torch.float32 and not heads_normed else Plain(net)


class Folded:
    """Weights of a small float32 model laid out for decoding. `weights_of` makes it; `Decoder` reads it.

    Folded into the projection that follows: each norm's weight and sqrt(C), so that what is left of the norm is
    x / sqrt(|x|^2 + C eps); into q, the attention's 1 / sqrt(D). Rotary turns coordinates i and i + D/2 of a query
    or a key together, as one complex number times exp(i position w_i): here the two are neighbors (`paired`).
    """

    def __init__(self, net: Net) -> None:
        self.net, self.versions, size = net, net.versions, net.embedding.shape[1]
        self.floor = torch.tensor((size * net.eps) ** 0.5, device=net.embedding.device)
        self.order = paired(net.head_dim, net.embedding.device)
        self.turns = torch.complex(*net.angles(0))  # (positions, D / 2), as far as `begin` needed
        self.record: Activations | None = None  # always None: backward needs the plain weights' activations
        self.layers = [self._folded(layer, size**0.5) for layer in net.layers]
        self.final_norm = net.final_norm * size**0.5

    def _folded(self, layer: Layer, root: float) -> tuple[Any, ...]:
        """(qkv and its bias, output projection and its bias, gate and up, down), each (inputs, outputs)."""

        def whole(parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            q, k, v = (part.unflatten(0, (-1, self.net.head_dim)) for part in parts)
            return torch.cat([q[:, self.order] * self.net.scale, k[:, self.order], v]).flatten(0, 1)

        qkv = whole(layer.qkv) * (layer.attention_norm * root)
        bias = None if layer.qkv_bias is None else whole(layer.qkv_bias)
        gate_up = torch.cat(layer.gate_up) * (layer.mlp_norm * root)
        return qkv.t(), bias, layer.out.t(), layer.out_bias, gate_up.t(), layer.down.t()

    def keys(self, keys: Tensor) -> Tensor:
        """Turned keys (..., D) of a forward, in the order of coordinates that is used here."""
        return keys[..., self.order]

    def begin(self, completions: int, longest: int) -> None:
        """Buffers for so many completions; positions below `longest`."""
        new, net = self.net.embedding.new_empty, self.net
        if len(self.turns) < longest:
            self.turns = torch.complex(*net.angles(longest))
        self.normed = new(completions, net.embedding.shape[1])
        self.qkv = new(completions, (net.query_heads + 2 * net.kv_heads) * net.head_dim)
        pairs = self.qkv.view(completions, -1, net.head_dim).unflatten(2, (-1, 2))
        self.rotated = torch.view_as_complex(pairs)[:, : net.query_heads + net.kv_heads]
        self.gate_up = new(completions, self.layers[0][4].shape[1])
        self.gate, self.up = self.gate_up.chunk(2, 1)

    def embed(self, tokens: Tensor, positions: Tensor, part: slice | None = None) -> Tensor:
        """x (B, C) of tokens (B,) at positions (B,)."""
        self.here = self.turns[positions]
        return F.embedding(tokens, self.net.embedding)

    def project(self, number: int, x: Tensor) -> Tensor:
        """q (scaled), k and v (B, (H + 2 K) * D) of a layer, q and k turned."""
        qkv, bias = self.layers[number][:2]
        torch.mm(self._norm(x), qkv, out=self.qkv)
        if bias is not None:
            self.qkv.add_(bias)
        self.rotated.mul_(self.here)
        return self.qkv

    def finish(self, number: int, x: Tensor, attended: Tensor) -> Tensor:
        """x after a layer, from the output of its attention (B, H * D)."""
        _, _, out, out_bias, gate_up, down = self.layers[number]
        x.addmm_(attended, out)
        if out_bias is not None:
            x.add_(out_bias)
        torch.mm(self._norm(x), gate_up, out=self.gate_up)
        return x.addmm_(F.silu(self.gate, inplace=True).mul_(self.up), down)

    def logits(self, x: Tensor) -> Tensor:
        """Logits (B, V) of x after the last layer."""
        return F.linear(self._norm(x) * self.final_norm, self.net.lm_head)

    def _norm(self, x: Tensor) -> Tensor:
        """x / sqrt(|x|^2 + C eps), in the one buffer for it."""
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True).hypot_(self.floor)
        return torch.div(x, length, out=self.normed)


def paired(head_dim: int, device: torch.device) -> Tensor:
    """(D,) the coordinates of a head in their new order: i, then i + D/2, for each i < D/2."""
    return torch.arange(head_dim, device=device).view(2, -1).t().flatten()


def onednn_has_bf16() -> bool:
    """Return True if oneDNN multiplies in bfloat16 here: a CPU without AVX-512 does not, and its operations would raise."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Plain:
    """The parameters as they are. record: where each step's activations go, for an update without a forward of its own.
    `weights_of` and the sampler of an update with a record make it; `Decoder` reads it."""

    def __init__(self, net: Net) -> None:
        self.net, self.versions = net, net.versions
        self.cos, self.sin = net.angles(0)  # as far as `begin` needed
        self.record: Activations | None = None
        self.repacked: list[tuple[Tensor, ...]] | None = None
        self.repacked_head: Tensor | None = None

    def keys(self, keys: Tensor) -> Tensor:
        """See `Folded`."""
        return keys

    def begin(self, completions: int, longest: int) -> None:
        """See `Folded`."""
        net = self.net
        if len(self.cos) < longest:
            self.cos, self.sin = net.angles(longest)
        # float32 for bfloat16 weights too: q is turned and scaled before its one rounding. The forward (`run`, `Grid.read`) rounds
        # q after the turn, and again after the scaling, which is exact where 1 / sqrt(D) is a power of 2 (D = 64). Elsewhere
        # (D = 128) the last bits of the two differ.
        self.qkv = torch.empty(completions, (net.query_heads + 2 * net.kv_heads) * net.head_dim, device=net.embedding.device)
        on_cpu, few = net.embedding.device.type == "cpu", completions <= REPACKED_COMPLETIONS
        few = few and on_cpu and net.dtype == torch.bfloat16 and onednn_has_bf16()
        if few and self.repacked is None:
            self._repack(completions)
        self.uses_repacked = few

    @torch.no_grad()
    def _repack(self, completions: int) -> None:
        def laid_out(weight: Tensor) -> Tensor:
            reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), completions)
            return reordered

        of = [(stacked(layer.qkv), layer.out, stacked(layer.gate_up), layer.down) for layer in self.net.layers]
        self.repacked = [tuple(map(laid_out, weights)) for weights in of]
        self.repacked_head = laid_out(self.net.lm_head)

    def _product(self, x: Tensor, number: int, which: int, weight: Callable[[], Tensor], bias: Tensor | None = None) -> Tensor:
        if self.uses_repacked and self.repacked is not None:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.repacked[number][which], bias, "none", [], "")
            return product
        return F.linear(x, weight(), bias)

    def _sum(self, x: Tensor, inputs: Tensor, number: int, which: int, weight: Tensor) -> Tensor:
        """x + inputs @ weight.T"""
        if self.uses_repacked and self.repacked is not None:
            total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(inputs, x, self.repacked[number][which], None, "add")
            return total
        return torch.addmm(x, inputs, weight.t())

    def embed(self, tokens: Tensor, positions: Tensor, part: slice | None = None) -> Tensor:
        """See `Folded`; part: the nodes of the record."""
        self.here, self.part = (self.cos[positions], self.sin[positions]), part
        return F.embedding(tokens, self.net.embedding)

    def project(self, number: int, x: Tensor) -> Tensor:
        """See `Folded`, but q is not scaled yet."""
        net, layer = self.net, self.net.layers[number]
        bias = None if layer.qkv_bias is None else stacked(layer.qkv_bias)
        qkv = self._product(unit(x, net.eps, layer.attention_norm), number, 0, lambda: stacked(layer.qkv), bias)
        heads = self.qkv.view(len(x), -1, net.head_dim)[:, : net.query_heads + net.kv_heads]
        plain = None
        if layer.head_norms is not None:
            plain = qkv.view(len(x), -1, net.head_dim)[:, : net.query_heads + net.kv_heads].flatten(1)
            self.qkv.copy_(qkv)
            heads.copy_(normed_heads(net, layer, plain))
        else:
            self.qkv.copy_(qkv)
        (cos, sin), (first, second) = self.here, heads.chunk(2, -1)
        turned = torch.mul(first, cos).addcmul_(second, sin, value=-1.0)
        second.mul_(cos).addcmul_(first, sin)
        first.copy_(turned)
        if self.record is not None and self.part is not None:
            kept = {} if plain is None else {"plain": plain}
            self.record.store(number, self.part, x=x, qkv=self.qkv, **kept)
        return self.qkv

    def finish(self, number: int, x: Tensor, attended: Tensor) -> Tensor:
        """See `Folded`."""
        layer = self.net.layers[number]
        middle = self._sum(x, attended, number, 1, layer.out)
        if layer.out_bias is not None:
            middle = middle + layer.out_bias
        gate_up = self._product(unit(middle, self.net.eps, layer.mlp_norm), number, 2, lambda: stacked(layer.gate_up))
        if self.record is not None and self.part is not None:
            self.record.store(number, self.part, attended=attended, middle=middle, gate_up=gate_up)
        return self._sum(middle, gated(gate_up), number, 3, layer.down)

    def logits(self, x: Tensor) -> Tensor:
        """See `Folded`."""
        if self.record is not None and self.part is not None:
            self.record.end(self.part, x)
        normed = unit(x, self.net.eps, self.net.final_norm)
        if self.uses_repacked and self.repacked_head is not None:
            logits: Tensor = torch.ops.mkldnn._linear_pointwise(normed, self.repacked_head, None, "none", [], "")
            return logits
        return F.linear(normed, self.net.lm_head)


class Decoder:
    """Decodes P prompts x G completions after one run of the prompts; completions are prompt-major, and ended ones leave. The
    sampler makes one per call, and reads its logits token by token.

    Inside, key-value heads come first: the completions of a head are then in order of prompts, so that attention over the prompts
    is one product of (K * P) matrices (G * R, D) x (D, S), each prompt read once.
    The whole room for completions is read each step, what is not filled yet with weight 0: a processor reads memory from
    end to end faster than stretches of it with gaps in between.
    """

    def __init__(
        self,
        weights: Folded | Plain,
        prompt_keys_values: list[Tensor],
        layout: Layout,
        lengths: Tensor,
        group_size: int,
        max_new_tokens: int,
    ) -> None:
        """prompt_keys_values: (N, 2 * K * D) of the nodes of a layout of prompts, a layer each; lengths (P,).

        If `weights` has a record, the completions fill its nodes after those of the prompts.
        """
        self.weights, self.net, self.group_size, self.capacity = weights, weights.net, group_size, max_new_tokens
        self.prompt_count, self.longest = layout.prompt_nodes.shape
        self.recorded = None if weights.record is None else len(layout.ids)
        self.scaled = isinstance(weights, Folded)
        self.prompt_cache = [self._of_prompts(both, layout.prompt_nodes) for both in prompt_keys_values]
        outside = torch.arange(self.longest, device=lengths.device)[None, :] >= lengths[:, None]
        new = prompt_keys_values[0].new_zeros
        padding_mask = new(outside.shape).masked_fill(outside, float("-inf"))[:, None]  # (P, 1, S), added to scores
        self.padding_mask = padding_mask if bool(outside.any()) else None
        self.positions = lengths.repeat_interleave(group_size)  # (B,) of the next token
        self.slots: Tensor | None = None  # (B,) place of each living completion among the P * G; None: all are living
        self.filled = self.room = 0
        completions, net = len(self.positions), self.net
        self.cache = [new(2, net.kv_heads, completions, 0, net.head_dim) for _ in net.layers]
        size = 2 * net.kv_heads * completions * max_new_tokens * net.head_dim
        self.memory = [prompt_keys_values[0].new_empty(size) for _ in range(len(net.layers) + 1)]  # one more, to move a layer into

    def _of_prompts(self, both: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (K * P, D, S) and values (K * P, S, D) of the prompts; nodes (P, S)."""
        net = self.net
        grid = both.index_select(0, nodes.flatten()).view(*nodes.shape, 2, net.kv_heads, net.head_dim)
        keys, values = grid.permute(2, 3, 0, 1, 4)  # (K, P, S, D) each
        return self.weights.keys(keys).flatten(0, 1).contiguous().mT, values.flatten(0, 1).contiguous()

    def advance(self, tokens: Tensor) -> Tensor:
        """tokens (B,) -> logits (B, V) of the next token. Only under `torch.no_grad`."""
        if self.filled == self.room:
            self._grow()
        part = None if self.recorded is None else slice(self.recorded, self.recorded + len(tokens))
        weights = self.weights
        x = weights.embed(tokens, self.positions, part)
        unfilled = self.scores[..., self.longest + self.filled + 1 :]
        for number in range(len(self.net.layers)):
            self._take(number, weights.project(number, x))
            x = weights.finish(number, x, self._attend(number, unfilled))
        self.positions, self.filled = self.positions + 1, self.filled + 1
        self.recorded = None if self.recorded is None else self.recorded + len(tokens)
        return weights.logits(x)

    def _take(self, number: int, qkv: Tensor) -> None:
        """q, k and v (B, (H + 2 K) * D) of a layer: keys and values join the cache, the query waits in its buffer."""
        net = self.net
        heads = qkv.view(len(qkv), -1, net.head_dim)
        cached = heads[:, net.query_heads :].unflatten(1, (2, net.kv_heads)).permute(1, 2, 0, 3)  # (2, K, B, D)
        self.cache[number].select(3, self.filled).copy_(cached)
        query = heads[:, : net.query_heads].unflatten(1, (net.kv_heads, -1)).transpose(0, 1)  # (K, B, R, D)
        if self.scaled:
            self.query.copy_(query)
        else:
            torch.mul(query, net.scale, out=self.query)

    def _attend(self, number: int, unfilled: Tensor) -> Tensor:
        """One query of each completion over [its prompt, its own tokens]. Returns (B, H * D).

        Once completions have ended among several prompts, their places in the grid hold 0.
        """
        (prompt_keys, prompt_values), (own_keys, own_values), slots = self.prompt_cache[number], self.own[number], self.slots
        if slots is not None:
            self.grid_query.index_copy_(1, slots, self.query)
        torch.bmm(self.query_of_prompt, prompt_keys, out=self.over_prompt)
        if self.padding_mask is not None:
            self.over_prompt_by_prompt.add_(self.padding_mask)
        torch.bmm(self.query_of_completion, own_keys, out=self.over_own)
        over_prompt = self.over_prompt_by_completion if slots is None else self.over_prompt_by_completion.index_select(1, slots)
        torch.cat((over_prompt, self.over_own_by_completion, self.nothing), -1, out=self.scores)
        unfilled.fill_(float("-inf"))
        torch.softmax(self.scores, -1, out=self.shares)
        if slots is not None:
            self.grid_shares.index_copy_(1, slots, self.shares_of_prompt)
        torch.bmm(self.on_prompt, prompt_values, out=self.mixture)
        mixture = self.mixture_by_completion if slots is None else self.mixture_by_completion.index_select(1, slots)  # (K, B, R, D)
        mixture.view(self.query_of_completion.shape).baddbmm_(self.on_own, own_values)
        self.attended_by_head.copy_(mixture)
        return self.attended

    def select(self, going: Tensor) -> None:
        """Keep only these completions (ascending numbers among the present ones)."""
        self.positions = self.positions[going]
        if self.prompt_count > 1:
            full = torch.arange(self.prompt_count * self.group_size, device=going.device)
            self.slots = (full if self.slots is None else self.slots)[going]
        for layer, new in self._moves():
            torch.index_select(self.cache[layer], 2, going, out=new)
            self.cache[layer] = new
        self._lay_out()

    def _grow(self) -> None:
        """Room for an eighth more tokens or more. Values there are 0: uninitialized memory times a weight of 0 may be NaN."""
        wanted = max(LEAST_ROOM, self.filled + max(ROOM_STEP, self.filled // 8))
        self.room = min(self.capacity, -(-wanted // ROOM_STEP) * ROOM_STEP)
        for layer, new in self._moves():
            new[:, :, :, : self.filled] = self.cache[layer][:, :, :, : self.filled]
            new[1, :, :, self.filled :] = 0
            self.cache[layer] = new
        self._lay_out()

    def _moves(self) -> Iterator[tuple[int, Tensor]]:
        """Each layer, and where its keys and values (2, K, B, room, D) go; the memory it leaves is the next layer's."""
        shape = (2, self.net.kv_heads, len(self.positions), self.room, self.net.head_dim)
        for layer in range(len(self.cache)):
            yield layer, self.memory[-1][: math.prod(shape)].view(shape)
            self.memory[layer], self.memory[-1] = self.memory[-1], self.memory[layer]

    def _lay_out(self) -> None:
        """Buffers for these completions and this room, and the views of them that every layer uses."""
        net, completions, longest, room = self.net, len(self.positions), self.longest, self.room
        heads, width, shared = net.kv_heads, net.head_dim, net.query_heads // net.kv_heads
        new = net.embedding.new_empty
        self.weights.begin(completions, longest + self.capacity)
        self.query, self.query_of_completion = _by_completion(heads, completions, shared, width, new)
        self.over_own_by_completion, self.over_own = _by_completion(heads, completions, shared, room, new)
        behind = missing(longest + room, net.dtype)
        self.nothing = new(heads, completions, shared, behind)  # its place is filled as an unfilled one is
        self.scores, self.shares = new(2, heads, completions, shared, longest + room + behind)
        self.shares_of_prompt, self.on_own = self.shares[..., :longest], self.shares[..., longest : longest + room].flatten(0, 1)
        self.attended = new(completions, net.query_heads * width)
        self.attended_by_head = self.attended.view(completions, heads, shared, width).transpose(0, 1)  # (K, B, R, D)
        self.own = [(part[0].flatten(0, 1).mT, part[1].flatten(0, 1)) for part in self.cache]
        self._lay_out_grid(completions if self.slots is None else self.prompt_count * self.group_size)

    def _lay_out_grid(self, places: int) -> None:
        """Return the operands of the prompts, (K, places, R, W) = (K * P, G * R, W): the completions themselves while none has
        left.

        W is D or S. Once some have left, each writes to its place in a grid of all P * G, whose other places stay 0.
        """
        heads, shared, width = self.query.shape[0], self.query.shape[2], self.net.head_dim
        query, shares = self.query, self.shares_of_prompt
        if self.slots is not None:
            query, shares = (part.new_zeros(heads, places, shared, part.shape[-1]) for part in (query, shares))
        self.grid_query, self.grid_shares = query, shares
        grid = (heads * self.prompt_count, -1)
        self.query_of_prompt, self.on_prompt = query.view(*grid, width), shares.view(*grid, self.longest)
        self.over_prompt_by_completion = shares.new_empty(shares.shape)
        self.over_prompt = self.over_prompt_by_completion.view(*grid, self.longest)
        self.over_prompt_by_prompt = self.over_prompt.unflatten(0, (heads, self.prompt_count))
        self.mixture_by_completion = query.new_empty(query.shape)
        self.mixture = self.mixture_by_completion.view(*grid, width)


def _by_completion(heads: int, completions: int, shared: int, width: int, new: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """A buffer (K, B, R, W), and the same as (K * B, R, W)."""
    buffer = new(heads, completions, shared, width)
    return buffer, buffer.flatten(0, 1)
