"""The gradient of chosen log-probs: by autograd in float32, and of nearly certain tokens in bfloat16."""

from __future__ import annotations

import pytest
import torch

from sage_rlvr.models import lm_head


def test_parts_and_pieces_have_the_gradient_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_head, "KEPT_LOGITS", 33)  # three states at a time
    monkeypatch.setattr(lm_head, "NUMBERS", 22)  # two states at a time
    random = torch.Generator().manual_seed(0)
    states, weight = (torch.randn(n, 5, generator=random, requires_grad=True) for n in (7, 11))
    targets, states_of = torch.randint(0, 11, (9,), generator=random), torch.tensor([3, 3, 0, 1, 6, 5, 2, 4, 4])
    grad_logps, grad_entropies = torch.randn(2, 9, generator=random)

    def gradients(logps: torch.Tensor, entropies: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((logps * grad_logps + entropies * grad_entropies).sum(), (states, weight))

    logps, entropies = lm_head.chosen_logps(states, weight, targets, 0.7, True, True, states_of)
    assert entropies is not None
    whole = torch.log_softmax(states @ weight.t() / 0.7, -1)
    expected = gradients(whole[states_of, targets], -(whole.exp() * whole).sum(1)[states_of])
    for found, wanted in zip(gradients(logps, entropies), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=5e-6)


def test_no_state_at_all_has_a_gradient_of_zeros() -> None:
    """Also where the logits, none, are known."""
    states, weight = torch.zeros(0, 5, requires_grad=True), torch.ones(11, 5, requires_grad=True)
    nothing = torch.zeros(0, dtype=torch.long)
    for logits in (None, torch.zeros(0, 11)):
        logps, entropies = lm_head.chosen_logps(states, weight, nothing, entropies=True, logits=logits)
        assert logps.shape == (0,) and entropies is not None and entropies.shape == (0,)
        assert not torch.autograd.grad(logps.sum(), weight)[0].any()


def test_a_nearly_certain_token_keeps_its_gradient_in_bfloat16() -> None:
    """1 - p = 9.1e-4 is below the spacing of bfloat16 at 1, so p - 1 must not be formed in bfloat16."""
    states = torch.tensor([[7.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    lm_head.chosen_logps(states, torch.eye(2, dtype=torch.bfloat16), torch.tensor([0]))[0].sum().backward()
    assert states.grad is not None
    torch.testing.assert_close(states.grad.float(), torch.tensor([[9.11e-4, -9.11e-4]]), rtol=4e-3, atol=0)
