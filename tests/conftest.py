"""Shared by all tests: one thread, and tiny policies with the Countdown tokenizer, built once a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is first imported: no test reaches for a network

import pytest
import torch
from hypothesis import settings
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sage_rlvr.plugins import VARIABLE
from sage_rlvr.tasks.countdown import build_tokenizer
from warm_policy import read as warm_weights

# "fixed" draws the same examples every time: what a stranger runs does not depend on luck. "fresh" draws others and keeps
# in .hypothesis what it finds: `make test-fresh` asks for it. A loaded machine is slow, so no test is judged by its time.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

WORLD = "{counts: {2: 1.0}, max_number: 12, max_target: 144, train_problems: 60}"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Test processes share the machine, and sums over threads may round differently."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def plugins_end_with_their_test() -> Iterator[None]:
    """The environment names the plugin files that a test loaded, and workers of later tests would look for them in vain."""
    before = os.environ.get(VARIABLE)
    yield
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before


@pytest.fixture(scope="module")
def shared_pool_closed() -> Iterator[None]:
    """For a file whose tests verify answers: its workers end with it."""
    yield
    from sage_rlvr.verifiers.pool import shared

    shared().close()


def tiny_llama(**changes: Any) -> PreTrainedModel:
    """A random Llama of hidden width 32 with 2 layers over the Countdown vocabulary, in eval mode."""
    tokenizer = build_tokenizer()
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,  # ten times the usual: distributions far from uniform
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random tiny Llama."""
    return save(tiny_llama(), tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def warm_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama after a short warm start on two-number problems (helpers/warm_policy.py)."""
    model = tiny_llama(initializer_range=0.02)
    model.load_state_dict(warm_weights(), strict=False)
    return save(model, tmp_path_factory.mktemp("models") / "warm")


@pytest.fixture
def write_recipe(tmp_path: Path, warm_policy: Path) -> Callable[..., Path]:
    """write_recipe(method="{name: grpo}", steps=2, more="...") -> the path of a small training recipe."""

    def write(
        method: str = "{name: grpo, beta: 0.05}",
        *,
        steps: int = 2,
        model: Path | str = warm_policy,
        name: str = "recipe.yaml",
        more: str = "",
    ) -> Path:
        path = tmp_path / name
        path.write_text(
            f"steps: {steps}\nmodel: {model}\nworld: {WORLD}\nmethod: {method}\n"
            "rollout: {prompts_per_step: 4, group_size: 4, max_new_tokens: 8}\n"
            f"optimizer: {{lr: 1e-3}}\n{more}",
            encoding="utf-8",
        )
        return path

    return write
