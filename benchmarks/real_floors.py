"""The two floors of benchmarks/real.py that read the shapes of a workload: its products at their own rates, and its bytes.

A product of 8 rows reaches a tenth of the rate of one of 2,048, and a weight gradient half of it, so that the floor at the best
rate is out of reach for every program. Here each product that a step cannot avoid is timed at its own shape, over the weights of
all layers, which come from where a step finds them. At few rows a step of decoding waits for bytes: weights, keys and values.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import torch
from real_work import Passes, Shape
from torch.nn import functional as F

Sizes = Counter[int]
"""How many times a forward pass over so many rows is made."""
BYTES = 2


def decode_sizes(lengths: Sequence[int]) -> Sizes:
    """Rows of each step of decoding: a completion's last token is never an input. Above 16 the number of rows is rounded up to a
    multiple of 16, so that few sizes are timed."""
    alive = [sum(n - 1 > step for n in lengths) for step in range(max(lengths) - 1)]
    return Counter(rows if rows <= 16 else -(-rows // 16) * 16 for rows in alive)


def parts(prompts: Sequence[Sequence[int]], lengths: Sequence[int], step: bool) -> dict[str, list[tuple[str, Sizes, Sizes]]]:
    """Products of each part of a step, or of sampling alone: (kind, passes by rows, passes of the head by rows)."""
    passes, decoded, drawn = Passes.of(prompts, lengths), decode_sizes(lengths), Counter({len(prompts): 1})
    found = {"sample": [("forward", Counter({sum(map(len, prompts)): 1}), drawn), ("forward", decoded, decoded)]}
    whole, head = Counter({passes.rows: 1}), Counter({passes.logits: 1})
    if step:
        found["reference"] = [("forward", whole, head)]
        found["backward"] = [("of inputs", whole, head), ("of weights", whole, head)]
    return found


class Rates:
    """Seconds of products with the weights of a shape in bfloat16, each measured once, with so many threads."""

    def __init__(self, shape: Shape, threads: int) -> None:
        torch.set_num_threads(threads)
        self.shape, attention = shape, shape.head * shape.heads
        sizes = [(shape.hidden, shape.head * (shape.heads + 2 * shape.key_heads)), (attention, shape.hidden)]
        self.sizes = [*sizes, (shape.hidden, 2 * shape.mlp), (shape.mlp, shape.hidden)]  # q k v, out, gate and up, down
        self.body = [[torch.randn(out, width).bfloat16() for width, out in self.sizes] for _ in range(shape.layers)]
        self.head = torch.randn(shape.words, shape.hidden).bfloat16()
        self.layers, self.logits = cache(self._layers), cache(self._logits)

    def _layers(self, kind: str, rows: int) -> float:
        inputs = [(torch.randn(rows, width).bfloat16(), torch.randn(rows, out).bfloat16()) for width, out in self.sizes]
        return least(lambda: [product(kind, weight, *x) for layer in self.body for weight, x in zip(layer, inputs, strict=True)])

    def _logits(self, kind: str, rows: int) -> float:
        x, grad = torch.randn(rows, self.shape.hidden).bfloat16(), torch.randn(rows, self.shape.words).bfloat16()
        return least(lambda: product(kind, self.head, x, grad))

    def seconds(self, products: list[tuple[str, Sizes, Sizes]]) -> float:
        """Of the products of a part."""
        of_layers = sum(self.layers(kind, rows) * times for kind, sizes, _ in products for rows, times in sizes.items())
        return of_layers + sum(self.logits(kind, rows) * times for kind, _, sizes in products for rows, times in sizes.items())


def product(kind: str, weight: torch.Tensor, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """x (rows, inputs) and grad (rows, outputs) with weight (outputs, inputs)."""
    if kind == "forward":
        return F.linear(x, weight)
    return grad @ weight if kind == "of inputs" else grad.t() @ x


def least(work: Callable[[], object], seconds: float = 0.15) -> float:
    """The best time of two calls or more."""
    best, end, calls = math.inf, time.perf_counter() + seconds, 0
    while calls < 2 or time.perf_counter() < end:
        began = time.perf_counter()
        work()
        best, calls = min(best, time.perf_counter() - began), calls + 1
    return best


def read_rate(threads: int) -> float:
    """Bytes a second of reading 256 MiB."""
    torch.set_num_threads(threads)
    whole = torch.ones(1 << 25, dtype=torch.long)
    return whole.nbytes / least(whole.sum, 0.4)


def bytes_read(prompts: Sequence[Sequence[int]], lengths: Sequence[int], group: int, shape: Shape) -> float:
    """Of sampling: the weights once for the prompts and once a step; keys and values of each living completion, and those of its
    prompt, once for its group."""
    weights = (shape.body + shape.logits) / 2 * BYTES
    token = 2 * shape.layers * shape.key_heads * shape.head * BYTES
    cached = sum(token * sum(range(1, n)) for n in lengths)
    groups = zip(prompts, pairwise(range(0, len(lengths) + group, group)), strict=True)
    cached += sum(token * len(prompt) * (max(lengths[first:end]) - 1) for prompt, (first, end) in groups)
    return weights * max(lengths) + cached
