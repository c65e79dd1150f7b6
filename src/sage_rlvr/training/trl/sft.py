"""Supervised fine-tuning before RL, on TRL's SFTTrainer: a model that does not yet answer in the format learns to.

    loss = -1/N sum over rows, t of log pi(y_t | prompt, y_<t)     N: tokens of the assistant's turns in the update, end included

The stage of SAGE, arXiv 2605.18864, E.2 and Table 7, on the prompts of RL (`sage_rlvr.tasks.prompts`). The released code takes the
loss over the whole text; here the prompt is read and not learned, because RL never moves its probability and the question
of a problem is nothing to imitate. engine.args {completion_only_loss: false} has the code's loss. Killed at any instant, the
same command continues from the last complete checkpoint (TRL's own, with a manifest beside its files).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

from sage_rlvr.config import FinetuneConfig
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models.policy import load_policy, weights_hash
from sage_rlvr.runs import MANIFEST, RunDir, StopFlag, write_json_atomic, writing
from sage_rlvr.tasks.prompts import FORMATS, PromptFormat
from sage_rlvr.training.state import check_replaceable, save_policy
from sage_rlvr.training.trackers import check_installed, told_once
from sage_rlvr.training.trl import data
from sage_rlvr.training.trl.arguments import DEFAULTS as RL_DEFAULTS
from sage_rlvr.training.trl.arguments import OWNED_BY_BOTH, optimizer_arguments, reporting, rows_of_rank, world_size
from sage_rlvr.training.trl.callbacks import RunCallback, diverged, newest_checkpoint
from sage_rlvr.training.trl.run import configured, peft_config, usable_optimizer

CHECKPOINTS = "trl"  # TRL's own checkpoints, in the run directory
ADAPTER = "adapter"  # LoRA: the adapter alone, beside the merged policy
FINISHED = "finished.json"  # written last, and says where the policy lies
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

# Field of SFTConfig -> the key of the recipe that sets it.
OWNED = OWNED_BY_BOTH | {
    "num_train_epochs": "epochs",
    "max_steps": "epochs",
    "max_length": "max_length",
    "truncation_mode": "max_length (a row that does not fit is left out whole)",
    "gradient_accumulation_steps": "batch_size (and, for memory alone, engine.args.per_device_train_batch_size)",
    "trust_remote_code": "nothing: code that comes with a model is never run; convert the model to a stock architecture",
    "chat_template_path": "data.prompt",
    "dataset_text_field": "data.prompt",
    "dataset_kwargs": "data.prompt",
    "eos_token": "nothing: it is the token that ends a turn in the chat template",
    "pad_token": "nothing: it is set where the tokenizer has none",
    "logging_nan_inf_filter": "nothing: a loss that is not finite stops the run",
}

# What a recipe may say otherwise in engine.args.
DEFAULTS: dict[str, Any] = RL_DEFAULTS | {"optim": "adamw_8bit", "completion_only_loss": True}  # the first from Table 7


@dataclass(frozen=True)
class Finetuned:
    """How far it came. policy, adapter: the folders that were written, None before the last step (and without LoRA)."""

    step: int
    total: int
    policy: Path | None = None
    adapter: Path | None = None


@dataclass(frozen=True)
class Selected:
    """What a filter kept. rows: columns prompt and completion (messages). dropped: reason -> how many rows."""

    rows: Dataset
    total: int
    dropped: dict[str, int]

    def __str__(self) -> str:
        left = "; ".join(f"{count:,} {why}" for why, count in self.dropped.items()) or "none"
        return f"rows to learn from: {len(self.rows):,} of {self.total:,}; left out: {left}"


def finetune(
    config: FinetuneConfig,
    run: RunDir | None,
    folder: Path,
    out: Path | None = None,
    *,
    progress: Any,
    say: data.Say = data.tell,
) -> Finetuned:
    """Fine-tune to the last epoch from the newest complete checkpoint in `folder`; write the policy to `out`.

    run: the run directory's record, on the one rank that writes; None on the others. out: default `folder`/policy; with
    LoRA it gets the adapter merged into float32 weights, and `folder`/adapter the adapter itself. Both have the tokenizer
    with the chat template that was learned. ConfigError and DataError before anything is trained, TrainingDiverged
    before a step on a loss or gradient that is not finite.
    """
    out = folder / "policy" if out is None else out
    if run is not None:
        check_installed(config.report_to)
        check_replaceable(out)
        _sweep(folder / CHECKPOINTS)
    newest = newest_checkpoint(folder / CHECKPOINTS)
    done, total = (0, None) if newest is None else _reached(newest)
    if done == total and _finished(folder) == str(out.absolute()) and (out / "config.json").is_file():
        progress.start(total=done, done=done)
        return _result(config, done, done, folder, out)
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*deprecated")  # TRL's calls, not the user's
    with _no_bars():
        trainer = build(config, folder / CHECKPOINTS, say)
    if run is not None:
        run.truncate_metrics(done)
        told_once(trainer, run.logged + 1)
    with StopFlag() as stop:
        RunCallback.of(trainer, run, stop, progress, updates=1, done=done, keep=config.checkpoint.keep)
        trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
    reached, total = trainer.state.global_step, trainer.state.max_steps
    if reached < total:
        return Finetuned(reached, total)
    _save(trainer, config, folder, out, writes=run is not None, say=say)
    if run is not None:
        write_json_atomic(folder / FINISHED, {"policy": str(out.absolute())})
    return _result(config, reached, total, folder, out)


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without the progress bars of `datasets`, which draw over the one progress line of the run."""
    shown = datasets.are_progress_bars_disabled() is False
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _result(config: FinetuneConfig, step: int, total: int, folder: Path, out: Path) -> Finetuned:
    return Finetuned(step, total, out, None if config.engine.lora is None else folder / ADAPTER)


def _finished(folder: Path) -> str | None:
    """Where this run has written its policy; None before it has."""
    record = folder / FINISHED
    return str(json.loads(record.read_text(encoding="utf-8"))["policy"]) if record.is_file() else None


def run_facts(config: FinetuneConfig) -> dict[str, Any]:
    """What a repeated command must find unchanged besides its recipe: weights, rows, and the libraries that train."""
    import peft
    import trl

    return {
        "model_sha256": weights_hash(config.model),
        "data": data.facts(config.data),
        "trl": trl.__version__,
        "peft": peft.__version__,
    }


# ---- before training


def build(config: FinetuneConfig, folder: Path, say: data.Say = data.tell) -> SFTTrainer:
    """The trainer of a recipe: rows, tokenizer, model and arguments. Says what the model will see; trains nothing."""
    if config.engine.threads:
        torch.set_num_threads(config.engine.threads)
    arguments = sft_arguments(config, str(folder), world_size())
    arguments["optim"] = usable_optimizer(arguments["optim"], named="optim" in config.engine.args)
    form = FORMATS[config.data.prompt]
    rows = data.load(config.data, solutions=True, check=False, say=say)  # no verifier reads these answers
    set_seed(config.seed)
    model, tokens = load_policy(_absolute(config.model), config.engine.dtype)
    for line in data.fit_tokenizer(tokens.tokenizer, form, ends=tokens.eos_ids):
        say(line)
    agree(model, tokens.tokenizer)
    selected = select(rows, tokens.tokenizer, form, config, say)
    say(str(selected))
    data.dry_render(tokens.tokenizer, selected.rows, form, config.max_length // 2, strict=True, say=say)
    set_seed(config.seed)  # the adapter's first weights are drawn from the global generator
    return _Trainer(
        model=model,
        args=configured(SFTConfig, arguments, config.engine.args),
        train_dataset=selected.rows,
        processing_class=tokens.tokenizer,
        peft_config=None if config.engine.lora is None else peft_config(config.engine.lora),
    )


def _absolute(model: str) -> str:
    """A local folder by its whole path, which an adapter's record keeps; anything else as it is."""
    return str(Path(model).expanduser().resolve()) if Path(model).expanduser().is_dir() else model


def sft_arguments(config: FinetuneConfig, folder: str, ranks: int = 1) -> dict[str, Any]:
    """The fields of SFTConfig of a recipe for `ranks` processes, engine.args passed on.

        batch_size = micro-batch x accumulation x ranks

    per_device_train_batch_size in engine.args is the micro-batch, for memory alone (default: all rows of a rank). ConfigError
    for a key that the recipe owns, naming its place, and for a batch that does not split evenly.
    """
    given = dict(config.engine.args)
    for key, value in given.items():
        if key in OWNED:
            raise ConfigError(f"engine.args.{key} = {value!r}: the recipe owns this; set {OWNED[key]} instead")
    here = rows_of_rank(config.batch_size, ranks)
    micro = given.pop("per_device_train_batch_size", here)
    if not isinstance(micro, int) or isinstance(micro, bool) or micro < 1 or here % micro:
        raise ConfigError(
            f"engine.args.per_device_train_batch_size = {micro!r}: must divide the {here} rows that a rank has in one step "
            f"(batch_size = {config.batch_size} over {ranks} ranks)"
        )
    cuda = torch.cuda.is_available()
    precision = {"use_cpu": not cuda}
    if "fp16" not in given:  # arithmetic in bfloat16 where a GPU has it; the trained weights stay float32
        precision["bf16"] = cuda and torch.cuda.is_bf16_supported()
    return (
        DEFAULTS
        | precision
        | optimizer_arguments(config.optimizer)
        | reporting(config.report_to, folder)
        | {
            "output_dir": folder,
            "seed": config.seed,
            "data_seed": config.seed,
            "num_train_epochs": config.epochs,
            "max_length": config.max_length,
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": here // micro,
            "save_strategy": "steps",
            "save_steps": config.checkpoint.every,
            "logging_nan_inf_filter": False,
        }
        | given
    )


def select(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    form: PromptFormat,
    config: FinetuneConfig,
    say: data.Say = data.tell,
) -> Selected:
    """The rows to learn from as prompt and completion, by the filter of the paper's E.2, and how many fell to what.

    Kept: a number as the answer (with numeric_answers), a prompt of at most max_length / 2 tokens, and a demonstration that fits
    into max_length whole. DataError where none is left.
    """
    # E.2 limits the prompt to half of the length. The released code limits prompt and solution together to that half, which
    # leaves out most long solutions; the paper's words are followed. They would let a demonstration be cut off at
    # max_length, before its answer and its end, and so teach not to answer: such rows are left out too.
    dropped: Counter[str] = Counter()
    kept: list[dict[str, Any]] = []
    last = time.monotonic()
    for done, row in enumerate(rows):
        if time.monotonic() - last > 5:
            last = time.monotonic()
            say(f"{config.data.path}: {done:,} of {len(rows):,} rows measured")
        turn = {"role": "assistant", "content": form.assistant(row["solution"], row["answer"])}
        why = _unfit(row, turn, tokenizer, config)
        if why:
            dropped[why] += 1
        else:
            kept.append({"prompt": row["prompt"], "completion": [turn]})
    if not kept:
        raise DataError(
            f"{config.data.path}: no row is left to learn from: {dict(dropped)}; relax that, or take other rows"
        )
    return Selected(Dataset.from_list(kept), len(rows), dict(dropped))


def _unfit(
    row: Mapping[str, Any], turn: dict[str, str], tokenizer: PreTrainedTokenizerBase, config: FinetuneConfig
) -> str:
    """Why a row is left out; "" for one that stays."""
    if config.numeric_answers and not _NUMBER.fullmatch(row["answer"]):
        return "whose answer is no number (numeric_answers)"
    if _tokens(tokenizer, data.render(tokenizer, row["prompt"], opened=True)) > config.max_length // 2:
        return f"with a prompt of more than {config.max_length // 2} tokens (max_length / 2)"
    if _tokens(tokenizer, data.render(tokenizer, [*row["prompt"], turn])) > config.max_length:
        return f"of more than {config.max_length} tokens in all, which would be cut before their answer (max_length)"
    return ""


def _tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def agree(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Tell a model its tokenizer's end and pad tokens; end tokens that its generation_config named already stay."""
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
        loss = super().training_step(*args, **kwargs)
        if not torch.isfinite(loss):
            raise diverged(f"the loss is {loss.item()}", self.state.global_step)
        return loss

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: run.json says what was trained."""


def _sweep(folder: Path) -> None:
    """Remove the checkpoints that a kill cut short: they never got a manifest."""
    for path in folder.glob("checkpoint-*"):
        if not (path / MANIFEST).is_file():
            shutil.rmtree(path)


def _reached(checkpoint: Path) -> tuple[int, int]:
    """(steps done, steps of the whole run) of a checkpoint."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    return int(state["global_step"]), int(state["max_steps"])


# ---- after training


def _save(trainer: SFTTrainer, config: FinetuneConfig, folder: Path, out: Path, *, writes: bool, say: data.Say) -> None:
    """The policy, and with LoRA the adapter. Called on all ranks, because sharded weights are gathered."""
    lora = config.engine.lora is not None
    place = Path(os.path.abspath(folder / ADAPTER if lora else out))
    partial = place.with_name(f".{place.name}.partial")
    if writes:
        shutil.rmtree(partial, ignore_errors=True)
    needed = sum(p.numel() * p.element_size() for p in trainer.model.parameters() if p.requires_grad)
    with writing("policy", place, needed):
        trainer.save_model(str(partial))
    if not writes:
        return
    trainer.processing_class.save_pretrained(partial)
    for name in ("training_args.bin", "README.md"):  # a pickle, and an empty card
        (partial / name).unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    os.rename(partial, place)
    if lora:
        merge(place, trainer.processing_class, out)
        say(
            f"adapter in {place}; policy with the adapter merged, in float32, in {out}. RL goes on from either: with model: "
            f"{out} (new weights or adapters on the merged ones), or with model: {place} (this adapter is trained on). An "
            f"anchor of source sft holds RL to the result of this stage, one of source base with base_model: {config.model} "
            "to the model before it"
        )


def merge(adapter: Path, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write the model of a LoRA adapter's folder with the adapter added to its weights, on the CPU and in float32.

    In bfloat16 most of a low-rank update rounds away, so the merged weights take twice the room of such a base model.
    """
    base = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    agree(merged, tokenizer)
    save_policy(merged, tokenizer, out)


__all__ = ["Finetuned", "Selected", "build", "finetune", "merge", "run_facts", "select", "sft_arguments"]
