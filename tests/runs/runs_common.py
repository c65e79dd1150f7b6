"""What the tests of run directories share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from sage_rlvr import runs
from sage_rlvr.runs import RunDir

CONFIG = {"steps": 100, "seed": 0, "rollout": {"group_size": 8}, "checkpoint": {"every": 10, "keep": 2}}
SOURCE = str(Path(runs.__file__).parents[2])


def tensors(fill: float = 1.0) -> dict[str, dict[str, torch.Tensor]]:
    weight = torch.full((3, 4), fill)
    return {
        "model": {"weight": weight, "scale": torch.tensor(fill, dtype=torch.bfloat16)},
        "optimizer": {"step": torch.tensor(3)},
    }


def opened(path: Path, **changes: Any) -> RunDir:
    return RunDir.open(path / "run", CONFIG | changes)


def edit(path: Path, **changed: Any) -> None:
    """The JSON file with these keys set, of None without them."""
    tree = {name: value for name, value in (json.loads(path.read_text()) | changed).items() if value is not None}
    path.write_text(json.dumps(tree))
