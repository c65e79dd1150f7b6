"""The lines that a run prints before step 1 and after it, the same on every engine and in a script with `SageTrainer`.

    objective                                        what is optimized: `Method.describe()`
    135 M parameters, float32 on cpu with 1 of 2 threads (engine.threads), lr 1e-4 constant
    first prompt, 49 tokens: ...                     decoded from the token ids, so that it is what is trained on
    after step 1: Branch: q != 1 at 21.3 % of the tokens, clamped at 4.0 %, mean q 1.0213

An engine calls `announce` after all that can fail before step 1, and `after_first_step` with the metrics of step 1. A run
that continues prints the second line only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.guides import factors, is_flat
from sage_rlvr.models.devices import LARGE, is_there, slow_bfloat16
from sage_rlvr.training.watch import ACTIVE, CLAMPED

RATE = 1e-5  # learning rate above which full fine-tuning of a large model gets a warning
MEAN_Q, GAP, MEAN_GAP = "guide/q_mean", "sampler/logp_gap_max", "sampler/logp_gap_mean"
ROUNDED = 1e-3  # nats; the largest gap in float32 stays below
WIDE_GAP = 0.125
"""Mean gap in nats above which bfloat16's rounding is not the only cause. A logit between 16 and 32 is a multiple of
1/8 there: sampler and scorer each round it, and the log of the sum with it, by 1/16 at most and 1/32 on average, and the layers
below add to that. The start of a run prints its gap. `wide_gap` is the bound at a temperature.
"""
LONGEST = 2000  # characters of a prompt that are printed
Note = Callable[[str], None]
Tell = Callable[[str, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Device and settings of a run's training.

    parameters, trained   numbers in the policy, and those of them that an optimizer step changes
    dtype                 of the weights, in words
    device                cpu, cuda, mps, or workers in words
    lr, schedule          of the optimizer, in words
    idle                  GPUs of this machine that are not used
    threads_by, device_by  settings that change the two
    slow, faster, sampling  texts of `slow_bfloat16`, `faster_dtype` and `sampling_warning`
    """

    parameters: int | None
    trained: int | None = None
    dtype: str
    device: str
    lr: float
    schedule: str
    idle: int = 0
    threads_by: str = "engine.threads"
    device_by: str = "engine.device: auto"
    lr_by: str = "optimizer.lr"
    slow: str = ""
    faster: str = ""
    sampling: str = ""

    @property
    def line(self) -> str:
        """Return the setting in one line."""
        size = [] if self.parameters is None else [f"{short(self.parameters)} parameters"]
        if self.trained is not None and self.parameters is not None and self.trained < self.parameters:
            size.append(f"{short(self.trained)} of them trained")
        text = ", ".join([*size, f"{self.dtype} on {self.device}{self._threads}", f"lr {rate(self.lr)} {self.schedule}"])
        unused = "a GPU is there and unused" if self.idle == 1 else f"{self.idle} GPUs are there and unused"
        hints = [f"bfloat16 is faster here ({self.faster})"] if self.faster else []
        hints += [f"{unused} ({self.device_by})"] if self.idle else []
        return "; ".join([text, *hints])

    @property
    def _threads(self) -> str:
        if self.device != "cpu":
            return ""
        used, there = torch.get_num_threads(), cores()
        return f" with {used} of {there} threads ({self.threads_by})" if used < there else f" with {used} threads"

    @property
    def warning(self) -> str:
        """Return a warning on the learning rate; empty for a small model, for adapters, and for a usual rate."""
        size = self.parameters or 0
        if size <= LARGE or self.lr <= RATE or self.trained not in (None, size):
            return ""
        return (
            f"{self.lr_by} = {rate(self.lr)} with full fine-tuning of {short(size)} parameters: a rate above {rate(RATE)} moves "
            f"a pretrained model of this size far from its start within a few steps. Set {self.lr_by} to 1e-6, or train adapters "
            "(LoRA)"
        )


def setting_of(model: Any, **more: Any) -> Setting:
    """Return the setting of a loaded model; more: further fields of `Setting`."""
    counts = [(int(getattr(p, "ds_numel", p.numel())), p.requires_grad) for p in model.parameters()]
    device = more.pop("device", None) or next(model.parameters()).device.type
    fields = {
        "parameters": sum(n for n, _ in counts),
        "trained": sum(n for n, moves in counts if moves),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "device": device,
        "idle": idle(device),
        "slow": slow_bfloat16(model),
    }
    return Setting(**fields | more)


def of_optimizer(plan: Any) -> dict[str, Any]:
    """Return the learning rate of a recipe's `OptimizerConfig`, as fields of `Setting`."""
    warmup = f", warm-up {plan.warmup_steps}" if plan.warmup_steps else ""
    return {"lr": plan.lr, "schedule": f"{plan.schedule}{warmup}"}


def idle(device: str, used: int = 1) -> int:
    """Return the number of GPUs of this machine besides the `used` ones of a run on `device`."""
    there = torch.cuda.device_count() if is_there("cuda") else int(is_there("mps"))
    return max(0, there - (0 if device == "cpu" else used))


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def short(count: int) -> str:
    """Return a count as 856 k, 135 M, 1.54 B."""
    size, name = (1e9, "B") if count >= 1e9 else (1e6, "M") if count >= 1e6 else (1e3, "k")
    return f"{count / size:.3g} {name}"


def rate(value: float) -> str:
    """Return a rate as 1e-4, 2.5e-5."""
    digits, power = f"{value:.2e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def decoded(tokenizer: Any, ids: Sequence[int], what: str = "first prompt", learned: int | None = None) -> str:
    r"""Return the text of token ids, special tokens included, with their count. learned: how many of them are trained on.

    White space at the end, which would be invisible, is escaped: a prompt that ends with a line end shows it as \n.
    """
    plain = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
    text = str(plain.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}\n[... {len(text) - LONGEST:,} characters ...]\n{text[-LONGEST // 2 :]}"
    some = "" if learned is None else f", {learned} of them learned"
    head = f"{what}, {len(ids)} tokens{some}:"
    body = text.rstrip()
    lines = (body + repr(text[len(body) :])[1:-1]).split("\n")
    return f"{head} {lines[0]}" if len(lines) == 1 else "\n".join([head, *(f"  {line}".rstrip() for line in lines)])


def announce(
    note: Note,
    setting: Setting,
    *,
    objective: str = "",
    engine: str = "",
    prompt: str = "",
    begin: int = 0,
    tell: Tell | None = None,
) -> None:
    """Print the opening, and use `tell` to warn of the learning rate, a slow dtype and truncated sampling.

    Args:
        note: prints a line.
        setting: the setting of the run.
        objective: lines on what is optimized.
        engine: how the policy is computed, if not in the usual way.
        prompt: as returned by `decoded`.
        begin: number of finished steps; a run that continues prints its setting only.
        tell: like `RunDir.warn`.
    """
    for line in (objective, setting.line, engine, prompt) if begin == 0 else (setting.line,):
        if line:
            note(line)
    for kind, warning in (("learning rate", setting.warning), ("dtype", setting.slow), ("sampling", setting.sampling)):
        if tell is not None and warning:
            tell(kind, begin, warning)


def wide_gap(temperature: float) -> float:
    """Return the mean gap in nats above which bfloat16's rounding is not the only cause: rounded logits are divided by it."""
    return WIDE_GAP / min(1.0, temperature)


def after_first_step(
    note: Note, anchor: Anchor | None, metrics: Mapping[str, float], tell: Tell | None = None, temperature: float = 1.0
) -> None:
    """Print the guide's dose in step 1, and the gap between sampler and scorer if it is above float32's rounding.

    tell: warns of a gap that bfloat16's rounding does not explain.
    """
    notes = [dose(anchor, metrics), gap(metrics)]
    if any(notes):
        note(f"after step 1: {'; '.join(filter(None, notes))}")
    wide = wide_gap(temperature)
    if tell is not None and metrics.get(MEAN_GAP, 0.0) > wide:
        tell(
            "sampler gap",
            0,
            f"log-probs of sampler and scorer differ by {metrics[MEAN_GAP]:.2g} nats on average ({MEAN_GAP}), more than "
            f"rounding in bfloat16 explains ({wide:g}): the update is of another distribution than the one that was sampled "
            "from. Set engine.dtype: float32",
        )


def dose(anchor: Anchor | None, metrics: Mapping[str, float]) -> str:
    """Return a guide's effect on the tokens of a step; "" without a guide.

    Thresholds in nats act differently between vocabularies.
    """
    if anchor is None or anchor.is_off or is_flat(anchor.guide) or ACTIVE not in metrics:
        return ""
    names = " * ".join(type(part).__name__ for part in factors(anchor.guide))
    clamped = f", clamped at {metrics[CLAMPED]:.1%}" if CLAMPED in metrics else ""
    return f"{names}: q != 1 at {metrics[ACTIVE]:.1%} of the tokens{clamped}, mean q {metrics[MEAN_Q]:.4f}"


def gap(metrics: Mapping[str, float]) -> str:
    """Return the gap between the log-probs of sampler and scorer; empty if it is within float32's rounding."""
    widest = metrics.get(GAP, 0.0)
    if widest <= ROUNDED:
        return ""
    mean = f"{metrics[MEAN_GAP]:.2g} nats on average, " if MEAN_GAP in metrics else ""
    return f"log-probs of sampler and scorer differ by {mean}{widest:.2g} at most ({GAP})"


__all__ = ["Setting", "after_first_step", "announce", "decoded", "idle", "of_optimizer", "setting_of", "wide_gap"]
