"""Exact divergences on one state with three actions: values and logit gradients against numbers worked by hand.

Numbers: pi = (.5, .3, .2), ref = (.2, .3, .5), for which both KLs are .274887; forward gradient on the logits = pi - ref,
reverse gradient = pi_a (log(pi_a / ref_a) - KL). What has no closed form here is held against a twin: the formula in
plain floats, differentiated by central differences.
"""

from __future__ import annotations

import math

import pytest
import torch

from sage_rlvr.core import (
    alpha_divergence,
    divergence,
    forward_kl,
    js_divergence,
    k3,
    pseudo_kl,
    unnormalized_kl,
)

PI, REF, Q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5), (1.0, 1.3, 0.8)
SHAPED = tuple(q * f for q, f in zip(Q, REF, strict=True))
OTHER_PI, OTHER_REF = (0.7, 0.2, 0.1), (0.3, 0.3, 0.4)  # a pair whose two KLs differ
REVERSE, FORWARD = (0.320702, -0.082466, -0.238236), (0.3, 0.0, -0.3)


def logs(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def value_and_gradient(term, pi=PI, anchor=REF) -> tuple[float, list[float]]:
    """Of term(log softmax(logits), log anchor), the gradient on the logits."""
    logits = logs(pi).requires_grad_(True)
    value = term(torch.log_softmax(logits, 0), logs(anchor))
    return float(value.detach()), torch.autograd.grad(value, logits)[0].tolist()


# ---- the twin: sums of floats

TWINS = {
    "pseudo_kl": lambda p, f: p * math.log(p / f),
    "reverse": lambda p, f: p * math.log(p / f) - p + f,
    "forward": lambda p, f: f * math.log(f / p) - f + p,
    "js": lambda p, f: p * math.log(2 * p / (p + f)) + f * math.log(2 * f / (p + f)),
    "alpha": lambda p, f: (f**0.2 * p**0.8 - 0.8 * p - 0.2 * f) / (0.2 * -0.8),
}
TERMS = {
    "pseudo_kl": pseudo_kl,
    "reverse": unnormalized_kl,
    "forward": forward_kl,
    "js": js_divergence,
    "alpha": alpha_divergence,
}


def twin(name: str, logits: list[float], anchor) -> float:
    peaks = [math.exp(v) for v in logits]
    return sum(TWINS[name](v / sum(peaks), f) for v, f in zip(peaks, anchor, strict=True))


def central_differences(name: str, logits: list[float], anchor, h: float = 1e-5) -> list[float]:
    def moved(i: int, by: float) -> float:
        return twin(name, [v + by * (j == i) for j, v in enumerate(logits)], anchor)

    return [(moved(i, h) - moved(i, -h)) / (2 * h) for i in range(len(logits))]


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("anchor", [REF, SHAPED, (0.05, 2.0, 0.4)], ids=["normalized", "shaped", "far"])
def test_value_and_gradient_are_those_of_the_twin(name, anchor):
    value, gradient = value_and_gradient(TERMS[name], anchor=anchor)
    logits = [math.log(v) for v in PI]
    assert value == pytest.approx(twin(name, logits, anchor), abs=1e-6)
    assert gradient == pytest.approx(central_differences(name, logits, anchor), abs=2e-6)


# ---- numbers


@pytest.mark.parametrize(
    ("term", "value"),
    [
        (pseudo_kl, 0.274887),
        (unnormalized_kl, 0.274887),
        (forward_kl, 0.274887),
        (js_divergence, 0.132829),
        (alpha_divergence, 0.271866),
        (lambda p, f: alpha_divergence(p, f, 0.999), 0.274868),
        (lambda p, f: alpha_divergence(p, f, 0.001), 0.274868),
    ],
    ids=["pseudo", "reverse", "forward", "js", "alpha .2", "alpha .999", "alpha .001"],
)
def test_values(term, value):
    assert value_and_gradient(term)[0] == pytest.approx(value, abs=2e-6)


@pytest.mark.parametrize(
    ("term", "gradient"), [(pseudo_kl, REVERSE), (unnormalized_kl, REVERSE), (forward_kl, FORWARD)]
)
def test_gradients(term, gradient):
    assert value_and_gradient(term)[1] == pytest.approx(gradient, abs=2e-6)


def test_the_name_picks_the_divergence():
    for name, term in TERMS.items():
        if name != "pseudo_kl":
            assert torch.equal(divergence(name, logs(PI), logs(SHAPED)), term(logs(PI), logs(SHAPED)))
    half = alpha_divergence(logs(PI), logs(SHAPED), 0.5)
    assert torch.equal(divergence("alpha", logs(PI), logs(SHAPED), 0.5), half)
    assert float(half) != pytest.approx(float(alpha_divergence(logs(PI), logs(SHAPED))), abs=1e-4)


def test_alpha_goes_to_the_forward_kl_at_one_and_to_the_reverse_at_zero():
    """.7 log(7/3) + .2 log(2/3) + .1 log(1/4) = .373387 and .3 log(3/7) + .3 log(3/2) + .4 log 4 = .421967."""
    near_one = value_and_gradient(lambda p, f: alpha_divergence(p, f, 0.9999), OTHER_PI, OTHER_REF)
    near_zero = value_and_gradient(lambda p, f: alpha_divergence(p, f, 0.0001), OTHER_PI, OTHER_REF)
    forward, reverse = (value_and_gradient(term, OTHER_PI, OTHER_REF) for term in (forward_kl, unnormalized_kl))
    for found, wanted in ((near_one, forward), (near_zero, reverse)):
        assert found[0] == pytest.approx(wanted[0], abs=2e-4) and found[1] == pytest.approx(wanted[1], abs=2e-4)
    assert reverse[0] == pytest.approx(0.7 * math.log(7 / 3) + 0.2 * math.log(2 / 3) + 0.1 * math.log(1 / 4), abs=1e-6)
    assert forward[0] == pytest.approx(0.3 * math.log(3 / 7) + 0.3 * math.log(3 / 2) + 0.4 * math.log(4), abs=1e-6)
    assert abs(forward[0] - reverse[0]) > 0.01  # so that the limits cannot be mistaken for each other


# ---- the shaped anchor f = q ref


def test_equation_8():
    """D(pi || q pi_ref) = KL(pi || pi_ref) - E_pi[log q], and E_pi[log q] = .3 log 1.3 + .2 log .8 = .034080."""
    bonus = 0.3 * math.log(1.3) + 0.2 * math.log(0.8)
    found = float(pseudo_kl(logs(PI), logs(SHAPED)))
    assert found == pytest.approx(0.274887 - bonus, abs=2e-6) and bonus == pytest.approx(0.034080, abs=1e-6)


def test_pseudo_kl_is_negative_where_the_mass_of_the_anchor_exceeds_one_and_the_other_never_is():
    """pi against 2 pi: -log 2, and -log 2 - 1 + 2 = .306853."""
    doubled = tuple(2 * p for p in PI)
    assert float(pseudo_kl(logs(PI), logs(doubled))) == pytest.approx(-math.log(2), abs=1e-6)
    assert float(unnormalized_kl(logs(PI), logs(doubled))) == pytest.approx(1 - math.log(2), abs=1e-6)


def test_the_forward_pull_to_a_shaped_anchor_is_its_mass_times_pi_less_itself():
    """sum f = .2 + .39 + .4 = .99: (.495 - .2, .297 - .39, .198 - .4)."""
    assert value_and_gradient(forward_kl, anchor=SHAPED)[1] == pytest.approx((0.295, -0.093, -0.202), abs=2e-6)


@pytest.mark.parametrize("anchor", [REF, SHAPED], ids=["plain", "shaped"])
def test_k3_estimates_the_unnormalized_kl_and_descends_the_forward_one(anchor):
    def expected_k3(log_p, log_f):
        return (logs(PI).exp() * k3(log_p[:, None], log_f[:, None])[:, 0]).sum()

    value, gradient = value_and_gradient(expected_k3, anchor=anchor)
    assert value == pytest.approx(value_and_gradient(unnormalized_kl, anchor=anchor)[0], abs=1e-6)
    assert gradient == pytest.approx(value_and_gradient(forward_kl, anchor=anchor)[1], abs=1e-6)


def test_branch_at_the_state_scales_the_forward_pull():
    """q = 1.3 on all tokens of the state: 1.3 (.3, 0, -.3)."""
    raised = tuple(1.3 * f for f in REF)
    assert value_and_gradient(forward_kl, anchor=raised)[1] == pytest.approx((0.39, 0.0, -0.39), abs=2e-6)
