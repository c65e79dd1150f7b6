"""The lines that `SageTrainer` prints at `train()`: `sage_rlvr.training.opening` for a trainer of TRL, in a recipe's run and a
script.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from sage_rlvr.core.describe import anchor_lines, described_on_engine
from sage_rlvr.errors import ConfigError
from sage_rlvr.names import AUDIT
from sage_rlvr.training.engines import sampling_warning
from sage_rlvr.training.opening import Setting, announce, decoded, idle, setting_of
from sage_rlvr.training.trl.card import truncated
from sage_rlvr.training.trl.episodes import Episodes
from sage_rlvr.training.trl.protocols import PolicyTrainer

SCRIPT = {"threads_by": "torch.set_num_threads", "lr_by": "learning_rate", "device_by": "use_cpu=False, accelerate launch"}
RECIPE = {"threads_by": "engine.threads", "lr_by": "optimizer.lr", "device_by": "engine.args.use_cpu, accelerate launch"}
"""Places to change a setting: the arguments of a script, or a recipe."""


def to_stderr(line: str) -> None:
    """A line above transformers' progress bar, if there is one."""
    tqdm.write(line, file=sys.stderr)


def open_training(trainer: PolicyTrainer, resumed: Any) -> None:
    """Print the opening of `trainer`, only on the first rank. resumed: resume_from_checkpoint of `train`."""
    if not trainer.is_world_process_zero():
        return
    begin = steps_before(resumed)
    prompt = "" if begin else first_prompt(trainer)
    setting = setting_on_trl(trainer.model, trainer.args, trainer.accelerator, trainer.changed_in)
    announce(trainer.note, setting, objective=objective(trainer), prompt=prompt, begin=begin, tell=trainer.tell)


def audit_rewards(trainer: PolicyTrainer, options: Mapping[str, Any]) -> None:
    """Audit the reward of `trainer` on its training rows, on the first rank. Raise ConfigError on all ranks if a check fails."""
    complaint = problem = ""
    if trainer.is_world_process_zero():
        rewards = dict(zip(trainer.reward_func_names, trainer.reward_funcs, strict=True))
        try:
            complaint, line = import_module(AUDIT).audit_trainer(rewards, trainer.train_dataset, options)
            if not complaint:
                trainer.note(line)
        except ConfigError as error:
            problem = str(error)
    failed = torch.tensor(float(bool(complaint or problem)), device=trainer.accelerator.device)
    if trainer.accelerator.reduce(failed, reduction="sum"):
        raise ConfigError(problem or f"{complaint}\nSageTrainer: the audit of the reward failed; mend it, or omit audit")


def steps_before(resumed: Any) -> int:
    """The optimizer steps of a checkpoint-N; 1 for one of another name, 0 without one."""
    if not resumed:
        return 0
    number = Path(str(resumed)).name.rpartition("-")[2]
    return int(number) if number.isdigit() else 1


def setting_on_trl(model: Any, args: Any, accelerator: Any, changed_in: dict[str, str]) -> Setting:
    """The setting of a model under TRL's arguments, for RL and fine-tuning. changed_in: `SCRIPT` or `RECIPE`."""
    kind, ranks = accelerator.device.type, accelerator.num_processes
    half = "bfloat16" if args.bf16 else "float16" if args.fp16 else ""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    name = args.lr_scheduler_type.value  # transformers makes an enum of it
    warmup = f", warm-up {args.warmup_steps:g}" if args.warmup_steps else ""
    return setting_of(
        model,
        dtype=f"{dtype} weights and {half} arithmetic" if half and half != dtype else dtype,
        device=kind if ranks == 1 else f"{kind} in {ranks} processes",
        idle=idle(kind, max(ranks, args.n_gpu)),
        lr=args.learning_rate,
        schedule=f"{'constant' if name == 'constant_with_warmup' else name}{warmup}",
        sampling=sampling_warning(truncated(args)),
        **changed_in,
    )


def objective(trainer: PolicyTrainer) -> str:
    """The method's description; with a guide on TRL's own loss the KL term that the guide shapes."""
    if trainer.method is not None:
        return described_on_engine(trainer.method)
    args = trainer.args
    loss = f"TRL's loss: loss_type {args.loss_type}, scale_rewards {args.scale_rewards}, beta {args.beta:g}"
    if trainer.anchor is None:
        return loss
    return "\n".join([f"{loss}, KL estimator {trainer.anchor.estimator}", *anchor_lines(trainer.anchor)])


def first_prompt(trainer: PolicyTrainer) -> str:
    """The first prompt of the training rows, by TRL's own tokenization; "" where only a rollout knows its tokens."""
    row = next(iter(trainer.train_dataset))
    prompt, seen = row["prompt"], {"image", "images"} & set(row)
    play, many = getattr(trainer, "rollout_func", None), getattr(trainer, "environment_factories", None)
    if play is not None:
        ids = play.prompt_ids(prompt) if isinstance(play, Episodes) else None
    elif seen or many is not None or not hasattr(trainer, "_tokenize_prompts"):
        ids = None
    else:
        ids = trainer._tokenize_prompts([prompt])[0][0]
    return "" if ids is None else decoded(trainer.processing_class, ids)


__all__ = ["RECIPE", "SCRIPT", "open_training", "setting_on_trl", "to_stderr"]
