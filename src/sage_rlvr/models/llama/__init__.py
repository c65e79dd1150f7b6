"""A small Llama-shaped model as plain functions, without `transformers` modules.

Read forward.py first (a forward pass with gradients), then decoder.py (decoding with a key-value cache).
"""
