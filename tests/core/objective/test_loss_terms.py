"""Loss terms of published objectives: covariances by hand, and a weight of zero."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sage_rlvr.contrib.methods.adaptive_entropy import AdaptiveEntropy
from sage_rlvr.contrib.methods.clip_cov import KlCov
from sage_rlvr.core import Batch, Signals, credit, objective
from sage_rlvr.core.extras import EntropyBonus
from sage_rlvr.core.extras.tokens.base import covariance
from sage_rlvr.errors import DataError
from sage_rlvr.methods import METHODS, no_kl


def told(logps: list[list[float]], entropies: float = 1.0, advantages: tuple[float, ...] = (1.0, -1.0)) -> Signals:
    """Two rows of two tokens, all counted."""
    old = torch.tensor(logps)
    return Signals(
        old, None, torch.ones(2, 2), torch.arange(2), entropies=torch.full((2, 2), entropies), advantages=torch.tensor(advantages)
    )


def test_covariances_by_hand():
    """A = (1, 1, -1, -1), log pi = (-.1, -2, -.1, -2): (.95, -.95, -.95, .95); KL-Cov takes the largest, at least one."""
    found = covariance(told([[-0.1, -2.0], [-0.1, -2.0]]))
    assert found.flatten().tolist() == pytest.approx([0.95, -0.95, -0.95, 0.95])
    given = told([[-0.1, -2.0], [-0.1, -3.0]])
    lone, _ = KlCov(2e-4, 0.5).loss_weights(given, 0, 1, {})
    assert lone.tolist() == [[0, 0], [0, 0.5]]
    assert KlCov(0.5, 0.5).loss_weights(given, 0, 1, {})[0].tolist() == [[0.5, 0], [0, 0.5]]


def test_kl_cov_holds_its_tokens_back_from_the_second_update_on():
    """-rho A without a clip, and 3 |log pi - log pi_old| at the token held: 0 with its gradient where the policy has not moved."""
    method = METHODS["kl_cov"](share=1e-3, coefficient=3.0)
    signals = told([[-0.1, -2.0], [-0.1, -3.0]])
    worth = credit(method, torch.tensor([[1.0, 0.0]]), signals)
    advantage = float(worth.advantages[0])
    for moved in (0.0, 0.7, -0.7):
        logps = (signals.old_logps + moved).requires_grad_(True)
        batch = Batch(logps, signals.old_logps, None, signals.mask, worth.advantages, loss_weights=worth.loss_weights)
        loss, metrics = objective(method, batch, 0, 1)
        (found,) = torch.autograd.grad(loss, logps)
        ratio = float(torch.tensor(moved).exp())
        plain = [-ratio * advantage / 4, -ratio * advantage / 4, ratio * advantage / 4, ratio * advantage / 4]
        plain[3] += 3 / 4 * (moved > 0) - 3 / 4 * (moved < 0)
        assert found.flatten().tolist() == pytest.approx(plain, rel=1e-4)
        assert metrics["extra/kl_cov/loss"] == pytest.approx(3 * abs(moved) / 4)
    with pytest.raises(DataError, match="take them from `credit`"):
        objective(method, replace(batch, loss_weights={}), 0, 1)


def test_adaptive_entropy_climbs_while_entropy_is_low_and_falls_above_it():
    term = AdaptiveEntropy(target=0.8, delta=0.005, max_coef=0.06)
    state, low, high = term.start(), told([[-1.0, -1], [-1, -1]], 0.79), told([[-1.0, -1], [-1, -1]], 0.9)
    for step in range(10):
        weights, state = term.loss_weights(low, 0, 1, state)
        assert weights.unique().item() == pytest.approx(0.005 * step)
    assert float(state["coefficient"]) == pytest.approx(0.05)
    weights, state = term.loss_weights(high, 0, 1, state)
    assert not weights.any() and float(state["coefficient"]) == pytest.approx(0.045)
    for _ in range(9):
        _, state = term.loss_weights(low, 0, 1, state)
    assert float(state["coefficient"]) == pytest.approx(0.06)  # at the bound
    for _ in range(20):
        _, state = term.loss_weights(high, 0, 1, state)
    assert float(state["coefficient"]) == 0.0


@pytest.mark.parametrize("term", [EntropyBonus(0.0), KlCov(0.1, 0.0), AdaptiveEntropy(0.1)], ids=str)
def test_a_term_of_weight_zero_is_the_method_without_it_bit_for_bit(term):
    signals = told([[-0.1, -2.0], [-0.3, -3.0]])
    found = []
    for method in (no_kl(), replace(no_kl(), extras=(term,))):
        worth = credit(method, torch.tensor([[1.0, 0.0]]), signals)
        logps = (signals.old_logps + 0.3).requires_grad_(True)
        batch = Batch(
            logps, signals.old_logps, None, signals.mask, worth.advantages, entropies=-2 * logps, loss_weights=worth.loss_weights
        )
        loss, _ = objective(method, batch, 0, 1)
        found.append(torch.cat([loss.detach()[None], *torch.autograd.grad(loss, logps)[0]]))
    assert torch.equal(*found)
