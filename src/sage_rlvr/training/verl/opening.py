"""The lines that a run on verl prints: `sage_rlvr.training.opening` for a recipe and for verl's own command. Works without verl.

The weights are loaded by verl's workers, so the number of parameters is counted from config.json, if it is on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sage_rlvr.config import LoraConfig, TrainConfig
from sage_rlvr.models.folders import config_folder, source_of
from sage_rlvr.tasks.chat import render
from sage_rlvr.training.counts.dry_run import parameters
from sage_rlvr.training.engines import other_sampling, sampling_warning
from sage_rlvr.training.opening import Setting, announce, decoded, of_optimizer
from sage_rlvr.training.verl.arguments import CHAT, MODEL, OPTIMIZER, bare_arguments


def setting_of_recipe(config: TrainConfig) -> Setting:
    """The setting of a recipe's run."""
    given = bare_arguments(config)
    workers = int(given.get("trainer.n_gpus_per_node", 8)) * int(given.get("trainer.nnodes", 1))
    cut = sampling_warning(other_sampling("verl", given.get))
    return _setting(source_of(config.model), config.engine.lora, workers, sampling=cut, **of_optimizer(config.optimizer))


def open_training(trainer: Any, read: Callable[[str], Any]) -> None:
    """Print the opening of one of verl's trainers, whose tokenizer and rows are loaded, after its objective.

    read: a key of verl's configuration.
    """
    rank = int(read(f"{MODEL}.lora_rank") or 0)
    wanted = read(f"{MODEL}.target_modules") or "all-linear"
    targets = wanted if isinstance(wanted, str) else tuple(wanted)
    lora = LoraConfig(rank=rank, target_modules=targets) if rank else None  # type: ignore[arg-type]
    workers = int(read("trainer.n_gpus_per_node") or 1) * int(read("trainer.nnodes") or 1)
    rate, schedule = float(read(f"{OPTIMIZER}.lr") or 0.0), str(read(f"{OPTIMIZER}.lr_scheduler_type") or "constant")
    cut = sampling_warning(other_sampling("verl", read))
    more = {"lr": rate, "schedule": schedule, "lr_by": f"{OPTIMIZER}.lr", "sampling": cut}
    setting = _setting(str(read(f"{MODEL}.path")), lora, workers, **more)
    prompt = first_prompt(trainer.tokenizer, trainer.train_dataset[0]["raw_prompt"], read(CHAT) or {})
    announce(note, setting, prompt=prompt, begin=trainer.global_steps - 1, tell=_note_warning)


def first_prompt(tokenizer: Any, messages: Any, options: Mapping[str, Any]) -> str:
    """A row of verl as its agent loop tokenizes it: only by the chat template."""
    text = render(tokenizer, list(messages), opened=True, options=options)
    return decoded(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])


def note(line: str) -> None:
    """A line of verl's own output."""
    print(f"sage: {line}", flush=True)


def _note_warning(kind: str, step: int, message: str) -> None:
    note(f"warning: {message}")


def _setting(model: str, lora: LoraConfig | None, workers: int, **more: Any) -> Setting:
    where = config_folder(model)
    total, adapters = (None, None) if where is None else parameters(where, lora)
    several = "1 worker of verl" if workers == 1 else f"{workers} workers of verl"
    trained = adapters if lora is not None else total
    return Setting(parameters=total, trained=trained, dtype="float32 weights", device=several, **more)


__all__ = ["first_prompt", "note", "open_training", "setting_of_recipe"]
