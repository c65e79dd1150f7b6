"""A run of the loop as TRL is given it again: what was drawn, its verdicts, and the settings that make the two runs one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trl

from sage_rlvr.config import TrainConfig
from sage_rlvr.training.groups import Groups
from sage_rlvr.training.trl import grpo_config
from trl_common import QUIET


class Replay:
    """The recorded groups as TRL's `rollout_func`, in the order in which they were drawn, with their verdicts.

    A rollout's first draw is for the prompts that TRL asks for; a refill, whose prompts each engine chooses in its own way,
    is the loop's next groups.
    """

    def __init__(self, groups: list[Groups]) -> None:
        self.rollouts, self.left = iter(groups), 0
        self.step, self.now = -1, groups[0]

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        first = self.step != trainer.state.global_step
        if first:
            assert self.left == 0, f"{self.left} groups of a rollout were never asked for"
            self.step, self.now = trainer.state.global_step, next(self.rollouts)
            self.left = len(self.now.prompts)
        size = self.now.rewards.shape[1]
        start = len(self.now.prompts) - self.left
        self.left -= len(prompts) // size
        ids = [prompt for prompt in self.now.prompts[start:] for _ in range(size)][: len(prompts)]
        assert not first or trainer.processing_class(prompts, add_special_tokens=False)["input_ids"] == ids
        rows = slice(start * size, start * size + len(prompts))
        rollout = self.now.rollout
        tokens, logps = (
            [row[mask].tolist() for row, mask in zip(values[rows], rollout.mask[rows], strict=True)]
            for values in (rollout.tokens, rollout.logps)
        )
        verdicts = self.now.rewards.reshape(-1)[rows].tolist()
        found = {"prompt_ids": ids, "completion_ids": tokens, "logprobs": logps, "verdict": verdicts}
        if rollout.own is None:
            return found
        drawn = zip(rollout.drawn[rows].int(), rollout.mask[rows], strict=True)
        return found | {"env_mask": [own[mask].tolist() for own, mask in drawn]}

    def is_used_up(self) -> bool:
        return self.left == 0 and next(self.rollouts, None) is None


def verdicts(completions: list[str], verdict: list[float], **_: object) -> list[float]:
    """A reward function of what `Replay` says beside the completions."""
    return verdict


def arguments(config: TrainConfig, folder: Path, **changes: Any) -> Any:
    """What makes TRL's run the loop's."""
    plan = config.optimizer
    settings: dict[str, Any] = {
        "max_steps": config.steps * config.updates.epochs,
        "num_iterations": config.updates.epochs,
        "learning_rate": plan.lr,
        "lr_scheduler_type": plan.schedule,
        "adam_epsilon": plan.eps,
        "weight_decay": plan.weight_decay,
        "shuffle_dataset": False,
        "per_device_train_batch_size": config.rollout.completions,
        "num_generations": config.rollout.group_size,
        "max_completion_length": config.rollout.max_new_tokens,
        "seed": config.seed,
    }
    return trl.GRPOConfig(str(folder), **QUIET | settings | grpo_config(config.method) | changes)
