"""Exact enumeration on one state with three actions: what each KL estimator really descends.

Numbers: pi = (.5, .3, .2), ref = (.2, .3, .5); forward gradient on the logits = pi - ref; reverse gradient =
pi_a (log(pi_a / ref_a) - KL) worked by hand, e.g. .5 * (log 2.5 - .274887) = .320702.
"""

from __future__ import annotations

import math

import pytest
import torch

from lab.theory import TokenTree
from sage_rlvr.core import (
    Anchor,
    Clip,
    FixedBudget,
    LeaveOneOut,
    Method,
    forward_kl,
    k1,
    k2,
    k3,
    k3_is,
    pseudo_kl,
    straight_through,
)
from sage_rlvr.core.kl import estimate
from sage_rlvr.methods import rloo

PI, REF, OLD = ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5), (0.4, 0.35, 0.25))
REVERSE = (0.320702, -0.082466, -0.238236)
FORWARD = (0.3, 0.0, -0.3)


def logs(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def expected(term, sampled_from=PI, pi=PI, ref=REF):
    """Value and logit gradient of sum_a sampled_from(a) * term(log pi(a), log ref(a)), weights not differentiated."""
    logits = logs(pi).requires_grad_(True)
    logps = torch.log_softmax(logits, 0)[:, None]
    total = (logs(sampled_from).exp() * term(logps, logs(ref)[:, None])[:, 0]).sum()
    (gradient,) = torch.autograd.grad(total, logits)
    return float(total.detach()), gradient


def in_reward(term):
    """Gradient of E[detached term * log pi]: the estimator used as a reward."""
    return expected(lambda logps, ref: term(logps.detach(), ref) * logps)[1]


def close(found: torch.Tensor, wanted: tuple[float, ...], atol: float = 2e-6) -> bool:
    return torch.allclose(found, torch.tensor(wanted, dtype=found.dtype), atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("term", "value"), [(k1, 0.274887), (k2, 0.293856), (k3, 0.274887), (straight_through, 0.274887)]
)
def test_expected_values(term, value):
    assert expected(term)[0] == pytest.approx(value, abs=2e-6)


def test_both_directions_of_this_pair_have_one_value():
    """The pair is symmetric: KL(pi || ref) = KL(ref || pi) = .3 log 2.5 = .274887."""
    assert 0.3 * math.log(2.5) == pytest.approx(0.274887, abs=5e-7)
    assert float(pseudo_kl(logs(PI), logs(REF))) == pytest.approx(0.274887, abs=1e-6)
    assert float(forward_kl(logs(PI), logs(REF))) == pytest.approx(0.274887, abs=1e-6)


@pytest.mark.parametrize(
    ("term", "gradient"), [(k1, (0.0, 0.0, 0.0)), (k2, REVERSE), (k3, FORWARD), (straight_through, REVERSE)]
)
def test_gradient_in_the_loss(term, gradient):
    assert close(expected(term)[1], gradient)


@pytest.mark.parametrize(
    ("term", "gradient"),
    [(k1, REVERSE), (k3, (0.020702, -0.082466, 0.061764)), (k2, (0.062969, -0.088157, 0.025188))],
)
def test_gradient_in_the_reward(term, gradient):
    assert close(in_reward(term), gradient)


@pytest.mark.parametrize("sampled_from", [PI, OLD])
def test_importance_weight_in_the_graph_gives_the_reverse_kl_on_and_off_policy(sampled_from):
    old = logs(sampled_from)[:, None]
    assert close(expected(lambda logps, ref: k3_is(logps, ref, old), sampled_from)[1], REVERSE)


def test_detached_importance_weight_gives_the_forward_kl():
    old = logs(OLD)[:, None]
    weighted = expected(lambda logps, ref: torch.exp(logps - old).detach() * k3(logps, ref), OLD)
    assert close(weighted[1], FORWARD)


def test_without_importance_weight_the_pull_is_averaged_under_the_wrong_distribution():
    assert close(expected(k3, OLD)[1], (0.3075, 0.0405, -0.348))


def weighted(term):
    """Times exp(log pi - sg(log pi)): 1 in value, the score function in the gradient. NeMo-RL since its #2506 (2026-06-24)."""
    return lambda logps, ref: term(logps, ref) * (logps - logps.detach()).exp()


def test_what_docs_howto_which_kl_says_of_engines():
    """Each row of its table whose term is not one of ours, written as the engine writes it."""
    reverse, forward = (torch.tensor(law, dtype=torch.float64) for law in (REVERSE, FORWARD))
    assert close(expected(weighted(k3))[1], REVERSE) and close(expected(weighted(k1))[1], REVERSE)
    assert torch.allclose(in_reward(k3), reverse - forward, atol=2e-6)  # a k3 in the reward: SkyRL, NeMo-RL
    _, of_k2 = expected(weighted(k2))
    logits = logs(PI).requires_grad_(True)
    log_pi = torch.log_softmax(logits, 0)
    half_square = (log_pi.exp() * 0.5 * (log_pi - logs(REF)) ** 2).sum()
    assert torch.allclose(of_k2, torch.autograd.grad(half_square, logits)[0])  # k2 so weighted: E_pi[(log pi / ref)^2] / 2, no KL
    assert not torch.allclose(of_k2, reverse, atol=0.01)
    detached = expected(lambda logps, ref: -(ref - logps).detach() * (logps - logps.detach()).exp())[1]
    assert close(detached, REVERSE)  # prime-rl's ref_kl: the log-ratio as advantage of its own token


def test_near_the_reference_k3_in_the_reward_has_almost_no_force():
    raised = torch.tensor(PI, dtype=torch.float64) * torch.tensor((1.02, 0.99, 0.975), dtype=torch.float64)
    ref = tuple((raised / raised.sum()).tolist())
    force = {
        term: expected(lambda logps, anchor, t=term: t(logps.detach(), anchor) * logps, ref=ref)[1].abs().max()
        for term in (k1, k3)
    }
    assert float(force[k1]) == pytest.approx(9.0e-3, rel=0.1)
    assert float(force[k3]) == pytest.approx(4e-5, rel=0.5)


def test_pointwise_values_by_hand():
    """pi = .5, ref = .25: l = log 2, k3 = .5 - 1 + log 2 = .193147; old = .25 doubles it."""
    pi, ref = torch.tensor([[0.5]]).log(), torch.tensor([[0.25]]).log()
    found = {n: float(estimate(n, pi, ref, ref)) for n in ("k1", "k2", "k3", "k3_is", "straight_through")}
    wanted = {"k1": 0.693147, "k2": 0.240227, "k3": 0.193147, "k3_is": 0.386294, "straight_through": 0.693147}
    assert found == pytest.approx(wanted, abs=1e-6)


def test_forward_kl_stationary_point_of_k3_in_the_loss():
    """ref = (.2,.3,.5), R = (1,1,0), beta = .05: pi = beta ref / (lam - R) with lam = 1.025625."""
    point, rewards = (0.39025, 0.585375, 0.024375), torch.tensor((1.0, 1.0, 0.0), dtype=torch.float64)[:, None]
    _, gradient = expected(lambda logps, ref: -rewards * logps + 0.05 * k3(logps, ref), point, pi=point)
    assert gradient.abs().max() < 2e-6


# ---- stationary points: closed forms, and where descent on the loop's objective comes to rest


def k3_in_the_loss(beta: float) -> Method:
    """Rewards minus the mean of the others: their expected force is grad E[R], so that beta means what it says."""
    return Method("k3", LeaveOneOut(), Clip(), Anchor(beta), FixedBudget(1))


RBAR = [(0.3, 0.05, 0.965535, 4.8e-9), (0.05, 0.05, 0.952624, 3.9e-8), (0.3, 0.5, 0.710977, 0.2400)]


@pytest.mark.slow
@pytest.mark.parametrize(("p0", "beta", "forward", "missing"), RBAR)
def test_mean_reward_at_rest_under_a_binary_reward(p0, beta, forward, missing):
    """p0 = mass of the reference on right answers. k3 in the loss: Rbar = [(1 - beta) + sqrt((1 - beta)^2 + 4 p0 beta)] / 2;
    reverse KL: 1 - Rbar = (1 - p0) / (p0 e^(1/beta) + 1 - p0)."""
    closed = ((1 - beta) + math.sqrt((1 - beta) ** 2 + 4 * p0 * beta)) / 2
    wrong = (1 - p0) / (p0 * math.exp(1 / beta) + 1 - p0)
    assert closed == pytest.approx(forward, abs=1e-6) and wrong == pytest.approx(missing, rel=0.02)
    tree = TokenTree.bandit(2)
    ref, rewards = tree.logits_of(torch.tensor([p0, 1 - p0], dtype=torch.float64)), torch.tensor([1.0, 0.0])
    by_k3 = tree.descend(k3_in_the_loss(beta), ref, rewards)
    by_k1 = tree.descend(rloo(beta=beta), ref, rewards, tolerance=1e-5 * math.sqrt(wrong))  # digits of the small mass
    assert by_k3.converged and float(by_k3.probs[0]) == pytest.approx(closed, abs=5e-6)
    assert by_k1.converged and float(by_k1.probs[1]) == pytest.approx(wrong, rel=2e-3)


def test_two_right_answers_keep_the_odds_of_the_reference():
    """ref = (.2, .3, .5), R = (1, 1, 0), beta = .05: lam = beta + Rbar = 1.025625, pi_0 / pi_1 = 2/3 under both KLs."""
    rbar = (0.95 + math.sqrt(0.95**2 + 4 * 0.5 * 0.05)) / 2
    lam = 0.05 + rbar
    closed = [0.05 * ref / (lam - r) for ref, r in zip(REF, (1.0, 1.0, 0.0), strict=True)]
    assert lam == pytest.approx(1.025625, abs=5e-7) and closed == pytest.approx((0.39025, 0.585375, 0.024375), abs=5e-7)
    tree, rewards = TokenTree.bandit(3), torch.tensor([1.0, 1.0, 0.0])
    ref = tree.logits_of(torch.tensor(REF, dtype=torch.float64))
    found = tree.descend(k3_in_the_loss(0.05), ref, rewards)
    assert found.converged and found.probs.tolist() == pytest.approx(closed, abs=5e-6)
    for probs in (found.probs, tree.descend(rloo(beta=0.05), ref, rewards).probs):
        assert float(probs[0] / probs[1]) == pytest.approx(2 / 3, abs=1e-4)
