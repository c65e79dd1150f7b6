"""Supervised fine-tuning before RL with TRL's SFTTrainer: teaches a model the answer format.

    loss = -1/N sum over rows, t of log pi(y_t | prompt, y_<t)     N: tokens of the assistant's turns in the update, end included

The stage of SAGE, arXiv 2605.18864, E.2 and Table 7, on the prompts of RL (`sage_rlvr.tasks.prompts`). The released code takes the
loss over the whole text; here the prompt is read and not learned, because RL never moves its probability and the question
of a problem is nothing to imitate. engine.args {completion_only_loss: false} has the code's loss. Killed at any instant, the
same command continues from the last complete checkpoint (TRL's own, with a manifest).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import peft
import torch
import trl
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState, set_seed
from trl import SFTConfig, SFTTrainer

from sage_rlvr.config import FinetuneConfig
from sage_rlvr.config.tasks import format_of
from sage_rlvr.errors import CheckpointError, DataError
from sage_rlvr.models.policy import load_policy, weights_hash
from sage_rlvr.plugins import packages_of
from sage_rlvr.runs import RunDir, write_json_atomic
from sage_rlvr.safe_io import read_json
from sage_rlvr.tasks.chat import dry_render, fit_tokenizer, render
from sage_rlvr.tasks.prompts import PromptFormat
from sage_rlvr.tasks.rows import DataSource, Say, facts, tell
from sage_rlvr.training.opening import announce, decoded
from sage_rlvr.training.state import save_policy
from sage_rlvr.training.trl.arguments import DEFAULTS as RL_DEFAULTS
from sage_rlvr.training.trl.arguments import (
    OWNED_BY_BOTH,
    micro_batch,
    not_owned,
    rows_of_rank,
    shared_arguments,
    world_size,
)
from sage_rlvr.training.trl.callbacks import (
    CHECKPOINTS,
    before_a_run,
    carry_on,
    diverged,
    newest_checkpoint,
    save_trained,
)
from sage_rlvr.training.trl.opening import RECIPE, setting_on_trl
from sage_rlvr.training.trl.run import configured, load, peft_config

ADAPTER = "adapter"  # LoRA: the folder of the adapter, in addition to the merged policy
FINISHED = "finished.json"  # written last; has the place of the policy
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

# Field of SFTConfig -> the key of the recipe that sets it.
OWNED = OWNED_BY_BOTH | {
    "num_train_epochs": "epochs",
    "max_steps": "epochs",
    "max_length": "max_length",
    "truncation_mode": "max_length (longer rows are dropped)",
    "gradient_accumulation_steps": "batch_size (and, for memory only, engine.args.per_device_train_batch_size)",
    "trust_remote_code": "nothing: code that ships with a model is never run; convert the model to a standard architecture",
    "chat_template_path": "data.prompt",
    "dataset_text_field": "data.prompt",
    "dataset_kwargs": "data.prompt",
    "eos_token": "nothing: the end token comes from the chat template",
    "pad_token": "nothing: it is set if the tokenizer has none",
    "logging_nan_inf_filter": "nothing: a non-finite loss stops the run",
}

# What a recipe may say otherwise in engine.args.
DEFAULTS: dict[str, Any] = RL_DEFAULTS | {"optim": "adamw_8bit", "completion_only_loss": True}  # the first from Table 7


@dataclass(frozen=True)
class Finetuned:
    """Progress of fine-tuning. policy, adapter: the folders that were written, None before the last step (and without LoRA)."""

    step: int
    total: int
    policy: Path | None = None
    adapter: Path | None = None


@dataclass(frozen=True)
class Selected:
    """Result of a filter. rows: columns prompt and completion (messages). dropped: reason -> number of rows."""

    rows: Dataset
    total: int
    dropped: dict[str, int]

    def __str__(self) -> str:
        left = "; ".join(f"{count:,} {why}" for why, count in self.dropped.items()) or "none"
        return f"training rows: {len(self.rows):,} of {self.total:,}; dropped: {left}"


def finetune(
    config: FinetuneConfig,
    run: RunDir | None,
    folder: Path,
    out: Path | None = None,
    *,
    progress: Any,
    say: Say = tell,
) -> Finetuned:
    """Fine-tune to the last epoch from the newest complete checkpoint in `folder`; write the policy to `out`.

    run: the run directory's record, on the one rank that writes; None on the others. out: default `folder`/policy; with
    LoRA it gets the adapter merged into float32 weights, and `folder`/adapter the adapter itself. Both have the tokenizer
    with the chat template that was learned. ConfigError and DataError before anything is trained, TrainingDiverged
    before a step on a loss or gradient that is not finite.
    """
    out, checkpoints, record = out or folder / "policy", folder / CHECKPOINTS, folder / FINISHED
    adapter = None if config.engine.lora is None else folder / ADAPTER
    before_a_run(config, run, out)
    newest = newest_checkpoint(checkpoints)
    if newest is not None and record.is_file() and (out / "config.json").is_file():
        state = TrainerState.load_from_json(str(newest / "trainer_state.json"))
        if state.global_step == state.max_steps and read_json(record, error=CheckpointError).get("policy") == str(out.absolute()):
            progress.start(total=state.max_steps, done=state.max_steps)
            return Finetuned(state.max_steps, state.max_steps, out, adapter)
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()  # they draw over the one progress line of the run
    try:
        trainer = build(config, checkpoints, say)
    finally:
        if shown:
            datasets.enable_progress_bars()
    if run is not None:
        setting = setting_on_trl(trainer.model, trainer.args, trainer.accelerator, RECIPE)
        announce(progress.note, setting, prompt=first_row(trainer), begin=0 if newest is None else 1)
    reached = carry_on(trainer, config, run, newest, progress)
    total = trainer.state.max_steps
    if reached < total:
        return Finetuned(reached, total)
    save_trained(trainer, adapter or out)
    if run is not None:
        if adapter is not None:
            merge(adapter, trainer.processing_class, out)
            say(
                f"adapter in {adapter}; policy with the adapter merged, in float32, in {out}. RL can continue from "
                f"either: with model: {out} (new weights or adapters on the merged ones), or with model: {adapter} "
                "(training of this adapter continues). With source: sft the KL term pulls toward the result of this "
                f"stage; with source: base and base_model: {config.model} to the model before it"
            )
        write_json_atomic(record, {"policy": str(out.absolute())})
    return Finetuned(reached, total, out, adapter)


def run_facts(config: FinetuneConfig) -> dict[str, Any]:
    """Return facts that a repeated command must find unchanged besides its recipe: weights, rows, and the libraries that train."""
    return {
        "model_sha256": weights_hash(config.model),
        "data": facts(DataSource.of(config.data)),
        "trl": trl.__version__,
        "peft": peft.__version__,
        **({"packages": packages} if (packages := packages_of(config)) else {}),
    }


# ---- before training


def build(config: FinetuneConfig, folder: Path, say: Say = tell) -> SFTTrainer:
    """The trainer of a recipe: rows, tokenizer, model and arguments. Prints what the model will read; trains nothing."""
    arguments = sft_arguments(config, str(folder), world_size())
    form = format_of(config.data)
    rows = load(config.data, solutions=True, say=say)
    set_seed(config.seed)
    model, tokens = load_policy(_absolute(config.model), config.engine.dtype)
    options = config.chat_template_kwargs
    for line in fit_tokenizer(tokens.tokenizer, form, ends=tokens.eos_ids, options=options):
        say(line)
    agree(model, tokens.tokenizer)
    selected = select(rows, tokens.tokenizer, form, config, say)
    say(str(selected))
    dry_render(tokens.tokenizer, selected.rows, form, config.max_length // 2, strict=True, options=options, say=say)
    set_seed(config.seed)  # the adapter's initial weights come from the global generator
    return _Trainer(
        model=model,
        args=configured(SFTConfig, arguments, config.engine.args),
        train_dataset=selected.rows,
        processing_class=tokens.tokenizer,
        peft_config=None if config.engine.lora is None else peft_config(config.engine.lora),
    )


def first_row(trainer: SFTTrainer) -> str:
    """The first row as it is learned; "" where TRL keeps its tokens elsewhere."""
    row = trainer.train_dataset[0]
    if (ids := row.get("input_ids")) is None:
        return ""
    labels, mask = row.get("labels"), row.get("completion_mask")  # by the release of TRL
    learned = sum(label != -100 for label in labels) if labels else None if mask is None else sum(mask)
    return decoded(trainer.processing_class, ids, "first row", learned)


def _absolute(model: str) -> str:
    """A local folder by its full path, which an adapter's record keeps; anything else as it is."""
    return str(Path(model).expanduser().resolve()) if Path(model).expanduser().is_dir() else model


def sft_arguments(config: FinetuneConfig, folder: str, ranks: int = 1) -> dict[str, Any]:
    """The fields of SFTConfig of a recipe for `ranks` processes, engine.args passed on.

        batch_size = micro-batch x accumulation x ranks

    per_device_train_batch_size in engine.args is the micro-batch, for memory only (default: all rows of a rank). ConfigError
    for a key that the recipe owns, naming its place, and for a batch that does not split evenly.
    """
    given, here = not_owned(config.engine.args, OWNED), rows_of_rank(config.batch_size, ranks)
    of = f"rows that a rank has in one step (batch_size = {config.batch_size} over {ranks} ranks)"
    return (
        DEFAULTS
        | shared_arguments(config, folder)
        | micro_batch(given, here, here, of)
        | {"num_train_epochs": config.epochs, "max_length": config.max_length, "logging_nan_inf_filter": False}
        | given
    )


def select(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    form: PromptFormat,
    config: FinetuneConfig,
    say: Say = tell,
) -> Selected:
    """The rows to learn from as prompt and completion, by the filter of the paper's E.2, and how many rows each rule removed.

    A row is kept if its answer is a number (with numeric_answers), its prompt has at most max_length / 2 tokens, and prompt and
    demonstration fit into max_length. DataError if none is left.
    """
    # E.2 limits the prompt to half of the length. The released code limits prompt and solution together to that half, which
    # leaves out most long solutions; the paper's words are followed. They would let a demonstration be cut off at
    # max_length, before its answer and its end, and so teach not to answer: such rows are left out too.
    kept: dict[str, list[Any]] = {"prompt": [], "completion": []}
    dropped: Counter[str] = Counter()
    last = time.monotonic()
    for done, row in enumerate(rows):
        if time.monotonic() - last > 5:
            last = time.monotonic()
            say(f"{config.data.path}: {done:,} of {len(rows):,} rows measured")
        turn = {"role": "assistant", "content": form.assistant(row["solution"], row["answer"])}
        if why := _unfit(row, turn, tokenizer, config):
            dropped[why] += 1
        else:
            kept["prompt"].append(row["prompt"])
            kept["completion"].append([turn])
    if config.chat_template_kwargs:
        kept["chat_template_kwargs"] = [config.chat_template_kwargs] * len(kept["prompt"])  # where SFTTrainer reads them
    if not kept["prompt"]:
        raise DataError(
            f"{config.data.path}: no training row is left: {dict(dropped)}; relax these filters, or use other rows"
        )
    return Selected(Dataset.from_dict(kept), len(rows), dict(dropped))


def _unfit(
    row: Mapping[str, Any], turn: dict[str, str], tokenizer: PreTrainedTokenizerBase, config: FinetuneConfig
) -> str:
    """Return the reason that a row is left out; "" for one that stays."""
    if config.numeric_answers and not _NUMBER.fullmatch(row["answer"]):
        return "whose answer is not a number (numeric_answers)"
    options = config.chat_template_kwargs
    if _tokens(tokenizer, render(tokenizer, row["prompt"], opened=True, options=options)) > config.max_length // 2:
        return f"with a prompt of more than {config.max_length // 2} tokens (max_length / 2)"
    if _tokens(tokenizer, render(tokenizer, [*row["prompt"], turn], options=options)) > config.max_length:
        return f"with more than {config.max_length} tokens in total (max_length), whose answer would be truncated"
    return ""


def _tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def agree(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set a model's end and pad tokens to those of its tokenizer; end tokens in its generation_config stay."""
    declared = model.generation_config.eos_token_id
    ends = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    ends = list(dict.fromkeys([tokenizer.eos_token_id, *ends]))
    model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    model.generation_config.pad_token_id = model.config.pad_token_id = tokenizer.pad_token_id
    model.config.eos_token_id = tokenizer.eos_token_id


# ---- while training


class _Trainer(SFTTrainer):
    """SFTTrainer that stops before a step on a loss that is not finite, and writes no card of its own."""

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        if not torch.isfinite(loss):
            raise diverged(f"the loss is {loss.item()}", self.state.global_step)
        return loss

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none: run.json has the recipe."""


def merge(adapter: Path, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write the model of a LoRA adapter's folder with the adapter added to its weights, on the CPU and in float32.

    In bfloat16 most of a low-rank update rounds away, so the merged weights take twice the room of such a base model.
    """
    merged, _ = load_policy(str(adapter))
    agree(merged, tokenizer)
    save_policy(merged, tokenizer, out)


__all__ = ["Finetuned", "Selected", "build", "finetune", "merge", "run_facts", "select", "sft_arguments"]
