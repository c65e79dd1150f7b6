"""One engine for Llama-shaped models: sampling, scoring, reference, update, evaluation and SFT go through it.

Read in this order:

    net.py        which models it takes, and the weights of a transformers model
    layout.py     nodes: every distinct beginning of prompts and completions once, a tree of prefixes
    forward.py    the forward and the backward over nodes, written out; what backward keeps
    attention.py  attention over the tiles of a layout
    pieces.py     norm, rotation and gate
    decoder.py    one token of each completion a step, with a key-value cache; its activations can serve the update

What comes out of it is equal to transformers up to rounding (tests/models/test_scoring.py). The head, in parts that bound its
memory, is `models/lm_head.py`; the draw is in `models/sampler.py`. Any other model takes the stock path: transformers' own forward.

Letters of shapes, the same in all these files:

    N  nodes of a layout                P  prompts                       H  query heads
    M  states that predict tokens       G  completions of a prompt       K  key-value heads
    n  counted tokens                   B  completions, P * G            R  H / K, query heads that share a key-value head
    C  hidden size                      S  tokens of the longest prompt  D  numbers of a head
    F  width of the MLP                 T  tokens of a completion        V  vocabulary

A tile of attention has I texts with J queries and U keys each. A completion is also called a row of a rollout, as in `row_ids`.
"""
