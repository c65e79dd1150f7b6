"""What the tests of the sampler share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from sage_rlvr.core.keys import Key
from sage_rlvr.models.sampler import Rollout, sample

EOS, PAD = 1, 0
PROMPTS = [[2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 12, 13, 14, 15, 16, 17]]
COMMON = {"vocab_size": 21, "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": PAD, "initializer_range": 0.3}
WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama(**changes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**(COMMON | WIDTHS | {"num_key_value_heads": 4} | changes)))


def gqa() -> PreTrainedModel:
    return llama(num_key_value_heads=2)


def qwen2(**changes: object) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**(COMMON | WIDTHS | {"num_key_value_heads": 2} | changes)))


def gpt2(**changes: object) -> PreTrainedModel:
    widths = {"n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return GPT2LMHeadModel(GPT2Config(**(COMMON | widths | changes)))


def sliding() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**(COMMON | WIDTHS | {"num_key_value_heads": 2, "sliding_window": 4})))


def biased() -> PreTrainedModel:
    return llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=6)


def stretched() -> PreTrainedModel:
    return llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}, hidden_act="gelu")


MODELS = [llama, gqa, biased, stretched, qwen2, gpt2]


def build(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # these begin at 0 and 1, where leaving them out would not show
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def run(model: PreTrainedModel, prompts: list[list[int]] = PROMPTS, **changes: object) -> Rollout:
    settings: dict[str, object] = {"group_size": 6, "max_new_tokens": 10, "eos_id": EOS, "pad_id": PAD, "key": Key(3)}
    return sample(model, prompts, **(settings | changes))


def owners(prompts: list[list[int]], group_size: int) -> torch.Tensor:
    return torch.arange(len(prompts)).repeat_interleave(group_size)


def same(a: Rollout, b: Rollout, rows: slice = slice(None), tolerance: float = 0.0) -> None:
    """Rows of `a` are all rows of `b`, whatever the widths of the two."""
    width = min(a.tokens.shape[1], b.tokens.shape[1])
    assert not a.mask[rows, width:].any() and not b.mask[:, width:].any()
    assert torch.equal(a.tokens[rows, :width], b.tokens[:, :width])
    assert torch.equal(a.mask[rows, :width], b.mask[:, :width]) and torch.equal(a.finished[rows], b.finished)
    assert torch.allclose(a.logps[rows, :width], b.logps[:, :width], rtol=0, atol=tolerance)
    assert torch.allclose(a.entropies[rows, :width], b.entropies[:, :width], rtol=0, atol=tolerance)
