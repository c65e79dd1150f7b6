"""A Llama-shaped model of transformers as plain tensors: which models have this shape, and where their weights are.

Llama, Qwen2, Qwen2.5 and Qwen3 (and SmolLM, a Llama) differ in three places: Qwen2 adds biases to q, k and v; Qwen3 normalizes each
head of q and k; some tie the head to the embedding. Everything else is one shape:

    x = embedding[ids]
    x = x + attention(rotary(norm(x) @ [q k v])) @ out       in every layer
    x = x + (silu(norm(x) @ gate) * (norm(x) @ up)) @ down
    logits = norm(x) @ head
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sage_rlvr.models.lm_head import FloatHead

SHAPED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Types of rotary frequencies that do not depend on the length of a text."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes in which a torch module keeps its hooks."""


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Return why the engine does not support the model as it is now, a clause to follow "the stock path: "; None if it does."""
    config, name = model.config, type(model).__name__
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if name not in SHAPED:
        return f"{name} is not one of {', '.join(SHAPED)}"
    if kinds != {"full_attention"} or (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)):
        return "its layers attend to a window, not to the whole text"
    if config.hidden_act != "silu" or getattr(config, "mlp_bias", False):
        return f"its MLP has hidden_act = {config.hidden_act!r} and mlp_bias = {getattr(config, 'mlp_bias', False)}"
    if rope not in STATIC_ROPE:
        return f"its rotary frequencies are of type {rope!r}"
    parts, dtypes = list(model.modules()), {p.dtype for p in model.parameters()}
    if any(type(part).__module__.startswith("peft") for part in parts):
        return "it has adapters that are not merged"
    # Only the stock path calls a FloatHead: the engine multiplies by its weight in the weight's own dtype (see `FloatHead`).
    if any(isinstance(part, nn.Linear) and type(part) not in (nn.Linear, FloatHead) for part in parts):
        return "some of its projections are not plain torch.nn.Linear"
    if model.get_output_embeddings().bias is not None:
        return "its head has a bias"
    if any(getattr(part, kind) for part in parts for kind in HOOKS):
        return "it or one of its layers has hooks, which the engine would not call"
    if len(dtypes) > 1:
        return f"its parameters have several dtypes: {', '.join(sorted(map(str, dtypes)))}"
    if model.device.type == "mps" or not dtypes <= {torch.float32, torch.bfloat16}:
        return f"it computes in {model.dtype} on {model.device.type}"
    device = model.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):  # it would cast some products, not all
        return "torch.autocast is on"
    return None


def supports(model: PreTrainedModel) -> bool:
    """Return True if the engine supports the model as it is now; else it takes the stock path, transformers' own forward."""
    return unsupported_reason(model) is None


Versions = tuple[tuple[int, int], ...]
"""What `versions_of` returns: equal before and after if no weight has changed."""


@dataclass(frozen=True, eq=False)
class Layer:
    """Weights of a decoder layer of transformers, by reference; matrices are (outputs, inputs). `Net` makes it.

    The projections of a tuple have the same input, so that `stacked` makes them one product.
    """

    attention_norm: Tensor
    qkv: tuple[Tensor, Tensor, Tensor]
    qkv_bias: tuple[Tensor, Tensor, Tensor] | None
    head_norms: tuple[Tensor, Tensor] | None
    """Of the heads of q and of k (Qwen3), (D,) each."""
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: tuple[Tensor, Tensor]
    down: Tensor

    @classmethod
    def of(cls, block: Any) -> Layer:
        """block: a decoder layer of transformers."""
        attention, mlp = block.self_attn, block.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        norms = (attention.q_norm.weight, attention.k_norm.weight) if hasattr(attention, "q_norm") else None
        return cls(
            block.input_layernorm.weight,
            tuple(p.weight for p in projections),
            None if projections[0].bias is None else tuple(p.bias for p in projections),
            norms,
            attention.o_proj.weight,
            attention.o_proj.bias,
            block.post_attention_layernorm.weight,
            (mlp.gate_proj.weight, mlp.up_proj.weight),
            mlp.down_proj.weight,
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All weights, in the order in which backward returns their gradients (`forward._layer_backward`)."""
        several = (*self.qkv, *(self.qkv_bias or ()), *(self.head_norms or ()))
        one = () if self.out_bias is None else (self.out_bias,)
        return (self.attention_norm, *several, self.out, *one, self.mlp_norm, *self.gate_up, self.down)


class Net:
    """The weights of a model that the engine `supports`, by reference: an optimizer step changes them here too.

    `lm_head` (V, C) is the same tensor as `embedding` if the two are tied. `padding`: the id whose embedding gets no gradient.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        core: Any = model.model
        config = model.config
        self.layers = [Layer.of(block) for block in core.layers]
        self.embedding: Tensor = core.embed_tokens.weight
        self.padding: int | None = core.embed_tokens.padding_idx
        self.final_norm: Tensor = core.norm.weight
        self.lm_head: Tensor = model.get_output_embeddings().weight
        self.query_heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim: int = core.layers[0].self_attn.head_dim
        self.eps: float = config.rms_norm_eps
        self.scale = self.head_dim**-0.5
        self._rotary = core.rotary_emb

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights, and of the results of their products."""
        return self.embedding.dtype

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight but the head's, in the order in which backward returns their gradients (`forward._States`)."""
        return (self.embedding, self.final_norm, *(tensor for layer in self.layers for tensor in layer.tensors))

    @property
    def versions(self) -> Versions:
        """`versions_of` every weight, the head's too."""
        return versions_of((*self.tensors, self.lm_head))

    def angles(self, longest: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the rotation at positions 0 to longest - 1, (longest, 1, D / 2) each, float32; 1 is for heads."""
        positions = torch.arange(longest, device=self.embedding.device)[None]
        like = torch.empty(1, 1, 1, device=self.embedding.device)  # transformers rounds cos and sin to the dtype of this: float32
        cos, sin = self._rotary(like, positions)
        half = self.head_dim // 2
        return cos[0, :, None, :half], sin[0, :, None, :half]


def versions_of(weights: Iterable[Tensor]) -> Versions:
    """Return for each weight the counter that a change in place raises, and its address, which `weight.data = other` changes.

    A write in place through `.data` (`weight.data.add_(1)`) changes neither and goes unnoticed: write under `torch.no_grad`.
    """
    return tuple((weight._version, weight.data_ptr() if _has_address(weight) else 0) for weight in weights)


def _has_address(weight: Tensor) -> bool:
    """Return True if `data_ptr` is an address in memory: not of fake or other subclassed tensors, nor on other devices."""
    return weight.device.type in ("cpu", "cuda") and type(weight.data) is Tensor


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Return matrices (outputs, inputs) or biases (outputs,) of one input as one tensor, detached.

    It is a view if they lie one after the other in memory (`adjacent`), else a copy.
    """
    first = parts[0]
    if not _has_address(first):
        return torch.cat([p.detach() for p in parts])
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in parts:
        if part.data_ptr() != end or not part.is_contiguous() or part.untyped_storage().data_ptr() != storage:
            return torch.cat([p.detach() for p in parts])
        end += part.nbytes
    outputs = sum(len(part) for part in parts)
    return first.detach().as_strided((outputs, *first.shape[1:]), first.stride())


@torch.no_grad()
def adjacent(model: PreTrainedModel) -> PreTrainedModel:
    """Move the matrices of q, k, v, and of gate and up, next to each other in memory, so that `stacked` copies none of them.

    Return the same model. For a model of our own only: other code may still refer to the old memory of its parameters. A copy of
    the model, or one moved to another device, has to be laid out again. Biases stay where they are.
    """
    if supports(model):
        for layer in Net(model).layers:
            for parts in (layer.qkv, layer.gate_up):
                if stacked(parts)._is_view():
                    continue
                whole = torch.cat([p.detach() for p in parts])
                for part, new in zip(parts, whole.split([len(p) for p in parts]), strict=True):
                    part.data = new
    return model
