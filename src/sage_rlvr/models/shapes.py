"""Sizes of a language model without its weights: parameters, LoRA parameters, bytes of its KV cache.

    N = E + L (q + k + v + o + 3 h m + 2 h) + h,   E = V h, twice where the output layer is not tied to the embedding,
    q = h (H d),  k = v = h (K d),  o = (H d) h,   plus H d + 2 K d biases a layer in Qwen2

h hidden, L layers, H heads, K key and value heads, d their width, m the MLP's width, V vocabulary: the Llama layout, which
Qwen2 and Mistral share. `KNOWN` has the models of the SAGE paper, as their config.json on the Hub says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
EMBEDDED_CONFIG = Path(__file__).resolve().parents[1] / "assets" / "countdown_base" / "config.json"


@dataclass(frozen=True)
class Shapes:
    """One model. tied: the output layer is the embedding. qkv_bias: q, k and v have biases. positions: longest context
    in tokens that its config.json allows."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocab: int
    tied: bool
    qkv_bias: bool = True
    positions: int | None = None
    head_width: int | None = None

    @property
    def width(self) -> int:
        """Of one head."""
        return self.hidden // self.heads if self.head_width is None else self.head_width

    def linear(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of the seven linear maps of a layer."""
        h, m, queries, keys = self.hidden, self.mlp, self.heads * self.width, self.kv_heads * self.width
        attention = {"q_proj": (h, queries), "k_proj": (h, keys), "v_proj": (h, keys), "o_proj": (queries, h)}
        return attention | {"gate_proj": (h, m), "up_proj": (h, m), "down_proj": (m, h)}

    @property
    def parameters(self) -> int:
        """N, all of them."""
        biases = (self.heads + 2 * self.kv_heads) * self.width if self.qkv_bias else 0
        layer = sum(a * b for a, b in self.linear().values()) + biases + 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * layer + self.hidden

    @property
    def multiplied(self) -> int:
        """Parameters that a token is multiplied with, 2 FLOPs each: all matrices but the embedding that is looked up."""
        return self.layers * sum(a * b for a, b in self.linear().values()) + self.vocab * self.hidden

    def lora(self, rank: int, modules: tuple[str, ...] | str = "all-linear") -> int:
        """Parameters of adapters of that rank on those maps of every layer: rank (inputs + outputs) each."""
        maps = self.linear()
        chosen = maps if modules == "all-linear" else [m for m in modules if m in maps]
        return self.layers * sum(rank * sum(maps[name]) for name in chosen)

    def cache_values(self) -> int:
        """Numbers that one token leaves in the KV cache."""
        return 2 * self.layers * self.kv_heads * self.width


_QWEN_7B = Shapes(hidden=3584, layers=28, heads=28, kv_heads=4, mlp=18944, vocab=152064, tied=False)
_QWEN_15B = Shapes(hidden=1536, layers=28, heads=12, kv_heads=2, mlp=8960, vocab=151936, tied=True)
_QWEN_3B = Shapes(hidden=2048, layers=36, heads=16, kv_heads=2, mlp=11008, vocab=151936, tied=True)

# Published sizes: 7.62, 1.54 and 3.09 billion.
KNOWN: dict[str, Shapes] = {
    "Qwen/Qwen2.5-Math-7B": replace(_QWEN_7B, positions=4096),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": replace(_QWEN_7B, positions=131072),
    "Qwen/Qwen2.5-Math-1.5B": replace(_QWEN_15B, positions=4096),
    "Qwen/Qwen2.5-Math-1.5B-Instruct": replace(_QWEN_15B, positions=4096),
    "Qwen/Qwen2.5-3B-Instruct": replace(_QWEN_3B, positions=32768),
}


def shapes_of(model: str) -> Shapes | None:
    """Of "embedded", a model folder, a folder with a LoRA adapter (its base model), or a Hub id in `KNOWN`; else None.

    Reads config.json alone, never the network. None too for an architecture whose sizes these formulas do not give.
    """
    folder = EMBEDDED_CONFIG.parent if model == "embedded" else Path(model)
    if (folder / "config.json").is_file():
        return from_config(_json(folder / "config.json"))
    if (folder / "adapter_config.json").is_file():
        base = _json(folder / "adapter_config.json").get("base_model_name_or_path")
        return shapes_of(base) if isinstance(base, str) and base != model else None
    return next((shapes for name, shapes in KNOWN.items() if name.lower() == model.lower()), None)


def from_config(config: Mapping[str, Any]) -> Shapes | None:
    """The sizes in a config.json of transformers; None where it is no Llama, Mistral or Qwen2, or lacks a size."""
    biased = config.get("attention_bias") or config.get("mlp_bias")  # of Llama: other biases than Qwen2's
    if config.get("model_type") not in ("llama", "mistral", "qwen2") or biased:
        return None
    try:
        return Shapes(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            mlp=config["intermediate_size"],
            vocab=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=config["model_type"] == "qwen2",
            positions=config.get("max_position_embeddings"),
            head_width=config.get("head_dim"),
        )
    except KeyError:
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
