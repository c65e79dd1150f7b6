"""Closed forms: hand-worked numbers, what makes them maxima, the edges of beta and of the support, and the refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.theory import optima
from sage_rlvr.core import pseudo_kl as core_pseudo_kl
from sage_rlvr.core import unnormalized_kl as core_unnormalized_kl
from sage_rlvr.errors import ConfigError, DataError

REF, REWARDS, Q = (0.2, 0.3, 0.5), (1.0, 0.0, 0.0), (1.0, 1.3, 0.8)


def near(values, digits: float = 1e-6):
    return pytest.approx(values, abs=digits)


def test_hand_worked_numbers():
    """q ref e^{R / beta} = (.2 e^2, .39, .4); with c = .3 everything to the power .5 / .8."""
    assert optima.reverse_kl_optimum(REF, REWARDS, 0.5, Q).tolist() == near([0.651646, 0.171972, 0.176382])
    assert optima.entropy_optimum(REF, REWARDS, 0.5, 0.3).tolist() == near([0.532732, 0.196652, 0.270616])
    shaped = optima.forward_kl_optimum(REF, REWARDS, 0.5, Q)
    assert shaped.probs.tolist() == near([0.657168, 0.169246, 0.173586])
    assert shaped.lam == near(0.5 * 0.99 + 0.657168)
    two_right = optima.forward_kl_optimum(REF, (1.0, 1.0, 0.0), 0.05)
    assert two_right.probs.tolist() == near([0.39025, 0.585375, 0.024375])
    assert (two_right.lam, two_right.gap) == near((1.025625, 0.025625))


@pytest.mark.parametrize(
    ("p0", "beta", "forward", "wrong_under_reverse"),
    [(0.3, 0.05, 0.965535, 4.8e-9), (0.05, 0.05, 0.952624, 3.9e-8), (0.3, 0.5, 0.710977, 0.2400)],
)
def test_right_mass_of_both_kls(p0, beta, forward, wrong_under_reverse):
    ref, rewards = (p0, 1 - p0), (1.0, 0.0)
    assert float(optima.forward_kl_optimum(ref, rewards, beta).probs[0]) == near(forward)
    assert float(optima.reverse_kl_optimum(ref, rewards, beta)[1]) == pytest.approx(wrong_under_reverse, rel=0.02)


def test_values_worked_by_hand():
    """pi = (.5, .5), f = (.2, .3), R = (1, 0): D = log .5 - (log .2 + log .3) / 2, and sum f = .5."""
    pi, f, rewards = (0.5, 0.5), (0.2, 0.3), (1.0, 0.0)
    d = math.log(0.5) - 0.5 * (math.log(0.2) + math.log(0.3))
    assert float(optima.pseudo_kl(pi, f)) == near(d, 1e-12)
    assert float(optima.unnormalized_kl(pi, f)) == near(d - 0.5, 1e-12)
    assert float(optima.pseudo_kl(pi, (0.4, 0.6))) == near(d + math.log(0.5), 1e-12)
    assert float(optima.sage_value(pi, f, rewards, 2.0)) == near(0.5 - 2 * d, 1e-12)
    assert float(optima.sage_value(pi, (0.1, 0.3), rewards, 2.0, (2.0, 1.0))) == near(0.5 - 2 * d, 1e-12)
    assert float(optima.entropy_value(pi, f, rewards, 2.0, 3.0)) == near(0.5 - 2 * d + 3 * math.log(2), 1e-12)
    forward = 0.2 * math.log(0.4) + 0.3 * math.log(0.6) + 0.5
    assert float(optima.forward_value(pi, f, rewards, 2.0)) == near(0.5 - 2 * forward, 1e-12)
    assert optima.total_variation((0.5, 0.3, 0.2), (0.2, 0.3, 0.5)) == near(0.3, 1e-12)


def test_the_divergences_are_those_of_the_core():
    generator = torch.Generator().manual_seed(0)
    p, f = (torch.rand(5, generator=generator) + 0.05 for _ in range(2))
    p = p / p.sum()
    assert float(optima.pseudo_kl(p, f)) == near(float(core_pseudo_kl(p.log(), f.log())), 1e-5)
    assert float(optima.unnormalized_kl(p, f)) == near(float(core_unnormalized_kl(p.log(), f.log())), 1e-5)


# ---- laws


@st.composite
def worlds(draw):
    """(ref, rewards, beta, q, c, other policy) of 2 to 7 completions; ref is not normalized."""
    size = draw(st.integers(2, 7))

    def many(low, high):
        return torch.tensor(draw(st.lists(st.floats(low, high), min_size=size, max_size=size)), dtype=torch.float64)

    ref, rewards, q, other = many(0.01, 3.0), many(-1.0, 1.0), many(0.2, 5.0), many(0.01, 1.0)
    return ref, rewards, draw(st.floats(0.02, 3.0)), q, draw(st.floats(0.0, 2.0)), other / other.sum()


def optimum_and_value(kind, world):
    ref, rewards, beta, q, c, _ = world
    if kind == "reverse":
        return optima.reverse_kl_optimum(ref, rewards, beta, q), lambda p: optima.sage_value(p, ref, rewards, beta, q)
    if kind == "entropy":
        found = optima.entropy_optimum(ref, rewards, beta, c, q)
        return found, lambda p: optima.entropy_value(p, ref, rewards, beta, c, q)
    found = optima.forward_kl_optimum(ref, rewards, beta, q).probs
    return found, lambda p: optima.forward_value(p, ref, rewards, beta, q)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reverse", "entropy", "forward"])
@given(world=worlds())
@settings(max_examples=60, deadline=None)
def test_no_policy_has_a_larger_value(kind, world):
    """The value falls from the optimum toward any other policy, and its derivative there is 0 along the way."""
    found, value = optimum_and_value(kind, world)
    other, best = world[-1], float(value(found))
    assert float(found.sum()) == near(1.0, 1e-9) and bool((found >= 0).all())
    for share in (1e-3, 0.1, 1.0):
        assert float(value((1 - share) * found + share * other)) <= best + 1e-9 * (1 + abs(best))
    if float(found.min()) > 1e-6:
        point = found.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(value(point), point)
        assert abs(float((slope * (other - found)).sum())) < 1e-6 * (1 + float(slope.abs().max()))


@given(world=worlds())
@settings(max_examples=40, deadline=None)
def test_scale_matters_to_the_forward_kl_alone(world):
    ref, rewards, beta, q, c, _ = world
    for function in (
        lambda f: optima.reverse_kl_optimum(f, rewards, beta, q),
        lambda f: optima.entropy_optimum(f, rewards, beta, c, q),
    ):
        assert torch.allclose(function(ref), function(9.0 * ref), atol=1e-12)
    scaled = optima.forward_kl_optimum(9.0 * ref, rewards, beta, q).probs
    assert torch.allclose(scaled, optima.forward_kl_optimum(ref, rewards, 9.0 * beta, q).probs, atol=1e-9)


@given(world=worlds())
@settings(max_examples=40, deadline=None)
def test_the_multiplier(world):
    """lam > max R, sum pi = 1, and lam = beta sum f + E[R]."""
    ref, rewards, beta, q, _, _ = world
    found = optima.forward_kl_optimum(ref, rewards, beta, q)
    assert found.gap > 0 and found.lam == near(float(rewards.max()) + found.gap, 1e-12)
    assert found.lam == near(beta * float((q * ref).sum()) + float((found.probs * rewards).sum()), 1e-8)


# ---- edges


def test_no_bonus_is_no_bonus():
    plain = optima.reverse_kl_optimum(REF, REWARDS, 0.5, Q)
    assert torch.allclose(optima.entropy_optimum(REF, REWARDS, 0.5, 0.0, Q), plain, atol=1e-15)


def test_equal_rewards_leave_the_anchor():
    for rewards in ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)):
        found = optima.forward_kl_optimum((0.4, 0.6, 1.0), rewards, 1e-3)
        assert found.probs.tolist() == near([0.2, 0.3, 0.5], 1e-12)
        assert found.gap == near(2e-3, 1e-12)


def test_many_completions_and_a_tiny_beta():
    generator = torch.Generator().manual_seed(0)
    ref = torch.rand(4096, generator=generator, dtype=torch.float64) ** 8
    ref[:5] = 0.0
    rewards = torch.rand(4096, generator=generator, dtype=torch.float64)
    rewards[3] = 2.0  # the best completion of all, and one that the reference cannot say
    found = optima.forward_kl_optimum(ref / ref.sum(), rewards, 1e-3)
    assert float(found.probs.sum()) == near(1.0, 1e-12)
    assert not bool(found.probs[:5].any()) and found.lam < 1.01
    assert not bool(optima.reverse_kl_optimum(ref, rewards, 1e-3)[:5].any())


def test_a_gap_that_lam_cannot_hold():
    """f = 1e-13 on the right one, beta = 1e-3: the gap is 1e-16 and a bit, lam in float64 is 1, and pi is still right."""
    found = optima.forward_kl_optimum((1e-13, 0.5, 0.5), REWARDS, 1e-3)
    assert found.lam == 1.0 and found.gap == pytest.approx(1e-16 / 0.999, rel=1e-6)
    assert found.probs.tolist() == near([0.999, 5e-4, 5e-4], 1e-9)


def test_a_policy_off_the_anchor_has_no_finite_value():
    assert float(optima.pseudo_kl((0.5, 0.5), (1.0, 0.0))) == math.inf
    assert float(optima.sage_value((0.5, 0.5), (1.0, 0.0), (0.0, 1.0), 0.1)) == -math.inf
    assert float(optima.pseudo_kl((1.0, 0.0), (1.0, 0.0))) == 0.0


# ---- refusals


@pytest.mark.parametrize("function", [optima.reverse_kl_optimum, optima.forward_kl_optimum])
@pytest.mark.parametrize("beta", [0.0, -0.1, math.inf, math.nan])
def test_beta_must_be_positive(function, beta):
    with pytest.raises(ConfigError, match="beta"):
        function(REF, REWARDS, beta)


def test_a_bonus_is_not_negative():
    with pytest.raises(ConfigError, match=r"c = -0\.1"):
        optima.entropy_optimum(REF, REWARDS, 0.5, -0.1)


@pytest.mark.parametrize(
    ("ref", "rewards", "q", "words"),
    [
        (REF, REWARDS, (1.0, -1.3, 0.8), r"q\[1\] = -1.3"),
        ((0.2, math.nan, 0.5), REWARDS, None, r"ref\[1\] = nan"),
        (REF, (1.0, 0.0), None, "rewards has 2 entries and ref 3"),
        (REF, REWARDS, (1.0, 1.0), "q has 2 entries"),
        ([[0.2, 0.3, 0.5]], REWARDS, None, r"ref has shape \(1, 3\)"),
        ((0.0, 0.3, 0.5), REWARDS, (1.0, 0.0, 0.0), "0 for every completion"),
    ],
)
def test_wrong_inputs_are_named(ref, rewards, q, words):
    with pytest.raises(DataError, match=words):
        optima.reverse_kl_optimum(ref, rewards, 0.5, q)


def test_a_policy_of_another_size_is_named():
    with pytest.raises(DataError, match="probs has 2 completions and the other side 3"):
        optima.sage_value((0.5, 0.5), REF, REWARDS, 0.5)
