"""Laws of the exact divergences: never negative, 0 at p = f alone, impossible tokens, what a constant q does."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.core import (
    DIVERGENCES,
    alpha_divergence,
    divergence,
    forward_kl,
    js_divergence,
    pseudo_kl,
    unnormalized_kl,
)
from sage_rlvr.errors import ConfigError

TERMS = {name: lambda p, f, n=name: divergence(n, p, f) for name in DIVERGENCES} | {"pseudo_kl": pseudo_kl}
logits = st.floats(-8, 8, width=32)
pairs = st.integers(2, 6).flatmap(lambda n: st.tuples(*(st.lists(logits, min_size=n, max_size=n) for _ in range(2))))


def log_softmax(values) -> torch.Tensor:
    return torch.log_softmax(torch.tensor(values, dtype=torch.float64), 0).float()


def logit_gradient(term, values, anchor) -> torch.Tensor:
    leaf = torch.tensor(values, dtype=torch.float32, requires_grad=True)
    return torch.autograd.grad(term(torch.log_softmax(leaf, 0), anchor), leaf)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", DIVERGENCES)
@settings(max_examples=60, deadline=None)
@given(pair=pairs)
def test_never_negative_and_zero_at_equality_alone(name, pair):
    log_p, log_f = (log_softmax(values) for values in pair)
    value = float(divergence(name, log_p, log_f))
    distance = float((log_p.exp() - log_f.exp()).abs().sum())
    assert value >= -1e-6 and math.isfinite(value)
    if distance > 0.01:  # all of them are at least a few per cent of the squared distance
        assert value > 0.01 * distance**2


@pytest.mark.parametrize("name", DIVERGENCES)
@settings(max_examples=60, deadline=None)
@given(log_p=st.floats(-8, 2, width=32), log_f=st.floats(-8, 2, width=32))
def test_each_token_adds_a_number_that_is_not_negative(name, log_p, log_f):
    """The generator itself, on measures of one token: f phi(p / f) >= 0, and 0 with slope 0 at p = f."""
    leaf = torch.tensor([log_p], requires_grad=True)
    assert float(divergence(name, leaf, torch.tensor([log_f])).detach()) >= -1e-6
    at_equality = divergence(name, leaf, torch.tensor([log_p]))
    assert float(at_equality.detach()) == 0.0 and float(torch.autograd.grad(at_equality, leaf)[0]) == 0.0


@pytest.mark.parametrize("name", DIVERGENCES)
@settings(max_examples=30, deadline=None)
@given(pair=pairs)
def test_a_policy_at_its_reference_feels_exactly_nothing(name, pair):
    """Not a rounding error either: an optimizer that divides by the gradient's size would make a step of it."""
    log_p = log_softmax(pair[0])
    leaf = log_p.clone().requires_grad_(True)
    value = divergence(name, leaf, log_p)
    assert float(value.detach()) == 0.0 and not torch.autograd.grad(value, leaf)[0].any()


@pytest.mark.parametrize("name", TERMS)
@settings(max_examples=30, deadline=None)
@given(pair=pairs)
def test_a_token_impossible_in_both_adds_nothing(name, pair):
    plain = [torch.tensor(values) for values in pair]
    padded = [torch.cat([values, torch.full((2,), -math.inf)]) for values in plain]
    found = []
    for policy, anchor in (plain, padded):
        leaf = policy.clone().requires_grad_(True)
        value = TERMS[name](torch.log_softmax(leaf, 0), torch.log_softmax(anchor, 0))
        found.append((value.detach(), torch.autograd.grad(value, leaf)[0]))
    (value, gradient), (padded_value, padded_gradient) = found
    assert float(padded_value) == pytest.approx(float(value), abs=1e-5)
    assert torch.allclose(padded_gradient[:-2], gradient, atol=5e-6) and not padded_gradient[-2:].any()


@pytest.mark.parametrize("alpha", [0.001, 0.2, 0.999])
def test_supports_that_do_not_meet(alpha):
    """p = (1, 0), f = (0, 1): 2 JS = 2 log 2, alpha-divergence = 1 / (alpha (1 - alpha)); gradients are finite."""
    leaf, anchor = torch.tensor([0.0, -math.inf], requires_grad=True), torch.tensor([-math.inf, 0.0])
    js, other = js_divergence(leaf, anchor), alpha_divergence(leaf, anchor, alpha)
    assert float(js.detach()) == pytest.approx(2 * math.log(2))
    assert float(other.detach()) == pytest.approx(1 / (alpha * (1 - alpha)), rel=1e-5)
    for name in TERMS:
        assert torch.autograd.grad(TERMS[name](leaf, anchor), leaf)[0].isfinite().all()
    assert (
        float(unnormalized_kl(leaf, anchor).detach()) == pytest.approx(1e4) == float(forward_kl(leaf, anchor).detach())
    )


@pytest.mark.parametrize("alpha", [1e-3, 1 - 1e-3])
def test_an_alpha_near_its_ends_keeps_its_digits(alpha):
    """Written as it stands the sum loses them: a difference of second order over alpha (1 - alpha)."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    f = torch.tensor([0.49, 0.3, 0.21], dtype=torch.float64)
    wanted = float(((f**alpha * p ** (1 - alpha) - (1 - alpha) * p - alpha * f) / (alpha * (alpha - 1))).sum())
    assert float(alpha_divergence(p.log(), f.log(), alpha)) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", TERMS)
def test_bf16_in_float32_arithmetic(name):
    drawn = torch.Generator().manual_seed(1)
    log_p, log_f = (torch.log_softmax(torch.randn(2, 5, 7, generator=drawn), -1).bfloat16() for _ in range(2))
    found = TERMS[name](log_p, log_f)
    assert found.dtype == torch.float32 and found.shape == (2, 5)
    assert torch.equal(found, TERMS[name](log_p.float(), log_f.float()))


@pytest.mark.parametrize("name", TERMS)
def test_no_gradient_reaches_the_anchor(name):
    leaf, anchor = (torch.tensor([0.5, 0.1, -1.0], requires_grad=True) for _ in range(2))
    TERMS[name](torch.log_softmax(leaf, 0), torch.log_softmax(2 * anchor, 0)).backward()
    assert anchor.grad is None and leaf.grad.any()


@settings(max_examples=40, deadline=None)
@given(pair=pairs, q=st.floats(0.6, 1.4))
def test_a_constant_q_scales_the_forward_pull_by_q_and_that_of_alpha_by_q_to_the_alpha(pair, q):
    values, anchor = pair[0], log_softmax(pair[1])
    for term, factor in [
        (forward_kl, q),
        (alpha_divergence, q**0.2),
        (lambda p, f: alpha_divergence(p, f, 0.7), q**0.7),
        (pseudo_kl, 1.0),
        (unnormalized_kl, 1.0),
    ]:
        plain, shaped = (logit_gradient(term, values, anchor + shift) for shift in (0.0, math.log(q)))
        assert torch.allclose(shaped, factor * plain, atol=5e-6)


def test_a_constant_q_neither_scales_nor_leaves_the_pull_of_js():
    anchor = torch.tensor((0.2, 0.3, 0.5)).log()
    values = torch.tensor((0.5, 0.3, 0.2)).log().tolist()
    plain, shaped = (logit_gradient(js_divergence, values, anchor + shift) for shift in (0.0, math.log(1.3)))
    ratios = (shaped / plain)[[0, 2]]  # the middle one is nearly 0
    assert (ratios - 1).abs().max() > 0.01 and abs(float(ratios[0] - ratios[1])) > 0.01


@settings(max_examples=40, deadline=None)
@given(pair=pairs, log_q=st.lists(st.floats(-0.5, 0.34), min_size=6, max_size=6))
def test_equation_8_for_any_q(pair, log_q):
    """D(p || q ref) = KL(p || ref) - E_p[log q]."""
    log_p, log_ref = (log_softmax(values) for values in pair)
    shift = torch.tensor(log_q[: len(log_p)])
    wanted = float(pseudo_kl(log_p, log_ref)) - float((log_p.exp() * shift).sum())
    assert float(pseudo_kl(log_p, log_ref + shift)) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.2, math.nan])
def test_alpha_has_its_range(alpha):
    with pytest.raises(ConfigError, match="0 < alpha < 1"):
        alpha_divergence(torch.zeros(1), torch.zeros(1), alpha)


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="choose one of reverse, forward, js, alpha"):
        divergence("hellinger", torch.zeros(1), torch.zeros(1))
