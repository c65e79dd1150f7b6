"""AdamW with gradient clipping and a learning rate that is a function of the step; its state is plain tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from sage_rlvr.config import OptimizerConfig
from sage_rlvr.errors import TrainingDiverged

COPY = "weight"  # slot of a float32 copy, stored with the moments of its parameter


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Return the rate of update `step` (from 0): linear warm-up, then constant, linear to 0, or cosine to 0."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    shape = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))}
    return config.lr * shape[config.schedule]


_UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def decayed(model: torch.nn.Module) -> Iterator[str]:
    """Yield names of the parameters with weight decay: all but biases and the weights of normalization layers.

    The rule of transformers' Trainer, and so of TRL: a LayerNorm by its class, every other norm and bias by its name.
    Embeddings decay. `get_decay_parameter_names` of transformers is the source, and a test checks that the two agree; it is
    not called, because its import takes seconds.
    """
    norms = [name for name, part in model.named_modules() if isinstance(part, torch.nn.LayerNorm)]
    for name, _ in model.named_parameters():
        if name.rpartition(".")[0] not in norms and not _UNDECAYED.search(name.lower()):
            yield name


class Optimizer:
    """AdamW of torch over the trainable parameters of `model`, known by name; weight decay acts on those `decayed` names.

    For a parameter in half precision it keeps a float32 copy, which it updates and rounds into the parameter: gradients of several
    micro-batches add up in float32, and updates too small for the parameter's precision accumulate in the copy.
    `optimizer/changed_frac` is the share of these parameters' weights that an update changed after rounding.
    """

    def __init__(self, model: torch.nn.Module, config: OptimizerConfig, total_steps: int) -> None:
        self.config, self.total_steps = config, total_steps
        trained = {p: n for n, p in model.named_parameters() if p.requires_grad}
        self.copies = {p: p.detach().float().requires_grad_() for p in trained if p.dtype != torch.float32}
        for parameter in self.copies:
            parameter.register_post_accumulate_grad_hook(self._widen)
        self.names = {self.copies.get(p, p): n for p, n in trained.items()}
        pulled = set(decayed(model))
        halves = ([p for p, n in self.names.items() if (n in pulled) is wanted] for wanted in (True, False))
        groups = [
            {"params": half, "weight_decay": w} for half, w in zip(halves, (config.weight_decay, 0.0), strict=True)
        ]
        self.adam = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )

    def _widen(self, parameter: torch.nn.Parameter) -> None:
        """Add the gradient of a half-precision parameter to the gradient of its copy."""
        copy, grad = self.copies[parameter], parameter.grad
        assert grad is not None
        copy.grad = grad.float() if copy.grad is None else copy.grad.add_(grad)
        parameter.grad = None

    def step(self, step: int) -> dict[str, float]:
        """Clip, raise an error for a non-finite gradient (weights unchanged), update, clear the gradients."""
        norm = self._clip(step)
        rate = learning_rate(self.config, step, self.total_steps)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        torch.autograd.graph.increment_version(list(self.names))  # fused AdamW moves them without a trace that backward could see
        changed = self._round()
        self.adam.zero_grad(set_to_none=True)
        return {"optimizer/grad_norm": norm, "optimizer/lr": rate} | changed

    def _clip(self, step: int) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.names), self.config.max_grad_norm, foreach=True))
        if not math.isfinite(norm):
            raise TrainingDiverged(f"gradient norm is {norm} at update {step}; the weights were not changed")
        return norm

    @torch.no_grad()
    def _round(self) -> dict[str, float]:
        if not self.copies:
            return {}
        changed: list[Tensor] = []  # counted on the device, read once
        for parameter, copy in self.copies.items():
            rounded = copy.to(parameter.dtype)
            # as integers of the same 16 bits: `!=` in half precision is slow on a CPU
            changed.append(torch.count_nonzero(rounded.view(torch.int16) ^ parameter.detach().view(torch.int16)))
            parameter.copy_(rounded)
        total = sum(parameter.numel() for parameter in self.copies)
        return {"optimizer/changed_frac": int(torch.stack(changed).sum()) / total}

    def tensors(self) -> dict[str, Tensor]:
        """Return moments, step counts and float32 copies as {"parameter/exp_avg": tensor, ...}."""
        copies = {f"{self.names[copy]}/{COPY}": copy.detach() for copy in self.copies.values()}
        return copies | {
            f"{self.names[p]}/{slot}": value.detach().contiguous()
            for p, slots in self.adam.state.items()
            for slot, value in slots.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load the result of `tensors`, from any device; state that is not in it is deleted."""
        self.adam.state.clear()
        parameters = {n: p for p, n in self.names.items()}
        for full, value in tensors.items():
            name, slot = full.rsplit("/", 1)
            if slot == COPY:
                parameters[name].detach().copy_(value)
            else:
                self.adam.state[parameters[name]][slot] = value.to(parameters[name].device, copy=True)
