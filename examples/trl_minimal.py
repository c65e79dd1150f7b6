"""A GRPO script for TRL in which one class is changed: SageTrainer in place of GRPOTrainer, and the guide that it takes.

    pip install -c constraints.txt -e '.[trl]' && python examples/trl_minimal.py      (machines: examples/multinode.sh)

Countdown problems, the shipped base policy, full fine-tuning; on a CPU in under a minute. TRL prints its metrics and,
beside them, kl/to_anchor (to the shaped anchor), kl/to_reference (to the reference) and what q did. Run on a CPU with TRL
1.16.0 and 1.0.0, where the reward rises within 50 steps; on no GPU.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig

from sage_rlvr import Branch
from sage_rlvr.models.folders import embedded_policy
from sage_rlvr.tasks.countdown import WORLDS, Problem, render, verify
from sage_rlvr.trl import SageTrainer


def reward(completions: list[str], numbers: list[list[int]], target: list[int], **_: object) -> list[float]:
    """1 for a right expression, else 0; the columns of the data set come as keywords."""
    problems = [Problem(tuple(n), t) for n, t in zip(numbers, target, strict=True)]
    return [float(verify(p, text).right) for p, text in zip(problems, completions, strict=True)]


def main(output_dir: str, steps: int = 20, batch: int = 128) -> list[dict[str, float]]:
    """Train for `steps` optimizer steps of `batch` completions per process; the log, one line per step."""
    on_gpu = torch.cuda.is_available()
    problems = WORLDS["demo"].problems("train", 0, 512)
    rows = [{"prompt": render(p), "numbers": list(p.numbers), "target": p.target} for p in problems]
    trainer = SageTrainer(
        model=str(embedded_policy()),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir,
            beta=0.05,  # the weight of the KL whose reference is shaped; TRL's default is 0
            use_bias_correction_kl=False,  # TRL's default is True, under which a guide of the state alone cancels
            loss_type="grpo",
            learning_rate=1e-4,
            max_steps=steps,
            per_device_train_batch_size=batch,
            num_generations=8,
            max_completion_length=24,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=not on_gpu,
            bf16=on_gpu,
        ),
        train_dataset=Dataset.from_list(rows),
        guide=Branch(ratio=0.3, threshold=1.2),
    )
    trainer.train()
    return trainer.state.log_history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="folder of the checkpoints; default: a temporary one")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128, help="completions per process and step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(options.out or folder, options.steps, options.batch)
