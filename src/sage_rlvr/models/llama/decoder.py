"""Decoding with a Llama-shaped model without its module machinery: what a small model on a CPU spends its time on.

At a million parameters half of a stock decoding step is not its products: it is Python around them, a dozen short
operations a layer, and memory read in stretches. Here the weights are packed once (q, k and v in one product, gate and up
in another, norms folded in), a rotation is one complex product in place, every operation writes into a buffer that stays,
and a completion's keys and values are read from end to end. It computes what the stock forward computes up to float
rounding; `sampler.py` uses it where `supports` says that the model is exactly this shape, and the stock forward elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

LEAST_ROOM, ROOM_STEP = 16, 8  # tokens of a completion; below 16 a row's product with its values takes a slow path

LARGEST = 100_000_000
"""Parameters above which this step only costs memory: it copies the projections, and Python no longer counts there."""

SHAPED = ("LlamaForCausalLM", "Qwen2ForCausalLM")


def supports(model: PreTrainedModel) -> bool:
    """Whether the model is one of the shapes this step spells out: SwiGLU, RMS norms before each block, default rotary.

    In float32 only: folding the norms into the projections rounds the weights anew, which half precision would show.
    Not on Apple's MPS, which knows few operations on complex numbers.
    """
    config = model.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    plain = type(model).__name__ in SHAPED and config.hidden_act == "silu" and rope == "default"
    adapted = any(type(m).__module__.startswith("peft") for m in model.modules())  # an adapter lives in the module call
    size = sum(p.numel() for p in model.parameters())
    fits = size < LARGEST and all(p.dtype == torch.float32 for p in model.parameters())
    known = plain and not getattr(config, "mlp_bias", False) and model.device.type != "mps"
    return known and fits and not adapted


class LlamaWeights:
    """Weights of a Llama-shaped model laid out for decoding; made anew whenever training may have moved them.

    Folded into the projection that follows: each norm's weight and sqrt(hidden), so that what is left of the norm is
    x / sqrt(|x|^2 + hidden * eps); into q, the attention's 1 / sqrt(D). Rotary turns coordinates i and i + D/2 of a query
    or a key together, as one complex number times exp(i position w_i): here the two lie side by side (`paired`).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        core: Any = model.model
        self.rotary, self.width = core.rotary_emb, core.layers[0].self_attn.head_dim
        self.heads, self.kv_heads = model.config.num_attention_heads, model.config.num_key_value_heads
        self.embedding, self.head = core.embed_tokens.weight, model.get_output_embeddings()
        self.padding: int | None = core.embed_tokens.padding_idx
        hidden = self.embedding.shape[1]
        self.floor = torch.tensor((hidden * model.config.rms_norm_eps) ** 0.5, device=self.embedding.device)
        self.order = paired(self.width, self.embedding.device)
        self.layers = [self._packed(layer, hidden**0.5) for layer in core.layers]
        self.final_norm = core.norm.weight * hidden**0.5

    def _packed(self, layer: Any, root: float) -> tuple[Any, ...]:
        """(qkv and its bias, output projection and its bias, gate and up, down), each (inputs, outputs)."""
        attention, mlp = layer.self_attn, layer.mlp

        def stacked(name: str) -> Tensor:
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            q, k, v = (getattr(p, name).unflatten(0, (-1, self.width)) for p in projections)
            return torch.cat([q[:, self.order] * self.width**-0.5, k[:, self.order], v]).flatten(0, 1)

        qkv = stacked("weight") * (layer.input_layernorm.weight * root)
        bias = stacked("bias") if attention.q_proj.bias is not None else None
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * (layer.post_attention_layernorm.weight * root)
        out = attention.o_proj
        return qkv.t(), bias, out.weight.t(), out.bias, gate_up.t(), mlp.down_proj.weight.t()

    def turns(self, longest: int) -> Tensor:
        """(longest, 1, D / 2) complex: what a query or a key at each position is multiplied by."""
        positions = torch.arange(longest, device=self.embedding.device)[None]
        cos, sin = (part[0, :, None, : self.width // 2] for part in self.rotary(self.embedding[:1, None], positions))
        return torch.complex(cos, sin)


def paired(width: int, device: torch.device) -> Tensor:
    """(D,) which coordinate of a head goes where: i, then i + D/2, for each i < D/2."""
    return torch.arange(width, device=device).view(2, -1).t().flatten()


class LlamaDecoder:
    """Decodes P prompts x G completions after one run of the prompts; rows are prompt-major, and ended ones leave.

    Inside, heads come first and R = heads / kv_heads queries share a key: a head's rows then lie prompt after prompt, so
    that attention over the prompts is one product of (H * P) matrices (G * R, D) x (D, S), each prompt read once.
    The whole room for completions is read each step, what is not filled yet with weight 0: a processor reads memory from
    end to end three times as fast as stretches of it with gaps in between.
    """

    def __init__(
        self,
        weights: LlamaWeights,
        prompt: list[tuple[Tensor, Tensor]],
        lengths: Tensor,
        group_size: int,
        max_new_tokens: int,
    ) -> None:
        """prompt: keys and values (P, H, S, D) a layer, right-padded; lengths (P,) of the prompts."""
        self.weights, self.group_size, self.capacity = weights, group_size, max_new_tokens
        self.prompts, self.longest = len(lengths), prompt[0][0].shape[2]
        self.turns = weights.turns(self.longest + max_new_tokens)
        self.prompt = [
            (keys.transpose(0, 1)[..., weights.order].flatten(0, 1).mT, values.transpose(0, 1).flatten(0, 1))
            for keys, values in prompt
        ]
        outside = torch.arange(self.longest, device=lengths.device)[None, :] >= lengths[:, None]
        zeros = torch.zeros(outside.shape, device=lengths.device)
        self.bias = zeros.masked_fill(outside, float("-inf"))[:, None] if bool(outside.any()) else None  # (P, 1, S)
        self.positions = lengths.repeat_interleave(group_size)  # (B,) of the next token
        self.slots: Tensor | None = None  # (B,) place of each living row among the P * G; None: the grid is whole
        self.filled = self.room = 0
        rows = len(self.positions)
        self.cache = [zeros.new_empty(2, weights.kv_heads, rows, 0, weights.width) for _ in weights.layers]
        size = 2 * weights.kv_heads * rows * max_new_tokens * weights.width
        self.memory = [zeros.new_empty(size) for _ in range(len(weights.layers) + 1)]  # one more, to move a layer into

    def advance(self, tokens: Tensor) -> Tensor:
        """tokens (B,) -> logits (B, V) of the next token. Only under `torch.no_grad`."""
        w, x = self.weights, F.embedding(tokens, self.weights.embedding)
        if self.filled == self.room:
            self._grow()
        turns, rotated = self.turns[self.positions], self.rotated
        unfilled = self.scores[..., self.longest + self.filled + 1 :]
        for layer, (qkv, qkv_bias, out, out_bias, gate_up, down) in enumerate(w.layers):
            torch.mm(self._norm(x), qkv, out=self.mixed)
            if qkv_bias is not None:
                self.mixed.add_(qkv_bias)
            rotated.mul_(turns)
            x.addmm_(self._attend(layer, unfilled), out)
            if out_bias is not None:
                x.add_(out_bias)
            torch.mm(self._norm(x), gate_up, out=self.gate_up)
            x.addmm_(F.silu(self.gate, inplace=True).mul_(self.up), down)
        self.positions, self.filled = self.positions + 1, self.filled + 1
        return w.head(self._norm(x) * w.final_norm)

    def _norm(self, x: Tensor) -> Tensor:
        """x / sqrt(|x|^2 + hidden * eps), in the one buffer for it."""
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True).hypot_(self.weights.floor)
        return torch.div(x, length, out=self.normed)

    def _attend(self, layer: int, unfilled: Tensor) -> Tensor:
        """One query a row over [its prompt, its own completion]; the new keys and values join. Returns (B, heads * D).

        Once rows have ended among several prompts, their places in the grid keep what they last held.
        """
        (prompt_keys, prompt_values), (own_keys, own_values), slots = self.prompt[layer], self.own[layer], self.slots
        self.cache[layer].select(3, self.filled).copy_(self.new_cache)
        self.query.copy_(self.new_query)
        if slots is not None:
            self.grid_query.index_copy_(1, slots, self.query)
        torch.bmm(self.query_of_prompt, prompt_keys, out=self.over_prompt)
        if self.bias is not None:
            self.over_prompt_biased.add_(self.bias)
        torch.bmm(self.query_of_row, own_keys, out=self.over_own)
        over_prompt = self.over_prompt_by_row if slots is None else self.over_prompt_by_row.index_select(1, slots)
        torch.cat((over_prompt, self.over_own_by_row), -1, out=self.scores)
        unfilled.fill_(float("-inf"))
        torch.softmax(self.scores, -1, out=self.shares)
        if slots is not None:
            self.grid_shares.index_copy_(1, slots, self.shares_of_prompt)
        torch.bmm(self.on_prompt, prompt_values, out=self.mixture)
        mixture = self.mixture_by_row if slots is None else self.mixture_by_row.index_select(1, slots)  # (H, B, R, D)
        mixture.view(self.query_of_row.shape).baddbmm_(self.on_own, own_values)
        self.attended_by_head.copy_(mixture)
        return self.attended

    def keep(self, rows: Tensor) -> None:
        """Only these rows (ascending) go on."""
        self.positions = self.positions[rows]
        if self.prompts > 1:
            full = torch.arange(self.prompts * self.group_size, device=rows.device)
            self.slots = (full if self.slots is None else self.slots)[rows]
        for layer, new in self._moves():
            torch.index_select(self.cache[layer], 2, rows, out=new)
            self.cache[layer] = new
        self._lay_out()

    def _grow(self) -> None:
        """Room for an eighth more tokens or more. Values there are 0: what lies in memory times a weight of 0 may be NaN."""
        wanted = max(LEAST_ROOM, self.filled + max(ROOM_STEP, self.filled // 8))
        self.room = min(self.capacity, -(-wanted // ROOM_STEP) * ROOM_STEP)
        for layer, new in self._moves():
            new[:, :, :, : self.filled] = self.cache[layer][:, :, :, : self.filled]
            new[1, :, :, self.filled :] = 0
            self.cache[layer] = new
        self._lay_out()

    def _moves(self) -> Iterator[tuple[int, Tensor]]:
        """Each layer, and where its keys and values (2, H, B, room, D) go; the memory it leaves is the next layer's."""
        shape = (2, self.weights.kv_heads, len(self.positions), self.room, self.weights.width)
        for layer in range(len(self.cache)):
            yield layer, self.memory[-1][: math.prod(shape)].view(shape)
            self.memory[layer], self.memory[-1] = self.memory[-1], self.memory[layer]

    def _lay_out(self) -> None:
        """Buffers for these rows and this room, and the views of them that every layer uses."""
        w, rows, longest, room = self.weights, len(self.positions), self.longest, self.room
        heads, width, shared = w.kv_heads, w.width, w.heads // w.kv_heads
        new = w.embedding.new_empty
        self.normed, self.mixed = new(rows, w.embedding.shape[1]), new(rows, (w.heads + 2 * heads) * width)
        mixed = self.mixed.view(rows, -1, width)
        self.rotated = torch.view_as_complex(mixed.unflatten(2, (-1, 2)))[:, : w.heads + heads]
        self.new_query = mixed[:, : w.heads].unflatten(1, (heads, shared)).transpose(0, 1)  # (H, B, R, D)
        self.new_cache = mixed[:, w.heads :].unflatten(1, (2, heads)).permute(1, 2, 0, 3)  # (2, H, B, D)
        self.query, self.query_of_row = _by_row(heads, rows, shared, width, new)
        self.over_own_by_row, self.over_own = _by_row(heads, rows, shared, room, new)
        self.scores, self.shares = new(2, heads, rows, shared, longest + room)
        self.shares_of_prompt, self.on_own = self.shares[..., :longest], self.shares[..., longest:].flatten(0, 1)
        self.attended = new(rows, w.heads * width)
        self.attended_by_head = self.attended.view(rows, heads, shared, width).transpose(0, 1)  # (H, B, R, D)
        self.gate_up = new(rows, w.layers[0][4].shape[1])
        self.gate, self.up = self.gate_up.chunk(2, 1)
        self.own = [(part[0].flatten(0, 1).mT, part[1].flatten(0, 1)) for part in self.cache]
        self._lay_out_grid(rows if self.slots is None else self.prompts * self.group_size)

    def _lay_out_grid(self, places: int) -> None:
        """What meets the prompts, (H, places, R, W) = (H * P, G * R, W): the rows themselves while none of them has left."""
        heads, shared, width = self.query.shape[0], self.query.shape[2], self.weights.width
        query, shares = self.query, self.shares_of_prompt
        if self.slots is not None:
            query, shares = (part.new_zeros(heads, places, shared, part.shape[-1]) for part in (query, shares))
        self.grid_query, self.grid_shares = query, shares
        grid = (heads * self.prompts, -1)
        self.query_of_prompt, self.on_prompt = query.view(*grid, width), shares.view(*grid, self.longest)
        self.over_prompt_by_row = shares.new_empty(shares.shape)
        self.over_prompt = self.over_prompt_by_row.view(*grid, self.longest)
        self.over_prompt_biased = self.over_prompt.unflatten(0, (heads, self.prompts))
        self.mixture_by_row = query.new_empty(query.shape)
        self.mixture = self.mixture_by_row.view(*grid, width)


def _by_row(heads: int, rows: int, shared: int, width: int, new: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """A buffer (H, B, R, W), and the same as (H * B, R, W)."""
    buffer = new(heads, rows, shared, width)
    return buffer, buffer.flatten(0, 1)
