"""Policies: loading, tokenization, sampling, log-probabilities and shapes.

Read policy.py first (a model with its tokenizer), then folders.py (where weights are loaded from), sampler.py and
generation.py (completions from prompts; vllm.py is the other backend) and scoring.py (log-probs of completions).
episodes.py plays multi-turn tasks. llama/ is a fast path for small Llama models; enumeration/ enumerates completions.
"""
