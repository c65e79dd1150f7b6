"""A checkpoint of verl as the policy of a run: a Hugging Face folder that `sage-rlvr eval` reads.

    whole model   global_step_N/actor/huggingface -> config.json, model.safetensors, tokenizer
    adapters      base_model.model.X.lora_A.default.weight there -> adapter_model.safetensors, adapter_config.json

verl writes an adapter's tensors into the folder of the full model, under names that no model has, in float32 as they were trained.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from sage_rlvr.config import TrainConfig
from sage_rlvr.errors import CheckpointError
from sage_rlvr.models.hashes import README
from sage_rlvr.models.policy import load_policy, load_tokens
from sage_rlvr.models.weights import ADAPTER, ADAPTER_WEIGHTS
from sage_rlvr.runs import write_json_atomic
from sage_rlvr.runs.files import replacing_folder, writing
from sage_rlvr.training.model_card import facts_of, render
from sage_rlvr.training.state import check_replaceable, save_policy, seal_policy


def save(config: TrainConfig, checkpoint: Path, out: Path) -> None:
    """The policy of verl's checkpoint (global_step_N), in float32, with the tokenizer that it started with; adapters only where
    the recipe trains them. CheckpointError if verl left no weights."""
    trained = checkpoint / "actor" / "huggingface"
    if not any(trained.glob("*.safetensors")):
        raise CheckpointError(f"{trained}: verl saved no weights there; run the command again with a smaller checkpoint.every")
    tokenizer = load_tokens(config.model).tokenizer
    if config.engine.lora is None:
        save_policy(load_policy(str(trained))[0], tokenizer, out, render(facts_of(config)))
    else:
        _save_adapter(config, trained, tokenizer, out)


def _save_adapter(config: TrainConfig, trained: Path, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    lora = config.engine.lora
    assert lora is not None
    described = {
        **{"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": config.model, "bias": "none"},
        **{"r": lora.rank, "lora_alpha": lora.scale, "target_modules": lora.target_modules, "inference_mode": True},
    }
    saved = {name: value for file in sorted(trained.glob("*.safetensors")) for name, value in load_file(file).items()}
    tensors = {name.replace(".default.", "."): value for name, value in saved.items() if ".lora_" in name}
    if not tensors:
        raise CheckpointError(
            f"{trained}: contains no adapter; the installed verl saves adapters in a different place than 0.9"
        )
    check_replaceable(out)
    with writing("adapter", out, sum(value.nbytes for value in tensors.values())), replacing_folder(out.absolute()) as partial:
        save_file(tensors, partial / ADAPTER_WEIGHTS)
        write_json_atomic(partial / ADAPTER, described)
        tokenizer.save_pretrained(partial)
        (partial / README).write_text(render(facts_of(config)), encoding="utf-8")
        seal_policy(partial)


__all__ = ["save"]
