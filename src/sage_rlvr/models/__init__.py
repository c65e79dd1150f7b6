"""A policy and what one asks of it: its tokens, samples, scores and shapes."""
