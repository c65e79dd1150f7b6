"""What a state guide does under each estimator and placement, by exact sums through `shape` and `objective`."""

from __future__ import annotations

import itertools

import pytest
import torch

from sage_rlvr.core import (
    Anchor,
    Batch,
    Branch,
    FixedBudget,
    GroupCentered,
    Guide,
    Key,
    Method,
    Signals,
    advantages_of,
    objective,
    shape,
)
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods import dr_grpo, sage

PI = torch.tensor((0.5, 0.3, 0.2))
REF = torch.tensor((0.2, 0.3, 0.5))
KEY = Key(3407)


class Disguised(Guide):
    """A state guide that hides what it depends on, so that the refusal does not stand in the way of the measurement."""

    needs, depends_on, equation = frozenset({"entropies"}), "token", "Branch in disguise"

    def __call__(self, signals, step, total_steps, key):
        return Branch()(signals, step, total_steps, key)


def kl_gradient(estimator: str, entropy: float, guide) -> torch.Tensor:
    """Exact on-policy logit gradient of the anchor term, through shape and objective, with beta = 1 and A = 0.

    Row a of the batch is action a; its expectation weight pi(a) is the token weight of a sum over rows.
    """
    logits = PI.log().requires_grad_(True)
    rows = torch.log_softmax(logits, 0)[:, None]
    mask, old = torch.ones(3, 1, dtype=torch.bool), rows.detach()
    signals = Signals(old, REF.log()[:, None], mask, torch.arange(3), entropies=torch.full((3, 1), entropy))
    anchor = Anchor(1.0, guide, estimator)
    total = torch.zeros(())
    log_q = guide(signals, 0, 1, KEY)
    method = Method("kl only", GroupCentered(), Clip(), anchor, FixedBudget(1))
    for action in range(3):
        pick = slice(action, action + 1)
        batch = Batch(rows[pick], old[pick], signals.ref_logps[pick], mask[pick], torch.zeros(1), log_q[pick])
        total = total + float(PI[action]) * objective(method, batch, 0, 1)[0]
    (gradient,) = torch.autograd.grad(total, logits)
    return gradient


def forward_kl_difference(weight: float, step: float = 1e-5) -> list[float]:
    """weight * d KL(ref || softmax(z)) / dz by central differences in float64."""

    def value(logits: torch.Tensor) -> float:
        return weight * float((REF.double() * (REF.double().log() - torch.log_softmax(logits, 0))).sum())

    eye = torch.eye(3, dtype=torch.float64) * step
    return [(value(PI.double().log() + e) - value(PI.double().log() - e)) / (2 * step) for e in eye]


def test_branch_under_k3_scales_the_forward_kl_by_q():
    """H = 2.2 gives q = 1.3: 1.3 * (pi - ref) = (.39, 0, -.39); it strengthens the pull and does not move the anchor."""
    found = kl_gradient("k3", 2.2, Branch()).tolist()
    assert found == pytest.approx([0.39, 0.0, -0.39], abs=2e-6)
    assert found == pytest.approx(forward_kl_difference(1.3), abs=1e-5)


@pytest.mark.parametrize("estimator", ["k2", "straight_through", "k3_is"])
def test_a_state_guide_cancels_under_an_unbiased_loss(estimator):
    shaped, plain = (kl_gradient(estimator, entropy, Disguised()) for entropy in (2.2, 0.5))
    assert torch.allclose(shaped, plain, atol=2e-6)
    assert plain.tolist() == pytest.approx([0.320702, -0.082466, -0.238236], abs=3e-6)


class Depth(Guide):
    """q = (1.0, 1.3, .8) by state of a two-token world: the root, after token 0, after token 1."""

    needs, depends_on, equation = frozenset({"entropies"}), "state", "read from the entropies"

    def __call__(self, signals, step, total_steps, key):
        return signals.require("entropies", "Depth")


def sequence_objective(logits: torch.Tensor, ref: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """KL(pi || ref) - E_pi[sum_t log q(s_t)] over the four sequences, differentiated through everything."""
    logp, logr = torch.log_softmax(logits, 1), torch.log_softmax(ref, 1)
    total = torch.zeros(())
    for a, b in itertools.product(range(2), repeat=2):
        log_pi, log_ref = logp[0, a] + logp[1 + a, b], logr[0, a] + logr[1 + a, b]
        total = total + log_pi.exp() * (log_pi - log_ref - log_q[0] - log_q[1 + a])
    return total


def test_k1_in_the_reward_is_the_gradient_of_equation_6():
    """All 16 pairs of two-token sequences, G = 2: expectation = (G - 1) / G * grad of the sequence-level pseudo-KL."""
    ref = torch.tensor([[0.3, -0.2], [0.1, 0.4], [-0.5, 0.2]])
    log_q = torch.tensor([1.0, 1.3, 0.8]).log()
    logits = torch.tensor([[0.2, 0.1], [-0.3, 0.5], [0.4, 0.0]], requires_grad=True)
    (wanted,) = torch.autograd.grad(sequence_objective(logits, ref, log_q), logits)
    method = sage(dr_grpo(beta=1.0, estimator="k1", placement="reward"), Depth())
    total = torch.zeros(())
    for pair in itertools.product(itertools.product(range(2), repeat=2), repeat=2):
        states = torch.tensor([[0, 1 + a] for a, _ in pair])
        tokens = torch.tensor(pair)
        logps = torch.log_softmax(logits, 1)[states, tokens]
        refs = torch.log_softmax(ref, 1)[states, tokens]
        mask = torch.ones(2, 2, dtype=torch.bool)
        signals = Signals(logps, refs, mask, torch.arange(2), entropies=log_q[states])
        shaped = shape(method, signals, 0, 1, KEY)
        advantages = advantages_of(method, torch.zeros(1, 2), signals, shaped)
        batch = Batch(logps, logps.detach(), refs, mask, advantages, shaped, max_tokens=1)
        loss, _ = objective(method, batch, 0, 1)
        total = total + logps.detach().sum().exp() * loss
    (found,) = torch.autograd.grad(total, logits)
    assert torch.allclose(found, 0.5 * wanted, atol=1e-6)
    assert wanted[0].abs().max() > 0.01
