"""Experiments with several runs: the demo, and sweeps over designs of arms and seeds."""
