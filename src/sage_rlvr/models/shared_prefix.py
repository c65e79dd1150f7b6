"""Attention over prompts whose keys and values are kept once for all of their completions.

Over a prompt it is a product of (group of queries) x (one prompt), so that a group of 64 reads the prompt's cache once per step,
not 64 times; each completion's own keys and values stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_utils import AttentionInterface

from sage_rlvr.errors import DataError

SHARED_PREFIX = "sage_shared_prefix"


@contextmanager
def attention(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """The model's attention, replaced by a registered one while the block runs."""
    before = model.config._attn_implementation
    model.config._attn_implementation = implementation
    try:
        yield
    finally:
        model.config._attn_implementation = before


def supports_shared_prefix(model: PreTrainedModel) -> bool:
    """Whether attention is replaceable and every layer attends to the whole past (no sliding window, no state space)."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return bool(getattr(model, "_supports_attention_backend", False)) and kinds == {"full_attention"} and not sliding


def refuse_unknown_terms(module: torch.nn.Module, terms: dict[str, Any]) -> None:
    """`DataError` where a layer hands its attention a term that would change the weights and is not computed here."""
    given = [name for name in ("softcap", "s_aux", "sinks") if terms.get(name) is not None]
    if given:
        raise DataError(
            f"{type(module).__name__} passes {' and '.join(given)} to its attention, which the shared-prefix layouts "
            "do not support; set `model._supports_attention_backend = False` to use the plain layouts with the "
            "model's own attention"
        )


class _SuffixLayer(CacheLayerMixin):
    """Keys and values of the completions of one layer, in buffers of (H, B, capacity, D) allocated at the first token.

    Heads first: a head's rows then lie prompt after prompt, so that a group is a view and not a copy (`SharedPrefix.mix`).
    """

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.filled = capacity, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, width = key_states.shape
        self.keys = key_states.new_empty(heads, batch, self.capacity, width)
        self.values = value_states.new_empty(heads, batch, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """key_states, value_states (B, H, 1, D) join; returns views (B, H, t, D)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        self.keys[:, :, self.filled] = key_states[:, :, 0].transpose(0, 1)
        self.values[:, :, self.filled] = value_states[:, :, 0].transpose(0, 1)
        self.filled += 1
        return self.keys[:, :, : self.filled].transpose(0, 1), self.values[:, :, : self.filled].transpose(0, 1)

    def keep(self, rows: Tensor) -> None:
        """Only these rows (ascending) stay; only the filled part has to move."""
        if self.keys is None or self.values is None:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old[:, : len(rows)]
            new[:, :, : self.filled] = old[:, rows, : self.filled]
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.filled + query_length, 0

    def get_seq_length(self) -> int:
        return self.filled

    def get_max_length(self) -> int:
        return self.capacity


class SharedPrefix:
    """The prompts' keys and values, once per prompt, and the completions' suffix cache beside them.

    layers: keys (P, H, S, D) and values (P, H, S, D') each, and lengths (P,) of the prompts, shorter ones padded on the right.
    slots: (B,) place of each living row among the P * group_size; None: all live.
    """

    def __init__(self, layers: list[Any], lengths: Tensor, group_size: int, capacity: int) -> None:
        self.suffix = Cache(layers=[_SuffixLayer(capacity) for _ in layers])
        self.layers = [(k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()) for k, v in layers]
        self.prompts, self.group_size = len(lengths), group_size
        self.slots: Tensor | None = None
        padding = torch.arange(int(lengths.max()), device=lengths.device)[None, :] >= lengths[:, None]
        zeros = torch.zeros(padding.shape, dtype=layers[0][0].dtype, device=padding.device)
        self.bias = zeros.masked_fill(padding, float("-inf"))[:, None, :] if bool(padding.any()) else None  # (P, 1, S)

    def keep(self, rows: Tensor) -> None:
        """Only these of the living rows (ascending) go on."""
        full = torch.arange(self.prompts * self.group_size, device=rows.device)
        self.slots = (full if self.slots is None else self.slots)[rows]
        for layer in self.suffix.layers:
            layer.keep(rows)

    def mix(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """One query a row over [its prompt, its own completion]. Inside, heads come first.

        query (B, Hq, D), already times D ** -0.5; keys, values (B, H, t, D) of the completion, H divides Hq.
        Returns (B, Hq * D').
        """
        prompt_keys, prompt_values = self.layers[layer]  # (H, P, S, D)
        q = query.unflatten(1, (keys.shape[1], -1)).transpose(0, 1).contiguous()  # (H, B, R, D), R queries share a key
        over_prompt = self.grid(q) @ prompt_keys.transpose(-1, -2)  # (H, P, G * R, S)
        if self.bias is not None:
            over_prompt += self.bias
        over_own = q @ keys.transpose(0, 1).transpose(-1, -2)  # (H, B, R, t)
        scores = torch.cat([self.rows(over_prompt, q.shape[2]), over_own], -1)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
        on_prompt, on_own = weights.split([prompt_keys.shape[2], over_own.shape[-1]], -1)
        out = self.rows(self.grid(on_prompt) @ prompt_values, q.shape[2]) + on_own @ values.transpose(0, 1)
        return out.transpose(0, 1).flatten(1)

    def grid(self, rows: Tensor) -> Tensor:
        """(H, B, R, W) -> (H, P, G * R, W): a view while all rows live; ended rows leave zeros behind."""
        heads, _, repeat, width = rows.shape
        shape = (heads, self.prompts, self.group_size * repeat, width)
        if self.slots is None:
            return rows.reshape(shape)
        full = rows.new_zeros(heads, shape[1] * self.group_size, repeat, width)
        return full.index_copy_(1, self.slots, rows).view(shape)

    def rows(self, grid: Tensor, repeat: int) -> Tensor:
        """(H, P, G * R, W) -> (H, B, R, W) of the living rows."""
        flat = grid.reshape(len(grid), -1, repeat, grid.shape[-1])
        return flat if self.slots is None else flat[:, self.slots]


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    shared_prefix: SharedPrefix | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`SharedPrefix.mix` as a transformers attention: query (B, Hq, 1, D); key, value (B, H, t, D)."""
    assert shared_prefix is not None, "this attention runs only inside sage_rlvr.models.sampler"
    refuse_unknown_terms(module, kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = shared_prefix.mix(module.layer_idx, query[:, :, 0] * scale, key, value)  # type: ignore[arg-type]
    return out.unflatten(1, (query.shape[1], -1))[:, None], None


AttentionInterface.register(SHARED_PREFIX, _attend)
