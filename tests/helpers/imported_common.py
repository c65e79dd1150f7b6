"""Recipes that go to another library's settings and come back."""

from __future__ import annotations

from typing import Any

from sage_rlvr.config import TrainConfig, decode, dump
from sage_rlvr.core.method import Method

VALUES = ("seed", "steps", "model", "rollout", "updates", "checkpoint")
RECIPE: dict[str, Any] = {
    "seed": 7,
    "steps": 12,
    "model": "owner/policy",
    "task": {"name": "jsonl", "file": "openai/gsm8k"},
    "rollout": {"prompts_per_step": 8, "group_size": 4, "max_new_tokens": 64, "temperature": 0.9},
    "updates": {"epochs": 2, "minibatches": 2},
    "optimizer": {"lr": 2e-5, "weight_decay": 0.02, "beta2": 0.99, "max_grad_norm": 0.5, "schedule": "cosine", "warmup_steps": 4},
    "checkpoint": {"every": 5, "keep": 3},
}
METHODS = [
    {"name": "grpo", "beta": 0.04},
    {"name": "grpo", "beta": 0.0, "clip_high": 0.3},
    {"name": "dr_grpo", "beta": 0.02},
    {"name": "grpo_token_mean", "beta": 0.01},
    {"name": "dapo", "dynamic_sampling": False},
    {"name": "compose", "beta": 0.0, "reduction": "token_mean", "extras": [{"name": "entropy_bonus", "coefficient": 0.01}]},
]


def recipe(**changed: Any) -> TrainConfig:
    return decode(TrainConfig, {**RECIPE, **changed})


def parts(method: Method) -> dict[str, Any]:
    """A method without its name."""
    names = ("advantage", "surrogate", "anchor", "reduction", "rollout", "extras")
    return {name: getattr(method, name) for name in names}


def assert_same(came: TrainConfig, went: TrainConfig) -> None:
    for name in VALUES:
        assert dump(getattr(came, name)) == dump(getattr(went, name)), name
    assert came.optimizer == went.optimizer
    assert parts(came.method) == parts(went.method)
