"""Runs recipes on the CPU and on the device of paper in one process, and writes what differs: `on_paper.py FOLDER RECIPE...`.

    {recipe: {"metrics": largest relative difference of a metric, "weights": largest difference of a weight, "device": ...}}

A recipe as "FILE@2" is stopped on one device after 2 steps and goes on, on the other, from its checkpoint.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from paper_device import PAPER, a_paper_device
from sage_rlvr import progress
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.models import devices, policy
from sage_rlvr.runs import RunDir, comparable, read_metrics
from sage_rlvr.training import loop
from sage_rlvr.training.counts import memory
from sage_rlvr.training.state import save_policy


def named(name: str | None) -> torch.device:
    """`device_of`, the device of paper in place of CUDA."""
    return PAPER if name == "cuda" else torch.device("cpu")


def saved_from_cpu(model: Any, tokenizer: Any, out: Path, card: str) -> None:
    """`save_policy` of a model whose memory can be read: transformers finds tied tensors by their address."""
    save_policy(model.to("cpu"), tokenizer, out, card)


devices.device_of = policy.device_of = memory.device_of = named
loop.save_policy = saved_from_cpu


def go(recipe: Path, run: Path, device: str, **changes: Any) -> None:
    """Train on a device, in a directory of its own or, from its checkpoint, in one that is there."""
    config = load_config(TrainConfig, recipe, [("engine.device", device), *changes.items()])
    with a_paper_device() if device == "cuda" else nullcontext(), RunDir.open(run, dump(config), fork=True) as there:
        loop.train(config, there, progress.Silent())


def apart(a: Path, b: Path) -> dict[str, float]:
    """How far two runs end from each other."""
    left, right = (load_file(run / "policy" / "model.safetensors") for run in (a, b))
    assert left.keys() == right.keys()
    rows = [[comparable(row) for row in read_metrics(run)] for run in (a, b)]
    gaps = [
        abs(one[name] - other[name]) / max(1.0, abs(one[name]))
        for one, other in zip(*rows, strict=True)
        for name in one
        if not name.startswith("sampler/")
    ]
    return {"metrics": max(gaps), "weights": max(float((left[n] - right[n]).float().abs().max()) for n in left)}


def main(folder: Path, recipes: list[str]) -> None:
    """Every recipe on both, its answer on a line of standard output."""
    torch.set_num_threads(1)
    for number, words in enumerate(recipes):
        file, _, stop = words.partition("@")
        runs = [folder / f"{number}-{name}" for name in ("cpu", "there", "and-back")]
        go(Path(file), runs[0], "cpu")
        if stop:
            for run, first, second in ((runs[1], "cpu", "cuda"), (runs[2], "cuda", "cpu")):
                go(Path(file), run, first, steps=stop)
                go(Path(file), run, second)
            found = {name: apart(runs[0], run) for name, run in (("to", runs[1]), ("from", runs[2]))}
        else:
            go(Path(file), runs[1], "cuda")
            found = {"on": apart(runs[0], runs[1])}
        print(json.dumps({words: found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
