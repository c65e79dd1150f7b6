"""Stages of verl's own trainer and worker in this process: what they read is the core's, and runs of the loop replayed on them
end with the same weights.

    theta_n(loop) = theta_n(verl)        to 1e-5 in every weight, float32, AdamW

As in test_trl_replay.py: the same completions and rewards; log-probs, reference, q, advantages, loss and AdamW anew by either.
"""


from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("verl", reason="verl is not installed here: make test-verl")

from stage import Stages, plug

from extras_common import dropout_plugin
from loop_recorded import furthest, record, small_run
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.core.guides import is_flat
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import advantages_of, shape
from sage_rlvr.core.signals import Signals
from sage_rlvr.recipes import trainable
from sage_rlvr.training import loop as engine
from sage_rlvr.training.engines import refusals
from sage_rlvr.training.groups import Groups
from sage_rlvr.training.loop import batch_of
from sage_rlvr.training.scores import step_signals
from sage_rlvr.training.verl import trainer

Figure = Callable[[str, str], None]
STEPS = 6
config_of = partial(small_run, steps=STEPS, seed=5)

FAST = ("sage_branch", "rloo_branch")  # the KL in the loss, and in the reward
EDITS = {  # verl draws until the batch is full; here it gets the groups of the loop, all of them
    **{name: "method.dynamic_sampling=false" for name in ("dapo", "dapo_kl", "dapo_overlong")},
    **{"dapo_branch": "method.base.dynamic_sampling=false", "pkpo_annealed": "method.k.start=4"},
}
OTHER_ESTIMATE = ("forward_kl", "forward_kl_branch")  # the loop sums their KL exactly
MORE = (
    "sage_branch method.guide.threshold=p80",  # a threshold over the whole batch
    "eapo method.decay_steps=3",
    *("entropy_bonus method.coefficient=0.05", "grpo method.estimator=k2", "grpo method.estimator=straight_through"),
)


def runs_on_verl(name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return not refusals(load_config(TrainConfig, name).method, "verl")


NAMES = sorted({*trainable()} - {"compose", "sage", *OTHER_ESTIMATE})  # those two are grpo and sage_branch by default
CASES = [f"{name} {EDITS.get(name, '')}".strip() for name in NAMES if runs_on_verl(name)]
REPLAYED = [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in (*CASES, *MORE) if case not in FAST)]


def node(config: TrainConfig) -> list[str]:
    """The `sage` node of a recipe, as words of a command."""
    tree = yaml.safe_dump(dump(config)["method"], default_flow_style=True, width=10_000).strip()
    return [f"+sage.method={tree}", f"+sage.seed={config.seed}"]


def stages(config: TrainConfig, patch: Any, *more: str) -> Stages:
    """verl's stages for a recipe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Stages(*node(config), *more, total_steps=config.steps)
    plug(patch, found)
    return found


@pytest.fixture(autouse=True)
def _estimator() -> Iterator[None]:
    trainer.install()
    yield


def elsewhere(groups: Groups) -> Groups:
    """The same completions with a sampler's log-probs that are not the policy's."""
    return dataclasses.replace(groups, rollout=dataclasses.replace(groups.rollout, logps=shifted(groups.rollout.logps)))


def shifted(logps: torch.Tensor) -> torch.Tensor:
    return logps + 0.5 * torch.randn(logps.shape, generator=torch.Generator().manual_seed(3))


def replay(case: str, patch: Any, words: list[str], figure: Figure, *more: str, taught: str | None = None) -> None:
    """The loop's run of a recipe, its rows shuffled as verl balances them, ends with the loop's weights. taught: the recipe of
    verl, by default the same."""
    config = config_of(case, *more)
    groups, wanted = record(config)
    verl = stages(config if taught is None else config_of(taught, *more), patch, *words)
    start = verl.weights()
    shaped = 0.0
    for step, part in enumerate(groups):
        rows = part.rewards.numel()
        metrics = verl.step(part, Key(step).permutation(0, "balanced", rows).tolist())
        shaped = max(shaped, metrics.get("guide/active_frac", 0.0))
    found = verl.weights()
    guide = config.method.anchor is not None and not is_flat(config.method.anchor.guide)
    assert (shaped > 0) == guide  # q is not 1
    assert set(found) <= set(wanted)
    moved, apart = furthest(start, wanted), furthest(found, wanted)
    figure("largest difference of a weight", f"{apart:.1e} after moves up to {moved:.1e}")
    assert moved > 2e-4
    assert apart < 1e-5, f"{apart:.1e} apart, after a run that moved weights by up to {moved:.1e}"


def test_an_extra_of_a_plugin_replayed(monkeypatch: pytest.MonkeyPatch, figure: Figure):
    with dropout_plugin():
        replay("grpo_dropout", monkeypatch, [], figure)


@pytest.mark.parametrize("case", REPLAYED)
def test_the_loops_run_replayed_on_verl_ends_with_its_weights(case: str, monkeypatch: pytest.MonkeyPatch, figure: Figure):
    replay(case, monkeypatch, [], figure)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHER_ESTIMATE)
def test_the_exact_forward_kl_is_descended_as_the_estimate_that_is_printed(
    case: str, monkeypatch: pytest.MonkeyPatch, figure: Figure
):
    """The loop with k3, verl with the recipe of the exact sum: the same weights."""
    exact = load_config(TrainConfig, case).method.anchor
    assert exact is not None and exact.estimator == "exact"
    name = "grpo" if is_flat(exact.guide) else "sage_branch"
    replay(name, monkeypatch, [], figure, taught=case)


@pytest.mark.slow
def test_weights_of_the_sampler_that_are_one_change_nothing_and_others_do(monkeypatch: pytest.MonkeyPatch, figure: Figure):
    """rollout_is, which a method honors: 1 where the sampler's log-probs are the policy's, as in the loop."""
    honored = ["algorithm.rollout_correction.rollout_is=token"]
    replay("sage_branch", monkeypatch, honored, figure)
    groups, wanted = record(config_of("sage_branch", "steps=2"))
    verl = stages(config_of("sage_branch", "steps=2"), monkeypatch, *honored)
    for part in groups:
        verl.step(elsewhere(part))
    assert furthest(verl.weights(), wanted) > 2e-5


BOUNDS = (0.7, 1.4)
CORRECTIONS = {
    kind: [f"algorithm.rollout_correction.{word}" for word in words]
    for kind, words in {
        "bypass": ["bypass_mode=true"],
        "rejection": ["rollout_rs=token_k1", "rollout_rs_threshold='{}_{}'".format(*BOUNDS)],
    }.items()
}


def sampled_elsewhere(*given: Any) -> Signals:
    """`step_signals` of the loop with the sampler of `elsewhere` as pi_old."""
    return dataclasses.replace(step_signals(*given), old_logps=shifted(given[1].rollout.logps).float())


def rejecting(kept: list[float]) -> Callable[..., Any]:
    """`batch_of` of the loop without the tokens whose ratio of pi_old to the sampler of `elsewhere` lies outside BOUNDS; kept: the
    fraction left, one a step."""

    def batch(loop: Any, groups: Any, *more: Any, **fixed: Any) -> Any:
        whole = batch_of(loop, groups, *more, **fixed)
        ratio = (shifted(groups.rollout.logps) - whole.old_logps).exp()
        mask = whole.mask & (ratio >= BOUNDS[0]) & (ratio <= BOUNDS[1])
        kept.append(float(mask.sum() / whole.mask.sum()))
        return dataclasses.replace(whole, mask=mask)

    return batch


@pytest.mark.parametrize(("case", "kind"), [("sage_token", "bypass"), ("sage_token", "rejection"), ("dr_grpo", "rejection")])
def test_a_corrected_run_is_the_loops_with_the_pi_old_or_the_tokens_that_the_words_name(
    case: str, kind: str, monkeypatch: pytest.MonkeyPatch, figure: Figure
):
    """A sampler whose log-probs are not the policy's, two epochs. The loop has it as pi_old from the signals on; or trains on the
    tokens left, with the q and the advantages of all."""
    more, kept = ("updates.epochs=2", "steps=3"), list[float]()
    with monkeypatch.context() as patch:
        name, other = ("step_signals", sampled_elsewhere) if kind == "bypass" else ("batch_of", rejecting(kept))
        patch.setattr(engine, name, other)
        groups, wanted = record(config_of(case, *more))
    assert kind == "bypass" or 0.3 < min(kept) <= max(kept) < 0.9
    ends = []
    for words in (CORRECTIONS[kind], []):
        verl = stages(config_of(case, *more), monkeypatch, "actor_rollout_ref.actor.ppo_epochs=2", *words)
        for part in groups:
            verl.step(elsewhere(part))
        ends.append(furthest(verl.weights(), wanted))
    figure("largest difference of a weight", f"{ends[0]:.1e}, without the correction {ends[1]:.1e}")
    assert ends[0] < 1e-5 and ends[1] > 5e-5


def test_a_mean_over_tokens_divides_by_all_of_them_whatever_rejection_leaves(monkeypatch: pytest.MonkeyPatch):
    """The norm of the gradient: the loop's, whose mean is over the tokens left, times their fraction. AdamW would hide it."""
    config, kept = config_of("dapo_kl method.dynamic_sampling=false", "steps=1"), list[float]()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "batch_of", rejecting(kept))
        (part,), _ = record(config)
        norm = engine.train_step(engine.build(config), 0)["optimizer/grad_norm"]
    verl = stages(config, monkeypatch, *CORRECTIONS["rejection"])
    assert verl.step(elsewhere(part))["actor/grad_norm"] == pytest.approx(norm * kept[-1], rel=1e-4) and kept[-1] < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sage_branch", "rloo_branch", "dapo_kl method.dynamic_sampling=false"])
def test_two_epochs_in_micro_batches(case: str, monkeypatch: pytest.MonkeyPatch, figure: Figure):
    """In the second pass the ratio is not 1 and q is still the first's; micro-batches add up."""
    micro = ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", "actor_rollout_ref.actor.ppo_epochs=2"]
    replay(case, monkeypatch, micro, figure, "updates.epochs=2")


@pytest.mark.slow
@pytest.mark.parametrize("other", ["grpo", "sage_branch method.guide.ratio=0.2", "sage_branch optimizer.lr=1.02e-4"])
def test_another_run_does_not_agree(other: str, monkeypatch: pytest.MonkeyPatch):
    """What 1e-5 can tell apart: another guide, hardly another guide, 2 % of a learning rate."""
    groups, wanted = record(config_of("sage_branch"))
    config = config_of(other)
    verl = stages(config, monkeypatch, f"actor_rollout_ref.actor.optim.lr={config.optimizer.lr}")
    for part in groups:
        verl.step(part)
    assert furthest(verl.weights(), wanted) > 2e-5


def test_the_field_the_loss_reads_is_the_cores(monkeypatch: pytest.MonkeyPatch, figure: Figure):
    """ref_log_prob in the queue after a step: log pi_ref + log q of the core on the same signals, float32, to 1e-6; the
    advantages likewise, with the KL in the reward; with verl's rows in another order than the groups'."""
    config = config_of("rloo_branch method.base.beta=0.5", "steps=2")
    (first, second), _ = record(config)
    verl = stages(config, monkeypatch)
    verl.step(first)
    before = copy.deepcopy(verl.parts)
    metrics = verl.step(second, list(range(31, -1, -1)))
    mask = verl.padded("response_mask").bool()
    raw = verl.padded("unshaped")
    signals = Signals(verl.padded("old_log_probs"), raw, mask, torch.arange(len(mask)), verl.padded("entropy"))
    log_q = shape(config.method, signals, 1, 2, Key(config.seed))
    assert float((log_q.exp() - 1).abs().max()) > 0.05
    wanted = torch.where(mask, raw.float() + log_q, 0.0)
    assert verl.padded("ref_log_prob").dtype == torch.float32
    torch.testing.assert_close(verl.padded("ref_log_prob"), wanted, rtol=0, atol=1e-6)
    figure("largest difference of log(q pi_ref)", f"{float((verl.padded('ref_log_prob') - wanted).abs().max()):.1e}")
    advantages = advantages_of(config.method, second.rewards, signals, log_q, 1, 2, Key(config.seed), before)
    torch.testing.assert_close(verl.padded("advantages"), torch.where(mask, advantages, 0.0), rtol=0, atol=1e-6)
    assert metrics["guide/q_mean"] == pytest.approx(float(log_q.exp()[mask].mean()), abs=1e-6)
    assert metrics["kl/to_reference"] != metrics["kl/to_anchor"] and metrics["reward/mean"] == second.rewards.mean()


def test_a_resumed_step_has_the_noise_it_had(monkeypatch: pytest.MonkeyPatch):
    """A new trainer at verl's global step 3, with prompts asked before or not: the core's noise of step 2."""
    config = config_of("sage_random", "steps=3")
    groups, _ = record(config)
    for asked in ({}, {f"older{n}": n for n in range(8)}):
        verl = stages(config, monkeypatch)
        verl.trainer.global_steps, verl.trainer._arrival = 3, dict(asked)
        verl.step(groups[2])
        mask = verl.padded("response_mask").bool()
        signals = Signals(verl.padded("old_log_probs"), verl.padded("unshaped"), mask, torch.arange(len(mask)))
        log_q = shape(config.method, signals, 2, 3, Key(config.seed))
        found = verl.padded("ref_log_prob") - verl.padded("unshaped")
        torch.testing.assert_close(found, torch.where(mask, log_q, 0.0), rtol=0, atol=1e-6)
        assert float(log_q.abs().max()) > 0.1


def test_flat_is_plain_verl_bit_for_bit(monkeypatch: pytest.MonkeyPatch):
    """verl's own objective with the neutral guide and without this package: the same weights; with a guide others."""
    groups, _ = record(config_of("grpo", "steps=3"))
    own = ["algorithm.adv_estimator=grpo", *(f"actor_rollout_ref.actor.{w}" for w in ("use_kl_loss=true", "kl_loss_coef=0.5"))]
    ends = []
    for guide in ([], ["+sage.guide=flat"], ["+sage.guide=branch", "+sage.guide.threshold=0.3"]):
        found = Stages(*own, *guide)
        plug(monkeypatch, found)
        for part in groups:
            found.step(part)
        ends.append(found.weights())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert furthest(ends[2], ends[0]) > 1e-6


# verl's own terms, which are verl's with a guide alone
VERLS = {
    "algorithm.norm_adv_by_std_in_grpo=false": (),
    "algorithm.adv_estimator=rloo": (),
    "actor_rollout_ref.actor.policy_loss.loss_mode=gspo": (),
    "actor_rollout_ref.actor.policy_loss.loss_mode=cispo": (),
    "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum": (),
    "actor_rollout_ref.actor.entropy_coeff=0.05": (),
    "algorithm.rollout_correction.rollout_is=token": (),
    "algorithm.rollout_correction.rollout_is=sequence": ("algorithm.rollout_correction.rollout_is_batch_normalize=true",),
    "algorithm.rollout_correction.rollout_rs=token_k1": ("algorithm.rollout_correction.rollout_rs_threshold='0.7_1.4'",),
}


def end_of(*words: str) -> Stages:
    """verl's own loss with a KL term and these words, after a step of two epochs, so that ratios differ."""
    own = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.ppo_epochs=2"]
    own += [f"actor_rollout_ref.actor.{w}" for w in ("use_kl_loss=true", "kl_loss_coef=0.5", "optim.lr=1e-3")]
    found = Stages(*own, *words)
    with pytest.MonkeyPatch.context() as patch:
        plug(patch, found)
        (part,), _ = record(config_of("grpo", "steps=1"))
        found.step(elsewhere(part))
    return found


@pytest.fixture(scope="module")
def usual() -> Stages:
    """With a guide alone, and nothing of verl's changed."""
    return end_of("+sage.guide=flat")


@pytest.mark.slow
@pytest.mark.parametrize("word", VERLS)
def test_a_term_of_verls_own_acts_under_a_guide_alone_as_without_it_and_stands_in_the_words(word: str, usual: Stages):
    """Bit for bit plain verl's with the neutral guide; without the term other weights and words."""
    plain, guided = (end_of(word, *VERLS[word], *guide) for guide in ((), ("+sage.guide=flat",)))
    ends = [one.weights() for one in (plain, guided, usual)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert furthest(ends[1], ends[2]) > 1e-6
    assert guided.trainer.sage_objective.words != usual.trainer.sage_objective.words


def test_each_local_update_of_a_step_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch):
    """`parameter_sync_step` > 1: verl's global step stands still while its number of the local update moves."""
    config = config_of("sage_random", "steps=1")
    (part,), _ = record(config)
    noise = []
    for update in (0, 1, 1):
        verl = stages(config, monkeypatch)
        verl.trainer.local_trigger_step = update
        verl.step(part)
        noise.append(verl.padded("ref_log_prob") - verl.padded("unshaped"))
    assert float((noise[0] - noise[1]).abs().max()) > 0.1
    torch.testing.assert_close(noise[1], noise[2], rtol=0, atol=1e-6)


def half_of(groups: Groups, numbers: list[int]) -> Any:
    """Some prompts of the groups, as `Stages.step` reads them."""
    size = groups.rewards.shape[1]
    rows = torch.tensor([number * size + member for number in numbers for member in range(size)])
    rollout = {name: getattr(groups.rollout, name)[rows] for name in ("tokens", "mask", "logps")}
    return SimpleNamespace(
        prompts=[groups.prompts[n] for n in numbers], rewards=groups.rewards[numbers], rollout=SimpleNamespace(**rollout)
    )


def test_the_updates_of_a_step_of_separate_async_are_the_loops_mini_batches(monkeypatch: pytest.MonkeyPatch, figure: Figure):
    """`parameter_sync_step` = 2: pi_old and q of both updates are of the policy at the start of the step. In mode sync, where each
    update is a step, pi_old moves and the weights are others."""
    config = config_of("sage_branch", "updates.minibatches=2", "optimizer.lr=3e-4", "steps=2")
    groups, wanted = record(config)
    ends = []
    for mode in ("separate_async", "sync"):
        sizes = ("ppo_mini_batch_size=2", "ppo_micro_batch_size_per_gpu=16", "optim.lr=3e-4")
        actor = [f"actor_rollout_ref.actor.{word}" for word in sizes]
        actor += [f"actor_rollout_ref.{part}.log_prob_micro_batch_size_per_gpu=16" for part in ("rollout", "ref")]
        verl = stages(config, monkeypatch, f"trainer.v1.trainer_mode={mode}", *actor)
        for step, part in enumerate(groups):
            halves = Key(config.seed).permutation(step, "minibatch/0", len(part.prompts)).tensor_split(2)
            for update, half in enumerate(halves):
                verl.trainer.local_trigger_step = update
                verl.step(half_of(part, sorted(half.tolist())))
        ends.append(furthest(verl.weights(), wanted))
    figure("largest difference of a weight", f"{ends[0]:.1e}, in mode sync {ends[1]:.1e}")
    assert ends[0] < 1e-5 and ends[1] > 5e-5


@pytest.mark.slow
def test_lora_is_shaped_by_the_adapters_policy(monkeypatch: pytest.MonkeyPatch):
    """The reference is the adapter disabled: before the first update it is the policy itself, and q is as without adapters."""
    groups, _ = record(config_of("sage_branch", "steps=2"))
    config = config_of("sage_branch")
    lora = ["actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.actor.optim.lr=1e-2"]
    whole, found = (stages(config, monkeypatch, *more).step(groups[0]) for more in ([], lora))
    assert found["guide/q_mean"] == pytest.approx(whole["guide/q_mean"], abs=1e-6) and found["kl/to_reference"] < 1e-10
