"""Checks of the headroom: pass@k of the current model compared with its chance floor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sage_rlvr.evaluation.gate import Gate, GatePoint
from sage_rlvr.symptoms.finding import Finding
from sage_rlvr.symptoms.first_rollout import FirstRollout
from sage_rlvr.verdicts.stats.intervals import passk_interval

ALL = 0.95  # share of right completions above which little headroom remains
MUCH, LITTLE = (0.02, 0.5), 0.9  # bounds of the room at the group's size, in the gate's words


def gate_of(first: FirstRollout) -> Gate | None:
    """The support gate of the sampled groups at k = 1 and the group's size; None without rewards or in groups of one."""
    groups = [[one.reward for one in group if one.reward is not None] for group in first.groups]
    size = min((len(group) for group in groups), default=0)
    if size < 2 or len(groups) < 2:
        return None
    counts = [sum(reward >= first.right_from for reward in group) for group in groups]
    points = []
    for k in (1, size):
        passed = passk_interval([len(group) for group in groups], counts, k)
        points.append(GatePoint(k=k, passed=passed, chance=0.0 if first.floor is None else first.floor(k)))
    return Gate(points=tuple(points), much=MUCH, little=LITTLE)


def line(gate: Gate) -> str:
    """pass@k of the groups and the room, in words."""
    parts = [f"pass@{one.k} {one.passed.bracketed()}" + f", chance {one.chance:.3f}" * (one.chance > 0) for one in gate.points]
    return f"headroom: {gate.room} at k = {gate.points[-1].k} ({'; '.join(parts)})"


def found(first: FirstRollout) -> Iterator[Finding]:
    """All findings of the room."""
    gate = gate_of(first)
    if gate is None or first.stuck:
        return
    evidence: dict[str, Any] = {f"pass@{one.k}": one.passed.value for one in gate.points}
    if gate.points[0].passed.value > ALL:
        yield Finding(
            cause="all-right",
            severity="warning",
            sentence=f"{gate.points[0].passed.value:.0%} of the completions are right already: a gain can hardly be measured here",
            next_step="use harder prompts",
            evidence=evidence,
        )
    last = gate.points[-1]
    if first.floor is not None and last.passed.high < max(last.chance, 1e-9):
        yield Finding(
            cause="at-chance",
            severity="warning",
            sentence=f"pass@{last.k} is {last.passed.value:.2f}, and blind guessing has {last.chance:.2f}",
            next_step="what is right here may be luck: use a task with more possible answers, or a better start",
            evidence=evidence,
        )


__all__ = ["found", "gate_of", "line"]
