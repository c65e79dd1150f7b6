"""What the tests of the reference on TRL share. Needs TRL and peft."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from sage_rlvr.core.guides import Branch
from sage_rlvr.training.trl import SageTrainer
from trl_common import PROMPTS, reward

TARGETS = ["q_proj", "v_proj", "o_proj"]
GUIDE = Branch(ratio=0.3, threshold=1.2)


@torch.no_grad()
def shifted(model: Any, adapter_only: bool = False, by: float = 0.1) -> Any:
    """The model after a made-up SFT: every weight, or every one of its adapter, moved a little, the same each time."""
    generator = torch.Generator().manual_seed(3)
    for name, value in model.named_parameters():
        if not adapter_only or "lora_" in name:
            value += by * torch.randn(value.shape, generator=generator)
    return model


def loaded(path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path)


def lora(**changes: Any) -> Any:
    return peft.LoraConfig(**{"r": 4, "lora_alpha": 16, "target_modules": TARGETS} | changes)


def trained_adapter(path: Path, **changes: Any) -> Any:
    """A policy with an adapter that an SFT has moved."""
    return shifted(peft.get_peft_model(loaded(path), lora(**changes)), adapter_only=True)


def trainer_of(model: Any, tokens: Path, args: Any, **more: Any) -> Any:
    """A SageTrainer of a model, or of the name of one; with Branch unless `method` says otherwise."""
    shaped = {} if "method" in more or "guide" in more else {"guide": GUIDE}
    return made(SageTrainer, model, tokens, args, **shaped, **more)


def made(cls: type, model: Any, tokens: Path, args: Any, **more: Any) -> Any:
    model = str(model) if isinstance(model, Path) else model
    data, tokenizer = Dataset.from_dict({"prompt": PROMPTS}), AutoTokenizer.from_pretrained(tokens)
    return cls(model=model, reward_funcs=reward, args=args, train_dataset=data, processing_class=tokenizer, **more)


def kls(trainer: Any) -> list[float]:
    """Raw KL to the reference of every training step, nats."""
    return [line["kl/to_reference"] for line in trainer.state.log_history if "kl/to_reference" in line]
