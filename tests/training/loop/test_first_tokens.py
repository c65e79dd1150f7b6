"""First tokens that a plan chooses: the even split by hand, what is sampled behind them, and the correction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import tiny_llama
from sage_rlvr.contrib.methods.reft import FirstTokens, reft
from sage_rlvr.core.keys import Key
from sage_rlvr.core.rollout_plans.spread import first_shares
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.scoring import score
from sage_rlvr.testing import check_rollout_plan
from sage_rlvr.training.first_tokens import first_logits, sample_behind
from sage_rlvr.training.groups import RolloutBatch
from sage_rlvr.training.loop import train_step
from sage_rlvr.training.rollouts import draw
from sage_rlvr.training.samplers import sampler_of
from sage_rlvr.training.scores import step_scores
from training.loop.loop_common import make, weights

Recipe = Callable[..., Path]
KEY = Key(3)


def test_an_even_split_by_hand():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [9.0, 0.0, 8.0, 7.0]])
    first = FirstTokens(2).first(logits, 4, torch.arange(2), 0, KEY)
    assert [Counter(row) for row in first.tolist()] == [{1: 2, 3: 2}, {0: 2, 2: 2}]
    one = FirstTokens(1).first(logits, 3, torch.arange(2), 0, KEY)
    assert one.tolist() == [[1, 1, 1], [0, 0, 0]]


@given(st.integers(1, 9), st.integers(2, 20), st.integers(1, 5), st.integers(0, 3))
def test_every_one_of_the_likeliest_is_as_frequent_but_for_a_remainder(n: int, size: int, prompts: int, step: int):
    logits = torch.randn(prompts, 12, generator=torch.Generator().manual_seed(n))
    plan = FirstTokens(n)
    first = plan.first(logits, size, torch.arange(prompts), step, KEY)
    for row, law in zip(first.tolist(), logits, strict=True):
        counts = Counter(row)
        assert set(counts) <= set(law.topk(n).indices.tolist()) and len(counts) == min(n, size)
        assert max(counts.values()) - min([counts.get(token, 0) for token in law.topk(n).indices.tolist()]) <= 1
    turned = plan.first(logits.flip(0), size, torch.arange(prompts).flip(0), step, KEY)
    assert torch.equal(turned.flip(0), first)


def test_who_gets_the_remainder_is_drawn_evenly():
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    drawn = [FirstTokens(3).first(logits, 4, torch.tensor([0]), step, KEY)[0].tolist() for step in range(600)]
    found = Counter(token for first in drawn for token in first)
    assert [found[token] / 2400 for token in range(3)] == pytest.approx([1 / 3] * 3, abs=0.02)


@given(st.integers(2, 6), st.integers(0, 5))
def test_the_placebo_gives_each_prompt_the_tokens_of_one_prompt_of_the_step(prompts: int, step: int):
    logits = torch.randn(prompts, 40, generator=torch.Generator().manual_seed(prompts))
    own = [frozenset(row) for row in FirstTokens(3).first(logits, 6, torch.arange(prompts), step, KEY).tolist()]
    others = [frozenset(row) for row in FirstTokens(3, permuted=True).first(logits, 6, torch.arange(prompts), step, KEY).tolist()]
    assert Counter(own) == Counter(others)


@pytest.mark.parametrize("architecture", ["engine", "stock"])
def test_the_rest_is_sampled_behind_the_first_token_and_scored_as_the_policys(architecture: str):
    policy = tiny_llama() if architecture == "engine" else tiny_llama(attention_bias=True)
    prompts = [[3, 4, 5], [6, 7, 8, 9]]
    logits = first_logits(policy, prompts)
    for prompt, law in zip(prompts, logits, strict=True):
        assert torch.allclose(law, policy(torch.tensor([prompt])).logits[0, -1], atol=1e-4)
    end = int(logits[0].topk(2).indices[1])  # a first token that ends its completion
    first = FirstTokens(3).first(logits, 6, torch.arange(2), 0, KEY)
    rollout = sample_behind(
        policy, prompts, logits, first, eos_id=[end], pad_id=0, max_new_tokens=5, temperature=0.7, key=KEY, step=1,
        row_ids=torch.arange(12),
    )  # fmt: skip
    assert torch.equal(rollout.tokens[:, 0], first.flatten()) and rollout.lengths.max() <= 5
    ended = first.flatten() == end
    assert bool(ended.any()) and bool((rollout.lengths[ended] == 1).all()) and bool(rollout.finished[ended].all())
    owners = torch.arange(12) // 6
    scored = score(policy, prompts, rollout.tokens, rollout.mask, owners, temperature=0.7).logps
    assert torch.allclose(torch.where(rollout.mask, scored - rollout.logps, 0.0), torch.zeros(()), atol=1e-4)


def test_weights_of_the_correction_by_hand(write_recipe: Recipe):
    assert first_shares(torch.tensor([[7, 7, 2, 9]])).tolist() == [[0.5, 0.5, 0.25, 0.25]]
    loop = make(write_recipe(), ("method", "{name: reft, n: 2, corrected: true}"))
    groups = RolloutBatch.of((draw(loop, 0, 0, 4),), loop.tokens.pad_id)
    scores, _ = step_scores(loop, groups)
    found, metrics = sampler_of(loop.method).weights(groups, scores.logps)
    chances = scores.logps[:, 0].detach().exp()
    assert torch.allclose(found, chances / 0.5)  # 4 completions over 2 first tokens
    top = torch.softmax(first_logits(loop.policy, groups.prompts), 1).topk(2).values
    assert metrics["first_token/mass"] == pytest.approx(float(top.sum(1).mean()), abs=1e-5)
    plain = make(write_recipe(), ("method", "{name: reft, n: 2}"))
    assert sampler_of(plain.method).weights(groups, scores.logps)[0] is None


def test_a_run_trains_and_the_correction_and_the_placebo_change_it(write_recipe: Recipe):
    after = []
    for method in ("{name: reft, n: 2}", "{name: reft, n: 2, corrected: true}", "{name: reft, n: 2, permuted: true}"):
        loop = make(write_recipe(), ("method", method))
        for step in range(2):
            metrics = train_step(loop, step)
            assert metrics["sampler/logp_gap_max"] < 1e-3
        after.append(weights(loop))
    assert not torch.equal(after[0], after[1]) and not torch.equal(after[0], after[2])


def test_the_objective_says_whether_the_ratio_corrects_the_choice():
    plain, corrected = reft().describe(), reft(corrected=True).describe()
    assert " sum_t w [ -min(" in corrected and " sum_t [ -min(" in plain
    assert "not corrected: w = 1" in plain and "does not correct that y_1 is chosen" in plain
    assert "corrected: times w = pi_old(y_1)" in corrected and "not corrected" not in corrected
    assert "another prompt" in reft(permuted=True).describe()
    assert "dropped groups" not in plain


def test_its_settings():
    for plan in (FirstTokens(), FirstTokens(3, corrected=True), FirstTokens(permuted=True)):
        check_rollout_plan(plan)
    with pytest.raises(ConfigError, match="n = 0"):
        FirstTokens(0)
