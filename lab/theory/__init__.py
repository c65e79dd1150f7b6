"""Exact theory: finite policies, expected gradients without sampling, closed forms, and claims with both sides as numbers.

The tests of the package use it as an independent oracle. Read tree.py (a policy whose sums are exact), expected.py and
averages.py (expected loss and mean advantages of a method), optima.py (closed forms), measured.py with effects.py
(what a KL term does against what `Anchor.effect` states), then claims/. Others serve one question each: reweighting.py
(Theorem 4.3), utility.py (the map of methods), shared.py, stored.py and guided.py (shared parameters, replay, hints).
"""

from lab.theory.averages import Listing
from lab.theory.expected import expected_loss, loss_over_groups
from lab.theory.optima import (
    ForwardOptimum,
    entropy_optimum,
    forward_kl_optimum,
    reverse_kl_optimum,
    sage_value,
    total_variation,
)
from lab.theory.tree import Descent, TokenTree

__all__ = [
    "Descent",
    "ForwardOptimum",
    "Listing",
    "TokenTree",
    "entropy_optimum",
    "expected_loss",
    "forward_kl_optimum",
    "loss_over_groups",
    "reverse_kl_optimum",
    "sage_value",
    "total_variation",
]
