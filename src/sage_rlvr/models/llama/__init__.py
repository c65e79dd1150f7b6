"""One engine for Llama-shaped models: sampling, scoring, reference, update, evaluation and SFT go through it.

Read in this order:

    net.py        which models it supports, and the weights of a transformers model
    layout.py     nodes: each distinct prefix of prompts and completions once, as a tree; the tiles of attention
    forward.py    forward and backward over nodes, written out, and the record that backward reads
    attention.py  attention over the tiles of a layout
    pieces.py     norm, rotation and gate
    decoder.py    decoding with a key-value cache, one token of each completion per step; its record can serve the update

Its results are equal to those of transformers up to rounding (tests/models/test_scoring.py). `models/lm_head.py` computes log-probs
from final states with bounded memory, `models/sampler.py` draws tokens. Any other model takes the stock path: transformers' own
forward.

Letters of shapes, the same in all these files:

    N  nodes of a layout                P  prompts                       H  query heads
    M  states that predict tokens       G  completions of a prompt       K  key-value heads
    n  counted tokens                   B  completions, P * G            R  H / K, query heads that share a key-value head
    C  hidden size                      S  tokens of the longest prompt  D  size of a head
    F  width of the MLP                 T  tokens of a completion        V  vocabulary

A tile of attention has I texts with J queries and U keys each. Axes without a comma between them are one, the first of them the
slowest: (I K, R J, D) has three axes. A completion is also called a row of a rollout, as in `row_ids`.

x is the input or output of a layer (the residual stream), (N, C). qkv is the product of the three projections, (N, (H + 2 K) * D):
all query heads, all key heads, all value heads; query heads k R to k R + R - 1 read key-value head k. q and k are "turned" once
rotary positions are applied; in a rotation coordinates i and i + D / 2 are a pair. Tensors have the dtype of the weights unless a
docstring names another.
"""
