"""All checks of a first rollout in one report."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sage_rlvr.symptoms import completions, cost, headroom, learning, prompts, rewards, signal
from sage_rlvr.symptoms.finding import SymptomReport, raised
from sage_rlvr.symptoms.first_rollout import FirstRollout

CHECKS = (prompts.found, rewards.found, completions.found, signal.found, learning.found, cost.found, headroom.found)
BLOCKING = (
    *("bos-doubled", "template-twice", "template-missing", "generation-prompt-missing", "padding-side", "reward-timeouts"),
    *("reward-too-strict", "pays-everything", "limit-too-short", "never-ends", "answer-elsewhere", "no-answer"),
    *("empty-completions", "entropy-collapse"),
)
"""Causes that explain a rollout in which no group has mixed rewards."""
UNSEEN = "what only updates show (KL, entropy and gradients over time); run `sage-rlvr diagnose` on the log after some steps"


def preflight_of(first: FirstRollout, head: str) -> SymptomReport:
    """The report. head: a description of the sampled groups, in a line."""
    findings = [one for check in CHECKS for one in check(first)]
    if first.stuck and first.rewards:
        findings = raised(findings, BLOCKING)
        if any(one.cause in BLOCKING and one.severity == "cannot learn" for one in findings):
            findings = [one for one in findings if one.cause not in ("all-wrong", "few-mixed")]
    proven = {one.cause for one in findings if one.severity == "cannot learn"}
    if proven & {"gold-unreadable", "wrong-column", "golds-shifted", "reward-constant", "pays-everything", "not-finite"}:
        findings = [one for one in findings if one.cause not in ("all-wrong", "all-right", "few-mixed")]
    return SymptomReport.of([head], findings, list(_facts(first)), UNSEEN)


def _facts(first: FirstRollout) -> Iterator[str]:
    """Facts that a healthy run has too."""
    if first.rewards:
        mean = sum(first.rewards) / len(first.rewards)
        lengths = sorted(len(one.ids) for one in first.completions)
        middle = lengths[len(lengths) // 2]
        yield f"reward {mean:.3g} on average; completions of {middle:,} tokens (median), {first.cut:.0%} cut"
        if first.plan.group_size > 1:
            yield signal.MixedGroups.of(first).line
        gate = headroom.gate_of(first)
        if gate is not None:
            yield headroom.line(gate)
    plan = first.plan
    kl = "" if plan.kl_mean is None else f", KL to the reference {plan.kl_mean:.2g}"
    gap = "" if plan.gap is None else f", sampler and scorer {plan.gap[0]:.1g} nats apart"
    step = f"{plan.prompts} prompts x {plan.group_size} a step, {plan.updates} updates of it"
    mean = "" if plan.schedule.mean > 0.99 else f" ({plan.lr * plan.schedule.mean:.2g} on average over its schedule)"
    yield f"{step}, lr {plan.lr:g}{mean} in {plan.dtype}{kl}{gap}"
    if first.price.lines:
        yield from first.price.lines
    elif not math.isnan(first.price.sampling):
        each = first.price.sampling / max(1, len(first.completions))
        yield f"sampling this took {first.price.sampling:.1f} s, {each * plan.prompts * plan.group_size:.1f} s a step at this rate"
    yield from first.audits


__all__ = ["CHECKS", "preflight_of"]
