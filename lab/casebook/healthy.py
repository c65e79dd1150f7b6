"""Forty sound runs of different methods, sizes and learning rates, on the loop and on TRL: what `preflight` and `diagnose`
warn of in them is a false alarm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trl

from lab.casebook.cases import on_trl
from lab.casebook.loop_runs import Run, on_loop
from lab.casebook.trl_script import problem_rows, script

METHODS = ("grpo", "dr_grpo", "rloo", "maxrl", "sage", "no_kl", "dapo", "cispo", "gspo", "rs_grpo", "w_reinforce", "bnpo")


def healthy() -> dict[str, Callable[[Path], Run]]:
    """Name -> what makes the run."""
    runs: dict[str, Callable[[Path], Run]] = {}
    for seed, size, rate in ((1, 8, 1e-4), (2, 16, 3e-5)):
        for method in METHODS:
            runs[f"{method}, group {size}, lr {rate:g}"] = on_loop(
                method, seed=seed, rollout__prompts_per_step=8, rollout__group_size=size, optimizer__lr=rate
            )
    for number, changes in enumerate(SCRIPTS):
        runs[f"TRL {number + 1}: {', '.join(f'{key} {_word(value)}' for key, value in changes.items())}"] = _on_trl(number, changes)
    return runs


def _on_trl(number: int, changes: dict[str, Any]) -> Callable[[Path], Run]:
    return on_trl(lambda folder: script(folder, rows=problem_rows(160, seed=number), **changes))


def _word(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


RLOO = {"trainer": trl.RLOOTrainer, "config": trl.RLOOConfig}
SCRIPTS: tuple[dict[str, Any], ...] = (
    {"loss_type": "grpo"},
    {"loss_type": "bnpo", "beta": 0.0},
    {"loss_type": "dr_grpo", "scale_rewards": False},
    {"loss_type": "dapo", "beta": 0.0, "learning_rate": 5e-5},
    {"num_generations": 4},
    {"num_generations": 16, "learning_rate": 2e-4},
    {"temperature": 0.8},
    {"temperature": 1.2, "learning_rate": 5e-5},
    {"num_iterations": 2},
    {"steps_per_generation": 2, "per_device_train_batch_size": 32},
    {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 32},
    {"beta": 0.1, "learning_rate": 2e-4},
    {"learning_rate": 1e-5},
    {"max_completion_length": 16},
    {**RLOO},
    {**RLOO, "beta": 0.05, "learning_rate": 5e-5},
)

__all__ = ["healthy"]
