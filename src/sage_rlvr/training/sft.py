"""The warm start: supervised training of a small causal LM from scratch on (prompt, right expression) pairs.

Loss: mean over the completion tokens (end token included) of -log pi(token | prompt, earlier tokens); the prompt is read,
not learnt. Example i is a function of (data seed, i), so a resumed run sees what an uninterrupted one would have seen.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sage_rlvr.config import ModelConfig, SftConfig
from sage_rlvr.errors import ConfigError, TrainingDiverged
from sage_rlvr.models.policy import Tokens
from sage_rlvr.runs import Checkpoint, RunDir, StopFlag, writing
from sage_rlvr.tasks.countdown import build_tokenizer, render
from sage_rlvr.training.optimizer import Optimiser

CARD = "# What this policy was trained on"  # the heading of a model card that this package wrote
POLICY_FILES = (
    *("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json"),
    *("tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "vocab.txt", "merges.txt"),
)
"""What `save_pretrained` of a model and a tokenizer writes: a folder with nothing else in it may be replaced."""


def build_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A randomly initialised Llama or GPT-2 of the asked size (stock architectures, so that every engine loads them)."""
    torch.manual_seed(seed)
    tokens = {
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    if config.architecture == "gpt2":  # without dropout: the policy that is trained is the one that sampled
        sizes = {"n_embd": config.hidden, "n_inner": config.mlp, "n_layer": config.layers, "n_head": config.heads}
        off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(GPT2Config(n_positions=config.positions, **sizes, **off, **tokens))
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=config.hidden,
            intermediate_size=config.mlp,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=config.positions,
            **tokens,
        )
    )


def batch_tensors(pairs: list[tuple[Any, str]], tokens: Tokens) -> tuple[Tensor, Tensor]:
    """(ids (B, L), counted (B, L) bool): `counted[:, t]` says that token t is part of the completion."""
    prompts = [tokens.encode_prompt(render(problem)) for problem, _ in pairs]
    answers = [[*tokens.encode(answer), tokens.eos_id] for _, answer in pairs]
    width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids = torch.full((len(pairs), width), tokens.pad_id)
    counted = torch.zeros(len(pairs), width, dtype=torch.bool)
    for i, (p, a) in enumerate(zip(prompts, answers, strict=True)):
        ids[i, : len(p) + len(a)] = torch.tensor(p + a)
        counted[i, len(p) : len(p) + len(a)] = True
    return ids, counted


def train_sft(config: SftConfig, run: RunDir, out: Path | None, progress: Any) -> int:
    """Train to `config.steps`, resuming from the newest checkpoint of `run`; write the policy to `out`. Returns the step.

    Raises ConfigError, before anything is trained, where `out` holds what is no policy (see `check_replaceable`).
    """
    if out is not None:
        check_replaceable(out)
    torch.set_num_threads(config.engine.threads or torch.get_num_threads())
    tokenizer = build_tokenizer()
    tokens = Tokens.of(tokenizer)
    model = build_model(config.model, tokenizer, config.seed)
    optimiser = Optimiser(model, config.optimizer, config.steps)
    newest = resume(run, model, optimiser)
    step = newest.step if newest else 0
    world = config.world.build()
    progress.start(total=config.steps, done=step)
    stopping = False
    with StopFlag() as stop:
        while step < config.steps and not stopping:
            began = time.perf_counter()
            pairs = world.examples("train", config.world.data_seed, step * config.batch_size, config.batch_size)
            metrics = sft_step(model, optimiser, *batch_tensors(pairs, tokens), step)
            run.log({"step": step, **metrics, "time/step_s": time.perf_counter() - began})
            step += 1
            progress.advance(step, metrics)
            stopping = stop.requested  # read once: what stops the loop also saves
            if step % config.checkpoint.every == 0 or step == config.steps or stopping:
                checkpoint(run, model, optimiser, step)
    if step == config.steps and out is not None:
        save_policy(model, tokenizer, out)
    return step


def sft_step(model: PreTrainedModel, optimiser: Optimiser, ids: Tensor, counted: Tensor, step: int) -> dict[str, float]:
    """One update on ids (B, L) with the completion tokens marked by `counted` (B, L)."""
    model.train()
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits  # right padding: causal attention never looks at it
    wanted = counted[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits[wanted].float(), ids[:, 1:][wanted])
    if not torch.isfinite(loss):
        raise TrainingDiverged(f"SFT loss is {loss.item()} at step {step}; lower optimizer.lr and run again")
    loss.backward()
    return {"loss": loss.item(), **optimiser.step(step)}


def check_replaceable(out: Path) -> None:
    """ConfigError unless `out` is free, an empty folder, or a folder that holds a saved policy and nothing else.

    A saved policy is replaced as a whole, so whatever else lay in its folder would be lost.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise ConfigError(
            f"{out}: a policy needs a folder of its own, and this is a file or a link; name another place"
        )
    inside = sorted(out.iterdir()) if out.exists() else []
    foreign = [f.name for f in inside if not _of_a_policy(f)]
    if foreign:
        listed = ", ".join(foreign[:5]) + (f" and {len(foreign) - 5} more" if len(foreign) > 5 else "")
        raise ConfigError(
            f"{out}: saving the policy here would replace the whole folder, which holds {listed}; nothing was touched. "
            f"Name a new folder, for example {out / 'policy'}"
        )
    if inside and not any((out / name).exists() for name in ("config.json", "adapter_config.json")):
        raise ConfigError(
            f"{out}: holds {', '.join(f.name for f in inside[:5])} without a config.json, so it is no former policy and "
            f"is not replaced; name a new folder, for example {out / 'policy'}"
        )


def _of_a_policy(file: Path) -> bool:
    """True for a file that saving a policy writes; of a README.md only for a card of this package."""
    if file.name == "README.md" and file.is_file():
        return CARD in file.read_text(encoding="utf-8", errors="replace")
    return file.is_file() and any(fnmatch(file.name, known) for known in POLICY_FILES)


def save_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """config.json, model.safetensors and the tokenizer, loadable by AutoModelForCausalLM; appears whole or not at all.

    Raises CheckpointError (full disk, read-only folder), ConfigError where `out` holds anything but a former policy.
    """
    check_replaceable(out)
    place = Path(os.path.abspath(out))
    partial, former = place.with_name(f".{place.name}.partial"), place.with_name(f".{place.name}.former")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with writing("policy", out, sum(p.numel() * p.element_size() for p in model.parameters())):
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            check_replaceable(out)  # again: training and writing took their time
            if place.exists():  # a removal that is cut short must not leave half a policy behind
                shutil.rmtree(former, ignore_errors=True)
                place.rename(former)
            partial.rename(place)
            shutil.rmtree(former, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if former.exists() and not place.exists():
            former.rename(place)


def checkpoint(
    run: RunDir,
    model: PreTrainedModel,
    optimiser: Optimiser,
    step: int,
    more: Mapping[str, Mapping[str, Tensor]] | None = None,
    **state: Any,
) -> None:
    """Weights (tied ones once), optimiser moments, `more` groups of tensors and the step, atomically."""
    groups = {"model": model_tensors(model), "optimizer": optimiser.tensors(), **(more or {})}
    run.save_checkpoint(step, groups, {"step": step, **state})


def resume(run: RunDir, model: PreTrainedModel, optimiser: Optimiser) -> Checkpoint | None:
    """Load the newest complete checkpoint, drop the metrics written after it, return it (None where there is none)."""
    newest = run.latest()
    run.truncate_metrics(newest.step if newest else 0)
    if newest is not None:
        load_tensors(model, newest.load("model"))
        optimiser.load(newest.load("optimizer"))
    return newest


def model_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a tied tensor appears under its first name only."""
    seen: set[int] = set()
    found = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            found[name] = tensor.detach().contiguous()
    return found


def load_tensors(model: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """Copy by name into the model (tied weights follow)."""
    state = model.state_dict()
    with torch.no_grad():
        for name, tensor in tensors.items():
            state[name].copy_(tensor)
