"""Effective ranks from growing Gram matrices against singular values, and VERL's weights against its formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sage_rlvr.contrib.methods.erank import ERank, erank
from sage_rlvr.core import GroupNormalized, Key, Signals, advantages_of
from sage_rlvr.core.ranks import ranks_of
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verdicts.stats.samples.spectrum import rank_path


def states_of(seed: int, rows: int, columns: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random states of ragged rows, the last of which has one token alone; NaN where nothing counts."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, columns + 1, (rows, 1), generator=drawn)
    lengths[0], lengths[-1] = columns, 1
    mask = torch.arange(columns)[None] < lengths
    states = torch.randn(rows, columns, width, generator=drawn) + 2.0
    states[1] = states[1, :1] * torch.randn(columns, 1, generator=drawn)  # of rank 1
    return torch.where(mask[:, :, None], states, math.nan), mask


@pytest.mark.parametrize("columns, width", [(23, 64), (40, 12), (36, 12), (12, 12)])
@pytest.mark.parametrize("stride, last", [(3, 512), (4, 9), (50, 512)])
def test_ranks_are_those_of_singular_values(columns: int, width: int, stride: int, last: int) -> None:
    states, mask = states_of(columns, 6, columns, width)
    found = ranks_of(states, mask, stride, last)
    for row in range(6):
        wanted = rank_path(states[row][mask[row]].double().numpy(), stride=stride, last=last)
        assert float(found.rank[row]) == pytest.approx(wanted.rank, rel=1e-5, abs=1e-6)
        assert float(found.velocity[row]) == pytest.approx(wanted.velocity, rel=1e-5, abs=1e-5)
        assert float(found.acceleration[row]) == pytest.approx(wanted.acceleration, rel=1e-5, abs=1e-5)
    assert found.rank[1] == pytest.approx(1, abs=1e-5) and found.rank[-1] == 0


def test_by_hand() -> None:
    """Rows that sum to 0 with singular values 3 and 1: exp(-(3/4 log 3/4 + 1/4 log 1/4)) = 1.754765."""
    z = torch.tensor([[3.0, 0], [-3, 0], [0, 1], [0, -1]]) / 2**0.5
    found = ranks_of(z[None], torch.ones(1, 4, dtype=torch.bool), 2, 512)
    assert float(found.rank) == pytest.approx(1.754765, abs=1e-6)
    assert float(found.velocity) == pytest.approx(0.754765, abs=1e-6) and float(found.acceleration) == 0


def given(seed: int, advantages: list[float]) -> Signals:
    states, mask = states_of(seed, 6, 20, 16)
    states[1] = states[0] ** 2  # a velocity of exactly 0 is rounding over 1e-8 at the first rollout
    return Signals(
        torch.zeros(6, 20), None, mask, torch.arange(6), hidden=torch.where(mask[:, :, None], states, 0.0),
        advantages=torch.tensor(advantages),
    )  # fmt: skip


def test_verl_by_its_formulas() -> None:
    """Two rollouts, the second against the running means of the first; all tokens of a completion alike."""
    part = ERank(stride=3)
    means, state = dict.fromkeys(("rank", "velocity", "acceleration"), 0.0), part.start()
    for seed in (1, 2):
        signals = given(seed, [1.0, -1.0, 0.2, -0.1, 0.0, 2.0])
        weights, state = part.token_weights(signals, 0, 1, Key(0), state)
        assert signals.hidden is not None
        paths = [rank_path(h[m].double().numpy(), stride=3) for h, m in zip(signals.hidden, signals.mask, strict=True)]
        for row, path in enumerate(paths):
            dev = {
                name: min(max((getattr(path, name) - mean) / (abs(mean) + 1e-8), -5), 5) for name, mean in means.items()
            }
            gate = 1 / (1 + math.exp(-2 * dev["acceleration"]))
            phi = gate * math.tanh(dev["rank"]) + (1 - gate) * math.tanh(dev["velocity"])
            assert signals.advantages is not None
            plain = float(signals.advantages[row])
            shaped = plain + min(max(phi, 0), abs(plain) / 2)
            counted = weights[row][signals.mask[row]] * plain
            assert counted.tolist() == pytest.approx([shaped] * len(counted), abs=1e-5)
        means = {
            name: 0.7 * mean + 0.3 * float(np.mean([getattr(path, name) for path in paths])) for name, mean in means.items()
        }
        assert {name: float(one) for name, one in state.items()} == pytest.approx(means, abs=1e-5)
    assert bool((weights != 1).any())


def test_the_bonus_of_the_released_script_is_zero_and_the_running_means_are_metrics_alone() -> None:
    """Its flags switch off the reward that its bonus is the difference of: A' = A, here scale = 0."""
    part = ERank(scale=0.0, share=1.0, stride=3)
    signals = given(3, [1.0, -1.0, 0.5, -0.5, 0.0, 2.0])
    weights, state = part.token_weights(signals, 0, 1, Key(0), part.start())
    assert torch.equal(weights, torch.ones_like(weights))
    assert signals.hidden is not None
    wanted = ranks_of(signals.hidden, signals.mask, 3, 512)
    assert float(state["rank"]) == pytest.approx(float(wanted.rank.mean())) and state["rank"] > 1


def test_the_rank_may_be_of_the_whole_completion_as_released() -> None:
    """Two opposite states of each direction: 8 tokens of 4 directions have rank 4, their last 4 tokens (2 directions) rank 2."""
    states = torch.cat([torch.eye(4)[[n]] * sign for n in range(4) for sign in (1, -1)])[None]
    mask = torch.ones(1, 8, dtype=torch.bool)
    signals = Signals(torch.zeros(1, 8), None, mask, torch.arange(1), hidden=states, advantages=torch.tensor([1.0]))
    cut, whole = ERank(stride=2, last=4, share=1.0), ERank(stride=2, last=4, share=1.0, whole_rank=True)
    (_, of_cut), (_, of_whole) = (one.token_weights(signals, 0, 1, Key(0), one.start()) for one in (cut, whole))
    assert float(of_cut["rank"]) == pytest.approx(2) and float(of_whole["rank"]) == pytest.approx(4)
    assert of_cut["velocity"] == of_whole["velocity"] and float(of_cut["velocity"]) == pytest.approx(1)


@pytest.mark.parametrize("add_reward", [False, True])
def test_what_the_released_script_does(add_reward: bool) -> None:
    """Written out from its flow: aux = rewards with the bonus, where add_reward is set, minus rewards without; then
    A' = A + min(max(aux, 0), |A| / kappa) at the last token. As released add_reward is off: A' = A bit for bit, though Phi is
    not 0. Switched on the bonus is in the task's reward too, before the group is normalized. So neither is `erank`, which shapes A
    alone; and erank(scale=0) is the script as released."""
    signals, rewards = given(1, [0.0] * 6), torch.tensor([[1.0, 0, 1], [0, 1, 0]])
    part = ERank(stride=3)
    plain = GroupNormalized()(rewards).flatten()
    signals = replace(signals, advantages=plain)
    weights, _ = part.token_weights(signals, 0, 1, Key(0), part.start())
    ours = plain * weights[:, 0]
    bonus = torch.where(plain == 0, 0.0, (ours - plain).abs())
    assert bonus.max() > 0.1
    with_bonus = rewards + bonus.reshape(2, 3) if add_reward else rewards
    aux = (with_bonus - rewards).flatten()
    normalized = GroupNormalized()(with_bonus).flatten()
    released = normalized + torch.minimum(aux.clamp(min=0), normalized.abs() / 2)
    assert torch.equal(released, plain) is not add_reward
    assert not torch.allclose(released, ours, atol=1e-2)
    same = advantages_of(erank(scale=0.0, stride=3), rewards, signals)
    assert torch.equal(torch.where(signals.mask, same, 0.0), torch.where(signals.mask, plain[:, None], 0.0))


@pytest.mark.parametrize("bad", [{"kappa": 1.0}, {"scale": -1.0}, {"share": 0.0}, {"stride": 1}, {"last": 0}])
def test_what_has_no_meaning_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="ERank"):
        ERank(**bad)  # type: ignore[arg-type]
    signals = Signals(torch.zeros(1, 2), None, torch.ones(1, 2), torch.arange(1), advantages=torch.ones(1))
    with pytest.raises(DataError, match="hidden"):
        ERank().token_weights(signals, 0, 1, Key(0), ERank().start())
