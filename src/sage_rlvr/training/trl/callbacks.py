"""Callbacks of a run on TRL, for RL and SFT: metrics, progress, stop signals, checkpoint manifests.

TRL's checkpoints get this package's manifest once all ranks have written theirs, so that an incomplete one is
passed over; earlier ones are deleted only then. Nothing steps on a gradient that is not finite. And how a run
begins, goes on and is saved (`before_a_run`, `carry_on`, `save_trained`).
"""

from __future__ import annotations

import gc
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainerControl, TrainerState

from sage_rlvr.config import FinetuneConfig, TrainConfig
from sage_rlvr.errors import TrainingDiverged
from sage_rlvr.runs import MANIFEST, RunDir, StopFlag, newest_complete, replacing_folder, seal, writing
from sage_rlvr.training.state import check_replaceable, seal_policy
from sage_rlvr.training.trackers import check_installed, skip_logged_steps

CHECKPOINTS = "trl"  # TRL's own checkpoints, in the run directory


class RunCallback(TrainerCallback):
    """The callback of one run, instead of transformers' printing ones.

    run: the run directory's record on the rank that writes, None on the others. updates: optimizer steps of one step of
    the recipe, inside which nothing stops: TRL keeps no rollout in a checkpoint, so a resume there would draw another.
    done: optimizer steps that an earlier start has done. keep: checkpoints that stay on disk.
    """

    def __init__(
        self, trainer: Trainer, run: RunDir | None, stop: StopFlag, progress: Any, *, updates: int, done: int, keep: int
    ) -> None:
        self.run, self.stop, self.progress = run, stop, progress
        self.updates, self.done, self.keep = updates, done, keep
        self.accelerator, self.began = trainer.accelerator, 0.0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the progress line, in steps of the recipe."""
        self.progress.start(total=state.max_steps // self.updates, done=self.done // self.updates)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the clock of an optimizer step."""
        self.began = time.perf_counter()

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """TrainingDiverged if a gradient is not finite, before it moves anything."""
        if args.fp16:  # a gradient that overflows is ordinary there: its scaler leaves the step out
            return
        for name, weight in model.named_parameters():
            if weight.grad is not None and not torch.isfinite(weight.grad).all():
                raise diverged(f"the gradient of {name} is not finite", state.global_step)

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        """One row of metrics.jsonl under this package's names, and the progress line."""
        if not logs or "train_runtime" in logs or not state.global_step:  # the summary at the end
            return
        # num_tokens starts again from 0 in a run that is continued, so it is no metric of the run
        row = {name: value for name, value in (logs | our_names(logs)).items() if name != "num_tokens"}
        if self.run is not None:
            self.run.log({"step": state.global_step - 1, **row, "time/step_s": time.perf_counter() - self.began})
        self.progress.advance(state.global_step // self.updates, row)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save and stop where a signal asked for it, at the end of a step of the recipe."""
        if state.global_step % self.updates == 0 and any_rank(self.accelerator, bool(self.stop)):
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Seal the checkpoint once every rank has written its part."""
        self.accelerator.wait_for_everyone()  # each rank writes its generator's state into the folder
        if self.run is not None:
            seal_newest(Path(args.output_dir), state.global_step, self.keep)


def diverged(what: str, step: int) -> TrainingDiverged:
    """The error for a loss or gradient that is not finite, before it has moved anything."""
    return TrainingDiverged(
        f"{what} at step {step}; no weight was changed, and the last checkpoint is valid. Next: lower optimizer.lr (in "
        "RL, or raise method.beta) and train in a new directory"
    )


def any_rank(accelerator: Any, here: bool) -> bool:
    """True if the condition is true on any rank: signals reach ranks at different steps, but all must stop at the same step."""
    if accelerator.num_processes == 1:
        return here
    return bool(accelerator.reduce(torch.tensor(float(here), device=accelerator.device), reduction="sum") > 0)


def seal_newest(folder: Path, step: int, keep: int) -> None:
    """Seal the checkpoint of `step`, and only then delete all but the `keep` newest."""
    seal(folder / f"checkpoint-{step}", step=step)
    for old in sorted(folder.glob("checkpoint-*"), key=step_of)[:-keep]:
        shutil.rmtree(old)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose files are as they were written; None if there never was one.

    One that a kill cut short has no manifest and is passed over; a damaged one warns. CheckpointError if all are.
    """
    return newest_complete(sorted(folder.glob("checkpoint-*"), key=step_of), in_place=True)


def step_of(checkpoint: Path) -> int:
    """The optimizer steps that were done at TRL's checkpoint-N."""
    return int(checkpoint.name.rpartition("-")[2])


# ---- a run, from its start to the saved policy


def before_a_run(config: TrainConfig | FinetuneConfig, run: RunDir | None, out: Path) -> None:
    """ConfigError if trackers are missing or `out` contains files that may not be replaced, before anything is loaded."""
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*deprecated")  # TRL's calls, not the user's
    torch.set_num_threads(config.engine.threads or torch.get_num_threads())
    check_installed(config.report_to)
    if run is not None:
        check_replaceable(out)


def carry_on(
    trainer: Any, config: TrainConfig | FinetuneConfig, run: RunDir | None, newest: Path | None, progress: Any, updates: int = 1
) -> int:
    """Train from the checkpoint `newest`, or from the start. Returns the optimizer steps done, saved where it was stopped.

    updates: see `RunCallback`. Where nothing is left to do the trainer gets the policy and state of `newest`.
    """
    state = TrainerState() if newest is None else TrainerState.load_from_json(str(newest / "trainer_state.json"))
    done, total = int(state.global_step), state.max_steps if trainer.args.max_steps < 0 else trainer.args.max_steps
    if run is not None:
        run.truncate_metrics(done)
        skip_logged_steps(trainer, run.logged + 1)
        for torn in [path for path in Path(trainer.args.output_dir).glob("checkpoint-*") if not (path / MANIFEST).is_file()]:
            shutil.rmtree(torn)  # or its files would be sealed with those of the next one of its name
    if newest is not None and done >= total:
        progress.start(total=total // updates, done=total // updates)
        trainer._load_from_checkpoint(str(newest))
        trainer.state = state
        return done
    with StopFlag() as stop:
        trainer.add_callback(RunCallback(trainer, run, stop, progress, updates=updates, done=done, keep=config.checkpoint.keep))
        for printing in (PrinterCallback, ProgressCallback):  # metrics.jsonl has it all, and there is one progress line
            trainer.remove_callback(printing)
        trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
    return int(trainer.state.global_step)


def save_trained(trainer: Any, folder: Path, card: Callable[[], str] | None = None) -> None:
    """Save the trained policy, or its adapter, its tokenizer and `card`, atomically.

    Called on all ranks, because sharded weights are gathered; only the first one writes.
    """
    if not trainer.args.should_save:
        trainer.save_model(str(folder))
        return
    needed = sum(p.nbytes for p in trainer.model.parameters() if p.requires_grad)
    with writing("policy", folder, needed), replacing_folder(folder.absolute()) as partial:
        trainer.save_model(str(partial))
        trainer.processing_class.save_pretrained(partial)
        for name in ("training_args.bin", "README.md"):  # a pickle, and an empty card
            (partial / name).unlink(missing_ok=True)
        if card is not None:
            (partial / "README.md").write_text(card(), encoding="utf-8")
        seal_policy(partial)


# ---- metrics

# Ours -> TRL's, where both mean the same number. TRL's own names stay.
NAMES = {
    "reward/mean": "reward",
    "reward/zero_variance_frac": "frac_reward_zero_std",
    "policy/entropy": "entropy",
    "surrogate/clipped_frac": "clip_ratio/region_mean",
    "completions/unfinished_frac": "completions/clipped_ratio",
}

# Likewise, of what transformers' trainer adds to a line of the log.
LOGGED = {"optimizer/grad_norm": "grad_norm", "optimizer/lr": "learning_rate", "policy/entropy": "entropy"}


def our_names(values: Mapping[str, Any], names: Mapping[str, str] = LOGGED) -> dict[str, Any]:
    """TRL's `values` under our names, by a table of ours -> theirs; a name that is there stays."""
    return {ours: values[theirs] for ours, theirs in names.items() if ours not in values and theirs in values}


# ---- ranks


def leave_gloo() -> None:
    """Destroy a process group of gloo (CPU ranks), if there is one; registered with `atexit` by the trainer.

    Neither TRL nor PyTorch does, and gloo's threads then drop their last tensors while the interpreter goes down: now and
    then a finished training ends by SIGABRT, "terminate called without an active exception" (pytorch #190489). NCCL's
    groups are not destroyed, since destroying one waits for the other ranks, which may be the ones that failed.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()
        # The group's destructor keeps the GIL while it waits for gloo's threads, and a thread that still has a tensor to drop
        # waits for the GIL: a deadlock, seen on a machine with five times more work than cores. Sleeping releases the GIL.
        time.sleep(0.5)
        gc.collect()  # a trainer's model references the group in a cycle, and only the end of the last reference joins the threads
