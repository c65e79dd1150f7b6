"""The arms that are compared, with their controls, and the questions that the design fixed before any run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sage_rlvr.errors import ConfigError
from sage_rlvr.verdicts.metric import Metric

BASE = "base"
TEMPERED = "base tempered over whole completions"
AT_ANY = " at any temperature"
COLDER = BASE + AT_ANY
"""The base sampled at several temperatures, mixed per completion: what sampling reaches without training. The name of another
control that was sampled at several temperatures ends in `AT_ANY` too."""
Why = Literal["control", "plain", "placebo", "no_kl", "base", "pair", "matched", "power", "envelope", "colder", "weights"]
"""The reason why a pair is compared, by its second arm.

control: the control of the design
plain, placebo, no_kl: the same method without its guide, with q permuted, without the KL term
base: the base
pair: another named arm
matched: another method at equal KL
power: the base tempered over full completions
envelope: the best mixture of several arms at equal pass@1
colder: the base sampled at several temperatures
weights: mixtures of the weights of the base and a policy"""
CONTROLS: tuple[Why, ...] = ("control", "plain", "placebo", "no_kl")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm.

    name: as printed
    key: as in folder names (`runs/<key>-s<seed>`)
    why: the purpose of an added control, "" for an arm of the design file
    plain, placebo, no_kl, matched: names of its controls, found by comparing configurations (`sweeps.controls`)"""

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
    """A primary comparison of the design: a minus b (arms by name or key) in a metric, by default on the main task."""

    a: str
    b: str
    metric: Metric
    task: str = ""


def questions_of(trees: Iterable[Mapping[str, Any]]) -> tuple[Question, ...]:
    """The questions of a design.json or summary.json. Raises ValueError for one that cannot be read."""
    try:
        return tuple(Question(**{**tree, "metric": Metric.parse(tree["metric"])}) for tree in trees)
    except ConfigError as error:  # `safe_io.understood` adds the file to a ValueError and not to an error of this package
        raise ValueError(f"questions: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A set of baselines, such as one method at several betas: the best mixture of these arms at equal pass@1. name: as printed;
    arms: by name."""

    name: str
    arms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Design:
    """The arms of a comparison and the questions about them.

    arms: in order, without the base
    base: the initial policy of all arms, None without an evaluation
    control: the arm that the others are compared with
    every: whether all pairs of arms are compared (arms passed as separate paths)
    extra_arms: further arms, passed together with the folder
    baselines: sets of baselines for every candidate
    oracle: the arm trained on right answers, for the headroom
    discarded: candidates that were not run; they count in the correction of the primary family
    facts: the other contents of design.json"""

    arms: tuple[Arm, ...]
    base: str | None = None
    control: str | None = None
    seeds: tuple[int, ...] = ()
    title: str = ""
    notes: str = ""
    questions: tuple[Question, ...] = ()
    every: bool = False
    extra_arms: tuple[str, ...] = ()
    baselines: tuple[Envelope, ...] = ()
    oracle: str | None = None
    discarded: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arms in order."""
        return tuple(arm.name for arm in self.arms)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The arms compared with the baselines: all arms except baselines, the oracle and added controls."""
        rivals = {name for envelope in self.baselines for name in envelope.arms} | {self.oracle}
        return tuple(arm.name for arm in self.arms if arm.name not in rivals and not arm.why and arm.name != self.base)

    def ks(self, most: int) -> list[int]:
        """The ks at which samples are compared: 1, the largest, and those of the questions."""
        of_questions = {q.metric.k for q in self.questions if (q.metric.name, q.metric.at) == ("pass", "temperature")}
        return sorted({1, most} | {k for k in of_questions if k is not None and k < most})

    def arm(self, name: str) -> Arm | None:
        """The arm of that name or key."""
        return next((arm for arm in self.arms if name in (arm.name, arm.key)), None)

    @property
    def asked(self) -> list[Question]:
        """The questions, with the printed names of their arms."""
        return [replace(q, a=self.called(q.a), b=self.called(q.b)) for q in self.questions]

    def called(self, name: str) -> str:
        """The printed name of an arm that is given by name or key; other strings are returned unchanged."""
        arm = self.arm(name)
        return arm.name if arm else name

    def pairs(self) -> list[tuple[str, str, Why]]:
        """(arm, comparator, reason), each pair once, including the pairs of the questions. Added controls are only comparators:
        comparing them further would only weaken the correction."""
        reasons: dict[tuple[str, str], Why] = {}
        for i, arm in enumerate(self.arms):
            rivals: list[tuple[str | None, Why]] = [(self.control, "control"), (arm.plain, "plain"), (arm.placebo, "placebo")]
            rivals += [(None if arm.guided else arm.no_kl, "no_kl")]
            rivals += [(other.name, "pair") for other in self.arms[:i] if self.every]
            rivals += [(comparator.name, "pair") for q in self.questions if self.arm(q.a) is arm and (comparator := self.arm(q.b))]
            for rival, why in rivals:
                if rival and rival != arm.name and not arm.why and (rival, arm.name) not in reasons:
                    reasons.setdefault((arm.name, rival), why)
        return [(a, b, why) for (a, b), why in reasons.items()]
