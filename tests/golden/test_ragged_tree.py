"""Exact sums over a tree whose answers differ in length: root token 0 ends (|y| = 1), token 1 goes on (|y| = 2).

pi at the root is softmax(.2, .1) = (.524979, .475021). Columns of the logits: state 0 is the root, state 1 the late
state that only answers of length 2 reach.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from sage_rlvr.core import (
    Anchor,
    Batch,
    Clip,
    FixedBudget,
    GroupCentered,
    Guide,
    Key,
    Method,
    SequenceMean,
    Signals,
    advantages_of,
    objective,
    shape,
)
from sage_rlvr.methods import dr_grpo, rloo, sage

ANSWERS = ((0,), (1, 0), (1, 1))
LOGITS = torch.tensor([[0.2, 0.1], [-0.3, 0.5]])
REF = torch.tensor([[0.6, -0.4], [0.5, -0.9]])
REWARDS = {(0,): 1.0, (1, 0): 0.0, (1, 1): 0.5}
LOG_Q = torch.tensor([math.log(1.3), math.log(0.8)])
PI0, PI1 = 0.524979, 0.475021
KEY = Key(0)


@dataclass(frozen=True)
class ByState(Guide):
    """q = 1.3 at the root and .8 in the late state, read from where the tests put it; it hides that it is a state guide
    when asked to, so that the refusal does not stand in the way of the measurement."""

    needs, equation = frozenset({"entropies"}), "read from the entropies"
    depends_on: str = "state"

    def __call__(self, signals: Signals, step: int, total_steps: int, key: Key) -> Tensor:
        return torch.where(signals.mask, signals.require("entropies", "ByState"), 0.0)


def rows_of(answers, logits: Tensor, ref: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """logps in the graph, ref_logps and mask, each (rows, 2)."""
    tokens = torch.tensor([(*answer, 0)[:2] for answer in answers])
    mask = torch.tensor([[True, len(answer) > 1] for answer in answers])
    states = torch.arange(2).expand_as(tokens)
    return torch.log_softmax(logits, 1)[states, tokens], torch.log_softmax(ref, 1)[states, tokens], mask


def kl_gradient(estimator: str, reduction, guide: ByState | None, ref: Tensor) -> Tensor:
    """Exact on-policy gradient of the KL term alone, beta = 1, A = 0: every answer weighted by its probability."""
    logits = LOGITS.clone().requires_grad_(True)
    anchor = Anchor(1.0, estimator=estimator) if guide is None else Anchor(1.0, guide, estimator)
    method = Method("kl only", GroupCentered(), Clip(), anchor, reduction)
    total = torch.zeros(())
    for answer in ANSWERS:
        logps, refs, mask = rows_of([answer], logits, ref)
        signals = Signals(logps, refs, mask, torch.arange(1), entropies=LOG_Q[None])
        log_q = shape(method, signals, 0, 1, KEY)
        loss, _ = objective(method, Batch(logps, logps.detach(), refs, mask, torch.zeros(1), log_q), 0, 1)
        total = total + torch.where(mask, logps.detach(), 0.0).sum().exp() * loss
    return torch.autograd.grad(total, logits)[0]


def test_a_state_guide_under_sequence_mean_pulls_towards_the_shorter_answer():
    """pi = pi_ref, q(root) = 1.3: the force 1 - q = -.3 weighs 1 on token 0 and 1/2 on token 1, so the root's logits
    get -.3 * pi0 * pi1 * (1 - 1/2) = -.037406 and its negative: a descent step raises the token that ends the answer.
    In the late state both tokens have the same length and nothing is left. A constant divisor leaves nothing at all.
    """
    found = kl_gradient("k3", SequenceMean(), ByState(), LOGITS)
    assert found[0].tolist() == pytest.approx([-0.037406, 0.037406], abs=2e-6)
    assert found[0, 0] == pytest.approx((1 - 1.3) * PI0 * PI1 * 0.5, abs=2e-6)
    assert found[1].tolist() == pytest.approx([0.0, 0.0], abs=1e-7)
    assert kl_gradient("k3", FixedBudget(1), ByState(), LOGITS).abs().max() < 1e-7


@pytest.mark.parametrize("estimator", ["k2", "straight_through", "k3_is"])
def test_under_an_unbiased_loss_the_same_artifact_is_all_that_is_left_of_a_state_guide(estimator):
    """-log q(root) takes the place of 1 - q: -log 1.3 * pi0 * pi1 / 2 = -.032714."""
    for reduction, wanted in ((SequenceMean(), -0.032714), (FixedBudget(1), 0.0)):
        shaped = kl_gradient(estimator, reduction, ByState("token"), REF)
        extra = shaped - kl_gradient(estimator, reduction, None, REF)
        assert extra.flatten().tolist() == pytest.approx([wanted, -wanted, 0.0, 0.0], abs=2e-6)


def test_the_forward_kl_is_weighted_by_the_lengths_that_follow_a_token():
    """Force f_v = pi_v - ref_v on the root's logits becomes w_v f_v - pi_v sum_u w_u f_u with w = (1, 1/2)."""
    pi, ref = torch.softmax(LOGITS, 1)[0], torch.softmax(REF, 1)[0]
    force, weight = pi - ref, torch.tensor([1.0, 0.5])
    wanted = weight * force - pi * (weight * force).sum()
    assert torch.allclose(kl_gradient("k3", SequenceMean(), None, REF)[0], wanted, atol=1e-6)
    assert torch.allclose(kl_gradient("k3", FixedBudget(1), None, REF)[0], force, atol=1e-6)
    assert (wanted - force).abs().max() > 0.04


# ---- the KL in the reward, over all groups


def exact_gradient(log_q: Tensor) -> Tensor:
    """d [ -E r + KL(pi || ref) - E sum log q ] over the three answers, differentiated through everything."""
    logits = LOGITS.clone().requires_grad_(True)
    logps, refs, mask = rows_of(ANSWERS, logits, REF)
    total = torch.where(mask, logps, 0.0).sum(1)
    pseudo_kl = total - torch.where(mask, refs + log_q, 0.0).sum(1)
    rewards = torch.tensor([REWARDS[answer] for answer in ANSWERS])
    return torch.autograd.grad((total.exp() * (pseudo_kl - rewards)).sum(), logits)[0]


def sampled_gradient(method: Method, size: int) -> Tensor:
    """The expectation of the loss's gradient over all 3**size groups of that many answers."""
    logits = LOGITS.clone().requires_grad_(True)
    total = torch.zeros(())
    for group in itertools.product(ANSWERS, repeat=size):
        logps, refs, mask = rows_of(group, logits, REF)
        signals = Signals(logps, refs, mask, torch.arange(size), entropies=LOG_Q.expand(size, 2))
        log_q = shape(method, signals, 0, 1, KEY)
        advantages = advantages_of(method, torch.tensor([[REWARDS[answer] for answer in group]]), signals, log_q)
        batch = Batch(logps, logps.detach(), refs, mask, advantages, log_q, max_tokens=1)
        total = total + torch.where(mask, logps.detach(), 0.0).sum().exp() * objective(method, batch, 0, 1)[0]
    return torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("guide", [None, ByState()], ids=["flat", "shaped"])
@pytest.mark.parametrize("name", ["dr_grpo", "rloo"])
def test_reward_and_kl_shrink_alike_at_every_state(name, guide, size):
    """The ratio to the exact gradient is (G - 1) / G for Dr. GRPO and 1 for RLOO, at the root and in the late state."""
    base, ratio = {
        "dr_grpo": (dr_grpo(beta=1.0, estimator="k1", placement="reward"), (size - 1) / size),
        "rloo": (rloo(beta=1.0), 1.0),
    }[name]
    method = base if guide is None else sage(base, guide)
    exact = exact_gradient(torch.zeros(2) if guide is None else LOG_Q)
    assert exact.abs().min() > 0.01
    assert (sampled_gradient(method, size) / exact).flatten().tolist() == pytest.approx([ratio] * 4, abs=2e-5)


def test_a_lone_late_row_keeps_its_whole_kl():
    """One answer of two goes on: at column 1 there is no other row, so K_1 stays whole (log 3) on both methods.

    K = (log 6, log 3), (log 4): others' means log 4, 0 and log 6. beta = .5; Dr. GRPO halves it all, G = 2.
    """
    old = torch.tensor([[2.0, 3.0], [4.0, 99.0]]).log()
    signals = Signals(old, torch.zeros(2, 2), torch.tensor([[1, 1], [1, 0]]), torch.arange(2))
    for method, share in ((dr_grpo(beta=0.5, estimator="k1", placement="reward"), 0.5), (rloo(beta=0.5), 1.0)):
        found = advantages_of(method, torch.tensor([[1.0, 0.0]]), signals)
        step = share * 0.5 * math.log(6 / 4)
        assert found[0].tolist() == pytest.approx([share - step, share - share * 0.5 * math.log(3)], abs=1e-6)
        assert float(found[1, 0]) == pytest.approx(-share + step, abs=1e-6)


def test_a_reward_divided_by_its_std_leaves_the_kl_alone():
    """GroupNormalized takes the same constant (G - 1) / G on its KL, whatever the rewards are."""
    method = replace(dr_grpo(beta=1.0, estimator="k1", placement="reward"), advantage=sage().advantage)
    logps, refs, mask = rows_of([(1, 0), (1, 1), (0,)], LOGITS, REF)
    signals = Signals(logps, refs, mask, torch.arange(3))
    dead = advantages_of(method, torch.zeros(1, 3), signals)
    plain = advantages_of(rloo(beta=1.0), torch.zeros(1, 3), signals)
    assert torch.allclose(dead[mask], plain[mask] * 2 / 3, atol=1e-6) and dead[mask].abs().max() > 0.1
