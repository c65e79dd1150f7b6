"""PPO clip at ratios that are not 1: value and gradient by hand."""

from __future__ import annotations

import math

import pytest
import torch

from sage_rlvr.core import Clip
from sage_rlvr.errors import ConfigError

# ratio, advantage -> loss, d loss / d log ratio (clip .2, .2)
CASES = [
    (1.0, 1.0, -1.0, -1.0),
    (1.1, 2.0, -2.2, -2.2),
    (1.5, 1.0, -1.2, 0.0),
    (1.5, -1.0, 1.5, 1.5),
    (0.5, 1.0, -0.5, -0.5),
    (0.5, -1.0, 0.8, 0.0),
    (0.9, -2.0, 1.8, 1.8),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope"), CASES)
def test_clip_by_hand(ratio, advantage, loss, slope):
    log_ratio = torch.tensor([[math.log(ratio)]], requires_grad=True)
    found, stats = Clip()(log_ratio, torch.tensor([[advantage]]), torch.ones(1, 1, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(found.sum(), log_ratio)
    assert float(found.detach()) == pytest.approx(loss) and float(gradient) == pytest.approx(slope)
    assert stats["surrogate/ratio_mean"] == pytest.approx(ratio)
    assert stats["surrogate/clipped_share"] == float(slope == 0.0)


def test_clip_higher_lets_a_rising_token_go_further():
    log_ratio, up = torch.tensor([[math.log(1.25)]]), torch.tensor([[1.0]])
    mask = torch.ones(1, 1, dtype=torch.bool)
    assert float(Clip(0.2, 0.28)(log_ratio, up, mask)[0]) == pytest.approx(-1.25)
    assert float(Clip(0.2, 0.2)(log_ratio, up, mask)[0]) == pytest.approx(-1.2)


def test_statistics_count_the_mask_only():
    log_ratios = torch.tensor([[math.log(1.5), math.log(1.5)], [0.0, 0.0]])
    mask = torch.tensor([[True, False], [True, True]])
    stats = Clip()(log_ratios, torch.tensor([[1.0], [1.0]]), mask)[1]
    assert stats["surrogate/clipped_share"] == pytest.approx(1 / 3)
    assert stats["surrogate/ratio_mean"] == pytest.approx(3.5 / 3)


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.2), (1.2, 0.2), (0.2, -0.1), (float("nan"), 0.2)])
def test_refusals(low, high):
    with pytest.raises(ConfigError, match="clip_"):
        Clip(low, high)
