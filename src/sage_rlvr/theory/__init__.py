"""The exact world: finite policies, expected gradients without sampling, closed forms, and claims with both sides."""

from sage_rlvr.theory.expected import Listing, expected_loss, loss_over_groups
from sage_rlvr.theory.tree import Descent, TokenTree

__all__ = ["Descent", "Listing", "TokenTree", "expected_loss", "loss_over_groups"]
