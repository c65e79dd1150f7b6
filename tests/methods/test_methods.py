"""Published methods: their paper's parts and defaults, and what `sage` refuses."""

from __future__ import annotations

import inspect
import typing
from dataclasses import replace

import pytest

from sage_rlvr.core import (
    Anchor,
    Branch,
    Clip,
    FixedBudget,
    Flat,
    GroupCentred,
    GroupNormalised,
    LeaveOneOut,
    SequenceMean,
    Token,
)
from sage_rlvr.errors import CancellingGuide, ConfigError
from sage_rlvr.methods import METHODS, dr_grpo, grpo, no_kl, rloo, sage


def test_parts_and_defaults():
    assert grpo().anchor == Anchor(0.05, Flat(), "k3", "loss", "base")
    parts = {
        "grpo": (grpo(), GroupNormalised(), SequenceMean()),
        "no_kl": (no_kl(), GroupNormalised(), SequenceMean()),
        "dr_grpo": (dr_grpo(), GroupCentred(), FixedBudget()),
        "rloo": (rloo(), LeaveOneOut(), FixedBudget()),
    }
    for name, (method, advantage, reduction) in parts.items():
        assert (method.name, method.advantage, method.reduction, method.surrogate) == (
            name,
            advantage,
            reduction,
            Clip(),
        )
    assert dr_grpo().anchor is None and rloo().anchor is None
    assert rloo(beta=0.05).anchor == Anchor(0.05, Flat(), "k1", "reward")


def test_no_kl_is_grpo_without_an_anchor():
    assert no_kl(clip_high=0.28) == replace(grpo(beta=0.0, clip_high=0.28), name="no_kl")


def test_sage_changes_one_field():
    base = dr_grpo(beta=0.05)
    shaped = sage(base, Token())
    assert shaped == replace(base, name="dr_grpo+token", anchor=replace(base.anchor, guide=Token()))
    assert sage() == sage(base=grpo(), guide=Branch()) and sage().anchor.guide == Branch(0.3, 1.2)


@pytest.mark.parametrize(("base", "advice"), [(dr_grpo(), r"dr_grpo\(beta=0.05\)"), (no_kl(), r"grpo\(beta=0.05\)")])
def test_sage_needs_a_base_with_a_leash(base, advice):
    with pytest.raises(ConfigError, match="a guide needs beta > 0.*" + advice):
        sage(base)


def test_sage_refuses_a_guide_that_cancels():
    with pytest.raises(CancellingGuide):
        sage(grpo(estimator="k3_is"))


def test_grpo_in_the_reward_is_refused():
    with pytest.raises(ConfigError, match="sequence_mean"):
        grpo(estimator="k1", placement="reward")


@pytest.mark.parametrize("name", METHODS)
def test_factories_are_documented_and_annotated(name):
    factory = METHODS[name]
    hints = typing.get_type_hints(factory)
    assert set(inspect.signature(factory).parameters) == set(hints) - {"return"}
    assert (factory().name and "L = " in factory.__doc__) or name == "sage"
