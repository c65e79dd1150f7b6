"""One engine for Llama-shaped models: sampling, scoring, reference, update, evaluation and SFT go through it.

Read in this order:

    net.py        which models it takes, and where the weights of a transformers model lie
    layout.py     rows: every distinct beginning of prompts and completions once, a tree of prefixes
    forward.py    the forward and the backward over rows, written out; what backward keeps
    attention.py  attention over the tiles of a layout
    pieces.py     norm, rotation and gate
    decoder.py    one token a row and step, with a key-value cache; its activations can serve the update

What comes out of it is equal to transformers up to rounding (tests/models/test_scoring.py). The head, in parts that bound its
memory, is `models/head.py`; the draw is in `models/sampler.py`. Any other model takes the stock path: transformers' own forward.
"""
