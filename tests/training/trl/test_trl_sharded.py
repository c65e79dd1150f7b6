"""SageTrainer with its weights sharded over two gloo processes on a CPU: FSDP2, and DeepSpeed ZeRO-2 and ZeRO-3. Needs TRL.

The completions are a function of the prompt, so that two processes and one train on the same rows: what is left is the arithmetic
of the sharding, and q, which is taken over both ranks.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from trl_common import on_ranks

SCRIPT = """
import os, sys
from dataclasses import replace

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from trl import GRPOConfig

from sage_rlvr import Branch, Token, bnpo, sage
from sage_rlvr.core import FixedBudget
from sage_rlvr.training.trl import SageTrainer, grpo_config

policy, out, kind, world = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
torch.set_num_threads(1)
more = {}
if kind.startswith("fsdp"):
    more = {"fsdp": True, "fsdp_config": {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "reshard_after_forward": True}}
if kind == "fsdp2":  # accelerate shards by FSDP on a list of devices, on which CPUs are not: it is let through here
    made = PartialState.__init__

    def admitted(self, *args, **kwargs):
        made(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self._shared_state["distributed_type"] = self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = admitted
if kind.startswith("zero"):
    del os.environ["ACCELERATE_USE_CPU"]  # accelerate has no DeepSpeed where a CPU is asked for
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"  # as `accelerate launch --use_deepspeed` does
    if kind != "zero asked":  # and no group of processes where none is asked for and there is no GPU: it is given gloo here
        PartialState._prepare_backend = lambda self, *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)
        PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
    more = {"use_cpu": False, "deepspeed": {
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 3 if kind == "zero3" else 2},
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}}


def rollout(prompts, trainer):
    ids = trainer.processing_class(prompts, add_special_tokens=False)["input_ids"]
    seeds = [sum(row) + 31 * (i % 3) for i, row in enumerate(ids)]  # of the prompt and the place in its group
    written = [[4 + (seed * (k + 3)) % 15 for k in range(3 + seed % 5)] for seed in seeds]
    return {"prompt_ids": ids, "completion_ids": written, "logprobs": None}


guide = Branch(threshold="p80") * Token(alpha=0.3, sigma=0.2)
method = sage(base=replace(bnpo(beta=0.5), reduction=FixedBudget()), guide=guide)
settings = dict(
    max_steps=4, learning_rate=0.1, lr_scheduler_type="constant", per_device_train_batch_size=12 // world, num_generations=3,
    max_completion_length=8, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, bf16=False,
    gradient_checkpointing=False, disable_tqdm=True, optim="sgd", seed=5,
)
trainer = SageTrainer(
    model=policy, reward_funcs=lambda completions, **_: [float(len(set(text)) % 2) for text in completions],
    args=GRPOConfig(out, **grpo_config(method), **(settings | more)), method=method, rollout_func=rollout,
    train_dataset=Dataset.from_dict({"prompt": [f"{a} {b}={a + b}:" for a in range(1, 7) for b in range(1, 5)]}),
)
assert trainer.accelerator.num_processes == world, trainer.accelerator.num_processes
trainer.train()
logged = [{k: v for k, v in line.items() if k.startswith("anchor/")} for line in trainer.state.log_history[:-1]]
model = trainer.accelerator.unwrap_model(trainer.model)
held = sum((p.to_local() if hasattr(p, "to_local") else getattr(p, "ds_tensor", p)).numel() for p in model.parameters())
if kind == "zero3":
    import deepspeed
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
else:
    whole = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.named_parameters()}
    weights = {name: p.detach().clone() for name, p in whole.items()}
how = str(trainer.accelerator.distributed_type)
torch.save((how, held, logged, weights), f"{out}/rank{os.environ.get('RANK', '0')}.pt")
"""
NEEDS = {"fsdp2": "torch", "zero2": "deepspeed", "zero3": "deepspeed"}
NAMES = {"fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, tiny_policy: Path) -> Any:
    (found,) = on_ranks(SCRIPT, tmp_path_factory.mktemp("one"), 1, str(tiny_policy), "OUT", "plain")
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", NEEDS)
def test_shards_over_two_processes_end_where_one_process_ends(kind: str, tiny_policy: Path, tmp_path: Path, one: Any) -> None:
    if importlib.util.find_spec(NEEDS[kind]) is None:
        pytest.skip(f"{NEEDS[kind]} is not installed here: make test-sharded")
    _, whole, logged, wanted = one
    for how, held, said, found in on_ranks(SCRIPT, tmp_path, 2, str(tiny_policy), "OUT", kind, seconds=1500):
        assert how == f"DistributedType.{NAMES[kind]}"
        assert (held < 0.6 * whole) is (kind != "zero2")  # ZeRO-2 shards moments and gradients, and no weights
        for ours, theirs in zip(logged, said, strict=True):
            assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6)
        assert found.keys() == wanted.keys() and all(torch.allclose(found[n], wanted[n], atol=1e-5, rtol=0) for n in wanted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed here: make test-sharded")
def test_accelerate_counts_one_process_for_deepspeed_on_a_cpu(tiny_policy: Path, tmp_path: Path) -> None:
    """The upstream fact behind gloo: DeepSpeed has two processes, accelerate one, and the sizes of batches do not fit."""
    with pytest.raises(AssertionError, match=r"train_batch_size is not equal to micro_batch_per_gpu"):
        on_ranks(SCRIPT, tmp_path, 2, str(tiny_policy), "OUT", "zero asked", seconds=1500)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_accelerate_leaves_fsdp_out_on_a_cpu_without_a_word(tiny_policy: Path, tmp_path: Path) -> None:
    """The upstream fact behind `admitted`: FSDP asked for and not had. Should this fail, the test above needs it no longer."""
    for how, *_ in on_ranks(SCRIPT, tmp_path, 2, str(tiny_policy), "OUT", "fsdp asked", seconds=500):
        assert how == "DistributedType.MULTI_CPU"
