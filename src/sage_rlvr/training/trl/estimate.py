"""What a run on TRL will need: memory a device by part, and hours. Arithmetic on shapes; no weights, no network, no torch.

    memory = weights + reference + optimiser + runtime (+ vLLM) + max(update, rollout)
    update = gradients + bf16 copies + activations + logits,   rollout = KV cache (transformers) or nothing more (vLLM)
    hours  = updates (4 or 6) N D + scoring 2 N D (bound by arithmetic) + rollouts (bound by bandwidth or by launches)

N are the parameters that a token is multiplied with, D the tokens, padding left out. Rules of thumb, none of them
measured here: `ASSUMED` and `Device` are all that is assumed, and `sage-rlvr train --dry-run` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_rlvr.config import FinetuneConfig, LoraConfig, TrainConfig
from sage_rlvr.models.shapes import Shapes

GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """A GPU. memory: GiB. flops: dense bf16 with float32 sums, 1e12 a second. bandwidth: of its memory, 1e9 bytes a second."""

    memory: float
    flops: float
    bandwidth: float
    source: str


# The memory of a data sheet is in 1e9 bytes; 141 of them are 131 GiB.
DEVICES = {
    "h200": Device(131.3, 989, 4800, "NVIDIA H200 data sheet (SXM, 141 GB; half of the figure with sparsity)"),
    "h100": Device(79.6, 989, 3350, "NVIDIA H100 data sheet (SXM, 80 GB; half of the figure with sparsity)"),
    "a100": Device(79.3, 312, 2039, "NVIDIA A100 data sheet (SXM, 80 GB)"),
    "a100-40": Device(39.4, 312, 1555, "NVIDIA A100 data sheet (SXM, 40 GB)"),
    "l40s": Device(44.7, 362, 864, "NVIDIA L40S data sheet (48 GB)"),
    "rtx4090": Device(23.6, 165, 1008, "NVIDIA Ada whitepaper, GeForce RTX 4090 (24 GB, float32 sums)"),
}

ASSUMED: dict[str, float] = {
    "prompt": 256,  # tokens of a prompt with its instructions
    "utilisation": 0.35,  # share of the peak FLOPs that training and scoring reach
    "bandwidth": 0.6,  # share of the peak bandwidth that decoding reaches
    "launch": 0.025,  # seconds a decoding step of transformers.generate takes at least: Python and kernel launches
    "vllm_launch": 0.008,  # the same with vLLM
    "runtime": 1.5,  # GiB: CUDA context, libraries, fragments
    "tile": 4096 * 32768 * 2,  # bytes of logits that TRL's fused head (1.15 and later) holds at once
}


@dataclass(frozen=True)
class Load:
    """How much a run computes on one of its devices, each with a copy of the model (DistributedDataParallel).

    ranks: devices. rows, micro: completions of a rollout, and of one forward pass, on this device. longest: tokens of the
    longest row, its prompt included; completion: those of its completion. mean_row, mean_completion: on average.
    rollouts, updates: of the whole run; row_passes: rows that go forward and backward. adapters: LoRA parameters, 0 in
    full fine-tuning. reference: "none", "copy" (a second model) or "adapter" (this one with its adapter off). rescored:
    the policy scores its own rollout once more. samples: False in fine-tuning.
    """

    ranks: int
    rows: int
    micro: int
    longest: int
    completion: int
    mean_row: float
    mean_completion: float
    rollouts: int
    updates: int
    row_passes: int
    adapters: int = 0
    weight_bytes: int = 4
    reference: str = "none"
    rescored: bool = False
    checkpointing: bool = True
    eight_bit: bool = False
    vllm_share: float = 0.0
    fused_head: bool = True
    samples: bool = True


def load_of(
    config: TrainConfig, fields: dict[str, Any], shapes: Shapes, ranks: int, mean: float | None, fused: bool
) -> Load:
    """The load of an RL recipe whose GRPOConfig gets `fields` (`settings.grpo_arguments`).

    mean: tokens of an average completion, None for half the limit. fused: TRL 1.15 or later scores in tiles.
    """
    limit = config.rollout.max_new_tokens
    mean = limit / 2 if mean is None else mean
    rows = config.rollout.completions // ranks
    lora, vllm = config.engine.lora, bool(fields.get("use_vllm", False))
    kept = lora is not None and not _another_model(config)
    window = fields["steps_per_generation"] * fields["num_iterations"]
    return Load(
        ranks=ranks,
        rows=rows,
        micro=fields["per_device_train_batch_size"],
        longest=int(ASSUMED["prompt"]) + limit,
        completion=limit,
        mean_row=ASSUMED["prompt"] + mean,
        mean_completion=mean,
        rollouts=config.steps,
        updates=fields["max_steps"],
        row_passes=config.steps * config.updates.epochs * rows,
        reference="none" if not fields.get("beta") else "adapter" if kept else "copy",
        rescored=bool(fields["gradient_accumulation_steps"] % window) or vllm,
        vllm_share=float(fields.get("vllm_gpu_memory_utilization", 0.3)) if vllm else 0.0,
        fused_head=fused,
        **_shared(config.engine.args, lora, config.engine.dtype, shapes),
    )


def _another_model(config: TrainConfig) -> bool:
    """True where the reference is a second model although the policy trains adapters: neither the policy at its start nor
    what the adapter of the SFT stage lies on."""
    if config.reference in (None, config.model):
        return False
    whole = (Path(config.model) / "config.json").is_file()  # a whole model, and no adapter on base_model
    return config.reference != config.base_model or whole


def finetune_load(config: FinetuneConfig, shapes: Shapes, rows: int, ranks: int, fused: bool) -> Load:
    """The load of fine-tuning on `rows` examples of at most max_length tokens, half of it on average."""
    passes = config.epochs * rows
    micro = int(config.engine.args.get("per_device_train_batch_size", max(1, config.batch_size // ranks)))
    return Load(
        ranks=ranks,
        rows=micro,
        micro=micro,
        longest=config.max_length,
        completion=config.max_length,
        mean_row=config.max_length / 2,
        mean_completion=config.max_length / 2,
        rollouts=0,
        updates=-(-passes // config.batch_size),
        row_passes=passes // ranks,
        samples=False,
        fused_head=fused,
        **_shared(config.engine.args, config.engine.lora, config.engine.dtype, shapes),
    )


def _shared(args: dict[str, Any], lora: LoraConfig | None, dtype: str, shapes: Shapes) -> dict[str, Any]:
    return {
        "adapters": 0 if lora is None else shapes.lora(lora.rank, lora.target_modules),
        "weight_bytes": 2 if dtype == "bfloat16" else 4,
        "checkpointing": bool(args.get("gradient_checkpointing", True)),
        "eight_bit": "8bit" in str(args.get("optim", "")),
    }


# ---- memory


def memory(load: Load, shapes: Shapes, device: Device) -> dict[str, float]:
    """GiB a device by part, at the worst: every row of a micro-batch as long as the limit. The parts in their order:

    weights, adapters, reference, optimiser, runtime, vLLM stay; gradients, bf16 copies, activations and logits are the
    update's, KV cache the rollout's, and only the larger of the two counts (`total`).
    """
    trained = load.adapters or shapes.parameters
    frozen = shapes.parameters * load.weight_bytes
    parts = {
        "weights": frozen,
        "adapters (float32)": 4 * load.adapters,
        "reference": frozen if load.reference == "copy" else 0,
        "optimiser": (2 if load.eight_bit else 8) * trained,
        "runtime": ASSUMED["runtime"] * GIB,
        "vLLM": load.vllm_share * device.memory * GIB,
        "gradients": 4 * trained * (2 if load.ranks > 1 else 1),  # DistributedDataParallel keeps them twice
        "bf16 copies": 2 * shapes.parameters if load.weight_bytes == 4 else 0,
        "activations": activations(load, shapes),
        "logits": logits(load, shapes),
        "KV cache": 0.0 if load.vllm_share or not load.samples else kv_cache(load, shapes),
    }
    return {name: value / GIB for name, value in parts.items() if value}


STAY = ("weights", "adapters (float32)", "reference", "optimiser", "runtime", "vLLM")
UPDATE = ("gradients", "bf16 copies", "activations", "logits")


def total(parts: dict[str, float]) -> float:
    """GiB at the peak: what stays, and the larger of update and rollout."""
    stays, update = (sum(parts.get(name, 0.0) for name in names) for names in (STAY, UPDATE))
    return stays + max(update, parts.get("KV cache", 0.0))


def activations(load: Load, shapes: Shapes) -> float:
    """Bytes that the backward pass finds kept, for micro * longest tokens in bf16.

    A layer keeps a token's 8 h (both residuals and both norms with their float32 inputs), 2 H d (queries, attention),
    2 K d and 4 m numbers of 2 bytes. Checkpointing keeps h numbers a layer, and one layer whole while it is done again.
    """
    attention = 2 * (shapes.heads + shapes.kv_heads) * shapes.width
    layer = 2 * (8 * shapes.hidden + attention + 4 * shapes.mlp)
    tokens = load.micro * load.longest
    if load.checkpointing:
        return float(tokens * (2 * shapes.hidden * shapes.layers + layer))
    return float(tokens * layer * shapes.layers)


def logits(load: Load, shapes: Shapes) -> float:
    """Bytes of the logits of a micro-batch: one tile, or (B, T, V) in bf16, in float32 and their gradient."""
    if load.fused_head:
        return ASSUMED["tile"]
    return float(load.micro * load.completion * shapes.vocab * (2 + 4 + 4))


def kv_cache(load: Load, shapes: Shapes) -> float:
    """Bytes of the cache in which transformers.generate holds all rows of a rollout at their full length, in bf16."""
    return float(2 * shapes.cache_values() * load.rows * load.longest)


# ---- time


def hours(load: Load, shapes: Shapes, device: Device) -> dict[str, float]:
    """GPU hours of the whole run, all ranks together, by part: update, scoring (reference and old policy), rollout."""
    forward = 2 * shapes.multiplied + 2 * shapes.layers * shapes.heads * shapes.width * load.mean_row
    backward = forward * (1 if load.adapters else 2)  # frozen matrices need no gradient of their own
    again = forward if load.checkpointing else 0
    tokens = load.row_passes * load.mean_row
    scored = load.rollouts * load.rows * load.mean_row * ((load.reference != "none") + load.rescored)
    rate = device.flops * 1e12 * ASSUMED["utilisation"]
    found = {"update": tokens * (forward + backward + again) / rate, "scoring": scored * forward / rate}
    found["rollout"] = load.rollouts * rollout_seconds(load, shapes, device) if load.samples else 0.0
    return {name: seconds * load.ranks / 3600 for name, seconds in found.items() if seconds}


def rollout_seconds(load: Load, shapes: Shapes, device: Device) -> float:
    """Of one rollout on one device: as many decoding steps as the longest completion, which is taken to reach the limit.

    A step reads all weights and the caches, half full on average: those of all rows with transformers.generate, those of
    the rows that still run with vLLM. float32 weights are cast at each step under autocast (4 bytes read, 2 written, 2
    read); vLLM holds its own in bf16.
    """
    weights = shapes.parameters * (8 if load.weight_bytes == 4 and not load.vllm_share else 2)
    running = load.rows * load.mean_completion / load.completion  # rows a step, on average over the steps
    cached = running * load.mean_row / 2 if load.vllm_share else load.rows * load.longest / 2
    caches = 2 * shapes.cache_values() * cached
    step = (weights + caches) / (device.bandwidth * 1e9 * ASSUMED["bandwidth"])
    return load.completion * max(step, ASSUMED["vllm_launch" if load.vllm_share else "launch"])
