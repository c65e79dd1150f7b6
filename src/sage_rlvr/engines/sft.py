"""The warm start: supervised training of a small causal LM from scratch on (prompt, right expression) pairs.

Loss: mean over the completion tokens (end token included) of -log pi(token | prompt, earlier tokens); the prompt is read,
not learnt. Example i is a function of (data seed, i), so a resumed run sees what an uninterrupted one would have seen.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from sage_rlvr.config import ModelConfig, SftConfig
from sage_rlvr.engines.base import Tokens
from sage_rlvr.engines.optim import Optimiser
from sage_rlvr.errors import TrainingDiverged
from sage_rlvr.runs import RunDir, StopFlag, writing
from sage_rlvr.tasks.countdown import build_tokenizer, render


def build_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A randomly initialised Llama of the asked size (stock architecture, so that every engine loads it)."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden,
            intermediate_size=config.mlp,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=config.positions,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def batch_tensors(pairs: list[tuple[Any, str]], tokens: Tokens) -> tuple[Tensor, Tensor]:
    """(ids (B, L), counted (B, L) bool): `counted[:, t]` says that token t is part of the completion."""
    prompts = [tokens.encode(render(problem)) for problem, _ in pairs]
    answers = [[*tokens.encode(answer), tokens.eos_id] for _, answer in pairs]
    width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids = torch.full((len(pairs), width), tokens.pad_id)
    counted = torch.zeros(len(pairs), width, dtype=torch.bool)
    for i, (p, a) in enumerate(zip(prompts, answers, strict=True)):
        ids[i, : len(p) + len(a)] = torch.tensor(p + a)
        counted[i, len(p) : len(p) + len(a)] = True
    return ids, counted


def train_sft(config: SftConfig, run: RunDir, out: Path | None, progress: Any) -> int:
    """Train to `config.steps`, resuming from the newest checkpoint of `run`; write the policy to `out`. Returns the step."""
    torch.set_num_threads(config.engine.threads or torch.get_num_threads())
    tokenizer = build_tokenizer()
    tokens = Tokens.of(tokenizer)
    model = build_model(config.model, tokenizer, config.seed)
    optimiser = Optimiser(model, config.optimizer, config.steps)
    step = resume(run, model, optimiser)
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


def save_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """config.json, model.safetensors and the tokenizer, loadable by AutoModelForCausalLM; appears whole or not at all.

    Raises CheckpointError (full disk, read-only folder).
    """
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with writing("policy", out, sum(p.numel() * p.element_size() for p in model.parameters())):
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            shutil.rmtree(out, ignore_errors=True)
            partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def checkpoint(run: RunDir, model: PreTrainedModel, optimiser: Optimiser, step: int, **state: Any) -> None:
    """Weights (tied ones once), optimiser moments and the step, atomically."""
    run.save_checkpoint(
        step, {"model": model_tensors(model), "optimizer": optimiser.tensors()}, {"step": step, **state}
    )


def resume(run: RunDir, model: PreTrainedModel, optimiser: Optimiser) -> int:
    """Load the newest complete checkpoint, drop the metrics written after it, return its step (0 without one)."""
    newest = run.latest()
    run.truncate_metrics(newest.step if newest else 0)
    if newest is None:
        return 0
    load_tensors(model, newest.load("model"))
    optimiser.load(newest.load("optimizer"))
    return int(newest.step)


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
