"""One decoding step of a Llama-shaped model without its module machinery: what a small model on a CPU spends its time on.

At a million parameters a third of a stock decoding step is Python around the arithmetic (module calls, five operations a
norm, rotary tables anew each step). This step reads the model's own weights, projects q, k and v in one product and gate
and up in another, and looks positions up in a table. It computes what the stock forward computes up to float rounding;
`sampler.py` uses it where `supports` says that the model is exactly this shape, and the stock forward elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, query (B, Hq, D), key (B, H, D), value (B, H, D)) -> (B, Hq * D); remembers key and value."""

SHAPED = ("LlamaForCausalLM", "Qwen2ForCausalLM")


def supports(model: PreTrainedModel) -> bool:
    """Whether the model is one of the shapes this step spells out: SwiGLU, RMS norms before each block, default rotary."""
    config = model.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    plain = type(model).__name__ in SHAPED and config.hidden_act == "silu" and rope == "default"
    adapted = any(type(m).__module__.startswith("peft") for m in model.modules())  # an adapter lives in the module call
    return plain and not adapted and not getattr(config, "mlp_bias", False)


class LlamaStep:
    """Weights of a Llama-shaped model laid out for decoding; made anew for each rollout, since training moves them."""

    def __init__(self, model: PreTrainedModel, longest: int) -> None:
        """`longest`: one more than the largest position that will be asked for."""
        core: Any = model.model
        attention = core.layers[0].self_attn
        self.width = attention.head_dim
        self.eps = model.config.rms_norm_eps
        self.embedding, self.final_norm = core.embed_tokens.weight, core.norm.weight
        self.head = model.get_output_embeddings()
        self.layers = [_layer(layer) for layer in core.layers]
        self.heads = model.config.num_attention_heads
        self.kv_heads = model.config.num_key_value_heads
        positions = torch.arange(longest, device=self.embedding.device)[None]
        cos, sin = core.rotary_emb(self.embedding[:1, None], positions)
        half = self.width // 2
        self.cos = cos[0, :, None]  # (longest, 1, D)
        self.sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)[:, None]  # the sign of rotate_half folded in

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """tokens, positions (B,) -> logits (B, V)."""
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.cos[positions], self.sin[positions]
        rotated, half = self.heads + self.kv_heads, self.width // 2
        for number, (norm_a, qkv, qkv_bias, out, norm_b, gate_up, down) in enumerate(self.layers):
            mixed = F.linear(self._norm(x, norm_a), qkv, qkv_bias).unflatten(1, (-1, self.width))
            qk = mixed[:, :rotated]
            qk = qk * cos + qk.roll(half, -1) * sin
            attended = attend(number, qk[:, : self.heads], qk[:, self.heads :], mixed[:, rotated:])
            x = x + out(attended)
            gate, up = F.linear(self._norm(x, norm_b), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate).mul_(up), down)
        return self.head(self._norm(x, self.final_norm))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True).add_(self.eps))
        return weight * (wide * scale).to(x.dtype)


def _layer(layer: Any) -> tuple[Any, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = None if parts[0].bias is None else torch.cat([p.bias for p in parts])
    return (
        layer.input_layernorm.weight,
        torch.cat([p.weight for p in parts]),
        bias,
        attention.o_proj,
        layer.post_attention_layernorm.weight,
        torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        mlp.down_proj.weight,
    )
