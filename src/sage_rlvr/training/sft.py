"""Supervised training of a causal LM, from scratch or an existing one, on (prompt, correct completion) pairs of a task.

Loss: mean over the completion tokens (end token included) of -log pi(token | prompt, earlier tokens); the prompt is read, not
learned, and so is an environment's text in an episode. Example i is a function of (data seed, i), so a resumed run sees the
same examples as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
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
from sage_rlvr.models.devices import dtype_of, faster_dtype, placed
from sage_rlvr.models.policy import PromptRenderer, Tokens, load_policy
from sage_rlvr.models.scoring import score
from sage_rlvr.runs import RunDir
from sage_rlvr.tasks.base import Turn
from sage_rlvr.tasks.countdown import build_tokenizer
from sage_rlvr.training.opening import announce, decoded, of_optimizer, setting_of
from sage_rlvr.training.optimizer import Optimizer
from sage_rlvr.training.state import check_replaceable, checkpoint, resume, save_policy
from sage_rlvr.training.steps import run_steps
from sage_rlvr.training.texts import Text, laid_out, learned_tokens
from sage_rlvr.training.trackers import check_installed


def build_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """Return a randomly initialized Llama or GPT-2 of the requested size (stock architectures, so that every engine loads them)."""
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


def texts_of(examples: Sequence[tuple[Any, str | Sequence[Turn]]], asking: PromptRenderer) -> list[Text]:
    """Return worked examples as tokens: a completion with its end token, or an episode, of which only the policy's turns are
    learned.

    asking: writes the prompts, as in RL and evaluation.
    """
    tokens, texts = asking.tokens, []
    for problem, completion in examples:
        ids: list[int] = []
        own: list[bool] = []
        for turn in [Turn("policy", completion)] if isinstance(completion, str) else completion:
            policy = turn.who == "policy"
            more = [*tokens.encode(turn.text), tokens.eos_id] if policy else asking.reply(turn.text)
            ids += more
            own += [policy and turn.learned] * len(more)
        texts.append(Text(asking(problem).ids, tuple(ids), tuple(own)))
    return texts


def train_sft(config: SftConfig, run: RunDir, out: Path, progress: Any) -> int:
    """Train to `config.steps`, resuming from the newest checkpoint of `run`; write the policy to `out`. Return the step reached.

    Raises ConfigError, before anything is trained, if `out` contains anything but a policy (see `check_replaceable`).
    """
    check_replaceable(out)
    check_installed(config.report_to)
    torch.set_num_threads(config.engine.threads or torch.get_num_threads())
    task: Any = config.world.build() if config.task is None else config.task
    seed, size = config.world.data_seed if config.task is None else config.seed, config.batch_size
    model, tokens = load_policy(config.model, dtype_of(config.engine)) if isinstance(config.model, str) else _made(config, task)
    placed(model, config.engine.device)
    asking = PromptRenderer.of(task, tokens)
    optimizer = Optimizer(model, config.optimizer, config.steps)
    newest = resume(run, model, optimizer)
    begin = newest.step if newest else 0

    def batch(step: int, rows: int) -> list[Text]:
        return texts_of(task.examples("train", seed, step * size, rows), asking)

    def run_step(step: int) -> dict[str, float]:
        return sft_step(model, optimizer, batch(step, size), step)

    if begin < config.steps:
        (one,) = batch(0, 1)
        first = decoded(tokens.tokenizer, [*one.prompt, *one.tokens], "first example", learned_tokens(one))
        setting = setting_of(model, faster=faster_dtype(model, config.engine), **of_optimizer(config.optimizer))
        announce(progress.note, setting, prompt=first, begin=begin)
    on_train_end = partial(save_policy, model, tokens.tokenizer, out)
    return run_steps(config, run, progress, begin, run_step, partial(checkpoint, run, model, optimizer), on_train_end)


def _made(config: SftConfig, task: Any) -> tuple[PreTrainedModel, Tokens]:
    """Return a model from scratch over the characters of the task."""
    assert isinstance(config.model, ModelConfig)
    tokenizer = build_tokenizer() if config.task is None else build_tokenizer(task.characters)
    model = build_model(config.model, tokenizer, config.seed)
    for parameter in model.parameters():  # and no buffer: rotary frequencies stay float32, as in a model that is loaded
        parameter.data = parameter.data.to(getattr(torch, dtype_of(config.engine)))
    return model, Tokens.of(tokenizer)


def sft_step(model: PreTrainedModel, optimizer: Optimizer, texts: Sequence[Text], step: int) -> dict[str, float]:
    """Make one update: mean over the learned tokens of all texts of -log pi. Raise TrainingDiverged if that is not finite."""
    model.train()
    laid = laid_out(texts, model.device)
    loss = -score(model, *laid[:4]).logps[laid.own].mean()
    if not torch.isfinite(loss):
        raise TrainingDiverged(f"SFT loss is {loss.item()} at step {step}; lower optimizer.lr and run the command again")
    loss.backward()
    return {"loss": loss.item(), **optimizer.step(step)}
