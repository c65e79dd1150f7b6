"""A run of the reference loop replayed through TRL: the same completions and rewards, twenty updates, the same weights.

    theta_20(loop) = theta_20(TRL)        to 1e-5 in every weight, float32

TRL's `rollout_func` returns the completions that the loop drew and a reward function its verdicts; log-probs, reference,
q, advantages, loss and AdamW are computed anew by either engine. Equal by default in both: AdamW's betas and kernel, no
weight decay, gradients clipped to the norm 1. Set here: TRL's learning rate and its schedule (its default is linear,
the loop's constant), the order of the prompts, and eps = 1e-6 in both. AdamW divides a gradient by its own size plus eps,
so with its default of 1e-8 a weight whose gradient is 3e-8, as large as the rounding of the others, goes its own way:
the gradients agree to 2e-6 of their norm, the weights of the recipes to between 2e-6 and 1.5e-5, and with 1e-6 to 1e-6.
Not equal, and so not replayed: warm-up (TRL's first rate is 0, the loop's is lr / warmup_steps), weight decay (TRL leaves
norms out), mini-batches (each engine shuffles in its own way).
"""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

trl = pytest.importorskip("trl")

from datasets import Dataset

from extras_common import dropout_plugin
from loop_recorded import furthest, record, small_run
from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.folders import embedded_policy
from sage_rlvr.recipes import trainable
from sage_rlvr.tasks.countdown import parse_prompt
from sage_rlvr.training import loop as engine
from sage_rlvr.training.groups import Groups
from sage_rlvr.training.trl import SageTrainer, grpo_config
from trl_replayed import Replay, arguments, verdicts

STEPS = 20
config_of = partial(small_run, steps=STEPS, seed=3)

# Recipes whose methods both engines run; `name key=value` is the recipe with an edit.
FAST = ["sage_branch", "sage_token"]
SLOW = [
    *("no_kl", "grpo", "placebo", "sage_random", "branch_ratio1", "branch_ratio1_placebo"),
    *("dr_grpo", "grpo_token_mean", "bnpo", "bnpo_kl", "bnpo_branch", "rloo", "rloo_branch"),
    *("dapo", "dapo_kl", "dapo_branch", "dapo_overlong"),
    *("sage_rarity", "sage_rarity_placebo", "rloo_rarity", "rloo_rarity_placebo", "rloo_rarity_reference"),
    "rloo_rarity_placebo_centered",
    *("maxrl", "rs_grpo", "pkpo", "passk_training", "psr", "nsr", "w_reinforce"),
    *("right_entropy", "mara", "unlikeliness", "ds_grpo", "ucpo", "outcome_repeats"),
    "verifree",
    *("cispo", "gspo", "steer", "steer_released", "high_entropy", "clip_cov", "shaped_entropy", "eapo", "eapo_placebo", "erank"),
    *("f_grpo", "f_grpo_placebo", "zero_success", "zero_success_placebo", "bbg", "bbg_placebo"),
]
EDITED = [
    "outcome_counts world.train_problems=8",  # each comes back every other step
    "distinct method.k=8",
    "distinct_placebo method.advantage.advantage.k=8",
    "rlpr method.max_refills=0 method.ratio=0.9",  # whose filter drops groups from step 10 on
    "rlpr method.std_filter=false method.debias=current",
    "entropy_bonus method.coefficient=0.05",
    "distinct_log method.k=8",
    *("psr method.normalize_by=tokens", "nsr method.normalize_by=kept", "w_reinforce method.normalize_by=group"),
    "pkpo_annealed method.k.start=4",
    "eapo method.decay_steps=8",
    "dapo method.dynamic_sampling=false",
    "dapo_kl method.max_refills=1",  # steps end with fewer groups, two of them with none
    "dapo_branch method.base.dynamic_sampling=false",
    "grpo method.refresh_every=3",
    "grpo method.source=snapshot@7",
    "sage_token method.base.estimator=k3_is",
    "sage_branch optimizer.schedule=linear",
    "sage_branch optimizer.schedule=cosine",
    "sage_branch optimizer.weight_decay=0.5",  # on matrices and embeddings, in both engines
]
REPLAYED = [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in [*SLOW, *EDITED])]
OTHER_ESTIMATE = {"forward_kl", "forward_kl_branch"}
"""The loop sums their KL exactly and TRL estimates it from the sampled token: equal in expectation alone."""


OWN_ROLLOUTS = {"reft"}
"""Their first tokens are drawn by a `rollout_func` of their own, which a replay would replace (test_trl_prompt_methods)."""


def replayed(config: TrainConfig, groups: list[Groups], args: Any) -> dict[str, Tensor]:
    """The weights after the same run on TRL."""
    task, replay, count = config.world.build(), Replay(groups), config.rollout.prompts_per_step
    trainer = SageTrainer(
        model=str(embedded_policy()),
        reward_funcs=verdicts,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [task.prompt(p) for part in groups for p in part.problems[:count]]}),
        method=config.method,
        rollout_func=replay,
        answer_key=lambda row, text: task.answer_key(None, text),  # of the text alone, in this task
        reference_answer=lambda row, text: (task.reference(parse_prompt(row["prompt"])), task.answer_span(None, text)),
    )
    trainer.train()
    assert replay.is_used_up() and trainer.state.global_step == args.max_steps
    return trainer.model.state_dict()


def agree(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """All weights to 1e-5, after a run that took some of them fifty times as far."""
    moved = furthest(wanted, engine.load_policy("embedded")[0].state_dict())
    assert moved > 5e-4
    assert found.keys() == wanted.keys()
    apart = furthest(found, wanted)
    assert apart < 1e-5, f"{apart:.1e} apart, after a run that moved weights by up to {moved:.1e}"


@pytest.mark.parametrize("case", REPLAYED)
def test_the_loops_run_replayed_on_trl_ends_with_its_weights(case: str, tmp_path: Path):
    config = config_of(case)
    groups, wanted = record(config)
    assert sum(bool((part.rewards != part.rewards[:, :1]).any()) for part in groups) > STEPS / 2
    agree(replayed(config, groups, arguments(config, tmp_path)), wanted)


def test_an_extra_of_a_plugin_replayed(tmp_path: Path):
    with dropout_plugin():
        config = config_of("grpo_dropout")
        groups, wanted = record(config)
        agree(replayed(config, groups, arguments(config, tmp_path)), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sage_branch", "grpo_token_mean"])
def test_micro_batches_replayed(case: str, tmp_path: Path):
    """Four micro-batches an update on TRL, whose rows it shuffles, and two on the loop, of whole groups."""
    config = config_of(case, "updates.micro_batch=2")
    groups, wanted = record(config)
    parts = {"per_device_train_batch_size": config.rollout.completions // 4, "gradient_accumulation_steps": 4}
    agree(replayed(config, groups, arguments(config, tmp_path, **parts)), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sage_branch", "dapo_branch method.base.dynamic_sampling=false", "cispo", "gspo", "steer"])
def test_two_passes_over_a_rollout_replayed(case: str, tmp_path: Path):
    """`epochs` of the loop are `num_iterations` of TRL: in the second pass the ratio is not 1, and q is still the first's."""
    config = config_of(case, "updates.epochs=2")
    groups, wanted = record(config)
    agree(replayed(config, groups, arguments(config, tmp_path)), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["grpo", "sage_branch method.guide.ratio=0.2", "sage_branch optimizer.lr=1.02e-4"])
def test_another_run_does_not_agree(other: str, tmp_path: Path):
    """What 1e-5 can tell apart: the loop's run of SAGE-Branch, replayed as something close to it."""
    groups, wanted = record(config_of("sage_branch"))
    config = config_of(other)
    assert furthest(replayed(config, groups, arguments(config, tmp_path)), wanted) > 1e-4


def test_every_recipe_that_trl_runs_is_replayed():
    """A recipe is in a list above, or `grpo_config` refuses it, or its KL is another estimate there."""
    replayed = {case.split()[0] for case in [*FAST, *SLOW, *EDITED]}
    same = {"compose", "sage"}  # with their defaults grpo and sage_branch
    for name in {*trainable()} - same - OTHER_ESTIMATE - OWN_ROLLOUTS - replayed:
        with pytest.raises(ConfigError, match="loop engine"):
            grpo_config(load_config(TrainConfig, name).method)
