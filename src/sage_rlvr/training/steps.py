"""The step loop of a run on plain torch, for RL and SFT: metrics, trackers, stop signals, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sage_rlvr.config import OfflineConfig, SftConfig, TrainConfig
from sage_rlvr.models.devices import FreedMemory
from sage_rlvr.runs import RunDir, StopFlag
from sage_rlvr.training.trackers import tracking


def run_steps(
    config: TrainConfig | SftConfig | OfflineConfig,
    run: RunDir,
    progress: Any,
    begin: int,
    run_step: Callable[[int], dict[str, float]],
    save: Callable[[int], None],
    on_train_end: Callable[[], None],
    on_step_end: Callable[[int, dict[str, float]], None] = lambda step, metrics: None,
) -> int:
    """Run steps from `begin` to `config.steps`, or until a stop signal, which lets the current step finish. Return the step
    reached.

    Args:
        run_step: Runs a step, counted from 0, and returns its metrics.
        save: Saves all state needed to continue after so many steps; called as often as the recipe's checkpoint says, at the end,
            and at a stop.
        on_train_end: Saves the policy once all steps are done.
        on_step_end: Called after a step once its metrics are written, so that they are kept whatever it raises.
    """
    progress.start(total=config.steps, done=begin)
    step, stopping, freed = begin, False, FreedMemory()
    with StopFlag() as stop, tracking(config.report_to, run, config) as report:
        while step < config.steps and not stopping:
            began = time.perf_counter()
            metrics = run_step(step)
            metrics["time/step_s"] = time.perf_counter() - began
            run.log({"step": step, **metrics})
            on_step_end(step, metrics)
            report(step, metrics)
            freed.after_step()
            step += 1
            progress.advance(step, metrics)
            stopping = bool(stop)  # read once: what stops the steps also saves
            if step % config.checkpoint.every == 0 or step == config.steps or stopping:
                save(step)
    if step == config.steps:
        on_train_end()
    return step


def mean_of(collected: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the updates that have it: an update that was skipped has no gradient norm."""
    names = dict.fromkeys(name for metrics in collected for name in metrics)
    values = {name: [metrics[name] for metrics in collected if name in metrics] for name in names}
    return {name: sum(those) / len(those) for name, those in values.items()}
