"""SAGE-Branch on a LoRA adapter: TRL's reference is then the same model with the adapter switched off, and no second copy.

    pip install -c constraints.txt -e '.[trl]' && python examples/trl_lora.py
    torchrun --nproc_per_node 2 examples/trl_lora.py      (several machines: examples/multinode.sh)

Countdown problems, the shipped base policy. Run on a CPU with TRL 1.16.0 and 1.0.0, in one and in two processes; on no GPU.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
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
    """Train an adapter for `steps` optimizer steps of `batch` completions per process; the log, one line per step."""
    problems = WORLDS["demo"].problems("train", 0, 512)
    rows = [{"prompt": render(p), "numbers": list(p.numbers), "target": p.target} for p in problems]
    on_gpu = torch.cuda.is_available()
    trainer = SageTrainer(
        model=str(embedded_policy()),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir,
            beta=0.05,
            use_bias_correction_kl=False,
            loss_type="grpo",
            learning_rate=2e-3,  # an adapter starts at nothing: ten times that of full fine-tuning and more
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
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"),
        guide=Branch(ratio=0.3, threshold=1.2),
    )
    trainer.train()
    trained = sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad)
    trainer.accelerator.print(f"{trained} weights trained, by {trainer.accelerator.num_processes} process(es)")
    return trainer.state.log_history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128, help="completions per process and step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(folder, options.steps, options.batch)
