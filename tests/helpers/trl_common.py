"""What the tests of the TRL adapter share: a tiny run, its layouts, and a scorer of their own. Needs TRL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from torch import Tensor

from sage_rlvr.training.trl import SageTrainer

PROMPTS = [f"{a} {b}={a + b}:" for a in range(1, 7) for b in range(1, 5)]

QUIET: dict[str, Any] = {
    **{"save_strategy": "no", "report_to": "none", "disable_tqdm": True},
    **{"use_cpu": True, "bf16": False, "gradient_checkpointing": False},
}
"""Fields of GRPOConfig for a run in a test: on a CPU in float32, and nothing written or shown."""

# (gradient_accumulation_steps, steps_per_generation, num_iterations): where the policy moves before TRL is done with a
# rollout ("moves") TRL scores it at generation; else q comes from the loss's own forward.
LAYOUTS = {
    "plain": (1, 1, 1),
    "accumulated": (2, 2, 1),
    "two rollouts a step": (2, 1, 1),
    "iterated within a step": (2, 1, 2),
    "moves: steps": (1, 2, 1),
    "moves: iterations": (1, 1, 2),
    "moves: both": (1, 2, 2),
    "moves: accumulated": (2, 4, 1),
    "moves: out of step": (2, 3, 1),
}


def reward(completions: list[str], **_: object) -> list[float]:
    """1 for completions with many different characters: differs within groups, whatever the policy."""
    return [float(len(set(text)) % 2) for text in completions]


def arguments(folder: Path, layout: str = "plain", **changes: Any) -> Any:
    accumulate, steps, iterations = LAYOUTS[layout]
    settings: dict[str, Any] = {
        "beta": 0.5,
        "use_bias_correction_kl": False,
        "loss_type": "grpo",
        "max_steps": 3,
        "learning_rate": 3e-2,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 6,
        "per_device_eval_batch_size": 6,
        "gradient_accumulation_steps": accumulate,
        "steps_per_generation": steps,
        "num_iterations": iterations,
        "num_generations": 3,
        "max_completion_length": 8,
        "temperature": 0.8,
        "logging_steps": 1,
        "seed": 5,
    }
    return trl.GRPOConfig(str(folder / "out"), **QUIET | settings | changes)


def build(policy: Path, args: Any, cls: type = SageTrainer, **more: Any) -> Any:
    data = Dataset.from_dict({"prompt": PROMPTS})
    return cls(model=str(policy), reward_funcs=more.pop("reward_funcs", reward), args=args, train_dataset=data, **more)


def weights(trainer: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def forward(model: Any, inputs: dict[str, Any], temperature: float) -> tuple[Tensor, Tensor]:
    """(log-probs, entropies) (B, T) of the completions from plain logits: nothing of TRL's own scoring."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    width = inputs["completion_ids"].shape[1]
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
    law = torch.log_softmax(logits.float() / temperature, dim=-1)
    logps = law.gather(2, inputs["completion_ids"][:, :, None])[:, :, 0]
    return logps, -(law.exp() * law).sum(-1)


def on_ranks(script: str, folder: Path, world: int, *words: str, seconds: float = 250) -> list[Any]:
    """What each of `world` gloo processes of `script` saved as rank<N>.pt.

    words: the script's arguments before the number of processes; "OUT" stands for the folder that it saves into.
    """
    file, out = folder / "ranks.py", folder / str(world)
    file.write_text(script)
    out.mkdir()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}"]
    launch = launch if world > 1 else [sys.executable]
    paths = os.pathsep.join(sys.path)  # of pytest: a script imports from tests and their helpers
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": paths}
    command = [*launch, str(file), *(str(out) if word == "OUT" else word for word in words), str(world)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(out / f"rank{rank}.pt") for rank in range(world)]
