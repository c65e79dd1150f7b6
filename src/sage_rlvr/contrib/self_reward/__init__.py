"""Rewards that the policy computes itself, instead of a verifier: one file per paper, as in `contrib.methods`."""
