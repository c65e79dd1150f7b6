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
    take: Callable[[int], dict[str, float]],
    save: Callable[[int], None],
    finish: Callable[[], None],
    after: Callable[[int, dict[str, float]], None] = lambda step, metrics: None,
) -> int:
    """From step `begin` to `config.steps`, or to a stop signal, after which the step in hand ends. Returns the step reached.

    take: does a step, counted from 0, and returns its metrics. save: keeps all that is needed to go on after so many steps;
    called as often as the recipe's checkpoint says, at the end, and at a stop. finish: keeps the policy once all steps are done.
    after: follows a step once its row is written, so
    that the row is there whatever that raises.
    """
    progress.start(total=config.steps, done=begin)
    step, stopping, freed = begin, False, FreedMemory()
    with StopFlag() as stop, tracking(config.report_to, run, config) as report:
        while step < config.steps and not stopping:
            began = time.perf_counter()
            metrics = take(step)
            metrics["time/step_s"] = time.perf_counter() - began
            run.log({"step": step, **metrics})
            after(step, metrics)
            report(step, metrics)
            freed.after_step()
            step += 1
            progress.advance(step, metrics)
            stopping = bool(stop)  # read once: what stops the steps also saves
            if step % config.checkpoint.every == 0 or step == config.steps or stopping:
                save(step)
    if step == config.steps:
        finish()
    return step


def mean_of(collected: list[dict[str, float]]) -> dict[str, float]:
    """Of the metrics of a step's updates, which have the same names."""
    return {name: sum(m[name] for m in collected) / len(collected) for name in collected[0]}
