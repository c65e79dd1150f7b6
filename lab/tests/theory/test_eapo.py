"""EAPO's expected gradient over every group of a small tree: it weighs states, depending on P(right). Its placebo does not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from lab.theory import TokenTree
from sage_rlvr.contrib.methods.eapo import Eapo, eapo
from sage_rlvr.core import FixedBudget, GroupCentered, Key, Method
from sage_rlvr.core.extras import TokenWeight
from sage_rlvr.core.extras.tokens.placebo import PlaceboWeight

TREE = TokenTree.full(2, 2)
CERTAIN, UNCERTAIN = [2.0, 0.0], [0.3, 0.0]  # at the first token, and at the second whatever the first was
LOGITS = torch.tensor([CERTAIN, UNCERTAIN, UNCERTAIN[::-1]], dtype=torch.float64)
RIGHT = {
    "hard": torch.tensor([0.0, 0.0, 0.0, 1.0]),
    "even": torch.tensor([1.0, 0.0, 0.0, 1.0]),
    "easy": torch.tensor([1.0, 1.0, 0.0, 1.0]),
}


def gradient(method: Method, right: torch.Tensor, size: int = 3, **options) -> torch.Tensor:
    leaf = LOGITS.clone().requires_grad_(True)
    loss = TREE.expected_loss(method, leaf, LOGITS, right, group_size=size, brute_force=True, **options)
    return torch.autograd.grad(loss, leaf)[0]


def centered(*weight: TokenWeight) -> Method:
    """EAPO with A = r - mean, so that the mean advantages are (1 - P) and -P times (G - 1) / G, and a constant divisor."""
    return replace(eapo(), advantage=GroupCentered(), reduction=FixedBudget(), extras=weight)


@pytest.mark.parametrize("name", RIGHT)
def test_the_force_at_a_state_is_that_of_the_plain_method_times_a_factor_of_p(name: str):
    """w = (.4, 1.6) of a right completion and (1.6, .4) of a wrong one, at the certain and the uncertain token."""
    right = RIGHT[name]
    share = float((TREE.probs(LOGITS) * right).sum())
    found, plain = gradient(centered(Eapo()), right), gradient(centered(), right)
    certain, uncertain = (1 - share) * 0.4 + share * 1.6, (1 - share) * 1.6 + share * 0.4
    wanted = plain * torch.tensor([certain, uncertain, uncertain])[:, None]
    assert torch.allclose(found, wanted, atol=1e-6) and plain.abs().max() > 0.01
    assert {"hard": certain < 0.7 < 1.3 < uncertain, "even": 0.9 < certain < 1.1, "easy": certain > 1.3}[name]


def test_with_the_recipe_it_is_no_multiple_of_the_plain_gradient():
    found, plain = (gradient(method, RIGHT["hard"]) for method in (eapo(), replace(eapo(), extras=())))
    cosine = torch.nn.functional.cosine_similarity(found.flatten(), plain.flatten(), dim=0)
    assert 0.5 < float(cosine) < 0.97


def test_the_placebo_is_the_plain_method_on_average_over_its_draws(monkeypatch: pytest.MonkeyPatch):
    """Both orders of the two tokens of each of two completions: the mean over all draws is the gradient without a weight."""
    method, found = centered(PlaceboWeight(Eapo())), []
    for turned in itertools.product((False, True), repeat=2):
        words = torch.tensor([[1, 0] if turn else [0, 1] for turn in turned])
        monkeypatch.setattr(Key, "bits", lambda self, *at, words=words: words)
        found.append(gradient(method, RIGHT["hard"], size=2))
    plain = gradient(centered(), RIGHT["hard"], size=2)
    assert torch.allclose(torch.stack(found).mean(0), plain, atol=1e-6)
    assert (found[0] - plain).abs().max() > 0.005
