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
"""(layer, query (B, Hq, D) times D ** -0.5, key (B, H, D), value (B, H, D)) -> (B, Hq * D); remembers key and value."""

LARGEST = 100_000_000
"""Parameters above which this step only costs memory: it copies the projections, and Python no longer counts there."""

SHAPED = ("LlamaForCausalLM", "Qwen2ForCausalLM")


def supports(model: PreTrainedModel) -> bool:
    """Whether the model is one of the shapes this step spells out: SwiGLU, RMS norms before each block, default rotary.

    In float32 only: folding the norms into the projections rounds the weights anew, which half precision would show.
    """
    config = model.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    plain = type(model).__name__ in SHAPED and config.hidden_act == "silu" and rope == "default"
    adapted = any(type(m).__module__.startswith("peft") for m in model.modules())  # an adapter lives in the module call
    size = sum(p.numel() for p in model.parameters())
    fits = size < LARGEST and all(p.dtype == torch.float32 for p in model.parameters())
    return plain and fits and not adapted and not getattr(config, "mlp_bias", False)


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
        self.layers = [_layer(layer, self.width) for layer in core.layers]
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
        for number, (qkv, qkv_bias, out, gate_up, down) in enumerate(self.layers):
            mixed = F.linear(self._normed(x), qkv, qkv_bias).unflatten(1, (-1, self.width))
            qk = mixed[:, :rotated]
            qk = qk * cos + qk.roll(half, -1) * sin
            attended = attend(number, qk[:, : self.heads], qk[:, self.heads :], mixed[:, rotated:])
            x = x + F.linear(attended, out.weight, out.bias)
            gate, up = F.linear(self._normed(x), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate).mul_(up), down)
        return self.head(self._normed(x) * self.final_norm)

    def _normed(self, x: Tensor) -> Tensor:
        """RMS norm without its weight, which `_layer` has folded into the projection that follows."""
        return F.rms_norm(x, x.shape[-1:], None, self.eps)


def _layer(layer: Any, width: int) -> tuple[Any, ...]:
    """(qkv, its bias, output projection, gate and up, down): norms folded in, and the attention's 1/sqrt(D) into q."""
    attention, mlp = layer.self_attn, layer.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    scales = (width**-0.5, 1.0, 1.0)
    qkv = torch.cat([p.weight * s for p, s in zip(parts, scales, strict=True)]) * layer.input_layernorm.weight
    biased = parts[0].bias is not None
    bias = torch.cat([p.bias * s for p, s in zip(parts, scales, strict=True)]) if biased else None
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * layer.post_attention_layernorm.weight
    return qkv, bias, attention.o_proj, gate_up, mlp.down_proj.weight
