"""Reductions by hand on rows of length 2, 1 and 0."""

from __future__ import annotations

import math

import pytest
import torch

from sage_rlvr.core import FixedBudget, SequenceMean, TokenMean
from sage_rlvr.errors import ConfigError

PER_TOKEN = torch.tensor([[1.0, 3.0], [5.0, math.nan], [math.nan, math.nan]])
MASK = torch.tensor([[1, 1], [1, 0], [0, 0]]).bool()
CASES = [(SequenceMean(), 7 / 3, 3.0), (TokenMean(), 3.0, 3.0), (FixedBudget(10), 0.3, 30.0)]


@pytest.mark.parametrize(("reduction", "value", "budget"), CASES)
def test_by_hand(reduction, value, budget):
    assert float(reduction(PER_TOKEN, MASK)) == pytest.approx(value)
    assert reduction.budget(MASK, 10) == budget
    assert float(reduction(PER_TOKEN, MASK, 2 * budget)) == pytest.approx(value / 2)


@pytest.mark.parametrize(("reduction", "value", "budget"), CASES)
def test_no_nan_gradient(reduction, value, budget):
    """The per-token values are NaN off the mask; the gradient that reaches them is 0 there and finite elsewhere."""
    leaf = PER_TOKEN.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(reduction(leaf, MASK), leaf)
    assert bool(gradient.isfinite().all()) and not gradient[~MASK].any() and bool((gradient[MASK] > 0).all())


@pytest.mark.parametrize(
    ("reduction", "moved"), [(SequenceMean(), "row"), (TokenMean(), "batch"), (FixedBudget(9), "")]
)
def test_the_divisor_says_whose_length_a_weight_depends_on(reduction, moved):
    """Growing row 1 by a token moves the weight of row 0's tokens (batch), of row 1's (row), or of none (constant)."""

    def weights(mask):
        leaf = torch.zeros(2, 3, requires_grad=True)
        return torch.autograd.grad(reduction(leaf, mask), leaf)[0][:, 0]

    short, long = (weights(torch.tensor([[1, 0, 0], [1, 1, last]]).bool()) for last in (0, 1))
    changed = (short != long).tolist()
    assert changed == {"row": [False, True], "batch": [True, True], "": [False, False]}[moved]
    assert reduction.divisor == (moved or "constant")


def test_fixed_budget_takes_the_limit_of_the_batch():
    assert FixedBudget().budget(MASK, 7) == 21.0
    assert FixedBudget(5).budget(MASK, 7) == 15.0
    with pytest.raises(ConfigError, match="max_tokens"):
        FixedBudget().budget(MASK)
    with pytest.raises(ConfigError, match="tokens = 0"):
        FixedBudget(0)


def test_padding_the_batch_changes_nothing():
    wider, mask = torch.nn.functional.pad(PER_TOKEN, (0, 7)), torch.nn.functional.pad(MASK, (0, 7))
    for reduction, value, _ in CASES:
        assert float(reduction(wider, mask)) == pytest.approx(value)
