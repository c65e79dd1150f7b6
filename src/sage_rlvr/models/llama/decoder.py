"""Decoding with a Llama-shaped model: P prompts x G completions, one token of each completion per step.

`Decoder` has the cache and the attention; everything else of a layer is in the weights, which come in two forms:

    Folded  small float32 models, whose time is mostly the overhead of calling operations: weights are copied at the start of a
            rollout, each norm's weight multiplied into the projections that follow it, and a rotation is one complex product
    Plain   everything else: the parameters themselves; in bfloat16 on a CPU, for few completions, a copy in oneDNN's own layout

Both have the same methods. `begin` makes buffers for B completions, whenever B or the room for tokens changes. Then for each token:
`embed`; in each layer `project`, attention, `finish`; `logits`. What `project` returns is a buffer that the next call overwrites,
so that weights serve one decoder at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from sage_rlvr.models.llama.forward import Activations, normed_heads
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Layer, Net, stacked
from sage_rlvr.models.llama.pieces import gated, turn, unit

LEAST_ROOM, ROOM_STEP = 16, 8
"""Tokens of a completion that the cache has room for: at least, since torch's product of attention weights and values is slow for
fewer; and a number that the room is a multiple of (or it is the maximum)."""

FOLDED = 100_000_000
"""Parameters above which folded weights only cost memory: they are copies, and the time of calling operations no longer counts."""

REPACKED_COMPLETIONS = 128
"""Maximum number of completions for which bfloat16 products on a CPU use copies of the weights in oneDNN's own layout."""


def weights_of(model: PreTrainedModel) -> Folded | Plain:
    """Return the weights for decoding. They are valid until a parameter changes (`versions`)."""
    small = sum(p.numel() for p in model.parameters()) < FOLDED
    net = Net(model)
    heads_normed = net.layers[0].head_norms is not None  # a norm between projection and rotation cannot be folded into either
    return Folded(net) if small and net.dtype == torch.float32 and not heads_normed else Plain(net)


class Folded:
    """Copies of the weights of a small float32 model, laid out for decoding. `weights_of` makes it; `Decoder` reads it.

    The projection that follows a norm contains the norm's weight and sqrt(C): what is left of the norm is x / sqrt(|x|^2 + C eps).
    That of q contains the attention's 1 / sqrt(D). Coordinates j and j + D/2 of a query or key, which rotary positions turn as one
    complex number times exp(i position w_j), are neighbors here (`paired`); so are those of cached keys.
    """

    def __init__(self, net: Net) -> None:
        self.net, self.versions, size = net, net.versions, net.embedding.shape[1]
        self.floor = torch.tensor((size * net.eps) ** 0.5, device=net.embedding.device)
        self.order = paired(net.head_dim, net.embedding.device)
        self.turns = torch.complex(*net.angles(0))  # (positions, 1, D / 2); `begin` computes as many as it needs
        self.record: Activations | None = None  # always: backward needs activations of the weights as they are
        self.layers = [self._folded(layer, size**0.5) for layer in net.layers]
        self.final_norm = net.final_norm * size**0.5

    def _folded(self, layer: Layer, root: float) -> tuple[Any, ...]:
        """Return a layer's (qkv, its bias, output projection, its bias, gate and up, down); matrices are (inputs, outputs)."""

        def whole(parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            q, k, v = (part.unflatten(0, (-1, self.net.head_dim)) for part in parts)
            return torch.cat([q[:, self.order] * self.net.scale, k[:, self.order], v]).flatten(0, 1)

        qkv = whole(layer.qkv) * (layer.attention_norm * root)
        bias = None if layer.qkv_bias is None else whole(layer.qkv_bias)
        gate_up = torch.cat(layer.gate_up) * (layer.mlp_norm * root)
        return qkv.t(), bias, layer.out.t(), layer.out_bias, gate_up.t(), layer.down.t()

    def keys(self, keys: Tensor) -> Tensor:
        """Return turned keys (..., D) of a forward in the order of coordinates that is used here."""
        return keys[..., self.order]

    def begin(self, completions: int, longest: int) -> None:
        """Make the buffers for B completions, and the rotations of positions below `longest`."""
        new, net = self.net.embedding.new_empty, self.net
        if len(self.turns) < longest:
            self.turns = torch.complex(*net.angles(longest))
        self.normed = new(completions, net.embedding.shape[1])
        self.qkv = new(completions, (net.query_heads + 2 * net.kv_heads) * net.head_dim)
        pairs = self.qkv.view(completions, -1, net.head_dim).unflatten(2, (-1, 2))
        self.rotated = torch.view_as_complex(pairs)[:, : net.query_heads + net.kv_heads]  # q and k in the buffer `qkv`
        self.gate_up = new(completions, self.layers[0][4].shape[1])
        self.gate, self.up = self.gate_up.chunk(2, 1)

    def embed(self, tokens: Tensor, positions: Tensor, part: slice | None = None) -> Tensor:
        """Return x (B, C) of tokens (B,) at positions (B,), which `project` turns by. part: unused."""
        self.here = self.turns[positions]
        return F.embedding(tokens, self.net.embedding)

    def project(self, number: int, x: Tensor) -> Tensor:
        """Return qkv (B, (H + 2 K) * D) of a layer for its input x (B, C): q and k turned, q scaled. A buffer."""
        qkv, bias = self.layers[number][:2]
        torch.mm(self._norm(x), qkv, out=self.qkv)
        if bias is not None:
            self.qkv.add_(bias)
        self.rotated.mul_(self.here)
        return self.qkv

    def finish(self, number: int, x: Tensor, attended: Tensor) -> Tensor:
        """Return x (B, C) after a layer from its input x, in place, and the output of its attention (B, H * D)."""
        _, _, out, out_bias, gate_up, down = self.layers[number]
        x.addmm_(attended, out)
        if out_bias is not None:
            x.add_(out_bias)
        torch.mm(self._norm(x), gate_up, out=self.gate_up)
        return x.addmm_(F.silu(self.gate, inplace=True).mul_(self.up), down)

    def logits(self, x: Tensor) -> Tensor:
        """Return logits (B, V) from x (B, C) after the last layer."""
        return F.linear(self._norm(x) * self.final_norm, self.net.lm_head)

    def _norm(self, x: Tensor) -> Tensor:
        """Return x / sqrt(|x|^2 + C eps), (B, C). A buffer, which the next call overwrites."""
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True).hypot_(self.floor)
        return torch.div(x, length, out=self.normed)


def paired(head_dim: int, device: torch.device) -> Tensor:
    """Return the coordinates (D,) of a head in the order 0, D/2, 1, D/2 + 1, ..."""
    return torch.arange(head_dim, device=device).view(2, -1).t().flatten()


def onednn_has_bf16() -> bool:
    """Return True if oneDNN multiplies in bfloat16 here: a CPU without AVX-512 does not, and its operations would raise."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Plain:
    """The parameters as they are, for decoding. `weights_of` and a sampler with a trace make it; `Decoder` reads it.

    record: set by a sampler with a trace; each step stores its activations there.
    """

    def __init__(self, net: Net) -> None:
        self.net, self.versions = net, net.versions
        self.cos, self.sin = net.angles(0)  # (positions, 1, D / 2); `begin` computes as many as it needs
        self.record: Activations | None = None
        self.repacked: list[tuple[Tensor, ...]] | None = None
        self.repacked_head: Tensor | None = None

    def keys(self, keys: Tensor) -> Tensor:
        """Return the keys as they are."""
        return keys

    def begin(self, completions: int, longest: int) -> None:
        """Make the buffer of qkv for B completions, and the rotations below `longest`; choose the weights of the products."""
        net = self.net
        if len(self.cos) < longest:
            self.cos, self.sin = net.angles(longest)
        # float32 for bfloat16 weights too: q is turned and scaled before its one rounding. The forward (`run`, `Grid.read`) rounds
        # q after the turn, and again after the scaling, which is exact if 1 / sqrt(D) is a power of 2 (D = 64). For other D
        # (128) the last bits of the two differ.
        self.qkv = torch.empty(completions, (net.query_heads + 2 * net.kv_heads) * net.head_dim, device=net.embedding.device)
        half_on_cpu = net.embedding.device.type == "cpu" and net.dtype == torch.bfloat16
        self.uses_repacked = completions <= REPACKED_COMPLETIONS and half_on_cpu and onednn_has_bf16()
        if self.uses_repacked and self.repacked is None:
            self._repack(completions)

    @torch.no_grad()
    def _repack(self, completions: int) -> None:
        """Copy each layer's (qkv, out, gate_up, down) and the head into the layout that oneDNN chooses for so many completions.

        Products for other numbers of completions use the same copies.
        """

        def laid_out(weight: Tensor) -> Tensor:
            reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), completions)
            return reordered

        of = [(stacked(layer.qkv), layer.out, stacked(layer.gate_up), layer.down) for layer in self.net.layers]
        self.repacked = [tuple(map(laid_out, weights)) for weights in of]
        self.repacked_head = laid_out(self.net.lm_head)

    def _product(self, x: Tensor, number: int, which: int, weight: Callable[[], Tensor], bias: Tensor | None = None) -> Tensor:
        """Return x @ W.T + bias: W is `weight()`, or its copy, number `which` (0 to 3) of a layer's in `repacked`."""
        if self.uses_repacked and self.repacked is not None:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.repacked[number][which], bias, "none", [], "")
            return product
        return F.linear(x, weight(), bias)

    def _sum(self, x: Tensor, inputs: Tensor, number: int, which: int, weight: Tensor) -> Tensor:
        """Return x + inputs @ weight.T; `which` as in `_product`."""
        if self.uses_repacked and self.repacked is not None:
            total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(inputs, x, self.repacked[number][which], None, "add")
            return total
        return torch.addmm(x, inputs, weight.t())

    def embed(self, tokens: Tensor, positions: Tensor, part: slice | None = None) -> Tensor:
        """Return x (B, C) of tokens (B,) at positions (B,), which `project` turns by. part: these nodes in the record."""
        self.here, self.part = (self.cos[positions], self.sin[positions]), part
        return F.embedding(tokens, self.net.embedding)

    def project(self, number: int, x: Tensor) -> Tensor:
        """Return qkv (B, (H + 2 K) * D) float32 of a layer for its input x (B, C): q and k turned, q not scaled. A buffer."""
        net, layer = self.net, self.net.layers[number]
        bias = None if layer.qkv_bias is None else stacked(layer.qkv_bias)
        qkv = self._product(unit(x, net.eps, layer.attention_norm), number, 0, lambda: stacked(layer.qkv), bias)
        self.qkv.copy_(qkv)
        heads = self.qkv.view(len(x), -1, net.head_dim)[:, : net.query_heads + net.kv_heads]
        kept = {}
        if layer.head_norms is not None:
            plain = qkv[:, : (net.query_heads + net.kv_heads) * net.head_dim]
            heads.copy_(normed_heads(net, layer, plain))
            kept = {"plain": plain}
        turn(heads, *self.here)
        if self.record is not None and self.part is not None:
            self.record.store(number, self.part, x=x, qkv=self.qkv, **kept)
        return self.qkv

    def finish(self, number: int, x: Tensor, attended: Tensor) -> Tensor:
        """Return x (B, C) after a layer from its input x and the output of its attention (B, H * D)."""
        layer = self.net.layers[number]
        middle = self._sum(x, attended, number, 1, layer.out)
        if layer.out_bias is not None:
            middle = middle + layer.out_bias
        gate_up = self._product(unit(middle, self.net.eps, layer.mlp_norm), number, 2, lambda: stacked(layer.gate_up))
        if self.record is not None and self.part is not None:
            self.record.store(number, self.part, attended=attended, middle=middle, gate_up=gate_up)
        return self._sum(middle, gated(gate_up), number, 3, layer.down)

    def logits(self, x: Tensor) -> Tensor:
        """Return logits (B, V) from x (B, C) after the last layer."""
        if self.record is not None and self.part is not None:
            self.record.end(self.part, x)
        normed = unit(x, self.net.eps, self.net.final_norm)
        if self.uses_repacked and self.repacked_head is not None:
            logits: Tensor = torch.ops.mkldnn._linear_pointwise(normed, self.repacked_head, None, "none", [], "")
            return logits
        return F.linear(normed, self.net.lm_head)


class Decoder:
    """Decodes P prompts x G completions after one run of the prompts. The sampler makes one per call.

    B is the number of completions that are left, prompt-major; it falls as some end (`select`). Buffers are (K, B, R, ...), by
    key-value head: the completions of a head are then in order of prompts, and attention over the prompts is one product of
    K P matrices (G R, D) x (D, S), which reads each prompt once. Attention over a completion's own tokens is one of K B matrices
    (R, D) x (D, room).

    The cache has `room` tokens of each completion, of which `filled` have been written. Each step reads the whole room, since
    memory is read from end to end faster than with gaps; scores of unfilled places are -inf.
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
        """Copy the prompts' keys and values; buffers are made by the first `advance`.

        Args:
            weights: of this decoder alone, as long as it is used. If they have a record, the completions fill its nodes after
                those of the prompts.
            prompt_keys_values: (N, 2 * K * D) of each layer, keys first, of the nodes of `layout`; keys are turned.
            layout: of the prompts (`Layout.of_prompts`).
            lengths: (P,) of the prompts.
            group_size: G.
            max_new_tokens: the maximum room.
        """
        self.weights, self.net, self.group_size, self.capacity = weights, weights.net, group_size, max_new_tokens
        self.prompt_count, self.longest = layout.prompt_nodes.shape
        self.recorded = None if weights.record is None else len(layout.ids)  # nodes of the record that are filled
        self.query_is_scaled = isinstance(weights, Folded)
        self.prompt_cache = [self._of_prompts(both, layout.prompt_nodes) for both in prompt_keys_values]
        outside = torch.arange(self.longest, device=lengths.device)[None, :] >= lengths[:, None]
        new = prompt_keys_values[0].new_zeros
        padding_mask = new(outside.shape).masked_fill(outside, float("-inf"))[:, None]  # (P, 1, S), added to scores
        self.padding_mask = padding_mask if bool(outside.any()) else None
        self.positions = lengths.repeat_interleave(group_size)  # (B,) of the next token
        # (B,) index of each completion among the first P * G. None while all are left, and for one prompt, whose completions
        # stay together whichever of them leave.
        self.slots: Tensor | None = None
        self.filled = self.room = 0
        completions, net = len(self.positions), self.net
        # cache[layer] (2, K, B, room, D), keys and values, is a view of memory[layer]; memory[-1] is free, to move a layer into.
        self.cache = [new(2, net.kv_heads, completions, 0, net.head_dim) for _ in net.layers]
        size = 2 * net.kv_heads * completions * max_new_tokens * net.head_dim
        self.memory = [prompt_keys_values[0].new_empty(size) for _ in range(len(net.layers) + 1)]

    def _of_prompts(self, both: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys (K P, D, S) and values (K P, S, D) of the prompts. both: (N, 2 * K * D), nodes: (P, S)."""
        net = self.net
        grid = both.index_select(0, nodes.flatten()).view(*nodes.shape, 2, net.kv_heads, net.head_dim)
        keys, values = grid.permute(2, 3, 0, 1, 4)  # (K, P, S, D) each
        return self.weights.keys(keys).flatten(0, 1).contiguous().mT, values.flatten(0, 1).contiguous()

    def advance(self, tokens: Tensor) -> Tensor:
        """tokens (B,) -> logits (B, V) of the next token, a new tensor. Call it under `torch.no_grad`: buffers are overwritten."""
        if self.filled == self.room:
            self._grow()
        part = None if self.recorded is None else slice(self.recorded, self.recorded + len(tokens))
        weights = self.weights
        x = weights.embed(tokens, self.positions, part)
        unfilled = self.scores[..., self.longest + self.filled + 1 :]
        for number in range(len(self.net.layers)):
            self._append(number, weights.project(number, x))
            x = weights.finish(number, x, self._attend(number, unfilled))
        self.positions, self.filled = self.positions + 1, self.filled + 1
        self.recorded = None if self.recorded is None else self.recorded + len(tokens)
        return weights.logits(x)

    def _append(self, number: int, qkv: Tensor) -> None:
        """Write keys and values of qkv (B, (H + 2 K) * D) to the cache of a layer, and the query, scaled, to its buffer."""
        net = self.net
        heads = qkv.view(len(qkv), -1, net.head_dim)
        cached = heads[:, net.query_heads :].unflatten(1, (2, net.kv_heads)).permute(1, 2, 0, 3)  # (2, K, B, D)
        self.cache[number].select(3, self.filled).copy_(cached)
        query = heads[:, : net.query_heads].unflatten(1, (net.kv_heads, -1)).transpose(0, 1)  # (K, B, R, D)
        if self.query_is_scaled:
            self.query.copy_(query)
        else:
            torch.mul(query, net.scale, out=self.query)

    def _attend(self, number: int, unfilled: Tensor) -> Tensor:
        """Return attention (B, H * D) of each completion's query over [its prompt, its own tokens], a buffer.

        unfilled: view of `scores` after the filled places. The buffers are described in `_lay_out` and `_lay_out_grid`.
        """
        (prompt_keys, prompt_values), (own_keys, own_values), slots = self.prompt_cache[number], self.own[number], self.slots
        if slots is not None:
            self.grid_query.index_copy_(1, slots, self.query)
        torch.bmm(self.query_by_prompt, prompt_keys, out=self.prompt_scores)
        if self.padding_mask is not None:
            self.prompt_scores_to_mask.add_(self.padding_mask)
        torch.bmm(self.query_by_completion, own_keys, out=self.own_scores)
        over_prompt = self.grid_scores if slots is None else self.grid_scores.index_select(1, slots)
        torch.cat((over_prompt, self.own_scores_by_head), -1, out=self.scores)
        unfilled.fill_(float("-inf"))
        torch.softmax(self.scores, -1, out=self.shares)
        if slots is not None:
            self.grid_shares.index_copy_(1, slots, self.prompt_shares_by_head)
        torch.bmm(self.prompt_shares, prompt_values, out=self.mixture)
        mixture = self.grid_mixture if slots is None else self.grid_mixture.index_select(1, slots)  # (K, B, R, D)
        mixture.view(self.query_by_completion.shape).baddbmm_(self.own_shares, own_values)
        self.attended_by_head.copy_(mixture)
        return self.attended

    def select(self, going: Tensor) -> None:
        """Keep only the completions `going` (ascending numbers among the B that are left)."""
        self.positions = self.positions[going]
        if self.prompt_count > 1:
            full = torch.arange(self.prompt_count * self.group_size, device=going.device)
            self.slots = (full if self.slots is None else self.slots)[going]
        for layer, new in self._moves():
            torch.index_select(self.cache[layer], 2, going, out=new)
            self.cache[layer] = new
        self._lay_out()

    def _grow(self) -> None:
        """Make room for more tokens, an eighth or more. New values are 0: uninitialized memory times a weight of 0 may be NaN."""
        wanted = max(LEAST_ROOM, self.filled + max(ROOM_STEP, self.filled // 8))
        self.room = min(self.capacity, -(-wanted // ROOM_STEP) * ROOM_STEP)
        for layer, new in self._moves():
            new[:, :, :, : self.filled] = self.cache[layer][:, :, :, : self.filled]
            new[1, :, :, self.filled :] = 0
            self.cache[layer] = new
        self._lay_out()

    def _moves(self) -> Iterator[tuple[int, Tensor]]:
        """Yield each layer and an empty (2, K, B, room, D) for its keys and values, which the caller fills before the next one.

        It is a view of the free memory; the memory that the layer leaves becomes the free one.
        """
        shape = (2, self.net.kv_heads, len(self.positions), self.room, self.net.head_dim)
        for layer in range(len(self.cache)):
            yield layer, self.memory[-1][: math.prod(shape)].view(shape)
            self.memory[layer], self.memory[-1] = self.memory[-1], self.memory[layer]

    def _lay_out(self) -> None:
        """Make the buffers for B completions and this room, and views of them, which all layers share. After `cache` is moved.

        own[layer]             (K B, D, room) and (K B, room, D), keys and values of the cache
        query                  (K, B, R, D); as query_by_completion (K B, R, D)
        own_scores             (K B, R, room), of a completion's own tokens; as own_scores_by_head (K, B, R, room)
        scores, shares         (K, B, R, S + room), scores and attention weights of prompt and own tokens
        prompt_shares_by_head  (K, B, R, S), own_shares (K B, R, room): views of `shares`
        attended               (B, H * D); as attended_by_head (K, B, R, D)
        """
        net, completions, longest, room = self.net, len(self.positions), self.longest, self.room
        heads, width, shared = net.kv_heads, net.head_dim, net.query_heads // net.kv_heads
        new = net.embedding.new_empty
        self.weights.begin(completions, longest + self.capacity)
        self.own = [(keys.flatten(0, 1).mT, values.flatten(0, 1)) for keys, values in self.cache]
        self.query = new(heads, completions, shared, width)
        self.query_by_completion = self.query.flatten(0, 1)
        self.own_scores_by_head = new(heads, completions, shared, room)
        self.own_scores = self.own_scores_by_head.flatten(0, 1)
        self.scores, self.shares = new(2, heads, completions, shared, longest + room)
        self.prompt_shares_by_head = self.shares[..., :longest]
        self.own_shares = self.shares[..., longest : longest + room].flatten(0, 1)
        self.attended = new(completions, net.query_heads * width)
        self.attended_by_head = self.attended.view(completions, heads, shared, width).transpose(0, 1)
        self._lay_out_grid()

    def _lay_out_grid(self) -> None:
        """Make the operands of attention over the prompts, each in two views: (K, B', R, W) and (K P, G' R, W), W = D or S.

        B' = P G' = B while `slots` is None: `query` and `shares` are then operands themselves. Once completions of several prompts
        have left, B' is the first P * G: those left are copied to their places (`slots`), and the other places stay 0.

        grid_query, as query_by_prompt            q, W = D
        grid_scores, as prompt_scores             scores, W = S; as prompt_scores_to_mask (K, P, G' R, S)
        grid_shares, as prompt_shares             attention weights, W = S
        grid_mixture, as mixture                  sums of values by these weights, W = D
        """
        query, shares = self.query, self.prompt_shares_by_head
        if self.slots is not None:
            places = (query.shape[0], self.prompt_count * self.group_size, query.shape[2])
            query, shares = (part.new_zeros(*places, part.shape[-1]) for part in (query, shares))
        self.grid_query, self.grid_shares = query, shares
        self.grid_scores, self.grid_mixture = shares.new_empty(shares.shape), query.new_empty(query.shape)
        by_prompt = (query.shape[0] * self.prompt_count, -1)
        self.query_by_prompt, self.mixture = (part.view(*by_prompt, part.shape[-1]) for part in (query, self.grid_mixture))
        self.prompt_scores, self.prompt_shares = (part.view(*by_prompt, self.longest) for part in (self.grid_scores, shares))
        self.prompt_scores_to_mask = self.prompt_scores.unflatten(0, (-1, self.prompt_count))
