"""Numbers of SAGE (arXiv 2605.18864) worked by hand: Branch, the schedules, and where each placement comes to rest."""

from __future__ import annotations

import math

import pytest
import torch

from lab.theory import TokenTree
from sage_rlvr.core import (
    Anchor,
    Branch,
    Clip,
    CosineCycles,
    FixedBudget,
    Key,
    LeaveOneOut,
    Method,
    Random,
    Signals,
    Token,
    advantages_of,
    k1,
    k3,
    shape,
)
from sage_rlvr.methods import rloo, sage

REF, REWARDS, BETA, Q = (0.2, 0.3, 0.5), (1.0, 0.0, 0.0), 0.5, (1.0, 1.3, 0.8)
BANDIT = TokenTree.bandit(3)
EQUATION_4, K3_IN_LOSS, EQUATION_21 = (
    (0.651646, 0.171972, 0.176382),
    (0.657168, 0.169246, 0.173586),
    (0.532732, 0.196652, 0.270616),
)


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
    """q ref exp(R / beta) normalized = (1.477811, .39, .4) / 2.267811."""
    shaped = (column(REF) * column(Q)).log()
    gradient = logit_gradient(
        EQUATION_4, lambda logps: (-column(REWARDS) + BETA * k1(logps, shaped)).detach().double() * logps
    )
    assert gradient.abs().max() < 2e-6


def test_k3_in_the_loss_rests_elsewhere():
    """beta q ref / (lam - R) with lam = beta Zq + E[R]: close to Equation 4 and not it."""
    shaped = (column(REF) * column(Q)).log()
    gradient = logit_gradient(K3_IN_LOSS, lambda logps: -column(REWARDS) * logps + BETA * k3(logps, shaped))
    assert gradient.abs().max() < 2e-6


def test_token_guide_under_k3_pulls_towards_the_shaped_anchor():
    """Logit gradient Zq pi - q ref with Zq = .2 + .39 + .4 = .99: (.495 - .2, .297 - .39, .198 - .4)."""
    shaped = (column(REF) * column(Q)).log()
    gradient = logit_gradient((0.5, 0.3, 0.2), lambda logps: k3(logps, shaped))
    assert gradient.tolist() == pytest.approx([0.295, -0.093, -0.202], abs=2e-6)


# ---- closed forms, and where descent on the loop's objective comes to rest


def rest(method: Method, ref=REF, rewards=REWARDS, q=Q, **options) -> list[float]:
    """Probabilities where the expected gradient vanishes, from the reference on, q of the three actions held fixed."""
    table = BANDIT.logits_of(torch.tensor(ref, dtype=torch.float64))
    log_q = column(q).log().float()
    found = BANDIT.descend(method, table, torch.tensor(rewards), log_q=log_q, tolerance=1e-7, **options)
    assert found.converged
    return found.probs.tolist()


def k3_in_the_loss(beta: float) -> Method:
    """Rewards minus the mean of the others, so that their expected force is grad E[R]; the KL term of GRPO."""
    return Method("k3", LeaveOneOut(), Clip(), Anchor(beta), FixedBudget(1))


def normalized(values) -> list[float]:
    return [value / sum(values) for value in values]


def test_equation_4_in_closed_form_and_by_descent():
    closed = normalized([q * ref * math.exp(r / BETA) for q, ref, r in zip(Q, REF, REWARDS, strict=True)])
    assert closed == pytest.approx(EQUATION_4, abs=5e-7)
    assert rest(rloo(beta=BETA)) == pytest.approx(EQUATION_4, abs=1e-6)


def test_k3_in_the_loss_in_closed_form_and_by_descent():
    """pi = beta q ref / (lam - R) with lam = beta Zq + E[R]: lam by bisection of sum pi = 1 above max R = 1."""
    low, high = 1.0, 2.0
    for _ in range(60):
        lam = (low + high) / 2
        closed = [BETA * q * ref / (lam - r) for q, ref, r in zip(Q, REF, REWARDS, strict=True)]
        low, high = (lam, high) if sum(closed) > 1 else (low, lam)
    assert closed == pytest.approx(K3_IN_LOSS, abs=5e-7) and lam == pytest.approx(BETA * 0.99 + closed[0], abs=1e-9)
    assert rest(k3_in_the_loss(BETA)) == pytest.approx(K3_IN_LOSS, abs=1e-6)
    assert max(abs(a - b) for a, b in zip(K3_IN_LOSS, EQUATION_4, strict=True)) == pytest.approx(0.0055, abs=1e-4)


def test_an_entropy_bonus_is_a_temperature():
    """Eq. (21), c = .3, q = 1: pi = ref^(beta / (beta + c)) e^(R / (beta + c)) normalized. With c H in the objective the
    gradient vanishes there; and as -beta KL(pi || ref) + c H = -(beta + c) KL(pi || ref^(5/8)) + constant, descent with
    that reference and weight comes to rest there too."""
    c = 0.3
    share = BETA / (BETA + c)
    cold = normalized([ref**share for ref in REF])
    closed = normalized([ref**share * math.exp(r / (BETA + c)) for ref, r in zip(REF, REWARDS, strict=True)])
    assert closed == pytest.approx(EQUATION_21, abs=5e-7)
    logits = torch.tensor(closed, dtype=torch.float64).log().requires_grad_(True)
    log_pi = torch.log_softmax(logits, 0)
    price = BETA * (log_pi - column(REF)[:, 0].log()) + c * log_pi - column(REWARDS)[:, 0]
    (gradient,) = torch.autograd.grad((log_pi.exp() * price).sum(), logits)
    assert gradient.abs().max() < 1e-9
    assert rest(rloo(beta=BETA + c), ref=cold, q=(1.0, 1.0, 1.0)) == pytest.approx(EQUATION_21, abs=1e-6)


def test_theorem_4_3_by_numbers_and_by_descent():
    """pi_RLVR = (.6, .3, .1), q = (1, 1, 1.4): q / E[q] = 1.4 / 1.04 = 1.3462 > eps / pi_RLVR = 1.2, so .1346 > .12."""
    rlvr, q, eps = (0.6, 0.3, 0.1), (1.0, 1.0, 1.4), 0.12
    mean = sum(a * b for a, b in zip(rlvr, q, strict=True))
    assert q[2] / mean == pytest.approx(1.3462, abs=5e-5) and eps / rlvr[2] == pytest.approx(1.2)
    ref = normalized([p * math.exp(-r / BETA) for p, r in zip(rlvr, REWARDS, strict=True)])
    assert rest(rloo(beta=BETA), ref=ref, q=(1.0, 1.0, 1.0)) == pytest.approx(rlvr, abs=1e-6)
    assert rest(rloo(beta=BETA), ref=ref, q=q)[2] == pytest.approx(0.1346, abs=5e-5)


@pytest.mark.filterwarnings("ignore:.*noise only")
def test_random_has_mean_one_and_leaves_the_expected_gradient_of_grpo():
    """The clamp is symmetric about 1. Forward KL of pi = (.5, .3, .2) to ref: (.3, 0, -.3), within 5 standard errors."""
    pi, ref = (BANDIT.logits_of(torch.tensor(p, dtype=torch.float64)) for p in ((0.5, 0.3, 0.2), REF))
    guide, draws = Random(eps=1.0, sigma=0.3), 20_000
    signals = Signals(torch.zeros(draws, 1), None, torch.ones(draws, 1), torch.arange(draws))
    q = guide(signals, 0, 1, Key(3407)).exp()
    assert float(q.mean()) == pytest.approx(1.0, abs=5 * float(q.std()) / math.sqrt(draws)) and float(q.std()) > 0.2
    method = Method("random", LeaveOneOut(), Clip(), Anchor(1.0, guide), FixedBudget(1))
    found = BANDIT.expected_gradient(method, pi, ref, torch.ones(3), draws=draws, key=Key(3407))
    assert found[0].tolist() == pytest.approx([0.3, 0.0, -0.3], abs=5 * float(q.std()) * 0.3 / math.sqrt(draws))


def test_sixty_uncertain_tokens_outweigh_a_right_answer():
    """beta log 1.4 = .05 * .336472 = .016824 a token at its edge. Two answers with pi = pi_ref: a right one whose tokens are
    certain, a wrong one of n tokens at entropy 4. RLOO, G = 2: at the first token A = +-(1 - .016824 n), so that the wrong
    answer wins from n = 60 on (59 * .016824 = .9926, 60 * .016824 = 1.0094)."""
    assert 0.05 * math.log(1.4) == pytest.approx(0.016824, abs=5e-7)
    method = sage(rloo(beta=0.05), Branch())
    for n, winner in ((59, 0), (60, 1)):
        mask = torch.arange(n)[None] < torch.tensor([[1], [n]])
        logps, entropies = torch.full((2, n), -1.0), torch.tensor([[0.0], [4.0]]).expand(2, n)
        signals = Signals(logps, logps, mask, torch.arange(2), entropies=entropies)
        found = advantages_of(method, torch.tensor([[1.0, 0.0]]), signals, shape(method, signals, 0, 1, Key(0)))[:, 0]
        assert found.tolist() == pytest.approx([1 - 0.05 * n * math.log(1.4), -1 + 0.05 * n * math.log(1.4)], abs=1e-5)
        assert int(found.argmax()) == winner
