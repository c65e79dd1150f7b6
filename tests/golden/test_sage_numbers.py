"""Numbers of SAGE (arXiv 2605.18864) worked by hand: Branch, the schedules, and where each placement comes to rest."""

from __future__ import annotations

import pytest
import torch

from sage_rlvr.core import Branch, CosineCycles, Key, Random, Signals, Token, k1, k3

REF, REWARDS, BETA, Q = (0.2, 0.3, 0.5), (1.0, 0.0, 0.0), 0.5, (1.0, 1.3, 0.8)


def column(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def logit_gradient(point, term) -> torch.Tensor:
    logits = column(point)[:, 0].log().requires_grad_(True)
    logps = torch.log_softmax(logits, 0)[:, None]
    (gradient,) = torch.autograd.grad((column(point) * term(logps)).sum(), logits)
    return gradient


@pytest.mark.parametrize(("entropy", "q"), [(0.5, 1.0), (1.2, 1.0), (2.2, 1.3), (2.5333333, 1.4), (4.0, 1.4)])
def test_branch(entropy, q):
    zeros = torch.zeros(1, 1)
    signals = Signals(zeros, zeros, torch.ones(1, 1), torch.tensor([0]), entropies=torch.tensor([[entropy]]))
    log_q = Branch()(signals, step=0, total_steps=1000, key=Key(3407))
    assert float(log_q.exp()) == pytest.approx(q, abs=1e-6)


SCHEDULES = {
    "alpha": (CosineCycles(0.3, 0.1), {0: 0.3, 124: 0.10003, 125: 0.27, 875: 0.143489}),
    "sigma": (CosineCycles(0.15, 0.05), {0: 0.15, 124: 0.05002, 125: 0.135, 875: 0.071745}),
    "eps": (CosineCycles(0.1, 0.0), {0: 0.1, 124: 0.000016, 125: 0.09, 875: 0.047830}),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_over_a_thousand_steps(name):
    schedule, wanted = SCHEDULES[name]
    assert {step: schedule(step, 1000) for step in wanted} == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_released_tail_starts_a_ninth_cycle_at_the_amplitude_of_the_eighth(name):
    schedule, wanted = SCHEDULES[name]
    released = CosineCycles(schedule.upper, schedule.lower, tail="released")
    assert released(1000, 1000) == pytest.approx(wanted[875], abs=1e-6)
    assert schedule(1000, 1000) == schedule.lower


def test_paper_defaults_of_random_and_token():
    assert (Random().eps, Random().sigma) == (CosineCycles(0.1, 0.0), CosineCycles(0.15, 0.05))
    assert (Token().alpha, Token().sigma) == (CosineCycles(0.3, 0.1), CosineCycles(0.25, 0.1))
    assert (Token().alpha.cycles, Token().alpha.decay, Token().norm) == (8, 0.9, "minmax")


def test_k1_in_the_reward_rests_at_equation_4():
    """q ref exp(R / beta) normalised = (1.477811, .39, .4) / 2.267811."""
    point = (0.651646, 0.171972, 0.176382)
    shaped = (column(REF) * column(Q)).log()
    gradient = logit_gradient(
        point, lambda logps: (-column(REWARDS) + BETA * k1(logps, shaped)).detach().double() * logps
    )
    assert gradient.abs().max() < 2e-6


def test_k3_in_the_loss_rests_elsewhere():
    """beta q ref / (lam - R) with lam = beta Zq + E[R]: close to Equation 4 and not it."""
    point = (0.657168, 0.169246, 0.173586)
    shaped = (column(REF) * column(Q)).log()
    gradient = logit_gradient(point, lambda logps: -column(REWARDS) * logps + BETA * k3(logps, shaped))
    assert gradient.abs().max() < 2e-6


def test_token_guide_under_k3_pulls_towards_the_shaped_anchor():
    """Logit gradient Zq pi - q ref with Zq = .2 + .39 + .4 = .99: (.495 - .2, .297 - .39, .198 - .4)."""
    shaped = (column(REF) * column(Q)).log()
    gradient = logit_gradient((0.5, 0.3, 0.2), lambda logps: k3(logps, shaped))
    assert gradient.tolist() == pytest.approx([0.295, -0.093, -0.202], abs=2e-6)
