"""Extras that add to the loss of a token: the entropy bonus, fixed or adaptive, and KL-Cov."""
