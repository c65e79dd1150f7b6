"""The weights of the tests' warm policy: `python tests/helpers/warm_policy.py` trains them and writes them beside this file.

They are stored because 150 training steps end elsewhere on every kind of processor, and with them which completions a test
draws and whether any of them is right.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FILE = Path(__file__).with_suffix(".safetensors")


def write() -> None:
    """A short warm start on two-number problems: right now and then, so RL has rewards."""
    from conftest import tiny_llama
    from sage_rlvr.config import OptimizerConfig
    from sage_rlvr.models.policy import PromptRenderer, Tokens
    from sage_rlvr.tasks.countdown import Countdown, build_tokenizer
    from sage_rlvr.training.optimizer import Optimizer
    from sage_rlvr.training.sft import sft_step, texts_of

    torch.set_num_threads(1)
    tokens = Tokens.of(build_tokenizer())
    world = Countdown({2: 1.0}, max_number=12, max_target=144)
    asking, model = PromptRenderer.of(world, tokens), tiny_llama(initializer_range=0.02)
    optimizer = Optimizer(model, OptimizerConfig(lr=1e-2), 150)
    for step in range(150):
        sft_step(model, optimizer, texts_of(world.examples("train", 0, 48 * step, 48), asking), step)
    save_file({name: one.detach().half().contiguous() for name, one in model.named_parameters()}, FILE)


def read() -> dict[str, torch.Tensor]:
    """Float32, rounded to half precision."""
    return {name: one.float() for name, one in load_file(FILE).items()}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    write()
