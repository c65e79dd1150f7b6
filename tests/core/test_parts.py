"""The kinds of parts: declared members with defaults, and errors for a class without a kind, or with a slip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from sage_rlvr.contrib.methods.dars import Dars
from sage_rlvr.core import (
    Advantage,
    Anchor,
    Banded,
    Clip,
    Extra,
    FixedBudget,
    GroupCentered,
    Guide,
    Method,
    Reduction,
    RolloutPlan,
    Surrogate,
)
from sage_rlvr.core.advantages import ZeroVariance
from sage_rlvr.core.advantages.placebo import PlaceboRight
from sage_rlvr.core.rollout_plans import Staged, is_staged
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import grpo
from sage_rlvr.registry import _refuse_arguments, registry_of


@dataclass(frozen=True)
class Raw(Advantage):
    """The least that an advantage has."""

    equation: ClassVar[str] = "r"

    def __call__(self, rewards: Tensor) -> Tensor:
        return rewards.detach().float()


class Duck:
    """Has what a part of each kind needs, and inherits none."""

    equation, divisor, depends_on, needs = "x", "row", "state", frozenset[str]()

    def __call__(self, *given: Any) -> Any:
        return given[0]


def member(*given: Any) -> Any:
    """Any method."""


KINDS: dict[str, type] = {
    "advantage": Advantage, "surrogate": Surrogate, "reduction": Reduction, "rollout_plan": RolloutPlan, "guide": Guide
}  # fmt: skip


def test_the_least_advantage_has_the_defaults() -> None:
    part = Raw()
    assert (part.legend, part.ascends, part.prefers, part.against_kl) == ("", "", "", "")
    assert not (part.couples_prompts or part.takes_group_mean or part.gives_labels or part.random or part.evens)
    assert (part.needs, part.counts, part.least_group) == (None, None, 2)
    assert part.at(3, 4) is part and part.start() == {} and part.dead(4) == ZeroVariance()
    assert Method("raw", part, Clip(), None, FixedBudget()).start() == {}
    with pytest.raises(ConfigError, match="Raw draws at random but has no `expected`"):
        part.expected(torch.zeros(1, 2))
    placebo = PlaceboRight(part)
    assert (placebo.least_group, placebo.counts, placebo.legend, placebo.needs) == (2, None, "", frozenset())


def test_the_defaults_of_the_other_kinds() -> None:
    assert not (Clip().sees_batch or Clip().reads_labels or Clip().needs or Clip().legend)
    plan = type("Plan", (RolloutPlan,), {"equation": "all", "keeps": member})()
    assert (plan.max_refills, plan.couples_prompts, plan.start(), is_staged(plan)) == (0, False, {}, False)
    assert is_staged(Dars()) and not Dars().guided and not is_staged(None)
    guide = type("Own", (Guide,), {"needs": frozenset(), "depends_on": "state", "equation": "1", "__call__": member})()
    assert (guide.q_min, guide.q_max, guide.looks_ahead, guide.pays_nothing) == (0.0, float("inf"), False, False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_inherits_no_kind_is_an_error_with_the_line_to_write(kind: str) -> None:
    home = f"sage_rlvr.core.{KINDS[kind].__name__}"
    with pytest.raises(ConfigError, match=rf"^it: Duck does not inherit {home}; write class Duck\({home}\), with .*equation"):
        registry_of(kind).check("it", Duck)  # type: ignore[misc]


@pytest.mark.parametrize(
    "make",
    [
        lambda: replace(grpo(), advantage=Duck()),
        lambda: replace(grpo(), surrogate=Duck()),
        lambda: replace(grpo(), reduction=Duck()),
        lambda: replace(grpo(), rollout=Duck()),
        lambda: Anchor(0.1, guide=Duck()),  # type: ignore[arg-type]
    ],
)
def test_so_is_a_value_of_such_a_class_in_a_method(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="inherit"):
        make()


def test_a_class_in_the_place_of_a_part_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"grpo: advantage = GroupCentered is a class; write GroupCentered\(\.\.\.\)"):
        replace(grpo(), advantage=GroupCentered)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("base", "name", "value", "near"),
    [
        (Advantage, "takes_group_men", True, "takes_group_mean"),
        (Advantage, "couple_prompts", property(member), "couples_prompts"),
        (Advantage, "expectd", member, "expected"),
        (Surrogate, "see_batch", True, "sees_batch"),
        (Reduction, "buget", member, "budget"),
        (RolloutPlan, "max_refill", 3, "max_refills"),
        (Staged, "max_completion", 3, "max_completions"),
        (Guide, "look_ahead", True, "looks_ahead"),
        (Banded, "depend_on", "state", "depends_on"),
        (Extra, "loss_weight", member, "loss_weights"),
        (Extra, "after_reward", member, "after_rewards"),
        (Extra, "need", frozenset(), "needs"),
    ],
)
def test_a_misspelled_member_is_an_error_with_the_near_name(base: type, name: str, value: Any, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"class Mine: {name} is no member of an? [a-z ]+; did you mean {near}\?.*_{name}"):
        type("Mine", (base,), {name: value})


@pytest.mark.parametrize("given", [{}, {"needs": field(default_factory=frozenset)}])
def test_a_field_that_overrides_a_member_has_a_default(given: dict[str, Any]) -> None:
    """@dataclass would take the base's property for its default."""
    with pytest.raises(ConfigError, match="surrogate class Mine: the field needs is a member of each surrogate, so it must"):
        type("Mine", (Surrogate,), {"__annotations__": {"needs": "frozenset[str]"}, **given})
    made = dataclass(frozen=True)(type("Mine", (Surrogate,), {
        "__annotations__": {"needs": "frozenset[str]"}, "needs": frozenset(), "equation": "x", "__call__": member}))  # fmt: skip
    assert made().needs == frozenset() and made(frozenset({"answers"})).needs == {"answers"}  # type: ignore[attr-defined, call-arg]


def test_what_is_lacking_is_named() -> None:
    check = registry_of("reduction").check
    assert check is not None
    with pytest.raises(ConfigError, match="Half lacks divisor; declare divisor: ClassVar"):
        check("reduction 'half'", type("Half", (Reduction,), {"equation": "x", "budget": member, "__call__": member}))
    with pytest.raises(ConfigError, match=r"Half lacks __call__, budget; define it as sage_rlvr\.core\.Reduction declares it"):
        check("reduction 'half'", type("Half", (Reduction,), {"equation": "x", "divisor": "row"}))
    plan = type("Half", (RolloutPlan,), {"equation": "x", "keeps": member, "extra": member})
    with pytest.raises(ConfigError, match=r"write class Half\(sage_rlvr\.core\.rollout_plans\.Staged\)"):
        registry_of("rollout_plan").check("rollout plan 'half'", plan)  # type: ignore[misc]


def test_a_part_that_is_not_decorated_itself_is_refused() -> None:
    kind = type("Bare", (Advantage,), {"equation": "r", "__call__": member, "__annotations__": {"k": int}, "k": 1})
    with pytest.raises(ConfigError, match="decorate the class Bare with"):
        registry_of("advantage").register(kind)


@pytest.mark.parametrize(
    ("base", "wanted"),
    [
        (Advantage, lambda self, rewards, state: rewards),
        (Advantage, lambda self, rewards, seen, step, key: rewards),
        (Surrogate, lambda self, log_ratio, advantages, mask, batch: (log_ratio, {})),
    ],
)
def test_what_a_part_asks_for_beside_the_usual_may_be_named(base: type, wanted: Any) -> None:
    _refuse_arguments("it", type("Mine", (base,), {"equation": "x", "__call__": wanted}))


def test_a_method_that_does_not_take_what_it_is_called_with_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"it: .* is called with \(self, rewards, .*too many positional"):
        _refuse_arguments("it", type("Mine", (RolloutPlan,), {"equation": "x", "keeps": lambda self: True}))


@pytest.mark.parametrize("kind", KINDS)
def test_the_packages_own_parts_take_what_they_are_called_with(kind: str) -> None:
    """Registration checks this of parts from outside alone."""
    for name, part in registry_of(kind).items():
        if isinstance(part, type):
            _refuse_arguments(f"{kind} {name}", part)
