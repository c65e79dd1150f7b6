"""Checks of the signal: whether rewards differ within groups, and in how many steps of the run a gradient can be expected."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sage_rlvr.symptoms.finding import Finding
from sage_rlvr.symptoms.first_rollout import FirstRollout
from sage_rlvr.verdicts.stats.intervals import wilson

FEW = 0.2  # share of mixed groups below which a step wastes most of its samples


@dataclass(frozen=True)
class MixedGroups:
    """The expected signal: shares of mixed groups and of steps with at least one, each (value, low, high)."""

    mixed: tuple[float, float, float]
    steps: tuple[float, float, float]

    @classmethod
    def of(cls, first: FirstRollout) -> MixedGroups:
        """Compute it from the sampled groups, by Wilson's interval."""
        share = wilson(first.mixed, len(first.groups))
        values = (share.value, share.low, share.high)
        low, middle, high = (1 - (1 - value) ** first.plan.prompts for value in (values[1], values[0], values[2]))
        return cls(values, (middle, low, high))

    @property
    def line(self) -> str:
        """The shares in words."""
        mixed, low, high = self.mixed
        steps, least, most = self.steps
        return (
            f"groups with mixed rewards: {mixed:.0%} (95 % interval {low:.0%} to {high:.0%}), so {steps:.0%} of the steps have "
            f"a signal ({least:.0%} to {most:.0%})"
        )


def found(first: FirstRollout) -> Iterator[Finding]:
    """All findings of the signal."""
    if not first.rewards:
        return
    plan, names = first.plan, first.names
    if plan.group_size < 2:
        yield Finding(
            cause="group-of-one",
            severity="cannot learn",
            sentence=f"{names.group_size} = {plan.group_size}: the mean of a group of one is its own reward, so every "
            "advantage is 0",
            next_step=f"set {names.group_size} to 8 or more",
        )
        return
    if first.stuck:
        yield from _stuck(first)
        return
    signal = MixedGroups.of(first)
    share = signal.mixed[0]
    if plan.refills is not None:
        kept = share * (plan.refills + 1)
        if kept < 1:
            yield Finding(
                cause="groups-dropped",
                severity="warning",
                sentence=f"dynamic sampling keeps {share:.0%} of the groups; with {plan.refills} refills a step has {kept:.0%} "
                f"of its {plan.prompts} groups",
                next_step="use easier or harder prompts, a larger group, or more refills",
                evidence={"mixed groups": f"{first.mixed} of {len(first.groups)}"},
            )
    elif share < FEW and signal.steps[0] < 0.95 and sum(first.rewards) < 0.95 * len(first.rewards) * max(first.rewards):
        yield Finding(
            cause="few-mixed",
            severity="warning",
            sentence=signal.line,
            next_step=f"choose prompts that the policy solves now and then, or raise {names.group_size}",
            evidence={"mixed groups": f"{first.mixed} of {len(first.groups)}"},
        )


def _stuck(first: FirstRollout) -> Iterator[Finding]:
    rewards, plan, names = first.rewards, first.plan, first.names
    top = max(rewards)
    bound = 1 - 0.05 ** (1 / len(rewards))  # upper limit of the pass rate, if none or all of the completions were right
    most = 1 - (1 - bound) ** plan.group_size
    if top <= 1e-9:
        yield Finding(
            cause="all-wrong",
            severity="cannot learn" if most < 0.05 else "warning",
            sentence=f"0 of {len(rewards)} completions earn anything: the pass rate is at most {bound:.1%} (95 %), so at most "
            f"{most:.0%} of "
            f"groups of {plan.group_size} are mixed",
            next_step="if the findings above explain it, repair them first; else use easier prompts, fine-tune on right "
            "answers, or draw "
            f"more (--draw) and raise {names.group_size}",
            evidence={"right": f"0 of {len(rewards)}"},
            examples=first.examples(),
        )
    elif len(set(rewards)) == 1:
        yield Finding(
            cause="all-right",
            severity="warning",
            sentence=f"all {len(rewards)} completions earn {top:g}: there is nothing left to prefer",
            next_step="use harder prompts, such as are solved now and then",
            evidence={"earn": top},
            examples=first.examples(wrong=False),
        )
    else:
        yield Finding(
            cause="few-mixed",
            severity="warning",
            sentence=f"no group has mixed rewards, though prompts differ (mean {sum(rewards) / len(rewards):.2g}): every "
            "advantage is 0",
            next_step=f"raise {names.group_size} or the temperature, and leave out prompts that are always or never solved",
            evidence={"groups": len(first.groups)},
        )


def expected_updates(first: FirstRollout) -> float:
    """The number of steps with a signal that the run can expect; NaN without rewards."""
    return MixedGroups.of(first).steps[0] * first.plan.steps if first.rewards else math.nan


__all__ = ["MixedGroups", "expected_updates", "found"]
