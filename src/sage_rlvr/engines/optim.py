"""AdamW with gradient clipping and a learning rate that is a function of the step; its state is plain tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sage_rlvr.config import OptimizerConfig
from sage_rlvr.errors import TrainingDiverged


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Rate of update `step` (from 0): linear warm-up, then constant, linear to 0, or cosine to 0."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    shape = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))}
    return config.lr * shape[config.schedule]


class Optimiser:
    """torch's AdamW over the trainable parameters of `model`, known by name."""

    def __init__(self, model: torch.nn.Module, config: OptimizerConfig, total_steps: int) -> None:
        self.config, self.total_steps = config, total_steps
        self.names = {p: n for n, p in model.named_parameters() if p.requires_grad}
        self.adam = torch.optim.AdamW(
            list(self.names),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def step(self, step: int) -> dict[str, float]:
        """Clip, refuse a gradient that is not finite (weights untouched), update, clear the gradients."""
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.names), self.config.max_grad_norm, foreach=True))
        if not math.isfinite(norm):
            raise TrainingDiverged(f"gradient norm is {norm} at update {step}; the weights were left as they were")
        rate = learning_rate(self.config, step, self.total_steps)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return {"optimizer/grad_norm": norm, "optimizer/lr": rate}

    def tensors(self) -> dict[str, Tensor]:
        """Moments and step counts as {"parameter/exp_avg": tensor, ...}."""
        return {
            f"{self.names[p]}/{slot}": value.detach().contiguous()
            for p, slots in self.adam.state.items()
            for slot, value in slots.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Inverse of `tensors`: what is not among them is forgotten."""
        self.adam.state.clear()
        parameters = {n: p for p, n in self.names.items()}
        for full, value in tensors.items():
            name, slot = full.rsplit("/", 1)
            self.adam.state[parameters[name]][slot] = value.clone()
