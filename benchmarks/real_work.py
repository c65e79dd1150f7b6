"""What the arms of benchmarks/real.py share: workloads, prompts, the model's folder, and the operations that a step cannot avoid.

Every arm gets the same token ids. The tokenizer has a word for each id, so that an arm which wants text ("17 204 3") gets text of
the same ids. Its end token lies outside the model's vocabulary: no row ends early by chance.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BETA, CLIP, LR, MAX_NORM = 0.04, 0.2, 1e-6, 1.0


@dataclass(frozen=True)
class Shape:
    """A Llama's shape."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    key_heads: int
    words: int
    head: int = 64

    @property
    def body(self) -> int:
        """Operations of the products of all layers for a token; attention's own products are left out (below 3 % here)."""
        attention = 2 * self.hidden * self.head * (self.heads + self.key_heads)
        return 2 * self.layers * (attention + 3 * self.hidden * self.mlp)

    @property
    def logits(self) -> int:
        """Operations of a token's logits."""
        return 2 * self.words * self.hidden


SMOLLM2 = Shape(576, 1536, 30, 9, 3, 49152)
TINY = Shape(64, 128, 2, 2, 1, 200)


@dataclass(frozen=True)
class Workload:
    """P prompts of `least` to `most` tokens, the first `shared` of them alike, with `group` completions of up to `new` tokens.

    micro: rows of a forward pass of the arms that keep padded activations, so that they fit in memory. uneven: completions have
    lengths like worked solutions. repeats: counted turns of each arm; warm: uncounted ones right before each of them.
    """

    name: str
    prompts: int
    group: int
    new: int
    micro: int = 64
    uneven: bool = False
    warm: int = 1
    repeats: int = 1
    least: int = 60
    most: int = 85
    shared: int = 30

    @property
    def rows(self) -> int:
        """Completions."""
        return self.prompts * self.group

    def ids(self, words: int) -> list[list[int]]:
        """Prompts as a task's template makes them: one beginning, a part of their own, the same five last tokens. Never id 0, which
        pads, nor the last id, which TRL's arm needs as an end token."""
        draw = random.Random(0)
        first, last = ([draw.randrange(1, words - 1) for _ in range(n)] for n in (self.shared, 5))
        own = [draw.randint(self.least, self.most) - self.shared - 5 for _ in range(self.prompts)]
        return [[*first, *(draw.randrange(1, words - 1) for _ in range(n)), *last] for n in own]

    def lengths(self) -> list[int]:
        """Tokens of each completion. Uneven: lognormal with a median of a third of `new`, at most `new`."""
        draw = random.Random(1)
        if not self.uneven:
            return [self.new] * self.rows
        return [
            min(self.new, max(2, round(draw.lognormvariate(math.log(self.new / 3), 0.5)))) for _ in range(self.rows)
        ]


WORKLOADS = {
    "w1": Workload("w1", 8, 8, 48, repeats=2),
    "w2": Workload("w2", 32, 8, 8),
    "w3": Workload("w3", 4, 8, 512, micro=8, uneven=True, warm=0),
    "w4": Workload("w4", 16, 8, 9, repeats=2),
}
SFT = {"sft": Workload("sft", 8, 4, 12, repeats=2)}
SAMPLING = {"b64": Workload("b64", 8, 8, 48), "b256": Workload("b256", 32, 8, 48)}


def small(workload: Workload) -> Workload:
    """The same form in seconds, for a test."""
    sizes = {"prompts": 2 + (workload.prompts > 8), "group": 2, "new": min(workload.new, 12), "micro": 2}
    return Workload(**(vars(workload) | sizes | {"warm": 0, "repeats": 1, "least": 12, "most": 16, "shared": 6}))


@dataclass(frozen=True)
class Passes:
    """Necessary products of one forward pass over a batch: prompts once, completions packed, logits only where a token is drawn."""

    rows: int
    logits: int

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], lengths: Sequence[int], tree: bool = False) -> Passes:
        """tree: what several prompts begin with alike counts once. The last token of a completion is never an input."""
        inner = sum(n - 1 for n in lengths)
        return cls((_nodes(prompts) if tree else sum(map(len, prompts))) + inner, len(prompts) + inner)

    def operations(self, shape: Shape, forwards: int) -> float:
        """Of so many forward passes."""
        return float(forwards * (self.rows * shape.body + self.logits * shape.logits))


SAMPLING_PASS, SFT_STEP, STEP, STEP_WITH_FORWARD = 1, 3, 4, 5
"""Forward passes of a step: sampling, reference and two for the backward one; one more where the policy scores what it sampled.
Of SFT: the forward one and two for the backward one."""


def _nodes(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens of the tree of beginnings."""
    return len({tuple(prompt[: n + 1]) for prompt in prompts for n in range(len(prompt))})


def write_model(folder: Path, shape: Shape, weights: Path | None = None) -> None:
    """A Llama of that shape with its tokenizer of numbers; random weights of seed 0, or those of a model's folder."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    if weights is None:
        config = LlamaConfig(
            vocab_size=shape.words,
            hidden_size=shape.hidden,
            intermediate_size=shape.mlp,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_heads,
            head_dim=shape.head,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,  # a padding index would drop the gradient of that word
        )
        model: Any = LlamaForCausalLM(config).bfloat16()
    else:
        model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.bfloat16)
        model.config.bos_token_id = model.config.eos_token_id = model.config.pad_token_id = None
        model.generation_config.bos_token_id = model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = None
    model.save_pretrained(folder)
    words = {"<pad>": 0} | {str(i): i for i in range(1, shape.words)}
    core = Tokenizer(WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>").save_pretrained(folder)


def shape_of(folder: Path) -> Shape:
    """Of a saved model."""
    config = json.loads((folder / "config.json").read_text())
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    sizes = (
        config["intermediate_size"],
        config["num_hidden_layers"],
        heads,
        config.get("num_key_value_heads") or heads,
    )
    return Shape(hidden, *sizes, config["vocab_size"], config.get("head_dim") or hidden // heads)


def as_text(ids: Sequence[int]) -> str:
    """What the tokenizer of numbers reads as these ids."""
    return " ".join(map(str, ids))


def parity(text: str) -> float:
    """A reward that costs nothing and differs within groups."""
    return float(zlib.crc32(text.encode()) % 2)


@contextmanager
def on_device(name: str) -> Iterator[None]:
    """With `paper`, torch has a CUDA device of paper while the block runs (tests/helpers/paper_device.py); else nothing changes."""
    if name != "paper":
        yield
        return
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
    from paper_device import paper_as_cuda

    with paper_as_cuda():
        yield


def product_rate(threads: int, device: str = "cpu", seconds: float = 0.4) -> float:
    """Best bfloat16 operations a second of a product of 2,048 rows with a layer's widest weights."""
    import torch

    device = "cpu" if device == "paper" else device
    rows, width, out = (2048, 576, 3072) if device == "cpu" else (8192, 4096, 4096)
    torch.set_num_threads(threads)
    x, weight = (torch.randn(n, width, device=device).bfloat16() for n in (rows, out))
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * rows * width * out / best
