"""Checks of the update: learning rate against weights and their precision, KL term, reference, sampler, age of the samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sage_rlvr.symptoms.finding import Finding
from sage_rlvr.symptoms.first_rollout import CAP, FirstRollout, RateSchedule
from sage_rlvr.training.opening import wide_gap

if TYPE_CHECKING:
    import torch

HIGH, FAR = 0.01, 0.1  # size of an update over the size of a weight: warning, and error
LEAST = 2e-4  # size of all updates over the size of a weight below which nothing is learned
STRONG, STRONGEST = 1.0, 20.0  # beta
OLD = 16  # updates of one rollout
APART = {"float32": 1e-3, "bfloat16": 2e-2, "float16": 2e-2}  # KL of a reference that should be the policy
SURPLUS = 0.03  # nats
SURE = 3.0  # standard errors
ALWAYS = RateSchedule()  # at the same rate
SAMPLED = 100_000  # weights of a tensor that are sampled


def found(first: FirstRollout) -> Iterator[Finding]:
    """All findings of the update."""
    yield from _rate(first)
    yield from _kl(first)
    yield from _sampler(first)
    plan = first.plan
    if plan.updates > OLD:
        yield Finding(
            cause="stale-samples",
            severity="warning",
            sentence=f"a rollout is used for {plan.updates} updates: at the later ones its samples are from another policy, and "
            "the clip removes their gradient",
            next_step=f"lower {first.names.reuse}; 1 to 4 updates are usual",
            evidence={"updates of a rollout": plan.updates},
        )


def weight_facts(
    parameters: Iterable[torch.nn.Parameter], lr: float, updates: int, copies: bool, schedule: RateSchedule = ALWAYS
) -> dict[str, Any]:
    """The fields of `RunPlan` on weights: counts, rms, dtype, and for half precision the shares that updates at the highest rate
    change.

    copies: whether the optimizer has float32 copies, in which updates add up, at the mean rate."""
    import torch

    trained, total, squares, seen, halves = 0, 0, 0.0, 0, []
    dtype = torch.float32
    for weight in parameters:
        total += weight.numel()
        if not weight.requires_grad:
            continue
        trained += weight.numel()
        dtype = weight.dtype
        flat = weight.detach().flatten()
        flat = flat[:: max(1, flat.numel() // SAMPLED)]
        if weight.dim() > 1:
            squares, seen = squares + float(flat.double().square().sum()), seen + flat.numel()
        if weight.dtype in (torch.bfloat16, torch.float16):
            halves.append((flat.float().abs(), weight.dtype))
    facts: dict[str, Any] = {"parameters": total, "trained": trained, "dtype": str(dtype).removeprefix("torch.")}
    facts["rms"] = math.sqrt(squares / seen) if seen else math.nan
    if halves:
        most = lr * schedule.highest
        whole = lr * schedule.mean * updates if copies else most
        facts["changed"], facts["changed_in_all"] = _changed(halves, most), _changed(halves, whole)
    return facts


def _changed(parts: list[tuple[torch.Tensor, torch.dtype]], size: float) -> float:
    """Share of weights that a change of this size moves to another value of their type: at least half the spacing of their
    values."""
    import torch

    changed = total = 0
    for flat, dtype in parts:
        bits = 7 if dtype == torch.bfloat16 else 10
        spacing = torch.exp2(torch.floor(torch.log2(flat.clamp(min=1e-30))) - bits)
        changed += int((size >= spacing / 2).sum())
        total += flat.numel()
    return changed / total if total else 1.0


def surprises(log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(expectation, variance) of the capped surprise of a token drawn from each of n distributions (n, V)."""
    law, size = log_probs.exp(), (-log_probs).clamp(max=CAP)
    mean = (law * size).sum(-1)
    return mean, (law * (size - mean[:, None]).square()).sum(-1)


def _rate(first: FirstRollout) -> Iterator[Finding]:
    yield from _movement(first)
    plan, names = first.plan, first.names
    each = _each(first)
    whole = plan.trained == plan.parameters
    large = plan.parameters > 50_000_000 and plan.lr > 1e-5
    if whole and (each > HIGH or large):
        yield Finding(
            cause="lr-too-high",
            severity="cannot learn" if each > FAR else "warning",
            sentence=f"{names.lr} = {plan.lr:g}: an update of Adam moves a weight by up to {each:.1%} of its size; from about 1 % "
            "on a trained model is lost within a few steps",
            next_step=f"lower {names.lr}" + (" to 1e-6, or train adapters" if large else f" to {plan.rms * 2e-3:.0e}"),
            evidence=_size(first),
        )


def _each(first: FirstRollout) -> float:
    """The size of an update over the size of a weight."""
    plan = first.plan
    return plan.lr / plan.rms if plan.rms and plan.rms > 0 else math.nan


def _size(first: FirstRollout) -> dict[str, float]:
    plan = first.plan
    mean = {} if plan.schedule.mean == 1.0 else {"mean rate": plan.lr * plan.schedule.mean}
    return {first.names.lr: plan.lr, **mean, "size of a weight (rms)": plan.rms}


def _movement(first: FirstRollout) -> Iterator[Finding]:
    """Updates that half-precision weights round away, or that are too small in all."""
    plan, names = first.plan, first.names
    updates = plan.steps * plan.updates
    rates = plan.schedule
    in_all = _each(first) * updates * rates.mean
    raise_it = f"raise {names.lr}: 1e-6 to 5e-6 for full fine-tuning of a pretrained model, 1e-5 to 1e-4 for adapters"
    warm = f"the warm-up takes {rates.warmup:,} updates and the run {updates:,}, so that " if rates.short else ""
    cause = "weights-do-not-move"
    if plan.parameters and not plan.trained:
        yield Finding(
            cause=cause,
            severity="cannot learn",
            sentence=f"none of the model's {plan.parameters:,} weights requires a gradient: all are frozen",
            next_step="look for requires_grad_(False) behind the adapter, or an adapter without target modules",
        )
    elif plan.changed_in_all is not None and plan.changed_in_all < 0.05:
        yield Finding(
            cause=cause,
            severity="cannot learn",
            sentence=f"{warm}weights in {plan.dtype}: an update of {plan.lr * rates.highest:.3g} is below half the spacing of "
            f"their values for {1 - plan.changed_in_all:.1%} of them, and rounds away",
            next_step=f"load the weights in float32 ({names.dtype}), which bf16 arithmetic leaves as fast, or train adapters",
            evidence=_size(first) | {"weights that change": plan.changed_in_all},
        )
    elif in_all < LEAST:
        yield Finding(
            cause=cause,
            severity="cannot learn",
            sentence=f"{warm}all {updates:,} updates of the run together move a weight by {in_all:.1e} of its size at most",
            next_step=f"shorten the warm-up ({names.warmup}), or train longer; then {raise_it}" if warm else raise_it,
            evidence=_size(first),
        )
    elif plan.changed is not None and plan.changed < 0.05:
        yield Finding(
            cause=cause,
            severity="note",
            sentence=f"an update of {plan.lr:g} changes {plan.changed:.1%} of the {plan.dtype} weights at once; the float32 copies "
            f"of the optimizer add up, so that {plan.changed_in_all:.0%} can change in the run",
            next_step="nothing; optimizer/changed_frac is small in the first steps",
            evidence=_size(first),
        )


def _kl(first: FirstRollout) -> Iterator[Finding]:
    plan, names = first.plan, first.names
    if plan.beta >= STRONG:
        yield Finding(
            cause="beta-too-high",
            severity="cannot learn" if plan.beta >= STRONGEST else "warning",
            sentence=f"{names.beta} = {plan.beta:g}: a KL of {1 / plan.beta:.2g} nats per token costs as much as a right answer "
            "earns, so that the policy stays at its reference",
            next_step=f"lower {names.beta}: 0 to 0.1 is usual",
            evidence={names.beta: plan.beta},
        )
    apart = APART.get(plan.dtype, 2e-2)
    if plan.kl_mean is not None and plan.kl_mean > apart:
        yield Finding(
            cause="reference-differs",
            severity="warning",
            sentence=f"the KL to the reference is {plan.kl_mean:.2g} nats per token before any update: the reference is another "
            "model than the policy, and the KL term pulls away from the start",
            next_step=f"check {names.reference}: a reference without the adapter of fine-tuning is the model before fine-tuning",
            evidence={"KL at step 0": plan.kl_mean, names.beta: plan.beta},
        )


def _sampler(first: FirstRollout) -> Iterator[Finding]:
    plan, surplus = first.plan, first.plan.surplus
    gap, error = plan.gap or (0.0, 0.0)
    if gap - SURE * error > wide_gap(plan.temperature):
        yield Finding(
            cause="sampler-mismatch",
            severity="warning",
            sentence=f"log-probs of sampler and scorer differ by {gap:.2g} nats per token on average: the update is of "
            "another distribution than the one that was sampled from",
            next_step=f"compare the sampler's weights, temperature and precision ({first.names.dtype}) with the trainer's",
            evidence={"nats": gap, "standard error": error},
        )
    elif surplus is not None and abs(surplus.mean) > max(SURPLUS, surplus.margin) and not (plan.sampling and surplus.mean < 0):
        kind = "less likely" if surplus.mean > 0 else "more likely"
        yield Finding(
            cause="sampler-mismatch",
            severity="warning",
            sentence=f"sampled tokens are {kind} under the policy that is trained than its own samples would be, by "
            f"{abs(surplus.mean):.2g} nats per token (chance explains {surplus.margin:.2g}): they were drawn from another "
            "distribution",
            next_step="compare the sampler's weights, temperature (generation_kwargs too), top_p, top_k and padding with the "
            "trainer's",
            evidence={"surprise above expectation": surplus.mean},
        )
    if plan.masked is not None and plan.masked > 0.1:
        yield Finding(
            cause="samples-dropped",
            severity="warning",
            sentence=f"the importance correction would mask {plan.masked:.0%} of the completions",
            next_step="raise its cap, or bring sampler and trainer closer together",
            evidence={"masked": plan.masked},
        )
    if plan.sampling:
        yield Finding(
            cause="sampler-mismatch", severity="note", sentence=plan.sampling, next_step="set top_p 1 and top_k 0 for training"
        )


__all__ = ["found", "surprises", "weight_facts"]
