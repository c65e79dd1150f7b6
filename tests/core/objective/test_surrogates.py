"""PPO clip at ratios that are not 1: value and gradient by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
    assert stats["surrogate/clipped_frac"] == float(slope == 0.0)


def test_clip_higher_lets_a_rising_token_go_further():
    log_ratio, up = torch.tensor([[math.log(1.25)]]), torch.tensor([[1.0]])
    mask = torch.ones(1, 1, dtype=torch.bool)
    assert float(Clip(0.2, 0.28)(log_ratio, up, mask)[0]) == pytest.approx(-1.25)
    assert float(Clip(0.2, 0.2)(log_ratio, up, mask)[0]) == pytest.approx(-1.2)


def test_statistics_count_the_mask_only():
    log_ratios = torch.tensor([[math.log(1.5), math.log(1.5)], [0.0, 0.0]])
    mask = torch.tensor([[True, False], [True, True]])
    stats = Clip()(log_ratios, torch.tensor([[1.0], [1.0]]), mask)[1]
    assert stats["surrogate/clipped_frac"] == pytest.approx(1 / 3)
    assert stats["surrogate/ratio_mean"] == pytest.approx(3.5 / 3)


def test_a_dead_group_cannot_stop_a_run():
    """rho = e**100 is infinite in float32 and inf * 0 is NaN; the log-ratio is held at 20 nats and counted."""
    log_ratios = torch.tensor([[100.0, -math.inf, 0.0, 100.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True, False]])
    loss, stats = Clip()(log_ratios, torch.zeros(1, 1), mask)
    (gradient,) = torch.autograd.grad(loss[mask].sum(), log_ratios)
    assert not loss.any() and not gradient.any()
    assert stats["surrogate/clamped_frac"] == pytest.approx(2 / 3) and math.isfinite(stats["surrogate/ratio_mean"])


def test_the_clamp_does_not_touch_the_normal_range():
    """Bit for bit the unclamped surrogate up to 20 nats, value and gradient, also where A < 0 lets rho grow."""
    mask, advantages = torch.ones(1, 9, dtype=torch.bool), torch.tensor([[-1.0]])
    leaves = [torch.linspace(-20, 20, 9)[None].requires_grad_(True) for _ in range(2)]
    found, stats = Clip()(leaves[0], advantages, mask)
    ratios = leaves[1].exp()
    plain = -torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
    assert torch.equal(found, plain) and stats["surrogate/clamped_frac"] == 0.0
    gradients = [torch.autograd.grad(loss.sum(), leaf)[0] for loss, leaf in ((found, leaves[0]), (plain, leaves[1]))]
    assert torch.equal(*gradients)


# ---- the dual clip

# ratio, advantage -> loss, d loss / d log ratio (clip .2, .28, dual 3)
DUAL_CASES = [
    (2.9, -1.0, 2.9, 2.9),
    (3.1, -1.0, 3.0, 0.0),
    (50.0, -2.0, 6.0, 0.0),
    (0.5, -1.0, 0.8, 0.0),
    (1.0, -1.0, 1.0, 1.0),
    (50.0, 1.0, -1.28, 0.0),
    (1.25, 1.0, -1.25, -1.25),
    (50.0, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope"), DUAL_CASES)
def test_dual_clip_by_hand(ratio, advantage, loss, slope):
    log_ratio = torch.tensor([[math.log(ratio)]], requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    found, stats = Clip(0.2, 0.28, 3.0)(log_ratio, torch.tensor([[advantage]]), mask)
    (gradient,) = torch.autograd.grad(found.sum(), log_ratio)
    assert float(found.detach()) == pytest.approx(loss) and float(gradient) == pytest.approx(slope)
    assert stats["surrogate/dual_clipped_frac"] == float(ratio > 3 and advantage < 0)
    held = (ratio < 0.8 and advantage < 0) or (ratio > 1.28 and advantage > 0)
    assert stats["surrogate/clipped_frac"] == float(held)


def test_a_dual_clip_that_is_not_reached_changes_no_bit():
    drawn = torch.Generator().manual_seed(0)
    log_ratios, mask = torch.randn(8, 5, generator=drawn), torch.rand(8, 5, generator=drawn) < 0.8
    advantages = torch.randn(8, 1, generator=drawn)
    (plain, plain_stats), (dual, dual_stats) = (Clip(dual=c)(log_ratios, advantages, mask) for c in (None, 1e6))
    assert torch.equal(plain, dual)
    assert dual_stats == plain_stats | {"surrogate/dual_clipped_frac": 0.0}
    assert "surrogate/dual_clipped_frac" not in plain_stats and Clip(0.2, 0.2, None) == Clip()


def test_the_dual_share_counts_the_mask_only():
    log_ratios = torch.full((2, 2), math.log(5.0))
    mask = torch.tensor([[True, False], [True, True]])
    stats = Clip(dual=3.0)(log_ratios, torch.tensor([[-1.0], [1.0]]), mask)[1]
    assert stats["surrogate/dual_clipped_frac"] == pytest.approx(1 / 3)


@given(st.floats(-6, 6), st.floats(-3, 3), st.sampled_from([1.5, 3.0, 10.0]))
def test_the_equation_is_what_is_computed(log_ratio, advantage, dual):
    """-max(min(rho A, clip(rho, 0.8, 1.28) A), c min(A, 0)), evaluated as the text that `describe` prints."""
    rho = math.exp(log_ratio)
    names = {"rho": rho, "A": advantage, "clip": lambda value, low, high: min(max(value, low), high)}
    text = (
        Clip(0.2, 0.28, dual).equation.replace("rho A", "rho * A").replace(") A", ") * A").replace(" min(A", " * min(A")
    )
    found = Clip(0.2, 0.28, dual)(torch.tensor([[log_ratio]]), torch.tensor([[advantage]]), torch.ones(1, 1).bool())[0]
    assert float(found) == pytest.approx(eval(text, {"max": max, "min": min}, names), rel=1e-4, abs=1e-6)


def test_equations():
    assert Clip().equation == "-min(rho A, clip(rho, 0.8, 1.2) A)"
    assert Clip(0.2, 0.28, 10).equation == "-max(min(rho A, clip(rho, 0.8, 1.28) A), 10 min(A, 0))"


@pytest.mark.parametrize("dual", [1.0, 0.5, -3.0, math.inf, math.nan])
def test_dual_has_its_range(dual):
    with pytest.raises(ConfigError, match=r"dual = .*above 1.*None for no bound"):
        Clip(dual=dual)


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.2), (1.2, 0.2), (0.2, -0.1), (float("nan"), 0.2)])
def test_refusals(low, high):
    with pytest.raises(ConfigError, match="clip_"):
        Clip(low, high)
