"""The tables of lab/pages/scale.md: what a step costs by model size and number of GPUs, counted by `training.counts.footprint`.

    python benchmarks/scale.py                          # print them
    python benchmarks/scale.py --docs lab/pages/scale.md     # write them between their marks

The sizes are those of Qwen2.5's published config.json files; nothing is downloaded and nothing is timed.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import Qwen2Config

from sage_rlvr.config import TrainConfig, decode
from sage_rlvr.training.counts.dry_run import GIB, tensor_bytes
from sage_rlvr.training.counts.footprint import READ, WRITTEN, Size, step_operations

SIZES: dict[str, dict[str, int]] = {
    "0.5B": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
             "intermediate_size": 4864, "vocab_size": 151936},
    "7B": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
           "intermediate_size": 18944, "vocab_size": 152064},
    "32B": {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
            "intermediate_size": 27648, "vocab_size": 152064},
}  # fmt: skip
GPUS = (8, 64, 512)
PROMPTS, GROUP, LENGTH = 512, 16, 16384  # 8,192 completions per step
MARK = re.compile(r"(?<=<!-- counted -->\n).*?(?=<!-- /counted -->)", re.DOTALL)


def recipe(model: str) -> TrainConfig:
    """A step of 8,192 completions of 16,384 tokens, SAGE-Branch on verl."""
    tree: dict[str, Any] = {
        "steps": 1,
        "model": model,
        "rollout": {"prompts_per_step": PROMPTS, "group_size": GROUP, "max_new_tokens": LENGTH},
        "engine": {"name": "verl"},
        "method": {"name": "sage", "base": {"name": "grpo", "beta": 0.05}, "guide": {"name": "branch"}},
    }
    return decode(TrainConfig, tree)


def cost_rows() -> Iterator[str]:
    """A row for each size: parameters, operations of a step, their parts, and each GPU's share of operations and of the state."""
    cells = [f"operations each of {n}" for n in GPUS] + [f"state each of {n}, GiB" for n in GPUS]
    yield "| | parameters | operations per step | sampling, scores, training | KV cache of all, TiB | " + " | ".join(cells) + " |"
    yield "|---" * (5 + len(cells)) + "|"
    for name, sizes in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            Qwen2Config(**sizes, tie_word_embeddings=name == "0.5B").save_pretrained(folder)
            size, config = Size.of(folder), recipe(folder)
            parts, state = step_operations(size, config), sum(tensor_bytes(config, size.where, False).values())
        total = sum(parts.values())
        scores = sum(value for part, value in parts.items() if part.endswith("scores"))
        shares = ", ".join(f"{value / total:.0%}" for value in (parts["sampling"], scores, parts["training"]))
        cache = config.rollout.completions * LENGTH * size.kv * 2 / GIB / 1024
        each = [f"{total / n:.2g}" for n in GPUS] + [f"{state / n / GIB:,.1f}" for n in GPUS]
        yield f"| {name} | {size.numbers / 1e9:.2f}e9 | {total:.2g} | {shares} | {cache:,.1f} | " + " | ".join(each) + " |"


def traffic_rows() -> Iterator[str]:
    """A row for each batch: tokens, and bytes that a guide moves through the driver."""
    yield "| completions | tokens each | read, GiB | written, GiB |"
    yield "|---|---|---|---|"
    for completions, length in ((1024, 2048), (8192, 2048), (8192, LENGTH)):
        read, written = (completions * length * sum(fields.values()) / GIB for fields in (READ, WRITTEN))
        yield f"| {completions:,} | {length:,} | {read:.2f} | {written:.2f} |"


def tables() -> str:
    """Both, as they stand in the page."""
    return "\n".join([*cost_rows(), "", *traffic_rows(), ""])


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, help="the page whose marks they go between")
    page = parser.parse_args().docs
    if page is None:
        print(tables())
    else:
        page.write_text(MARK.sub(lambda _: tables(), page.read_text()))


if __name__ == "__main__":
    main()
