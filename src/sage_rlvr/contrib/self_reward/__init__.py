"""Rewards that the policy computes itself, in place of a verifier: one file per paper, as in `contrib.methods`."""
