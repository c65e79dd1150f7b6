"""What a method means on verl, what is refused, and the core on verl's batches: all that needs no verl."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.contrib.methods.ucpo import UniformRight
from sage_rlvr.core.advantages.placebo import PlaceboRight
from sage_rlvr.core.extras.tokens.base import weights_of
from sage_rlvr.core.guides import Branch
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method, credit
from sage_rlvr.core.signals import Signals
from sage_rlvr.errors import CancellingGuide, ConfigError, DataError
from sage_rlvr.methods import METHODS, bnpo, compose, dapo, dr_grpo, entropy_bonus, forward_kl, grpo, no_kl, rloo, sage
from sage_rlvr.recipes import trainable
from sage_rlvr.training.engines import refusals
from sage_rlvr.training.verl.batch import Order, credit_batch, key_of_update, signals_of, step_metrics
from sage_rlvr.training.verl.fields import method_fields
from sage_rlvr.training.verl.objective import Objective, SageNode, fields_of, unproven
from sage_rlvr.training.verl.terms import ACTOR, ALWAYS, CORRECTION, HONORED, NEUTRAL, OWN, ROLLOUT

KL = {"use_kl_loss": True, "kl_loss_coef": 0.05, "kl_loss_type": "low_var_kl"}


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (grpo(), {"loss_agg_mode": "seq-mean-token-mean", "clip_ratio_c": 1e9, "loss_scale_factor": None, **KL}),
        (no_kl(), {"use_kl_loss": False, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}),
        (dr_grpo(beta=0.1), {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 24, "kl_loss_coef": 0.1}),
        (dapo(dynamic_sampling=False), {"loss_agg_mode": "token-mean", "clip_ratio_high": 0.28, "clip_ratio_c": 10.0}),
        (rloo(beta=0.3), {"use_kl_loss": True, "kl_loss_coef": 0.0}),  # in the reward: the reference alone
        (grpo(estimator="k2"), {"kl_loss_type": "k2"}),
        (grpo(estimator="straight_through"), {"kl_loss_type": "kl+"}),
        (entropy_bonus(coefficient=0.02), {"entropy_coeff": 0.02}),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_the_fields_of_a_method(method: Method, wanted: dict[str, Any]):
    found = method_fields(method, 24)
    assert {name: found[f"{ACTOR}.{name}"] for name in wanted} == wanted
    assert found["algorithm.adv_estimator"] == "sage" and found["algorithm.use_kl_in_reward"] is False


def test_dynamic_sampling_is_verls_filter():
    found = method_fields(dapo(), 24)
    assert found["algorithm.filter_groups.enable"] is True and found["algorithm.filter_groups.metric"] == "reward"


# Recipes that verl cannot run, by a word of the reason. Every other one has fields, and tests/verl_engine replays it.
REFUSED = {
    **{name: "AdaptiveEntropy" for name in ("adaptive_entropy",)},
    **{name: "a reference without a KL" for name in ("alpha_dpg", "alpha_dpg_exact")},
    **{name: "method.surrogate" for name in ("cispo", "gspo", "pacs", "pacs_paper")},
    **{name: "method.rollout" for name in ("dars", "dars_b", "dars_hw", "dars_stages", "dars_uniform", "dars_marginal_value")},
    **{name: "answers" for name in ("distinct", "distinct_log", "distinct_placebo", "outcome_counts", "outcome_repeats")},
    **{name: "method.extras" for name in ("dph", "expert_iteration", "nll_correct", "replay", "rft", "sft_oracle")},
    **{name: "method.extras" for name in ("remax", "remax_placebo", "redr", "redr_placebo")},
    **{name: "method.extras" for name in ("rlpr", "verifree")},
    **{name: "placement='reward'" for name in ("pba", "pba_placebo")},
    **{name: "sample every token" for name in ("reft", "reft_placebo", "reft_corrected")},
    **{"kl_cov": "KlCov", "steer_exact": "entropy_drift", "erank": "hidden"},
}


@pytest.mark.slow
def test_every_recipe_has_fields_or_a_reason():
    seen = {}
    for name in trainable():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            method = load_config(TrainConfig, name).method
            seen[name] = "; ".join(map(str, refusals(method, "verl")))
            if seen[name]:
                with pytest.raises(ConfigError, match=r"on verl: .*use the loop engine\.$"):
                    method_fields(method, 24)
            else:
                assert method_fields(method, 24)
    refused = {name: words for name, words in seen.items() if words}
    assert {name: word for name, word in REFUSED.items() if word not in refused.get(name, "")} == {}
    assert refused.keys() == REFUSED.keys()


# ---- the sage node beside verl's configuration

VERL: dict[str, Any] = {
    "trainer.v1.trainer_mode": "sync",
    "trainer.use_v1": True,
    "actor_rollout_ref.rollout.response_length": 24,
    "actor_rollout_ref.rollout.n": 8,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    "algorithm.adv_estimator": "grpo",
}
BRANCH = {"guide": {"name": "branch", "ratio": 0.3}}
TOKEN = {"guide": "token"}  # reads log-probs alone


@pytest.mark.parametrize(
    ("tree", "more", "words"),
    [
        ({}, {}, "set what verl should optimize"),
        ({"metod": "grpo"}, {}, "method"),
        (BRANCH, {f"{ACTOR}.use_kl_loss": False}, "use_kl_loss=true"),
        (BRANCH, {f"{ACTOR}.kl_loss_coef": 0.0}, "would have no effect"),
        (BRANCH, {f"{ACTOR}.kl_loss_type": "abs"}, "choose low_var_kl"),
        (BRANCH, {f"{ACTOR}.kl_loss_type": "kl"}, "k1 in the loss"),
        (BRANCH, {"algorithm.use_kl_in_reward": True}, "placement=reward"),
        (BRANCH, {"algorithm.adv_estimator": "sage"}, "set one"),
        (BRANCH, {"algorithm.rollout_correction.bypass_mode": True}, "computes no entropies"),
        (BRANCH, {"distillation.enabled": True}, "distillation replaces"),
        (BRANCH, {"trainer.use_v1": False}, "V1"),
        (BRANCH, {"trainer.v1.trainer_mode": "sage_sync"}, "choose one of"),
        ({"guide": {"name": "branch", "signal": "reference"}}, {}, "ref_entropies"),
        ({"guide": {"name": "branch", "threshold": 4.0}}, {"actor_rollout_ref.model.path": "embedded"}, "threshold = 4 nats"),
        ({"method": "grpo"}, {f"{ACTOR}.clip_ratio_c": 3.0}, "clip_ratio_c = 3.0, but the method needs"),
        ({"method": {"name": "pkpo", "k": 8}}, {"actor_rollout_ref.rollout.n": 4}, "needs at least 8"),
        *(
            (tree, {f"{CORRECTION}.bypass_mode": True, f"{CORRECTION}.{name}": value}, f"{name} = {value}: with bypass_mode")
            for tree in ({"method": "grpo"}, TOKEN)
            for name, value in (("loss_type", "reinforce"), ("rollout_rs", "seq_mean_k1"), ("rollout_is", "token"))
        ),
        ({"method": "grpo"}, {f"{CORRECTION}.rollout_rs": "token_k1"}, "set rollout_rs_threshold too"),
        ({"method": "grpo"}, {f"{CORRECTION}.rollout_is": "token", f"{ROLLOUT}.calculate_log_probs": False}, "set it to true"),
        ({"method": "grpo"}, {f"{CORRECTION}.bypass_mode": True, f"{ROLLOUT}.calculate_log_probs": False}, "set it to true"),
        (TOKEN, {f"{ACTOR}.policy_loss.loss_mode": "bypass_mode"}, f"{CORRECTION}.bypass_mode=true"),
    ],
)
def test_refused_with_the_way_out(tree: dict[str, Any], more: dict[str, Any], words: str):
    method = SageNode.of(tree).method if "method" in tree else None
    there = VERL | ({} if method is None else method_fields(method, 24)) | more
    with pytest.raises(ConfigError, match=re.escape(words)):
        Objective.of(tree, there.get)


@pytest.mark.parametrize("kind", ["k2", "low_var_kl+", "k3+", "kl+"])
def test_a_state_guide_under_a_gradient_of_k2_cancels(kind: str):
    with pytest.raises(CancellingGuide, match="kl_loss_type=low_var_kl"):
        Objective.of(BRANCH, (VERL | {f"{ACTOR}.kl_loss_type": kind}).get)


def test_what_a_node_means():
    """verl's own KL with the guide; a method with its own; both; verl's clamp said."""
    alone = Objective.of(BRANCH, VERL.get)
    assert alone.method is None and alone.anchor is not None and alone.anchor.beta == 0.001
    assert "beta 0.001" in alone.words and "token to 10" in alone.words
    tree = {"method": "grpo", **BRANCH, "seed": 4}
    node = SageNode.of(tree)
    assert node.method == sage(grpo(), Branch(ratio=0.3)) and node.seed == 4
    both = Objective.of(tree, (VERL | fields_of(node, VERL.get)).get)
    assert both.method == node.method and both.words.startswith("method grpo+branch: minimize")
    in_reward = {"method": {"name": "rloo", "beta": 0.1}}
    paid = Objective.of(in_reward, (VERL | fields_of(SageNode.of(in_reward), VERL.get)).get)
    assert "token to 10" not in paid.words


# ---- verl's terms: neutral beside a method, honored and in the words, or in the words of verl's own loss

# A value of each field under which verl's loss or its sampling is another one than by default.
OTHER: dict[str, Any] = {
    "algorithm.norm_adv_by_std_in_grpo": False,
    "algorithm.gamma": 0.99,
    "algorithm.lam": 0.95,
    "algorithm.use_pf_ppo": True,
    "critic.enable": True,
    "trainer.critic_warmup": 5,
    f"{CORRECTION}.bypass_mode": True,
    f"{CORRECTION}.rollout_rs": "token_k1",
    f"{CORRECTION}.rollout_is": "token",
    f"{CORRECTION}.rollout_is_threshold": 5.0,
    f"{CORRECTION}.rollout_is_batch_normalize": True,
    f"{CORRECTION}.rollout_rs_threshold": "0.5_2.0",
    f"{CORRECTION}.loss_type": "reinforce",
    f"{ROLLOUT}.top_p": 0.9,
    f"{ROLLOUT}.top_k": 20,
    f"{ROLLOUT}.ignore_eos": True,
    f"{ROLLOUT}.temperature": 0.7,
    "actor_rollout_ref.model.mtp.enable_train": True,
    "algorithm.filter_groups.enable": True,
    "algorithm.filter_groups.metric": "acc",
    **{f"{ACTOR}.{name}": 0.3 for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "entropy_coeff")},
    **{f"{ACTOR}.tau_pos": 0.3, f"{ACTOR}.tau_neg": 0.3, f"{ACTOR}.clip_ratio_c": 10.0, f"{ACTOR}.loss_scale_factor": 24},
    **{f"{ACTOR}.policy_loss.{name}": 0.3 for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio")},
    **{f"{ACTOR}.policy_loss.ppo_kl_coef": 0.3, f"{ACTOR}.policy_loss.dro_beta": 0.3},
}
PLAIN = VERL | OWN | {f"{ACTOR}.policy_loss.loss_mode": "vanilla", f"{ACTOR}.loss_agg_mode": "token-mean"}


def test_every_term_has_another_value_here():
    assert OTHER.keys() == OWN.keys() and {**NEUTRAL, **HONORED}.keys() <= OWN.keys()


@pytest.mark.parametrize("key", [*NEUTRAL, "algorithm.norm_adv_by_std_in_grpo"])
def test_beside_a_method_a_term_that_it_does_not_have_is_refused(key: str):
    """Named, with its value: nothing is accepted and then ignored."""
    there = OWN | VERL | method_fields(grpo(), 24)
    Objective.of({"method": "grpo"}, there.get)
    with pytest.raises(ConfigError, match=re.escape(f"{key} = {OTHER[key]}, but the method ")):
        Objective.of({"method": "grpo"}, (there | {key: OTHER[key]}).get)


def test_the_normalization_of_a_method_is_the_methods():
    """Who turns it off wants Dr. GRPO, and is told so; where the method does not divide, off is what it is."""
    key = "algorithm.norm_adv_by_std_in_grpo"
    assert method_fields(grpo(), 24)[key] is True and method_fields(dr_grpo(), 24)[key] is False
    with pytest.raises(ConfigError, match=re.escape("+sage.method=dr_grpo is without the standard deviation")):
        Objective.of({"method": "grpo"}, (OWN | VERL | method_fields(grpo(), 24) | {key: False}).get)


def test_the_words_of_the_exact_forward_kl_are_those_of_its_estimate():
    method = sage(forward_kl(beta=0.3), Branch())
    there = OWN | VERL | method_fields(method, 24)
    assert there[f"{ACTOR}.kl_loss_type"] == "low_var_kl"
    tree = {"method": {"name": "forward_kl", "beta": 0.3}, "guide": "branch"}
    found = Objective.of(tree, there.get)
    assert "exact_forward" in method.describe()
    assert "0.3 * k3(pi, q pi_ref)" in found.words and "exact_forward" not in found.words
    assert "k3 is its estimate from the sampled tokens" in found.words and "token to 10" in found.words
    assert found.anchor is not None and found.anchor.estimator == "k3"
    said = {name: load_config(TrainConfig, "forward_kl", [("engine.name", name)]).objective for name in ("loop", "trl", "verl")}
    assert {name: "k3(pi" in text for name, text in said.items()} == {"loop": False, "trl": True, "verl": True}
    assert {name: "exact_forward" in text for name, text in said.items()} == {"loop": True, "trl": False, "verl": False}


def test_weights_of_the_sampler_are_honored_and_in_the_words():
    there = OWN | VERL | method_fields(grpo(), 24)
    plain, *found = (
        Objective.of({"method": "grpo"}, (there | {f"{CORRECTION}.rollout_is": level} | more).get).words
        for level, more in (
            (None, {}),
            ("token", {}),
            ("sequence", {}),
            ("token", {f"{CORRECTION}.rollout_is_threshold": "0.5_5.0"}),
            ("token", {f"{CORRECTION}.rollout_is_batch_normalize": True}),
        )
    )
    assert len({plain, *found}) == 5 and all("rollout_is = " in words for words in found) and "rollout_is" not in plain


def test_what_leaves_tokens_out_or_replaces_pi_old_is_in_the_words():
    """Beside a method and with a guide alone; equal words only for the same objective, so that a resume sees a change."""
    mode, oldest = "trainer.v1.trainer_mode", "trainer.v1.sampler.max_off_policy_threshold"
    late = {mode: "separate_async", oldest: 8, "trainer.v1.sampler.max_off_policy_strategy": "drop"}
    rejecting = {f"{CORRECTION}.rollout_rs": "token_k1", f"{CORRECTION}.rollout_rs_threshold": "0.5_2.0"}
    changes: list[dict[str, Any]] = [
        *({}, rejecting, rejecting | {f"{CORRECTION}.rollout_rs_threshold": "0.5_3.0"}, {f"{CORRECTION}.bypass_mode": True}),
        *(late, late | {oldest: 2}, late | {oldest: None}, late | rejecting, late | {f"{CORRECTION}.bypass_mode": True}),
        *(late | {mode: "colocate_async"}, late | {"trainer.v1.separate_async.parameter_sync_step": 4}),
    ]
    for tree, there in (({"method": "grpo"}, OWN | VERL | method_fields(grpo(), 24)), (TOKEN, PLAIN)):
        found = [Objective.of(tree, (there | more).get).words for more in changes]
        assert len(set(found)) == len(found)
        assert ["pi_old is the sampler" in words for words in found] == [f"{CORRECTION}.bypass_mode" in more for more in changes]
        proximal = [mode in more and f"{CORRECTION}.bypass_mode" not in more for more in changes]
        assert ["of verl's step" in words for words in found] == proximal


def test_with_a_guide_alone_the_words_are_those_of_verls_own_loss():
    """Equal only for the same loss, so that a resume sees a change: each field, and the losses and estimators of verl."""
    changes = [
        *({key: value} for key, value in OTHER.items() if not key.endswith(("bypass_mode", "rollout_rs"))),
        *({"algorithm.adv_estimator": name} for name in ("rloo", "gae", "reinforce_plus_plus")),
        *({ALWAYS[1]: name} for name in ("gspo", "kl_cov", "cispo")),
        *({ALWAYS[2]: name} for name in ("seq-mean-token-mean", "seq-mean-token-sum-norm", "seq-mean-token-sum", "token-sum")),
    ]
    found = [Objective.of(BRANCH, (PLAIN | more).get).words for more in ({}, *changes)]
    assert len(set(found)) == len(found)
    assert "algorithm.adv_estimator = grpo, actor.policy_loss.loss_mode = vanilla, actor.loss_agg_mode = token-mean" in found[0]
    assert "top_p" not in found[0] and any("rollout.top_p = 0.9" in words for words in found)


def test_what_was_never_run_is_said():
    other = {"trainer.v1.trainer_mode": "separate_async", f"{ACTOR}.strategy": "megatron"}
    rollout = "actor_rollout_ref.rollout"
    other |= {f"{ACTOR}.fsdp_config.qat.enable": True, f"{ACTOR}.megatron.router_replay.mode": "R3"}
    other |= {f"{rollout}.quantization": "fp8"}
    assert unproven(VERL.get) == []
    assert unproven((VERL | other).get) == [f"{key}={value}" for key, value in other.items()]


# ---- the core on verl's rows


Verls = tuple[list[str], list[dict[str, Any]], dict[str, torch.Tensor], dict[str, int]]


def batch(sizes: list[int], width: int = 5, padding: int = 2) -> Verls:
    """Rows of groups of these sizes, shuffled, with padding rows among them."""
    keys = [f"u{p}_{g}_0" for p, size in enumerate(sizes) for g in range(size)] + [f"pad{n}_0_0" for n in range(padding)]
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, width + 1, (len(keys),), generator=draw)
    real = len(keys) - padding
    mask = (torch.arange(width) < lengths[:, None]) & (torch.arange(len(keys)) < real)[:, None]
    fields = {
        "old_log_probs": -torch.rand(len(keys), width, generator=draw),
        "ref_log_prob": -torch.rand(len(keys), width, generator=draw),
        "entropy": 2 * torch.rand(len(keys), width, generator=draw),
        "response_mask": mask.long(),
        "rm_scores": torch.zeros(len(keys), width),
    }
    fields["rm_scores"][:real, 0] = (torch.arange(real) % 3 == 0).float()
    order = torch.randperm(len(keys), generator=draw)
    tags = [{"is_padding": True} if n >= real else {} for n in order.tolist()]
    asked = {f"u{p}": p for p in range(len(sizes))}
    return [keys[n] for n in order.tolist()], tags, {name: value[order] for name, value in fields.items()}, asked


PLACEBO = compose(title="placebo", advantage=PlaceboRight(UniformRight()), beta=0.0)


@pytest.mark.parametrize(
    "method", [grpo(), rloo(beta=0.2), sage(bnpo(beta=0.1), Branch()), PLACEBO], ids=lambda method: method.name
)
def test_credit_in_any_order_and_beside_padding(method: Method):
    keys, tags, fields, asked = batch([4, 4, 4])
    order = Order.of(keys, tags, asked)
    assert [keys[place] for place in order.places.tolist()] == [f"u{p}_{g}_0" for p in range(3) for g in range(4)]
    signals = signals_of(order, fields)
    log_q = 0.1 * signals.mask
    assert signals.rewards is not None
    args = (log_q, 0, 9, Key(0), method.start())
    found = credit_batch(method, order, signals.rewards, signals, *args)
    plain = credit(method, signals.rewards.reshape(3, 4), signals, *args).advantages
    wanted = torch.where(signals.mask, plain if plain.dim() == 2 else plain[:, None], 0.0)
    assert torch.equal(found.advantages, wanted) and wanted.abs().sum() > 0
    back = order.back(found.advantages)
    assert torch.equal(order.take(back), found.advantages) and not back[[bool(tag) for tag in tags]].any()
    metrics = step_metrics(order, signals, found.advantages, found.state)
    assert metrics["reward/mean"] == pytest.approx(1 / 3) and metrics["reward/zero_variance_frac"] == 0


def test_groups_of_unequal_sizes():
    """Completions that failed leave smaller groups, each compared within itself; one alone gets nothing."""
    keys, tags, fields, asked = batch([4, 3, 1])
    order = Order.of(keys, tags, asked)
    signals = signals_of(order, fields)
    assert signals.rewards is not None
    found = credit_batch(grpo(), order, signals.rewards, signals, None, 0, 9, Key(0), {}).advantages
    for first, last in ((0, 4), (4, 7)):
        part = signals.rewards[first:last]
        wanted = (part - part.mean()) / (part.std() + 1e-4)
        torch.testing.assert_close(found[first:last, 0], wanted)
    assert not found[7].any()
    weighing = METHODS["eapo"]()  # whose quantiles are of all rows, the one alone too
    found = credit_batch(weighing, order, signals.rewards, signals, None, 0, 9, Key(0), {}).advantages
    in_groups = [weighing.advantage(signals.rewards[first:last][None])[0] for first, last in ((0, 4), (4, 7))]
    given = replace(signals, advantages=torch.cat([*in_groups, torch.zeros(1)]))
    wanted = given.advantages[:, None] * weights_of(weighing.token_weight, given, 0, 9, Key(0), {})[0]
    torch.testing.assert_close(found, torch.where(signals.mask, wanted, 0.0))
    with pytest.raises(DataError, match="sync_refill_failed_groups"):
        credit_batch(bnpo(), order, signals.rewards, signals, None, 0, 9, Key(0), bnpo().start())
    several = Order(order.places, order.owners, order.rows, True)
    with pytest.raises(DataError, match="several pieces"):
        credit_batch(grpo(), several, signals.rewards, signals, None, 0, 9, Key(0), {})


def test_each_local_update_of_a_step_has_noise_of_its_own():
    """`parameter_sync_step` updates share verl's global step; the first has the noise of a run with one update per step."""
    rows = torch.arange(4)
    found = [key_of_update(3, update).uniform(0, "random", rows, torch.arange(5)) for update in range(3)]
    assert torch.equal(found[0], Key(3).uniform(0, "random", rows, torch.arange(5)))
    assert len({tuple(part.flatten().tolist()) for part in found}) == 3


def test_a_prompt_that_nobody_asked_here_comes_last():
    order = Order.of(["b_1_0", "z_0_0", "b_0_0", "a_0_0"], [{}] * 4, {"b": 0})
    assert order.places.tolist() == [2, 0, 3, 1] and order.owners.tolist() == [0, 0, 1, 2]


def test_old_log_probs_are_needed():
    with pytest.raises(DataError, match="old_log_probs"):
        signals_of(Order.of(["a_0_0"], [{}], {}), {"response_mask": torch.ones(1, 2)})


def test_signals_are_float32():
    keys, tags, fields, asked = batch([2])
    halves = {name: value.bfloat16() if value.is_floating_point() else value for name, value in fields.items()}
    found: Signals = signals_of(Order.of(keys, tags, asked), halves)
    assert found.ref_logps is not None and found.ref_logps.dtype == found.old_logps.dtype == torch.float32
