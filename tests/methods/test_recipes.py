"""What trains on Countdown by name: each is the method that its name says, and has the control that it names."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest

from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.contrib.methods.dars import MarginalValue, dars
from sage_rlvr.core import Branch, Method
from sage_rlvr.core.rollout_plans import is_staged
from sage_rlvr.methods import bnpo, dapo, dr_grpo, forward_kl, grpo_token_mean, sage
from sage_rlvr.recipes import recipe, trainable

ARMS = sorted(trainable())
WANTED = {
    "bnpo": bnpo(),
    "bnpo_kl": bnpo(beta=0.05),
    "bnpo_branch": sage(bnpo(beta=0.05), Branch()),
    "dapo": dapo(),
    "dapo_kl": dapo(beta=0.05),
    "dapo_branch": sage(dapo(beta=0.05), Branch()),
    "dapo_overlong": dapo(overlong_buffer=16, max_tokens=24),
    "dars": dars(),
    "dars_b": dars(),
    "dars_hw": dars(target="hardness", max_completions=64),
    "dars_stages": dars(baseline="stages"),
    "dars_uniform": dars(spread="uniform"),
    "dars_marginal_value": replace(dr_grpo(), name="dars_marginal_value", rollout=MarginalValue(each=16)),
    "forward_kl": forward_kl(),
    "forward_kl_branch": sage(forward_kl(), Branch()),
    "grpo_token_mean": grpo_token_mean(),
}


@functools.cache
def config(name: str) -> TrainConfig:
    return load_config(TrainConfig, name)


def built(name: str) -> Method:
    return config(name).method


@pytest.mark.parametrize("name", WANTED)
def test_a_recipe_is_the_method_of_its_name(name):
    assert built(name) == WANTED[name]


@pytest.mark.filterwarnings("ignore:Random in the loss is noise only", "ignore:.*the part of q that depends on the batch")
@pytest.mark.parametrize("name", ARMS)
def test_an_arm_is_the_base_recipe_and_a_method(name):
    """Nothing else differs, so that arms are comparable: world, model, steps, rollout and optimizer are shared.

    Counts of answers need prompts that come back within the run: their recipe has fewer problems and says so of its control. A
    first stage is half a group; breadth (DARS-B) is prompts, steps and epochs, with as many prompts drawn in all.
    """
    plain = config("no_kl")
    if name == "outcome_counts":
        plain = replace(plain, world=replace(plain.world, train_problems=1000))
        assert plain.steps * plain.rollout.prompts_per_step >= 4 * plain.world.train_problems
    if name in ("pba", "pba_placebo"):  # its table needs samples of every problem
        plain = replace(plain, world=replace(plain.world, train_problems=256), base_samples="runs/base-samples")
    if name.startswith("dars"):
        assert config(name).rollout.group_size == 8 and is_staged(built(name).rollout)
        plain = replace(plain, rollout=replace(plain.rollout, group_size=8))
    if name == "dars_b":
        own = config(name)
        assert own.steps * own.rollout.prompts_per_step == 4096 and (own.updates.epochs, own.updates.minibatches) == (2, 1)
        assert own.rollout == replace(plain.rollout, prompts_per_step=128)
        plain = replace(plain, steps=own.steps, rollout=own.rollout, updates=own.updates)
    assert replace(config(name), method=plain.method) == plain


@pytest.mark.parametrize("name", [name for name in ARMS if name.endswith("_placebo") and name.removesuffix("_placebo") in ARMS])
def test_a_placebo_differs_from_its_arm_in_the_method_alone_and_there_in_no_other_number(name):
    arm, placebo = (dump(config(one)) for one in (name.removesuffix("_placebo"), name))
    theirs = [one.pop("method") for one in (arm, placebo)]
    assert arm == placebo
    if theirs[0]["name"] == theirs[1]["name"] and "permuted" in theirs[0]:
        assert theirs[0] | {"permuted": True} == theirs[1]


def test_the_comments_name_controls_that_are_there():
    """Of recipe files and of methods.yaml alike."""
    for file in ((recipe("base.yaml")).parent).rglob("*.yaml"):
        named = re.findall(r"ontrols?(?: of)?:? ([a-z_0-9]+)(?:(?:,| and| or) ([a-z_0-9]+))?", file.read_text(encoding="utf-8"))
        known = {*ARMS, "other"}
        assert {word for pair in named for word in pair if "_" in word} <= known, file


@pytest.mark.parametrize(
    ("arm", "control"), [("bnpo_branch", "bnpo_kl"), ("dapo_branch", "dapo_kl"), ("forward_kl_branch", "forward_kl")]
)
def test_an_arm_with_a_guide_differs_from_its_control_in_the_guide_alone(arm, control):
    shaped, plain = built(arm), built(control)
    assert replace(shaped, name=plain.name, anchor=replace(shaped.anchor, guide=plain.anchor.guide)) == plain
