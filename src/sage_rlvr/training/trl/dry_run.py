"""`--dry-run`: what a recipe will do and need, as lines of text; no weights, no network, and TRL itself is not needed
(where it is installed, engine.args are checked against its fields).

The resolved recipe and its objective are printed by the command line; here stand the trainer's arguments, the data, counts
of steps, rollouts and tokens, memory a device by part, GPU hours, what all that assumes, and what will not work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sage_rlvr.config import DataConfig, FinetuneConfig, TrainConfig
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models.shapes import KNOWN, Shapes, shapes_of
from sage_rlvr.training.trl import estimate
from sage_rlvr.training.trl.estimate import ASSUMED, DEVICES, Load

if TYPE_CHECKING:
    from sage_rlvr.training.trl.rows import Rows


def train_lines(config: TrainConfig, devices: int, gpu: str, mean: int | None = None) -> list[str]:
    """The dry run of an RL recipe on `devices` GPUs of the kind `gpu` (a key of `estimate.DEVICES`).

    mean: tokens of an average completion, None for half the limit. `ConfigError` as in `settings.grpo_arguments`, and for
    an unknown gpu; `DataError` where a local file lacks a column that the recipe names.
    """
    from sage_rlvr.training.trl.arguments import check_fields, grpo_arguments

    device = device_of(gpu)
    _check_mean(mean, config.rollout.max_new_tokens)
    fields = grpo_arguments(config, "<run>/trl", devices)
    shapes = _shapes(config.model) or _shapes(config.base_model)
    if config.engine.args and find_spec("trl") is not None:
        from trl import GRPOConfig

        check_fields(GRPOConfig, config.engine.args)
    lines = ["GRPOConfig", *(f"  {name} = {value!r}" for name, value in fields.items() if name != "output_dir")]
    lines += ["", "Data", *(f"  {line}" for line in data_lines(config.data))]
    lines += ["", "Work", *(f"  {line}" for line in _work(config, fields, mean))]
    if shapes is None:
        return [*lines, "", _unknown(config.model)]
    load = estimate.load_of(config, fields, shapes, devices, mean, _fused())
    warnings = [*_misfits(load, shapes, gpu), *_advice(config, shapes)]
    return [*lines, *_costs(load, shapes, gpu), *_assumptions(load, device, gpu), *_warned(warnings)]


def finetune_lines(config: FinetuneConfig, devices: int, gpu: str) -> list[str]:
    """The dry run of a fine-tuning recipe; hours only where its rows can be counted, that is, lie in a local file."""
    from sage_rlvr.training.trl.arguments import rows_of_rank

    device = device_of(gpu)
    rows_of_rank(config.batch_size, devices)
    rows = _count(config.data)
    lines = ["Data", *(f"  {line}" for line in data_lines(config.data)), "", "Work"]
    if rows is None:
        lines.append(f"  {config.epochs} epochs of rows that are not here, {config.batch_size} an optimizer step")
    else:
        lines.append(
            f"  at most {config.epochs} x {rows:,} rows, {-(-config.epochs * rows // config.batch_size):,} steps"
        )
    lines.append(
        f"  rows whose prompt is longer than {config.max_length // 2:,} tokens are left out, and are not known yet"
    )
    shapes = _shapes(config.model)
    if shapes is None:
        return [*lines, "", _unknown(config.model)]
    load = estimate.finetune_load(config, shapes, rows or config.batch_size, devices, _fused())
    costs = _costs(load if rows else replace(load, row_passes=0), shapes, gpu)
    return [*lines, *costs, *_assumptions(load, device, gpu), *_warned([*_misfits(load, shapes, gpu)])]


def device_of(gpu: str) -> estimate.Device:
    """The entry of `estimate.DEVICES`; ConfigError lists them."""
    if gpu not in DEVICES:
        raise ConfigError(f"--gpu {gpu}: not in the table; it has {', '.join(DEVICES)}")
    return DEVICES[gpu]


def _check_mean(mean: int | None, limit: int) -> None:
    if mean is not None and not 1 <= mean <= limit:
        raise ConfigError(
            f"--mean-tokens {mean}: a completion has 1 to rollout.max_new_tokens = {limit} tokens; give its mean"
        )


def _shapes(model: str | None) -> Shapes | None:
    return None if model is None else shapes_of(model)


def _unknown(model: str) -> str:
    return (
        f"model {model}: unknown shapes, so memory and hours are left out; give a folder with a config.json (Llama, Mistral, "
        f"Qwen2), or set base_model to one of {', '.join(KNOWN)}"
    )


def _fused() -> bool:
    """True where the installed TRL scores in tiles (1.15 and later), and where none is installed."""
    found = re.match(r"(\d+)\.(\d+)", trl_version() or "99.0")
    return found is None or (int(found[1]), int(found[2])) >= (1, 15)


def trl_version() -> str | None:
    """Of the installed TRL, read without importing it."""
    try:
        return metadata.version("trl")
    except metadata.PackageNotFoundError:
        return None


# ---- counts


def _work(config: TrainConfig, fields: dict[str, Any], mean: int | None) -> Iterator[str]:
    limit, prompts = config.rollout.max_new_tokens, config.steps * config.rollout.prompts_per_step
    average = limit / 2 if mean is None else mean
    completions = config.steps * config.rollout.completions
    yield f"{config.steps:,} rollouts of {config.rollout.completions:,} completions, {fields['max_steps']:,} optimizer steps"
    yield f"{prompts:,} prompts{_passes(config, prompts)}, {completions:,} completions"
    yield (
        f"{_big(completions * limit)} tokens sampled at most, {_big(completions * average)} at {average:,.0f} a completion"
    )
    trained = completions * config.updates.epochs
    yield (
        f"{_big(trained * (limit + ASSUMED['prompt']))} tokens trained on at most (prompts included), "
        f"{_big(trained * (average + ASSUMED['prompt']))} at that length"
    )
    refills = getattr(config.method.build().rollout, "max_refills", 0)
    if refills:
        yield f"dynamic sampling: between 1 and {refills + 1} times those prompts and sampled tokens, and of the hours of rollout"


def _passes(config: TrainConfig, prompts: int) -> str:
    rows = None if config.data is None else _count(config.data) or config.data.take
    return "" if rows is None else f" ({prompts / rows:.2g} passes over {rows:,} rows)"


def _big(number: float) -> str:
    scale, letter = next(
        pair for pair in ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1, "")) if number >= pair[0] or pair[0] == 1
    )
    return f"{number / scale:.3g}{letter}"


# ---- memory and hours


def _costs(load: Load, shapes: Shapes, gpu: str) -> list[str]:
    device = DEVICES[gpu]
    parts = estimate.memory(load, shapes, device)
    lines = ["", f"Memory of one {gpu} of {load.ranks}, GiB ({shapes.parameters / 1e9:.2f} G parameters)"]
    lines += [f"  {value:7.2f}  {name}{_when(name)}" for name, value in parts.items()]
    lines.append(f"  {estimate.total(parts):7.2f}  at the peak, of {device.memory:g}")
    spent = estimate.hours(load, shapes, device)
    if spent:
        lines += ["", "GPU hours of the run, all devices together"]
        lines += [f"  {value:7.2f}  {name}" for name, value in spent.items()]
        lines.append(f"  {sum(spent.values()):7.2f}  in all, {sum(spent.values()) / load.ranks:.2f} by the clock")
    return lines


def _when(part: str) -> str:
    return "  (update)" if part in estimate.UPDATE else "  (rollout)" if part == "KV cache" else ""


def _assumptions(load: Load, device: estimate.Device, gpu: str) -> list[str]:
    backend = "vLLM" if load.vllm_share else "transformers.generate"
    launch = ASSUMED["vllm_launch" if load.vllm_share else "launch"]
    head = "in tiles of 4,096 tokens (TRL 1.15 and later)" if load.fused_head else "whole, (B, T, V) (TRL before 1.15)"
    lines = [
        f"{gpu}: {device.memory:g} GiB, {device.flops:g} TFLOPS dense bf16, {device.bandwidth:g} GB/s; {device.source}",
        f"training and scoring reach {ASSUMED['utilisation']:.0%} of the FLOPs; each device holds a whole copy (no sharding)",
        f"micro-batch {load.micro} rows, the worst {load.longest:,} tokens long, {load.mean_row:,.0f} on average; "
        f"checkpointing {'on' if load.checkpointing else 'off'}; logits {head}",
    ]
    if load.samples:
        lines.append(
            f"a prompt has {ASSUMED['prompt']:g} tokens; {backend} decodes until the longest completion of a rollout, which "
            f"reaches the limit, at {ASSUMED['bandwidth']:.0%} of the bandwidth and {1000 * launch:g} ms a token at least"
        )
    if trl_version() is None:
        lines.append("TRL is not installed here; 1.15 or later is assumed")
    return ["", "Assumed, not measured", *(f"  {line}" for line in lines)]


def _misfits(load: Load, shapes: Shapes, gpu: str) -> Iterator[str]:
    device = DEVICES[gpu]
    parts = estimate.memory(load, shapes, device)
    peak = estimate.total(parts)
    if peak > device.memory:
        yield (
            f"does not fit: {peak:.0f} GiB of {device.memory:g}; largest are "
            f"{', '.join(sorted(parts, key=lambda name: -parts[name])[:3])}. Lower engine.args.per_device_train_batch_size, "
            "train adapters (engine.lora) on bfloat16 weights, or shard the model by accelerate's FSDP or DeepSpeed"
        )
    room, wanted = load.vllm_share * device.memory, 2 * shapes.parameters / estimate.GIB
    if room and room < wanted + 1:
        yield f"vLLM: {room:.1f} GiB do not hold {wanted:.1f} GiB of weights; raise engine.args.vllm_gpu_memory_utilization"
    if load.adapters and load.weight_bytes == 4:
        yield "float32 weights under adapters: they are frozen, so engine.dtype: bfloat16 halves them and loses nothing"
    if shapes.positions is not None and load.longest > shapes.positions:
        yield f"rows of {load.longest:,} tokens (prompt included), but the model's config.json allows {shapes.positions:,}"


def _advice(config: TrainConfig, shapes: Shapes) -> Iterator[str]:
    if shapes_of(config.model) is None:
        yield f"model {config.model} is not here; the sizes are those of base_model = {config.base_model}"
    if config.engine.args.get("use_vllm"):
        if find_spec("vllm") is None:
            yield "vLLM is not installed here: this recipe runs where it is, or with engine.args.use_vllm false"
        if "vllm_importance_sampling_mode" not in config.engine.args:
            yield "vLLM: TRL weighs each token by a ratio of two samplers; which form, says vllm_importance_sampling_mode"


def _warned(warnings: list[str]) -> list[str]:
    return ["", "Warnings", *(f"  {line}" for line in warnings)] if warnings else []


# ---- data


def data_lines(data: DataConfig | None) -> list[str]:
    """Where the rows come from and what is known of their columns without network; `DataError` for one that is missing."""
    if data is None:
        return ["generated by the recipe's world"]
    rows = _local(data)
    if rows is None:
        named = "" if data.revision else "; no revision is given, so its newest state is taken"
        return [f"{data.path}{f', {data.subset}' if data.subset else ''}: columns not checked: on the Hub{named}"]
    from sage_rlvr.training.trl.data import ANSWERS, PROBLEMS, PROMPTS, SOLUTIONS

    columns = rows.columns()
    for role, usual in (("problem", PROBLEMS + PROMPTS), ("answer", ANSWERS + SOLUTIONS)):
        wanted = getattr(data, f"{role}_column")
        if not {wanted or name for name in usual} & set(columns):
            raise DataError(
                f"{data.path}: no column {wanted or ' or '.join(usual)} (its columns: {', '.join(columns)}); set "
                f"data.{role}_column"
            )
    return [f"{data.path}: {len(rows.rows):,} rows, columns {', '.join(columns)}"]


def _local(data: DataConfig) -> Rows | None:
    """The rows of a file or folder here, None for a Hub id; ConfigError for a path that is neither."""
    from sage_rlvr.training.trl.rows import SUFFIXES, read

    hub = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", data.path) and not data.path.endswith(SUFFIXES)
    return read(data) if Path(data.path).expanduser().exists() or not hub else None


def _count(data: DataConfig) -> int | None:
    """Rows that a run takes from a local file; None for a Hub id."""
    rows = _local(data)
    return None if rows is None else len(rows.rows)
