"""Memory and compute of a model, counted from its config.json before download, and the work of a recipe.

    doctor RECIPE --model ID_OR_FOLDER --gpus 1 8 64 512

Counted, not timed: parameters; bytes by kind of tensor; floating-point operations of a step by model (only matrix products,
attention over the full square); bytes that a sampler reads; bytes that a guide moves through verl's driver. To estimate the time
of a step, divide these by the measured speed of a machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface

from sage_rlvr.config import EngineConfig, TrainConfig
from sage_rlvr.core.guides.base import BINS
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.devices import device_of, dtype_of
from sage_rlvr.models.folders import config_folder, folder_of
from sage_rlvr.models.sampler import CACHE, numbers_per_token
from sage_rlvr.models.weights import loading
from sage_rlvr.training.counts.dry_run import GIB, parameters, scorers, tensor_bytes, work
from sage_rlvr.training.trl.arguments import grpo_arguments
from sage_rlvr.training.verl.arguments import MICRO, MODEL, bare_arguments, rows_per_gpu

COUNTED = "sage_counted"
READ = {"ref_log_prob": 4, "old_log_probs": 4, "entropy": 4, "response_mask": 8, "rm_scores": 4}
"""Bytes per response token in each field that the verl trainer reads through TransferQueue to shape the reference's log-probs."""
WRITTEN = {"ref_log_prob": 4}


@dataclass(frozen=True)
class Size:
    """Size of a model, from its config.json.

    numbers         parameters
    kv              numbers in the cache of one token
    vocabulary      logits of one token
    hidden, layers  width and depth
    """

    where: Path
    numbers: int
    kv: int
    vocabulary: int
    hidden: int
    layers: int

    @classmethod
    def of(cls, model: str) -> Size:
        """Return the size of a folder, "embedded" or a Hub id (only its config.json is fetched).

        Raise ConfigError if that fails.
        """
        where = _fetched(model)
        with loading(f"{where / 'config.json'}"):
            config = AutoConfig.from_pretrained(where).get_text_config()
            kv, layers = numbers_per_token(config), config.num_hidden_layers
        return cls(where, parameters(where, None)[0], kv, config.vocab_size, config.hidden_size, layers)


def _fetched(model: str) -> Path:
    """Return the folder of a model's config.json: a local one, the Hub's cache, or that one file downloaded from the Hub."""
    if (folder := config_folder(model)) is not None:
        return folder
    if model.count("/") != 1 or folder_of(model).exists():
        raise ConfigError(f"model {model!r}: no config.json found; pass a model folder, a Hub id (owner/name) or embedded")
    from huggingface_hub import hf_hub_download  # only for a model that is not on this machine

    try:
        return Path(hf_hub_download(model, "config.json")).parent
    except Exception as error:  # offline, gated, unknown: the Hub's library has a class for each
        raise ConfigError(
            f"model {model!r}: config.json is not on this machine, and the Hub returned none ({type(error).__name__}); "
            "without network access put this file into a folder and pass the folder"
        ) from error


@dataclass(frozen=True)
class Pass:
    """A forward pass through all layers, without the head: operations of its products, and bytes kept for its backward."""

    operations: int
    kept: int


def forward_pass(size: Size, rows: int, length: int, half: bool) -> Pass:
    """Count the forward pass for `rows` texts of `length` tokens on a model without memory. half: in bfloat16.

    Attention keeps its operands and its result, as a fused kernel does.
    """
    AttentionInterface.register(COUNTED, _attend)
    with loading(f"{size.where / 'config.json'}"), torch.device("meta"):
        config = AutoConfig.from_pretrained(size.where, attn_implementation=COUNTED)
        whole = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if half else torch.float32)
        core: Any = whole.base_model
        ids = torch.zeros(rows, length, dtype=torch.long)
    own = {p.untyped_storage()._cdata for p in whole.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if (storage := tensor.untyped_storage()._cdata) not in own:
            kept.setdefault(storage, tensor)
        return tensor

    with torch.enable_grad(), FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        out = core(input_ids=ids, use_cache=False)
    del out
    return Pass(counter.get_total_flops(), sum(t.untyped_storage().nbytes() for t in kept.values()))


def _attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> tuple[Any, None]:
    class Fused(torch.autograd.Function):
        """q (B, H, T, D), k and v (B, H', T, D) -> (B, H, T, D); keeps the four and no probabilities."""

        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            keys, values = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
            out = ((q @ keys.mT) @ values).transpose(1, 2).contiguous().transpose(1, 2)  # tokens before heads, as kernels write
            ctx.save_for_backward(q, k, v, out)
            return out

    return Fused.apply(query, key, value).transpose(1, 2), None  # type: ignore[no-untyped-call]


# ---- a recipe's step


def micro_batch(config: TrainConfig) -> tuple[int, bool]:
    """Return (completions of a micro-batch, whether its layers' activations are recomputed in backward)."""
    if config.engine.name == "trl":
        fields = _fields(config)
        return int(fields["per_device_train_batch_size"]), bool(fields.get("gradient_checkpointing", True))
    if config.engine.name == "verl":
        args = bare_arguments(config)
        rows = args.get(MICRO) or rows_per_gpu(config, args)
        return int(rows), bool(args.get(f"{MODEL}.enable_gradient_checkpointing", True))
    rollout, updates = config.rollout, config.updates
    groups = updates.micro_batch or rollout.prompts_per_step // updates.minibatches
    return groups * rollout.group_size, False


def byte_lines(size: Size, config: TrainConfig) -> Iterator[str]:
    """Yield lines of bytes by kind of tensor: permanent ones of a process, and those of a micro-batch and of sampling."""
    half = "bfloat16" in (dtype_of(config.engine), str(config.engine.args.get("dtype"))) or bool(config.engine.args.get("bf16"))
    width, limit = 2 if half else 4, config.rollout.max_new_tokens
    rows, again = micro_batch(config)
    one = forward_pass(size, rows, limit, half).kept
    inputs = size.layers * rows * limit * size.hidden * width
    parts = tensor_bytes(config, size.where, "8bit" in str(config.engine.args.get("optim")))
    always = sum(parts.values())
    parts["activations of a micro batch"] = inputs + one // size.layers if again else one
    parts["logits of a micro batch, float32"] = 4 * rows * limit * size.vocabulary
    parts["KV cache of a rollout"] = _cache(size, config, width)
    yield from (f"{value / GIB:12.3f} GiB  {name}" for name, value in parts.items())
    counts = f"{rows:,} completions in a micro batch and {config.rollout.completions:,} in a rollout"
    yield f"of {counts}, {limit:,} tokens each, without prompts"
    if again:
        yield "activations: each layer's input, and all of one layer, because the layers are recomputed in the backward pass"
    passing = parts["activations of a micro batch"] + parts["logits of a micro batch, float32"]
    yield fit_line(always + max(passing, parts["KV cache of a rollout"]), *memory_of(config))
    if config.engine.name == "loop":
        yield "logits: on the loop engine a Llama-shaped model holds at most 16 MiB of logits at a time"


def _cache(size: Size, config: TrainConfig, width: int) -> int:
    """Bytes of keys and values of a rollout; on the loop of the part of it that is sampled at a time (`models.sampler`)."""
    whole = config.rollout.completions * config.rollout.max_new_tokens * size.kv * width
    most = max(CACHE, size.numbers * width, config.rollout.max_new_tokens * size.kv * width)
    return min(whole, most) if config.engine.name == "loop" and not config.engine.reuse_sampling else whole


def fits_lines(size: Size, config: TrainConfig, gpus: Sequence[int], memory: float) -> Iterator[str]:
    """Yield a line for each engine and number of GPUs of `memory` GB: what each GPU needs for the recipe, and whether it fits.

    The loop takes one device. On TRL and verl all tensors of the state are sharded over all GPUs (FSDP2 or ZeRO-3); the sampler has
    a copy of the weights in bfloat16 besides, and its share of the cache.
    """
    limit, completions = config.rollout.max_new_tokens, config.rollout.completions
    for name in ("loop", "trl", "verl"):
        dtype = config.engine.dtype if name == "loop" or config.engine.lora is not None else "float32"
        try:
            lora = None if name == "loop" else config.engine.lora
            engine = config.engine if config.engine.name == name else EngineConfig(name=name, dtype=dtype, lora=lora)
            one = replace(config, engine=engine)
            rows, again = micro_batch(one)
        except ConfigError as error:
            yield f"{name:<5} not this recipe: {error}"
            continue
        state = sum(tensor_bytes(one, size.where, "8bit" in str(engine.args.get("optim"))).values())
        for n in gpus if name != "loop" else (1,):
            mine = min(rows, -(-completions // n))
            kept = forward_pass(size, mine, limit, True).kept
            inputs = size.layers * mine * limit * size.hidden * 2
            activations = inputs + kept // size.layers if again else kept
            logits = 1 << 24 if name == "loop" else 4 * mine * limit * size.vocabulary
            width = 2 if name != "loop" or dtype_of(engine) == "bfloat16" else 4
            sampling = _cache(size, one, width) // n + (2 * size.numbers if name != "loop" else 0)
            needed = state / n + max(activations + logits, sampling)
            passing = (activations + logits) / 1e9
            parts = f"state {state / n / 1e9:.1f}, micro-batch of {mine} {passing:.1f}, sampling {sampling / 1e9:.1f}"
            fits = "fits" if needed <= memory * 1e9 else "does NOT fit"
            yield f"{name:<5} {n:>5,} x {memory:g} GB: {fits}, about {needed / 1e9:.1f} GB each ({parts})"


def memory_of(config: TrainConfig) -> tuple[int, str]:
    """Return the bytes of memory for training the recipe on this machine, and their owner: the GPU if used, else the machine."""
    wanted = device_of(config.engine.device).type if config.engine.name == "loop" else "cuda"
    if wanted == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory), torch.cuda.get_device_name(0)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "this machine, on the CPU"


def fit_line(needed: int, there: int, what: str) -> str:
    """Return a line on whether a process fits: its permanent tensors, and the larger of a micro-batch and of sampling."""
    fits = "fits in" if needed <= there else "does NOT fit in"
    return (
        f"about {needed / 1e9:.1f} GB at the peak, {fits} the {there / 1e9:.0f} GB of {what}; prompts, fragmentation and the "
        "libraries come on top"
    )


def step_operations(size: Size, config: TrainConfig) -> dict[str, int]:
    """Return floating-point operations of a step by model: products of all layers and the head, completions at full length."""
    count, limit, epochs = config.rollout.completions, config.rollout.max_new_tokens, config.updates.epochs
    row = forward_pass(size, 1, limit, False).operations + 2 * limit * size.hidden * size.vocabulary
    once = dict.fromkeys(["sampling", *(f"{who}'s scores" for who in scorers(config, _fields(config)))], count * row)
    return once | {"training": 3 * epochs * count * row}


@dataclass(frozen=True)
class Added:
    """Cost of a part in a step. kept: bytes of each GPU; calls: collective operations of each GPU; received: its bytes in them."""

    operations: int
    kept: float = 0.0
    calls: int = 0
    received: float = 0.0


ENTROPY = 4
"""Operations per logit of the entropy of a state: those of `models.lm_head.entropies_of`."""
GUIDE = 40
"""Operations per token of `Branch("p80")`, its two histograms included, at most."""
SUMS = 3 * 8 * BINS
"""Bytes of the two sums of counts of one percentile, at most (`core.guides.base.batch_quantiles`)."""


def added(size: Size, config: TrainConfig, gpus: int, held_out: int, samples: int, every: int) -> dict[str, Added]:
    """Return what anchor, entropy, guide and pass@k add to a step on so many GPUs, in bfloat16 and sharded over all of them.

    anchor: a scoring pass of the reference, whose shards each GPU gathers layer by layer in each micro-batch. entropy: of each
    state, from logits that are there. guide: of a percentile, whose counts are summed (on verl its fields pass through the driver
    instead, `step_lines`). pass@k: `samples` completions for `held_out` rows every `every` steps; two gathers of rows.
    """
    count, limit = config.rollout.completions, config.rollout.max_new_tokens
    row, tokens = step_operations(size, config)["sampling"] // count, count * limit
    passes = -(-count // (gpus * micro_batch(config)[0]))
    weights = 2 * size.numbers
    shards = weights / gpus + 4 * tokens / gpus
    anchor = Added(count * row, shards, passes * (size.layers + 1), passes * weights * (gpus - 1) / gpus)
    return {
        "anchor": anchor,
        "entropy": Added(ENTROPY * size.vocabulary * tokens, 4 * tokens / gpus),
        "guide": Added(GUIDE * tokens, 8 * tokens / gpus, 2, SUMS),
        "pass@k": Added(held_out * samples * row // every, calls=2),
    }


def step_lines(size: Size, config: TrainConfig, gpus: Sequence[int]) -> Iterator[str]:
    """Yield lines on a step's operations, and the operations and bytes per GPU for each number of GPUs."""
    count, limit, dtype = config.rollout.completions, config.rollout.max_new_tokens, dtype_of(config.engine)
    parts, width = step_operations(size, config), 2 if dtype == "bfloat16" else 4
    total = sum(parts.values())
    yield f"{total:.3g} floating-point operations: " + ", ".join(f"{value / total:.0%} {name}" for name, value in parts.items())
    read = limit * size.numbers * width
    yield f"{read / GIB:,.0f} GiB of weights read by each sampler, once per token for all of its completions"
    tokens = count * limit
    read_here, written = sum(READ.values()), sum(WRITTEN.values())
    moved = tokens * (read_here + written)
    yield f"{moved / GIB:,.3f} GiB through verl's driver for a guide: {read_here} bytes per token read, {written} written"
    state = sum(tensor_bytes(config, size.where, False).values())
    yield "  ".join(("  GPUs", "operations each", "completions each", "KV cache each", "state each, sharded", "driver"))
    for n in gpus:
        cache = count * limit * size.kv * width / n / GIB
        cells = (f"{total / n:15.3g}", f"{count / n:16,.1f}", f"{cache:9.2f} GiB", f"{state / n / GIB:15.2f} GiB")
        yield f"{n:>6,}  " + "  ".join(cells) + f"  {moved / GIB:,.3f} GiB"


def footprint_lines(
    model: str | None, config: TrainConfig | None, gpus: Sequence[int], memory: float | None = None
) -> list[str]:
    """Return all lines, as `doctor` prints them. Raise ConfigError as `Size.of` does.

    model: replaces the recipe's model. config: of an RL recipe. memory: GB of a GPU, for what fits.
    """
    name = model or (config.model if config is not None else "embedded")
    size = Size.of(name)
    lines = [f"model {name}, from its config.json"]
    lines += [f"  {size.numbers:,} parameters, {size.layers} layers of width {size.hidden:,}, {size.vocabulary:,} logits"]
    widths = ((4, "float32"), (2, "bfloat16"))
    lines += [
        f"  {size.numbers * w / GIB:.3f} GiB of weights and {size.kv * w / 1024:,.1f} KiB of KV cache a token in {kind}"
        for w, kind in widths
    ]
    if config is None:
        return lines
    lines += ["", "Bytes per process, without sharding", *(f"  {line}" for line in byte_lines(size, config))]
    lines += ["", "Work", *(f"  {line}" for line in work(config, _fields(config)))]
    lines += ["", "A step", *(f"  {line}" for line in step_lines(size, config, gpus))]
    if memory is not None:
        lines += ["", "What fits", *(f"  {line}" for line in fits_lines(size, config, gpus, memory))]
    return lines


def _fields(config: TrainConfig) -> dict[str, Any]:
    """Return the trainer arguments of one process; empty if the engine is not TRL."""
    return grpo_arguments(config, "<run>/trl", 1) if config.engine.name == "trl" else {}
