"""Advantages on TRL, completions without a reward, and what the loss is given: no KL of its own, a beta of its own. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

trl = pytest.importorskip("trl")

from datasets import Dataset
from transformers import AutoModelForCausalLM

from sage_rlvr.contrib.methods.erank import erank
from sage_rlvr.core import (
    Key,
    Linear,
    Method,
    Signals,
    advantages_of,
)
from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.extras.tokens.base import weights_of
from sage_rlvr.core.method import credit
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.rollout_plans import DynamicSampling
from sage_rlvr.errors import DataError
from sage_rlvr.methods import METHODS, bnpo, dapo, dr_grpo, grpo, no_kl, rloo
from sage_rlvr.training.trl import SageTrainer, dynamic_sampling, grpo_config
from sage_rlvr.training.trl.batch import group_advantages, predicting, scale_of, seen_states, total_rewards
from stateful import stateful
from training.trl.methods_common import REPLAYED, Recorder, trained
from trl_common import PROMPTS, arguments, build, forward, reward

# ---- advantages, and completions without a reward

NAN = float("nan")


def test_a_group_that_lacks_a_reward_is_a_smaller_group():
    """By hand: leave-one-out over two is (r - mean) * 2; one completion alone says nothing."""
    rewards = torch.tensor([[NAN, 1.0, 0.0], [1.0, 0.0, 0.0], [NAN, NAN, 1.0]])
    found = group_advantages(rloo(beta=0.0), rewards, None, None, 0, 1).advantages
    torch.testing.assert_close(found.reshape(3, 3), torch.tensor([[0, 1, -1], [1, -0.5, -0.5], [0, 0, 0.0]]))
    kept = dynamic_sampling.kept_groups(DynamicSampling(), torch.tensor([[NAN, 1.0, 1.0], [NAN, 1.0, 0.0], [NAN, NAN, 1.0]]), {})
    assert kept.tolist() == [False, True, False]
    with pytest.raises(DataError, match="has no reward"):
        group_advantages(bnpo(), rewards, None, None, 0, 1)
    with pytest.raises(DataError, match=r"stateful: .* has no reward"):
        group_advantages(stateful(), rewards, None, None, 0, 1)
    dropped = torch.tensor([[NAN, NAN], [1.0, 0.0]])  # a whole group that is not there is none of the density's
    torch.testing.assert_close(
        group_advantages(bnpo(), dropped, None, None, 0, 1).advantages[2:], advantages_of(bnpo(), dropped[1:])
    )


def test_weighted_rewards_add_up_and_none_of_all_stays_none():
    by_function = torch.tensor([[1.0, NAN], [NAN, NAN], [0.5, 2.0]])
    found = total_rewards(by_function, torch.tensor([1.0, 0.25]))
    torch.testing.assert_close(found, torch.tensor([1.0, NAN, 1.0]), equal_nan=True)


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=4, max_size=4), min_size=1, max_size=5),
    st.sampled_from(["rloo", "dr_grpo, KL in the reward", "rloo, token", "token weight", "dapo, overlong", "grpo"]),
)
def test_a_completion_without_a_reward_leaves_the_others_as_if_it_were_not_there(rewards: list[list[float]], name: str):
    method, table = REPLAYED[name], torch.tensor(rewards)
    generator = torch.Generator().manual_seed(1)
    rows, width = table.numel(), 8
    mask = torch.arange(width)[None, :] < torch.randint(1, width + 1, (rows,), generator=generator)[:, None]
    old, ref, entropies, log_q = (torch.rand((rows, width), generator=generator) for _ in range(4))
    signals = Signals(old, ref, mask, torch.arange(rows), entropies)
    found = group_advantages(method, table, signals, log_q, 1, 4).advantages
    for group, values in enumerate(table):
        scored = (~values.isnan()).nonzero().flatten()
        mine = found.reshape(len(table), 4, *found.shape[1:])[group]
        assert not mine[values.isnan()].any()
        if len(scored) > 1:
            alone = signals.take(group * 4 + scored)
            wanted = advantages_of(method, values[scored][None], alone, log_q[group * 4 + scored], 1, 4)
            torch.testing.assert_close(mine[scored], wanted)


@pytest.mark.parametrize("name", ["eapo", "steer", "high_entropy", "clip_cov"])
@pytest.mark.parametrize(
    "lacking", [[], [4], [4, 12, 13], [4, 5, 6], [12, 13, 14, 15]], ids=["none", "one", "two groups", "all but one", "a group"]
)
def test_statistics_of_the_rollout_are_over_all_its_rows(name: str, lacking: list[int]):
    """Whatever lacks a reward: the factor on each token is the loop's, of one call with all rows, those without a group at 0."""
    method, generator = METHODS[name](), torch.Generator().manual_seed(2)
    weight = method.token_weight
    assert weight is not None and weight.depends_on == "batch"
    table = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0]])
    rows, width = table.numel(), 12
    mask = torch.arange(width)[None, :] < torch.randint(3, width + 1, (rows,), generator=generator)[:, None]
    old, ref, entropies = (torch.rand((rows, width), generator=generator) for _ in range(3))
    signals = Signals(-3 * old, -ref, mask, torch.arange(rows), 3 * entropies)
    loop = credit(method, table, signals, None, 1, 4, Key(0)).advantages
    table.view(-1)[lacking] = NAN
    by_group = torch.zeros(table.shape)
    for group, here in enumerate(~table.isnan()):
        if here.sum() > 1:
            by_group[group, here] = method.advantage(table[group, here][None])[0]
    given = replace(signals, advantages=by_group.flatten())
    wanted = by_group.flatten()[:, None] * weights_of(weight, given, 1, 4, Key(0), method.start())[0]
    found = group_advantages(method, table, signals, None, 1, 4, Key(0)).advantages
    torch.testing.assert_close(torch.where(mask, found, 0.0), torch.where(mask, wanted, 0.0))
    if not lacking:
        torch.testing.assert_close(found, loop)
    if name in ("eapo", "high_entropy"):  # whose statistics read entropies alone
        others = torch.tensor([row // 4 not in {one // 4 for one in lacking} for row in range(rows)])
        torch.testing.assert_close(found[others], loop[others])


@pytest.mark.parametrize("method", [no_kl(), bnpo(), rloo(beta=0.0), grpo(beta=0.1)], ids=lambda method: method.name)
def test_advantages_are_those_of_the_method(method: Method, tiny_policy: Path, tmp_path: Path):
    trainer = trained(method, tiny_policy, tmp_path, max_steps=1)
    texts = trainer.processing_class.batch_decode([c for _, c in trainer.rollouts[0]], skip_special_tokens=True)
    wanted = method.advantage(torch.tensor(reward(texts)).reshape(-1, 3)).reshape(-1)
    torch.testing.assert_close(trainer.batches[0]["advantages"], wanted * scale_of(method, 8), atol=1e-5, rtol=1e-5)
    assert len(set(wanted.tolist())) > 1


def unscored(completions: list[str], **_: object) -> list[float | None]:
    return [None, *reward(completions)[1:]]


@pytest.mark.parametrize("method", [grpo(beta=0.1), rloo(beta=0.1), dapo()], ids=lambda method: method.name)
def test_an_unscored_completion_does_not_count_as_wrong(method: Method, tiny_policy: Path, tmp_path: Path):
    trainer = trained(method, tiny_policy, tmp_path, max_steps=1, reward_funcs=unscored, learning_rate=0.0)
    texts = trainer.processing_class.batch_decode([c for _, c in trainer.rollouts[0][:3]], skip_special_tokens=True)
    first = trainer.batches[0]["advantages"][:3]
    scored = torch.tensor(reward(texts)[1:])
    if method.rollout is None or scored[0] != scored[1]:  # else it was drawn anew
        if method.advantage == LeaveOneOut():
            first = first[:, 0]
            assert float(first[0]) == 0 and float(first[1] + first[2]) == pytest.approx(0, abs=1e-4)
        wanted = method.advantage(scored[None])[0]
        torch.testing.assert_close(first[1:], wanted, atol=1e-4, rtol=1e-4)
        assert not first[0].any()


def test_an_unscored_completion_is_named_where_an_advantage_needs_it(tiny_policy: Path, tmp_path: Path):
    with pytest.raises(DataError, match="has no reward"):
        trained(bnpo(), tiny_policy, tmp_path, reward_funcs=unscored)


def test_the_scale_by_hand():
    assert scale_of(grpo(), 256) == 1.0 and scale_of(dapo(), 256, 0.5) == 1.0  # a token mean counts what is there
    assert scale_of(replace(grpo(), rollout=DynamicSampling()), 256, 0.5) == 2.0
    assert scale_of(dr_grpo(), 256) == 1.0 and scale_of(bnpo(), 256) == 256.0
    assert scale_of(replace(dr_grpo(), reduction=FixedBudget(128)), 256, 0.25) == 8.0


# ---- what the loss is given: no KL of its own, a beta of its own


def test_the_loss_has_no_kl_where_it_is_in_the_reward(tiny_policy: Path, tmp_path: Path):
    """TRL computes the reference, logs no kl of the loss, and its beta is back after every loss; ours are logged."""
    trainer = trained(REPLAYED["rloo, branch"], tiny_policy, tmp_path)
    line = trainer.state.log_history[0]
    assert "kl" not in line and line["kl/to_reference"] == pytest.approx(0, abs=1e-6) and line["guide/q_mean"] > 1.05
    assert trainer.beta == trainer.args.beta == 0.3
    assert trainer.batches[0]["advantages"].shape == trainer.batches[0]["completion_ids"].shape
    assert not any(name in trainer.batches[0] for name in ("sage_logps", "sage_entropies"))


@pytest.mark.parametrize("method", [REPLAYED["rloo, branch"], erank(stride=2, beta=0.3)], ids=lambda method: method.name)
@pytest.mark.parametrize("layout", ["plain", "moves: both"])
def test_a_scored_rollout_adds_one_forward_where_trl_has_none(layout: str, method: Method, tiny_policy: Path, tmp_path: Path):
    """For the KL in the reward; and for hidden states, which are those of that forward."""

    def forwards(cls: type, **more: Any) -> int:
        args = arguments(tmp_path, layout, **grpo_config(method) | {"learning_rate": 0.0})
        trainer, calls = build(tiny_policy, args, cls, **more), []
        trainer.model.register_forward_pre_hook(lambda *_: calls.append(1))
        trainer.train()
        ranks.extend(line["extra/erank/rank"] for line in trainer.state.log_history if "extra/erank/rank" in line)
        return len(calls)

    rollouts, ranks = {"plain": 3, "moves: both": 0}[layout], list[float]()
    assert forwards(SageTrainer, method=method) == forwards(trl.GRPOTrainer) + rollouts
    assert all(rank > 0.3 for rank in ranks) and bool(ranks) == (method.name == "erank")


def test_hidden_states_are_those_that_predict_each_token(tiny_policy: Path, tmp_path: Path):
    """With and without an adapter, against the states that the model itself gives out; in chunks of rows."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    for adapted in (False, True):
        model = AutoModelForCausalLM.from_pretrained(tiny_policy)
        model = peft.get_peft_model(model, config) if adapted else model
        ids = torch.randint(3, 12, (4, 9))
        with torch.no_grad():
            wanted = model(input_ids=ids, output_hidden_states=True).hidden_states[-1]
            with seen_states(model) as states:
                for chunk in ids.split(3):
                    model(input_ids=chunk)
            model(input_ids=ids)
        assert torch.equal(predicting(states, 5), wanted[:, 3:8]) and len(states) == 2
    assert predicting([], 5) is None
    parts = [{"sage_hidden": torch.ones(2, width, 4)} for width in (3, 5)]  # of a rollout and its refill
    merged = dynamic_sampling.together(parts, None)["sage_hidden"]
    assert merged.shape == (4, 5, 4) and not merged[:2, 3:].any() and bool(merged[2:].all()) and bool(merged[:2, :3].all())


def test_an_adapters_advantages_are_those_of_policy_and_base(tiny_policy: Path, tmp_path: Path):
    """PEFT: pi_old with the adapter, pi_ref without, both by this test's own forward."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False)
    method = rloo(beta=0.3)
    args = arguments(tmp_path, **grpo_config(method) | {"learning_rate": 0.0, "max_steps": 1})
    trainer = build(tiny_policy, args, Recorder, method=method, peft_config=config)
    trainer.train()
    batch = trainer.batches[0]
    with torch.no_grad():
        old, _ = forward(trainer.model, batch, args.temperature)
        with trainer.model.disable_adapter():
            ref, _ = forward(trainer.model, batch, args.temperature)
    texts = trainer.processing_class.batch_decode([c for _, c in trainer.rollouts[0]], skip_special_tokens=True)
    signals = Signals(old, ref, batch["completion_mask"].bool(), torch.arange(6))
    wanted = advantages_of(method, torch.tensor(reward(texts)).reshape(-1, 3), signals, None, 0, 1)
    torch.testing.assert_close(batch["advantages"], wanted, atol=1e-4, rtol=1e-4)
    assert float((old - ref).abs().max()) > 0.1


@pytest.mark.parametrize("error", [False, True])
def test_beta_is_that_of_the_step_and_restored(error: bool, tiny_policy: Path, tmp_path: Path):
    method, seen = grpo(beta=Linear(0.6, 0.2)), []
    trainer = build(tiny_policy, arguments(tmp_path, **grpo_config(method)), method=method)
    plain = trainer._get_per_token_logps_and_entropies

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append(trainer.beta)
        if error and trainer.beta == 0.4:
            raise KeyError("stop")
        return plain(*args, **kwargs)

    trainer._get_per_token_logps_and_entropies = spy
    if error:
        with pytest.raises(KeyError):
            trainer.train()
    else:
        trainer.train()
        assert [round(beta, 6) for beta in seen] == [0.6, 0.6, 0.6, 0.4, 0.6, 0.2]  # the reference's, the loss's
    assert trainer.beta == 0.6


def test_evaluation_is_stock(tiny_policy: Path, tmp_path: Path):
    """Between two steps of dynamic sampling and a KL in the reward: TRL's KL, no refills, no advantages of ours."""
    method = REPLAYED["dapo, branch in the reward"]
    args = arguments(tmp_path, **grpo_config(method))
    data = Dataset.from_dict({"prompt": PROMPTS[:2]})
    trainer = build(tiny_policy, args, method=method, eval_dataset=data)
    trainer.evaluate()
    found = trainer.state.log_history[0]
    assert found["eval_kl"] == pytest.approx(0, abs=1e-6) and trainer._numbered == (-1, 0)
    assert not any("rollout" in name or "anchor" in name for name in found)
