"""A LoRA adapter's folder as a policy: merged into its base, it says what the adapted model says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.llama.net import supports
from sage_rlvr.models.policy import load_policy

peft = pytest.importorskip("peft")


def test_an_adapter_is_merged_into_its_base(tiny_policy: Path, tmp_path: Path) -> None:
    base, _ = load_policy(str(tiny_policy))
    ids = torch.arange(12)[None] % 20
    before = base(ids).logits.detach()
    torch.manual_seed(0)
    settings = peft.LoraConfig(
        r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    adapted = peft.get_peft_model(base, settings).eval()
    wanted = adapted(ids).logits.detach()
    adapted.save_pretrained(tmp_path)
    policy, tokens = load_policy(str(tmp_path))
    assert torch.allclose(policy(ids).logits, wanted, atol=1e-5)
    assert not torch.allclose(wanted, before, atol=1e-2)
    assert supports(policy) and tokens.eos_id == 1  # a plain model again, so the fast decoding step applies
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(ConfigError, match="adapter"):
        load_policy(str(tmp_path))


KINDS = {
    "plain": {"target_modules": ["q_proj", "down_proj"]},
    "dora": {"target_modules": ["q_proj"], "use_dora": True},
    "rslora and bias": {"target_modules": ["q_proj"], "use_rslora": True, "bias": "lora_only"},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "saved modules": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_that_the_base_has_no_place_for_is_refused(kind: str, tiny_policy: Path, tmp_path: Path) -> None:
    base, _ = load_policy(str(tiny_policy))
    settings = peft.LoraConfig(r=2, task_type="CAUSAL_LM", **KINDS[kind])
    peft.get_peft_model(base, settings).save_pretrained(tmp_path)
    load_policy(str(tmp_path))
    weights = tmp_path / "adapter_model.safetensors"
    tensors = load_file(weights)
    name = next(name for name in tensors if "layers.0" in name)
    save_file(tensors | {name.replace("layers.0", "layers.77"): tensors[name].clone()}, weights, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"have no place for the tensor \S*layers\.77\.\S+ of adapter_model.safetensors"):
        load_policy(str(tmp_path))
