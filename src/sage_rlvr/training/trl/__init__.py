"""TRL's GRPOTrainer with a guide on the reference: `SageTrainer`, `grpo_config` and `environment_of`; `PassAtK`, a callback.

Read trainer.py first (`SageTrainer`), then batch.py (what it changes in a batch of TRL), given.py and release.py (what raises an
error at construction) and arguments.py (a method as arguments of GRPOConfig). reference_model.py loads pi_ref;
run.py trains a recipe (task_reward.py has its verdicts, card.py the content of its model card);
sft.py is supervised fine-tuning before RL. pass_at_k.py evaluates any of TRL's trainers on held-out rows
(held_out.py samples, evaluations.py stores).

`grpo_config` returns the arguments for a method; `environment_of` makes an environment of a task for chat models. All
names load lazily: `arguments` works without TRL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sage_rlvr.training.trl.versions import require_trl

if TYPE_CHECKING:
    from sage_rlvr.training.trl.arguments import grpo_config
    from sage_rlvr.training.trl.episodes import environment_of
    from sage_rlvr.training.trl.pass_at_k import PassAtK
    from sage_rlvr.training.trl.trainer import SageTrainer

_HOMES = {"grpo_config": "arguments", "SageTrainer": "trainer", "environment_of": "episodes", "PassAtK": "pass_at_k"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_trl()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = ["PassAtK", "SageTrainer", "environment_of", "grpo_config"]
