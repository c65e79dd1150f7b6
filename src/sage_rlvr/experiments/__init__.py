"""Several runs as one experiment: the demo, sweeps over matrices of arms and seeds, and what they found in numbers."""
