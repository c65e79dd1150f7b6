"""Who is compared with whom: arms with their controls, and the questions that were asked before anything ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

BASE = "base"
Why = Literal["control", "plain", "placebo", "no_kl", "base", "pair", "matched", "power", "envelope"]
"""Why a pair is compared: the design's control; the arm without its guide; with its q permuted; without a KL; the policy that all
start from; another named arm; the unguided method at the same raw KL; the base tempered over whole completions; the best of
several arms at the arm's own pass@1."""
CONTROLS: tuple[Why, ...] = ("control", "plain", "placebo", "no_kl")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm. name: in tables and sentences; key: of its folders (`runs/<key>-s<seed>`). why: of a control that was added, what
    for. plain, placebo, no_kl, matched: names of its controls, found by structure (`experiments.controls`)."""

    name: str
    key: str
    recipe: str = ""
    why: str = ""
    guided: bool = False
    plain: str | None = None
    placebo: str | None = None
    no_kl: str | None = None
    matched: tuple[str, ...] = ()
    equation: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A comparison that the design names as primary: a minus b (arms by name or key) on a metric as it is printed ("pass@256",
    "pass@1 at T = 0.3"), on the main task unless another is named."""

    a: str
    b: str
    metric: str
    task: str = ""


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Rivals taken together, a method at several betas for one: the convex hull of these arms in pass@1 and pass@k. name: in tables
    and sentences; arms: by name."""

    name: str
    arms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Design:
    """arms in order, without the base. base: the policy that all start from, None where none was evaluated. control: the arm that
    others are held against. every: whether all pairs of arms are compared (they were named one by one). beside: names of arms that
    it does not ask for, named together with its folder. baselines: rivals of every candidate; oracle: the arm that says how much
    room there is, trained on right answers it was given. discarded: candidates that were not run, which count in the correction
    of the primary family. facts: the rest of what a sweep wrote down (design.json)."""

    arms: tuple[Arm, ...]
    base: str | None = None
    control: str | None = None
    seeds: tuple[int, ...] = ()
    title: str = ""
    notes: str = ""
    questions: tuple[Question, ...] = ()
    every: bool = False
    beside: tuple[str, ...] = ()
    baselines: tuple[Envelope, ...] = ()
    oracle: str | None = None
    discarded: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arms, in order."""
        return tuple(arm.name for arm in self.arms)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The arms that are held against the baselines: all that are in none, but for the ceiling and added controls."""
        rivals = {name for envelope in self.baselines for name in envelope.arms} | {self.oracle}
        return tuple(arm.name for arm in self.arms if arm.name not in rivals and not arm.why and arm.name != self.base)

    def arm(self, name: str) -> Arm | None:
        """The arm of that name or key."""
        return next((arm for arm in self.arms if name in (arm.name, arm.key)), None)

    def called(self, name: str) -> str:
        """The name in tables of an arm that is given by name or key; anything else as it is."""
        found = self.arm(name)
        return found.name if found else name

    def pairs(self) -> list[tuple[str, str, Why]]:
        """(arm, what it is held against, why), each pair once, those of the questions among them. Controls that were added are
        held against alone: more comparisons of them would only weaken the correction for the others."""
        found: dict[tuple[str, str], Why] = {}
        for i, arm in enumerate(self.arms):
            rivals: list[tuple[str | None, Why]] = [(self.control, "control"), (arm.plain, "plain"), (arm.placebo, "placebo")]
            rivals += [(None if arm.guided else arm.no_kl, "no_kl")]
            rivals += [(other.name, "pair") for other in self.arms[:i] if self.every]
            rivals += [(asked.name, "pair") for q in self.questions if self.arm(q.a) is arm and (asked := self.arm(q.b))]
            for rival, why in rivals:
                if rival and rival != arm.name and not arm.why and (rival, arm.name) not in found:
                    found.setdefault((arm.name, rival), why)
        return [(a, b, why) for (a, b), why in found.items()]
