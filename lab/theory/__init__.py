"""The exact world: finite policies, expected gradients without sampling, closed forms, and claims with both sides."""

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
