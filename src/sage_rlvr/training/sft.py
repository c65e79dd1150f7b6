"""The warm start: supervised training of a small causal LM from scratch on (prompt, right expression) pairs.

Loss: mean over the completion tokens (end token included) of -log pi(token | prompt, earlier tokens); the prompt is read,
not learned. Example i is a function of (data seed, i), so a resumed run sees what an uninterrupted one would have seen.
"""

from __future__ import annotations

import time
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
from sage_rlvr.errors import TrainingDiverged
from sage_rlvr.models.policy import Tokens
from sage_rlvr.runs import RunDir, StopFlag
from sage_rlvr.tasks.countdown import build_tokenizer, render
from sage_rlvr.training.optimizer import Optimizer
from sage_rlvr.training.state import check_replaceable, checkpoint, resume, save_policy


def build_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A randomly initialized Llama or GPT-2 of the asked size (stock architectures, so that every engine loads them)."""
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
    optimizer = Optimizer(model, config.optimizer, config.steps)
    newest = resume(run, model, optimizer)
    step = newest.step if newest else 0
    world = config.world.build()
    progress.start(total=config.steps, done=step)
    stopping = False
    with StopFlag() as stop:
        while step < config.steps and not stopping:
            began = time.perf_counter()
            pairs = world.examples("train", config.world.data_seed, step * config.batch_size, config.batch_size)
            metrics = sft_step(model, optimizer, *batch_tensors(pairs, tokens), step)
            run.log({"step": step, **metrics, "time/step_s": time.perf_counter() - began})
            step += 1
            progress.advance(step, metrics)
            stopping = stop.requested  # read once: what stops the loop also saves
            if step % config.checkpoint.every == 0 or step == config.steps or stopping:
                checkpoint(run, model, optimizer, step)
    if step == config.steps and out is not None:
        save_policy(model, tokenizer, out)
    return step


def sft_step(model: PreTrainedModel, optimizer: Optimizer, ids: Tensor, counted: Tensor, step: int) -> dict[str, float]:
    """One update on ids (B, L) with the completion tokens marked by `counted` (B, L)."""
    model.train()
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits  # right padding: causal attention never looks at it
    wanted = counted[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits[wanted].float(), ids[:, 1:][wanted])
    if not torch.isfinite(loss):
        raise TrainingDiverged(f"SFT loss is {loss.item()} at step {step}; lower optimizer.lr and run again")
    loss.backward()
    return {"loss": loss.item(), **optimizer.step(step)}
