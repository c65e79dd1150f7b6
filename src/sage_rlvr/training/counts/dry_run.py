"""`--dry-run`: the work of a recipe as text: trainer arguments, data and counts.

Counts only: steps, completions, tokens, forward passes, bytes per kind of tensor. Run time and device overhead are not
estimated. No weights and no network; TRL need not be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from sage_rlvr.config import DataConfig, FinetuneConfig, LoraConfig, OfflineConfig, SftConfig, TrainConfig, task_of
from sage_rlvr.core.rollout_plans import is_staged
from sage_rlvr.models.devices import dtype_of
from sage_rlvr.models.folders import adapter_base, config_folder, folder_of
from sage_rlvr.models.weights import ADAPTER_WEIGHTS, loading
from sage_rlvr.paths import looks_local
from sage_rlvr.tasks.datasets import examples
from sage_rlvr.tasks.rows import DataSource, read
from sage_rlvr.training.reference import stays_first
from sage_rlvr.training.trl.arguments import (
    check_fields,
    grpo_arguments,
    reads_whole_batch,
    rows_of_rank,
    scores_rollouts,
    world_size,
)
from sage_rlvr.training.trl.batch import reads_logps
from sage_rlvr.training.verl.arguments import command, verl_words
from sage_rlvr.training.verl.arguments import notes as verl_notes
from sage_rlvr.training.verl.problems import ECHO

GIB = 1 << 30
TITLES = ("GRPOConfig", "Command", "Data", "Work", "Notes")  # of blocks that are left out where they have no line


def dry_run_lines(config: TrainConfig | FinetuneConfig | SftConfig | OfflineConfig, run: Path = Path("<run>")) -> list[str]:
    """Return the lines of a dry run below the recipe itself. run: the run directory.

    Raise ConfigError for arguments that TRL or the recipe rejects, and for a local file without a column that the recipe names.
    """
    fields: dict[str, Any] = {}
    if isinstance(config, SftConfig):
        blocks: dict[str, Any] = {"Work": [f"{config.steps:,} optimizer steps of {config.batch_size:,} examples"]}
    elif isinstance(config, OfflineConfig):
        what = "completions" if config.loss == "sft" else "pairs"
        blocks = {"Work": [f"{config.steps:,} optimizer steps of {config.batch_size:,} {what}"]}
    elif isinstance(config, FinetuneConfig):
        rows_of_rank(config.batch_size, world_size())
        small = "8bit" in config.engine.args.get("optim", "adamw_8bit")
        blocks = {"Data": data_lines(config.data), "Work": finetune_work(config), **_bytes(config, small)}
    else:
        if config.engine.name == "trl":
            fields = grpo_arguments(config, str(run / "trl"), world_size())
        if fields and config.engine.args and find_spec("trl") is not None:
            from trl import GRPOConfig  # of the trl extra

            check_fields(GRPOConfig, config.engine.args)
        if config.engine.name == "verl":
            words = verl_words(config, run / "verl", template=_template(config), longest="LONGEST")
            blocks = {"Command": command(words).split("\n"), "Work": work(config, {}), **_bytes(config, False)}
            return _laid_out(blocks | {"Notes": [*notes(config), *verl_notes(config)]})
        blocks = {
            "GRPOConfig": [f"{name} = {value!r}" for name, value in fields.items() if name != "output_dir"],
            "Data": data_lines(config.data) if fields else [],
            "Work": work(config, fields),
            **_bytes(config, "8bit" in str(fields.get("optim"))),
            "Notes": notes(config),
        }
    return _laid_out(blocks)


def _laid_out(blocks: dict[str, Any]) -> list[str]:
    listed = {title: [f"  {line}" for line in lines] for title, lines in blocks.items()}
    return [line for title, lines in listed.items() if lines or title not in TITLES for line in ("", title, *lines)][1:]


# ---- counts


def _template(config: TrainConfig) -> str | None:
    """Return the chat template given to verl, as far as the recipe shows it: tasks with their own form use messages."""
    return None if task_of(config).form is not None else ECHO


def scorers(config: TrainConfig, fields: dict[str, Any]) -> list[str]:
    """Return the models that score every rollout of an RL recipe without gradient.

    The policy does on verl, and elsewhere if its weights change before the engine has finished with a rollout. fields: of the
    recipe's GRPOConfig, empty on the loop and on verl.
    """
    once = config.updates.once
    moved = config.engine.name == "verl" or not once
    if fields:
        whole = reads_whole_batch(config.method.anchor, fields["steps_per_generation"])
        moved = scores_rollouts(fields, reads_logps(config.method) or whole)
    scored = {"the policy": moved, "the reference": config.reference is not None}
    return [who for who, needed in scored.items() if needed]


def work(config: TrainConfig, fields: dict[str, Any]) -> Iterator[str]:
    """Yield lines on steps, completions, tokens and forward passes of an RL recipe; fields: as for `scorers`."""
    rollout, epochs, buffer = config.rollout, config.updates.epochs, config.method.buffer
    yield from buffer_work(config)
    if buffer is not None and buffer.alone and not buffer.policy:
        return
    completions, limit = config.steps * rollout.completions, rollout.max_new_tokens
    prompts = config.steps * rollout.prompts_per_step
    updates = config.steps * config.updates.per_step
    yield f"{config.steps:,} rollouts of {rollout.completions:,} completions, {updates:,} optimizer steps"
    yield f"{prompts:,} prompts{_passes(config, prompts)}, {completions:,} completions"
    yield f"{completions * limit:,} generated tokens at most ({limit:,} per completion)"
    others = scorers(config, fields)
    forwards = [f"{epochs * completions:,} with gradient", *(f"{completions:,} without, by {who}" for who in others)]
    yield f"forward passes over completions: {', '.join(forwards)}"
    total = (epochs + len(others)) * completions * limit
    yield f"{total:,} completion tokens at most in these passes, without prompts"
    yield from source_work(config, prompts, completions)
    if refills := 0 if config.method.rollout is None else config.method.rollout.max_refills:
        yield f"dynamic sampling: between 1 and {refills + 1} times those prompts and generated tokens"
    if is_staged(plan := config.method.rollout):
        times = f"{plan.max_completions / rollout.group_size:.3g}"
        yield f"a second stage: between 1 and {times} times those completions, generated tokens and passes"


def source_work(config: TrainConfig, prompts: int, completions: int) -> Iterator[str]:
    """Yield lines on the passes of a reward source, none of them with gradient; nothing if a verifier rewards."""
    source = config.method.reward_source
    if source is None:
        return
    whose = {"initial": "the initial weights of the run", "current": "the policy"}.get(source.baseline)
    yield f"the reward, without gradient: {completions:,} completions by the policy with the reference answer inserted"
    if whose is not None:
        yield f"and {prompts:,} references directly after their prompts by {whose} (more if their spelling varies)"


def buffer_work(config: TrainConfig) -> Iterator[str]:
    """Yield lines on the samples of the answer buffer before step 0, and the number of stored answers per update."""
    buffer, rollout = config.method.buffer, config.rollout
    if buffer is None:
        return
    if buffer.base:
        of = "each training problem" if buffer.base_prompts is None else f"{buffer.base_prompts:,} training problems"
        yield f"before step 0: {buffer.base:,} completions of {of} by the base, at most {rollout.max_new_tokens:,} tokens each"
    updates = config.steps * config.updates.per_step
    most = buffer.prompts * min(buffer.answers, buffer.take or buffer.answers)
    yield f"{updates:,} optimizer steps on at most {most:,} stored answers of {buffer.prompts:,} prompts each"


def finetune_work(config: FinetuneConfig) -> Iterator[str]:
    """Yield lines on rows and steps of fine-tuning, if its rows are in a local file."""
    rows = _count(config.data)
    if rows is None:
        yield f"{config.epochs} epochs over rows that are not on this machine, {config.batch_size} per optimizer step"
    else:
        steps = -(-config.epochs * rows // config.batch_size)
        yield f"at most {config.epochs} x {rows:,} rows, {steps:,} optimizer steps"
    yield f"rows whose prompt is longer than {config.max_length // 2:,} tokens will be dropped (not counted yet)"


def _passes(config: TrainConfig, prompts: int) -> str:
    rows = None if config.data is None else _count(config.data) or config.data.take
    return "" if rows is None else f" ({prompts / rows:.2g} passes over {rows:,} rows)"


# ---- bytes


def _bytes(config: TrainConfig | FinetuneConfig, eight_bit: bool) -> dict[str, list[str]]:
    """Return a title and bytes by kind of tensor; if the model's config.json is not here, a line on that."""
    where = config_folder(config.model) or config_folder((isinstance(config, TrainConfig) and config.base_model) or config.model)
    if where is None:
        uncounted = f"model {config.model}: config.json is neither a local file nor in the Hub cache, so bytes are not counted"
        return {uncounted: []}
    parts = tensor_bytes(config, where, eight_bit)
    title = "Tensors per process, without activations, logits and the KV cache"
    return {title: [f"{value / GIB:10.3f} GiB  {name}" for name, value in parts.items()]}


def tensor_bytes(config: TrainConfig | FinetuneConfig, where: Path, eight_bit: bool) -> dict[str, int]:
    """Return bytes of parameters, adapters, reference, first weights, copies, gradients and AdamW's two moments, per process.

    Each process has a complete copy. Trained tensors and their gradients are float32; moments of an 8-bit optimizer are one byte
    each, otherwise four. where: the folder of the model's config.json.
    """
    lora = config.engine.lora
    total, adapters = parameters(where, lora)
    if lora is None and config.engine.name == "trl" and adapter_base(folder_of(config.model)) is not None:
        adapters = _saved(folder_of(config.model) / ADAPTER_WEIGHTS)
    width = 2 if dtype_of(config.engine) == "bfloat16" else 4
    trained = adapters or total
    parts = {
        "parameters": total * width,
        "adapters": 4 * adapters,
        "reference": total * width if isinstance(config, TrainConfig) and second_model(config, bool(adapters)) else 0,
        "initial weights": total * width if isinstance(config, TrainConfig) and keeps_initial(config) else 0,
        "float32 copies": 4 * trained if width == 2 and config.engine.name == "loop" else 0,
        "gradients": 4 * trained,
        "optimizer state": (2 if eight_bit else 8) * trained,
    }
    return {name: value for name, value in parts.items() if value}


def parameters(where: Path, lora: LoraConfig | None) -> tuple[int, int]:
    """Return the sizes of a model and of new adapters on it, counted on a model without memory; tied weights once."""
    with loading(f"{where / 'config.json'}"), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(where))
    total = sum(value.numel() for value in model.parameters())
    if lora is None:
        return total, 0
    head, wanted = model.get_output_embeddings(), lora.target_modules
    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    chosen = [
        part for name, part in linear if (part is not head if wanted == "all-linear" else name.split(".")[-1] in wanted)
    ]
    return total, sum(lora.rank * (part.in_features + part.out_features) for part in chosen)


def _saved(file: Path) -> int:
    return sum(value.numel() for value in load_file(file).values()) if file.is_file() else 0


def second_model(config: TrainConfig, adapters: bool) -> bool:
    """Return True if the reference is a second model in memory, and not the policy with its adapters off."""
    if config.reference is None:
        return False
    if config.engine.name == "loop" or not adapters:
        return True
    whole = (Path(config.model) / "config.json").is_file()  # a whole model, and no adapter on base_model
    return config.reference != config.model and (config.reference != config.base_model or whole)


def keeps_initial(config: TrainConfig) -> bool:
    """Return True if a reward source needs the initial weights in memory and they are not those of the reference."""
    source = config.method.reward_source
    if source is None or source.baseline != "initial":
        return False
    return config.engine.name != "loop" or not stays_first(config)


# ---- notes


def notes(config: TrainConfig) -> Iterator[str]:
    """Yield notes on settings that are probably not intended, as far as the recipe shows them."""
    args, lora = config.engine.args, config.engine.lora
    if lora is not None and config.engine.dtype == "float32":
        yield "float32 base weights under adapters: they are frozen, so engine.dtype: bfloat16 halves their memory without loss"
    if args.get("use_vllm") and find_spec("vllm") is None:
        yield "vLLM is not installed: install it to run this recipe, or set engine.args.use_vllm to false"
    if args.get("use_vllm") and "vllm_importance_sampling_mode" not in args:
        yield "vLLM: TRL weights each token by an importance ratio of the two samplers (see vllm_importance_sampling_mode)"
    where = config_folder(config.model)
    positions = None if where is None else _positions(where)
    if positions is not None and config.rollout.max_new_tokens >= positions:
        yield (
            f"rollout.max_new_tokens = {config.rollout.max_new_tokens:,} leaves no room for a prompt: the model's config.json "
            f"allows {positions:,} positions"
        )


def _positions(where: Path) -> int | None:
    with loading(f"{where / 'config.json'}"):
        positions = getattr(AutoConfig.from_pretrained(where), "max_position_embeddings", None)
    return positions if isinstance(positions, int) else None


# ---- data


def data_lines(data: DataConfig | None) -> list[str]:
    """Return the source of the rows and the columns known without network, as `tasks.datasets.examples` reads them."""
    if data is None:
        return ["generated by the recipe's task"]
    data_set = None if _elsewhere(data) else examples(DataSource.of(data), prompts_first=data.prompt == "as_is")
    if data_set is None:
        named = "" if data.revision else "; no revision is set, so the newest one is used"
        return [f"{data.path}{f', {data.subset}' if data.subset else ''}: columns not checked: on the Hub{named}"]
    return [f"{data_set}; columns {', '.join(data_set.rows.columns())}"]


def _elsewhere(data: DataConfig) -> bool:
    """Return True if the rows are on the Hub, which a dry run does not ask."""
    return not (looks_local(data.path) or Path(data.path).expanduser().exists())


def _count(data: DataConfig) -> int | None:
    """Return the number of rows that a run uses from a local file; None for a Hub id."""
    return None if _elsewhere(data) else len(read(DataSource.of(data)).rows)
