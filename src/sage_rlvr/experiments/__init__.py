"""Several runs as one experiment: the demo, sweeps over designs of arms and seeds, and what they found in numbers."""
