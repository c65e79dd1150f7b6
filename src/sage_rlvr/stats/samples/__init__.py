"""Statistics of sampled completions: reasoning patterns, diversity, perplexity, structure, signals by class of token."""
