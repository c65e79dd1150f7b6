r"""SAGE-Branch with completions from a vLLM server, on this machine or another: configuration of TRL alone.

On the machine that samples:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --tensor-parallel-size 2 --max-logprobs -1 \
      --logprobs-mode processed_logprobs --weight-transfer-config '{"backend": "nccl"}'

On the machine that trains, whose port 51216 the server must reach (the weights go that way):

    python examples/trl_vllm_server.py --model MODEL --data rows.jsonl --server http://HOST:8000
    python examples/trl_vllm_server.py --model MODEL --dry-run        # what would be run; needs neither vLLM nor a GPU

Rows have a `prompt` (text, or messages) and an `answer`. One server, which may span machines; TRL takes no second one.
Trainer and server want matching versions: these flags are those of TRL 1.11 and later, and TRL says which vLLM it takes.
Without processed_logprobs the correction for the sampler is biased. q comes from the forward that TRL adds for this
correction, and so from the trainer's own policy.

Not run: no vLLM and no GPU were at hand. Tests build its arguments, and start it up to where TRL looks for vLLM.
"""

from __future__ import annotations

import argparse
import shlex

import torch
from datasets import load_dataset
from trl import GRPOConfig

from sage_rlvr import Branch
from sage_rlvr.trl import SageTrainer
from sage_rlvr.verifiers.rewards import math_reward


def server_command(model: str, tensor_parallel: int) -> str:
    """What the sampling machine runs."""
    flags = ["--tensor-parallel-size", str(tensor_parallel), "--max-logprobs", "-1"]
    flags += ["--logprobs-mode", "processed_logprobs", "--weight-transfer-config", '{"backend": "nccl"}']
    return "VLLM_SERVER_DEV_MODE=1 " + shlex.join(["vllm", "serve", model, *flags])


def arguments(output_dir: str, server: str, group_port: int) -> GRPOConfig:
    """GRPO with SAGE's KL, completions from `server`."""
    on_gpu = torch.cuda.is_available()
    return GRPOConfig(
        output_dir,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=server,
        vllm_group_port=group_port,
        vllm_server_timeout=600.0,  # seconds to wait for the server to load its model
        beta=0.05,
        use_bias_correction_kl=False,
        loss_type="grpo",
        learning_rate=1e-6,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=8,
        num_generations=8,
        max_completion_length=2048,
        logging_steps=1,
        report_to="none",
        use_cpu=not on_gpu,
        bf16=on_gpu,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Hub id or a folder, the one that the server was started with")
    parser.add_argument("--data", help="a JSON Lines file with the columns prompt and answer")
    parser.add_argument("--server", default="http://localhost:8000", help="the server's address")
    parser.add_argument("--group-port", type=int, default=51216, help="port of this machine for the weights' transfer")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of the server, for the printed command")
    parser.add_argument("--out", default="runs/vllm-server")
    parser.add_argument("--dry-run", action="store_true", help="print the server's command and the arguments, and stop")
    options = parser.parse_args()
    args = arguments(options.out, options.server, options.group_port)
    if options.dry_run:
        print(server_command(options.model, options.tensor_parallel))
        print("\n".join(f"{name} = {getattr(args, name)}" for name in sorted(vars(args)) if "vllm" in name))
        return
    if options.data is None:
        parser.error("give --data, a JSON Lines file with the columns prompt and answer")
    trainer = SageTrainer(
        model=options.model,
        reward_funcs=math_reward,
        args=args,
        train_dataset=load_dataset("json", data_files=options.data, split="train"),
        guide=Branch(ratio=0.3, threshold=1.2),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
