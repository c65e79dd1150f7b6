"""The reference of a policy with adapters: the trained adapter disabled, or a frozen second adapter."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.errors import ConfigError, refuse

ADAPTER, TRAINED = "ref", "default"  # TRL's name of a reference among the adapters, PEFT's of the one that is trained
MOVES_WEIGHTS = ("pissa", "olora", "corda", "loftq", "lora_ga")  # init_lora_weights that rewrite what is below


def check_adapters(model: Any) -> None:
    """Raise ConfigError for adapters that TRL's second adapter, which it makes later, would break."""
    init = init_of(model.peft_config.get(TRAINED))
    refuse(
        (
            TRAINED not in model.peft_config,
            f"SageTrainer: the model's adapters are named {', '.join(model.peft_config)}, but TRL trains the adapter "
            f"named {TRAINED!r}; load the model without an adapter_name.",
        ),
        (
            init.startswith(MOVES_WEIGHTS),
            f"SageTrainer: init_lora_weights = {init!r} of the adapter {TRAINED!r}: TRL creates a second adapter from "
            "that config, whose initialization would overwrite the weights below both; the field is only read at "
            f"initialization, so set model.peft_config[{TRAINED!r}].init_lora_weights = True first.",
        ),
    )


def init_of(config: Any) -> str:
    """Return `init_lora_weights` of a LoRA config in lower case; "true" if it is not set."""
    return str(getattr(config, "init_lora_weights", True)).lower()


def check_trained(model: Any) -> None:
    """ConfigError that names the first parameter which is trained and is not of the adapter."""
    other = [name for name, value in model.named_parameters() if value.requires_grad and not is_of(TRAINED, name)]
    if other:
        raise ConfigError(
            f"SageTrainer: {other[0]}{f' and {len(other) - 1} more' if other[1:] else ''} is trained in addition to "
            "the adapter, so a reference that shares the base weights would change with the policy; freeze it "
            "(bias='none'; modules_to_save for whole modules), or train without an adapter."
        )


def is_of(adapter: str, name: str) -> bool:
    """Return True if the parameter of this dotted name belongs to the adapter."""
    return adapter in name.split(".")


def drop(model: Any) -> None:
    """Without an adapter of that name TRL takes the one that is trained away."""
    if ADAPTER in model.peft_config:
        model.delete_adapter(ADAPTER)


def values_of(model: Any, adapter: str = "") -> dict[str, Tensor]:
    """Parameters and buffers by name, of an adapter only where one is named."""
    values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: value for name, value in values.items() if not adapter or is_of(adapter, name)}


def starts_at_zero(model: Any) -> bool:
    """Return True if the trained adapter certainly adds nothing: LoRA without DoRA whose last factor is 0."""
    config = model.peft_config[TRAINED]
    if config.peft_type.value != "LORA" or getattr(config, "use_dora", False):
        return False
    trained = values_of(model, TRAINED).items()
    last = [value for name, value in trained if is_of("lora_B", name) or is_of("lora_embedding_A", name)]
    return bool(last) and not any(bool(value.any()) for value in last)


@torch.no_grad()
def copy_adapter(model: Any) -> None:
    """Make the adapter "ref" a copy of the trained one, and create it if necessary. Uses no random numbers."""
    if ADAPTER not in model.peft_config:
        config = copy.deepcopy(model.peft_config[TRAINED])
        if hasattr(config, "init_lora_weights"):
            config.init_lora_weights = False  # some initializations rewrite the weights below
        try:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                model.add_adapter(ADAPTER, config)
        except ValueError as error:
            raise ConfigError(
                f"SageTrainer: a second adapter cannot be added: {error} Install peft>=0.20, or merge the adapter, "
                "save the model and pass that path to the trainer."
            ) from error
    values = values_of(model)
    for name, value in values.items():
        parts = name.split(".")
        twin = values.get(".".join(ADAPTER if part == TRAINED else part for part in parts)) if TRAINED in parts else None
        if twin is not None:
            twin.data = value.detach().clone()
        elif value.requires_grad:
            raise ConfigError(f"SageTrainer: {name} cannot be copied into a second adapter; use source='base' or a path.")
