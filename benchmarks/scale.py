"""The tables of lab/pages/scale.md: what a step costs by model size and number of GPUs, counted by `training.counts.footprint`.

    python benchmarks/scale.py                          # print them
    python benchmarks/scale.py --docs lab/pages/scale.md     # write them between their marks
    python benchmarks/scale.py --places 134217728       # CPU seconds of the guides' quantiles over so many places, on one thread

The sizes are those of the published config.json files of Qwen2.5 (70B: 72B); nothing is downloaded, and but for --places nothing is
timed.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config

from sage_rlvr.config import TrainConfig, decode
from sage_rlvr.core.guides.base import batch_quantiles, row_quantiles
from sage_rlvr.training.counts.dry_run import GIB, tensor_bytes
from sage_rlvr.training.counts.footprint import READ, WRITTEN, Size, added, step_operations

SIZES: dict[str, dict[str, int]] = {
    "1.5B": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
             "intermediate_size": 8960, "vocab_size": 151936},
    "7B": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
           "intermediate_size": 18944, "vocab_size": 152064},
    "70B": {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
            "intermediate_size": 29568, "vocab_size": 152064},
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
        "updates": {"micro_batch": 1},
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
            Qwen2Config(**sizes, tie_word_embeddings=name == "1.5B").save_pretrained(folder)
            size, config = Size.of(folder), recipe(folder)
            parts, state = step_operations(size, config), sum(tensor_bytes(config, size.where, False).values())
        total = sum(parts.values())
        scores = sum(value for part, value in parts.items() if part.endswith("scores"))
        shares = ", ".join(f"{value / total:.0%}" for value in (parts["sampling"], scores, parts["training"]))
        cache = config.rollout.completions * LENGTH * size.kv * 2 / GIB / 1024
        each = [f"{total / n:.2g}" for n in GPUS] + [f"{state / n / GIB:,.1f}" for n in GPUS]
        yield f"| {name} | {size.numbers / 1e9:.2f}e9 | {total:.2g} | {shares} | {cache:,.1f} | " + " | ".join(each) + " |"


HELD_OUT = {"held_out": 500, "samples": 64, "every": 50}


def added_rows() -> Iterator[str]:
    """A row for each size: what anchor, entropy, guide and pass@k add to the operations of a step, and what the anchor adds to each
    GPU: the reference's share, and all-gathers with the bytes that they receive."""
    cells = [f"reference, all-gathers, received each of {n}" for n in GPUS]
    yield "| | anchor | entropy | guide | pass@k | " + " | ".join(cells) + " |"
    yield "|---" * (5 + len(cells)) + "|"
    for name, sizes in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            Qwen2Config(**sizes, tie_word_embeddings=name == "1.5B").save_pretrained(folder)
            size, config = Size.of(folder), recipe(folder)
            total = sum(step_operations(size, config).values())
            parts = {n: added(size, config, n, **HELD_OUT) for n in GPUS}
        shares = [f"{part.operations / total:.2g}" for part in parts[GPUS[0]].values()]
        each = [parts[n]["anchor"] for n in GPUS]
        own = [f"{one.kept / GIB:,.1f} GiB, {one.calls:,}, {one.received / GIB:,.0f} GiB" for one in each]
        yield f"| {name} | " + " | ".join([*shares, *own]) + " |"


def measured(places: int) -> Iterator[str]:
    """CPU seconds, on one thread, of a percentile of a batch of so many places, by histograms and by sorting, and of Token's two
    quantiles of each row."""
    torch.set_num_threads(1)
    rows = max(1, places // LENGTH)
    values = torch.empty(rows, LENGTH).exponential_(generator=torch.Generator().manual_seed(0))
    mask = torch.ones(rows, LENGTH, dtype=torch.bool)
    jobs: dict[str, Any] = {
        "a percentile by histograms": lambda: batch_quantiles(values, mask, [0.8]),
        "two quantiles of each row": lambda: row_quantiles(values, mask, [0.05, 0.95]),
        "a percentile by sorting": lambda: row_quantiles(values.reshape(1, -1), mask.reshape(1, -1), [0.8]),
    }
    for name, job in jobs.items():
        began = time.process_time()
        job()
        yield f"{time.process_time() - began:8.1f} CPU s  {name}, {values.numel():,} places"


def traffic_rows() -> Iterator[str]:
    """A row for each batch: tokens, and bytes that a guide moves through the driver."""
    yield "| completions | tokens each | read, GiB | written, GiB |"
    yield "|---|---|---|---|"
    for completions, length in ((1024, 2048), (8192, 2048), (8192, LENGTH)):
        read, written = (completions * length * sum(fields.values()) / GIB for fields in (READ, WRITTEN))
        yield f"| {completions:,} | {length:,} | {read:.2f} | {written:.2f} |"


def tables() -> str:
    """All, as they stand in the page."""
    return "\n".join([*cost_rows(), "", *added_rows(), "", *traffic_rows(), ""])


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, help="the page whose marks they go between")
    parser.add_argument("--places", type=int, help="measure the guides' quantiles over so many places instead")
    options = parser.parse_args()
    page = options.docs
    if options.places:
        for line in measured(options.places):
            print(line, flush=True)
    elif page is None:
        print(tables())
    else:
        page.write_text(MARK.sub(lambda _: tables(), page.read_text()))


if __name__ == "__main__":
    main()
