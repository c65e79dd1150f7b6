"""Location of a policy (a name of `NAMED`, a folder, a LoRA adapter on its base, or a Hub id) and its config.json. No torch."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.smollm2_names import LONG_NAMES
from sage_rlvr.models.weights import ADAPTER
from sage_rlvr.safe_io import read_json

EMBEDDED = "embedded"
NAMED = (EMBEDDED, *LONG_NAMES)


def _smollm2() -> ModuleType:
    """The module that converts SmolLM2, imported when a recipe names such a model."""
    from sage_rlvr.models import smollm2

    return smollm2


def embedded_policy() -> Path:
    """Return the folder of the shipped Countdown base policy (config.json, model.safetensors, tokenizer)."""
    return Path(str(resources.files("sage_rlvr") / "assets" / "countdown_base"))


def folder_of(model: str) -> Path:
    """The folder that a name in a recipe would be; of a Hub id, or of a model that is not converted yet, one that is not there."""
    if model in LONG_NAMES:
        return Path(_smollm2().folder(model))
    return embedded_policy() if model == EMBEDDED else Path(model).expanduser()


def prepared(model: str) -> Path:
    """`folder_of` a model that is about to be read; SmolLM2 is converted first if need be. ConfigError if it cannot be."""
    return Path(_smollm2().prepare(model)) if model in LONG_NAMES else folder_of(model)


def source_of(model: str) -> str:
    """Return the place for other libraries to load a model from: the folder of a name of `NAMED`, else the folder or Hub id."""
    return str(prepared(model)) if model in NAMED else model


def long_name(model: str) -> str:
    """A model's name for headings of results, with what was done to its weights."""
    return LONG_NAMES.get(model, model)


def adapter_base(folder: Path) -> str | None:
    """Return the base of a LoRA adapter: a folder, a Hub id or "embedded"; None if the folder contains a complete model.

    Raise ConfigError if it contains both: libraries differ in which of them they load, and PEFT's way leads out of the folder.
    """
    whole, adapter = (folder / "config.json").exists(), (folder / ADAPTER).is_file()
    if whole and adapter:
        raise ConfigError(
            f"{folder}: contains a whole model (config.json) and an adapter ({ADAPTER}), which is ambiguous; move one "
            "of them to a separate folder"
        )
    if not adapter:
        return None
    base = _read(folder / ADAPTER, "adapter").get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"{folder / ADAPTER}: base_model_name_or_path is {base!r}; set it to the model that the adapter was "
            "trained on"
        )
    return base


def config_folder(model: str) -> Path | None:
    """Return the folder with a model's config.json (for an adapter, its base's); None without one.

    For a Hub id, it is in the local cache.
    """
    folder = folder_of(model)
    if (folder / "config.json").is_file():
        return folder
    if model in LONG_NAMES:  # not converted yet, but its sizes are known
        return Path(_smollm2().assets())
    base = adapter_base(folder)
    if base is not None:
        return None if base == model else config_folder(base)
    return cached_folder(model)


def cached_folder(model: str) -> Path | None:
    """Return the folder of a Hub id's newest config.json in the local cache, named by its commit; None if it has none."""
    from huggingface_hub import try_to_load_from_cache  # of the extra train

    try:
        file = try_to_load_from_cache(model, "config.json") if model.count("/") == 1 else None
    except ValueError:  # no id of the Hub
        return None
    return Path(file).parent if isinstance(file, str) else None


def vocabulary_of(model: str) -> int | None:
    """Return the number of logits of a model, from a local config.json; None if there is none, or it does not give it."""
    folder = config_folder(model)
    config = {} if folder is None else _read(folder / "config.json", "model")
    size = config.get("vocab_size", (config.get("text_config") or {}).get("vocab_size"))
    return size if isinstance(size, int) else None


def _read(file: Path, what: str) -> dict[str, Any]:
    return dict(read_json(file, error=ConfigError, advice=f"save the {what} again", strict=False))


def has_weights(model: str) -> bool:
    """Whether a model's weights are on this machine, or can be converted from what is installed."""
    if model in LONG_NAMES:
        smollm2 = _smollm2()
        return bool(smollm2.is_whole(smollm2.folder(model)) or smollm2.find_spec(smollm2.PACKAGE) is not None)
    where = config_folder(model)
    return where is not None and any(next(where.glob(pattern), None) for pattern in ("*.safetensors", "*.bin"))
