"""Validate a policy folder before loading: safetensors only, readable small files, all tensors present.

transformers would unpickle `pytorch_model.bin`, follow an index out of the folder, and draw tensors that are missing at random.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sage_rlvr.errors import ConfigError, SageError
from sage_rlvr.safe_io import MIB, opened, read_json

ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
INDEX = "model.safetensors.index.json"
PARSED = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", ADAPTER)
SMALL = 512 * MIB  # bytes of a vocabulary or a chat template
FEW = 1024  # layers, blocks or experts that are built without a look at the weight files
AGAIN = "save the model again"
_COMPUTED = ("rotary_emb.inv_freq", ".masked_bias")  # of files of older libraries: buffers that a model computes itself


def check_files(folder: Path) -> None:
    """Raise ConfigError for files of a model or adapter folder that must not be loaded, each with its name.

    These are pickled weights, no weights, a tensor file outside the folder, and a small file that is missing, endless or not a JSON
    object.
    """
    for name in (*PARSED, INDEX):
        if (folder / name).exists():
            read_json(folder / name, error=ConfigError, advice=AGAIN, strict=False)
    for file in sorted(folder.glob("*")):
        if file.suffix != ".safetensors" and not file.is_dir():
            with opened(file, 1 << 60 if _is_pickled(file) else SMALL, ConfigError, f"move it out of {folder}"):
                pass
    whole = (folder / "config.json").exists()
    names = _named(folder) if whole else [ADAPTER_WEIGHTS]
    _check_weights(folder, names)
    if whole:
        _check_layers(folder, names)


def _check_layers(folder: Path, names: list[str]) -> None:
    """Raise ConfigError if config.json asks for more layers than there are tensors: transformers would build all before it looks.
    """
    config = read_json(folder / "config.json", error=ConfigError, advice=AGAIN, strict=False)
    large = {name: value for name, value in _counts(config) if value > FEW}
    tensors = sum(_tensors_in(folder / name) for name in names) if large else 0
    for name, value in large.items():
        if value > tensors:
            raise ConfigError(
                f"{folder / 'config.json'}: {name} = {value:,}, but the weight files hold {tensors:,} tensors; restore "
                f"the matching config.json, or {AGAIN}"
            )


def _counts(tree: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the numbers of layers, blocks and experts in a config.json, with their place in it."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, dict):
            yield from _counts(value, f"{path}{key}.")
        elif type(value) is int and key.endswith(("layer", "layers", "blocks", "experts")):
            yield f"{path}{key}", value


def _tensors_in(file: Path) -> int:
    """Return the number of tensors of a file, by its header; 0 if it has no readable one, which loading reports."""
    with open(file, "rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        try:
            return len(json.loads(stream.read(min(size, SMALL))))
        except (ValueError, RecursionError):
            return 0


def _is_pickled(file: Path) -> bool:
    return file.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")


def _named(folder: Path) -> list[str]:
    """Return the tensor files that transformers would open, as named by config.json and the index."""
    own = read_json(folder / "config.json", error=ConfigError, advice=AGAIN, strict=False).get("transformers_weights")
    if isinstance(own, str) and own.endswith(".safetensors"):
        return [own]
    if not (folder / INDEX).exists() or (folder / "model.safetensors").exists():
        return ["model.safetensors"]
    listed = read_json(folder / INDEX, error=ConfigError, advice=AGAIN, strict=False).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise ConfigError(f"{folder / INDEX}: weight_map does not name a file for each tensor; {AGAIN}")
    return sorted(set(listed.values()))


def _check_weights(folder: Path, names: list[str]) -> None:
    home = folder.resolve()
    homes = (home, home.parents[1] / "blobs") if home.parent.name == "snapshots" else (home,)  # the Hub's cache links to blobs
    for name in names:
        file = folder / name
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ConfigError(f"{folder}: names {name!r} as a file of tensors; only *.safetensors of the folder itself are read")
        if not file.is_file():
            pickled = sorted(one.name for one in folder.glob("*") if _is_pickled(one))
            why = f"; {pickled[0]} is a pickle, which can run code when it is read" if pickled else ""
            raise ConfigError(
                f"{folder}: no {name}{why}. Only safetensors are read: if you trust the files, convert them once with "
                "model.save_pretrained(FOLDER)"
            )
        if names != ["model.safetensors"] and names != [ADAPTER_WEIGHTS] and file.resolve().parent not in homes:
            raise ConfigError(f"{file}: links to {file.resolve()}, outside the folder; copy that file into the folder")


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Turn any exception of a library that loads others' files into a ConfigError that names `what`, while the block runs."""
    try:
        yield
    except SageError:
        raise
    except Exception as error:  # missing keys, wrong types, wrong shapes, torn tensors: libraries have no class for them
        message = str(error) if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{what} could not be loaded: {message}") from error


def whole(load: Callable[..., Any], source: str, *args: Any, **kwargs: Any) -> Any:
    """Return load(source, ...) from safetensors; raise ConfigError if tensors are missing, of another shape, or superfluous.

    transformers initializes missing ones at random and drops superfluous ones, as of layers beyond num_hidden_layers.

    load: `from_pretrained` of a model class, or a function that passes its keywords on to one.
    """
    with loading(f"model {source!r}"):
        model, info = load(source, *args, **kwargs, use_safetensors=True, output_loading_info=True)
    lacking = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if lacking:
        raise ConfigError(
            f"model {source!r}: the weight files lack the tensor {_several(lacking)}; {AGAIN}, with all its weights"
        )
    if left := sorted(name for name in map(str, info["unexpected_keys"]) if not name.endswith(_COMPUTED)):
        raise ConfigError(
            f"model {source!r}: config.json has no place for the tensor {_several(left)} of the weight files, so a "
            "different model from the saved one would run; restore the matching config.json (num_hidden_layers?), or "
            f"{AGAIN}"
        )
    return model


def check_adapter(folder: Path, model: Any) -> None:
    """Raise ConfigError if an adapter's file has a tensor that does not belong to the model with this adapter.

    PEFT would drop it.
    """
    from peft import get_peft_model_state_dict  # an extra
    from safetensors import safe_open  # of the extra train

    with loading(f"{folder / ADAPTER_WEIGHTS}"), safe_open(folder / ADAPTER_WEIGHTS, "pt") as file:
        names = set(file.keys())
    with loading(f"{folder}"):
        known = set(get_peft_model_state_dict(model))
    if left := sorted(names - known):
        raise ConfigError(
            f"{folder}: {ADAPTER} and its base have no place for the tensor {_several(left)} of {ADAPTER_WEIGHTS}, so "
            f"a different adapter from the saved one would run; restore the matching {ADAPTER}, or set the right base"
        )


def _several(names: list[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if names[1:] else names[0]
