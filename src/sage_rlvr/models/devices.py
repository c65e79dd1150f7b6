"""The device and dtype of the loop engine, and what stays in float32 in half precision.

Random numbers do not depend on the device. Uniform numbers, permutations and row ids are computed on the CPU from (seed, step,
name, row, position) and moved, as float64 except on Apple's MPS, which has none. Devices differ in the rounding of sums: a uniform
number that falls within it may select another token.

In bfloat16 the trained weights stay in float32: a change below 1/256 of a weight rounds to nothing, so the optimizer keeps copies
(`Optimizer`). Products, the head's too, are bfloat16 in the engine of Llama-shaped models (`models/llama`); logits between 16 and
32 are multiples of 1/8 then, which `sampler/logp_gap_mean` measures. On the stock path the head's product is float32, so that the
sampler and the scorer compute the same distribution (arXiv 2506.13585, section 3).
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.llama.decoder import onednn_has_bf16
from sage_rlvr.models.llama.net import adjacent
from sage_rlvr.models.lm_head import FloatHead

if TYPE_CHECKING:
    from sage_rlvr.config.parts import EngineConfig

OF_AUTO = ("cuda", "mps", "cpu")


def is_there(kind: str) -> bool:
    """Return True if this machine, with this torch, has such a device."""
    return {"cpu": lambda: True, "cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}[kind]()


def device_of(name: str | None) -> torch.device:
    """Return the device that `engine.device` names: cpu (None too), cuda, mps, or auto, the first of cuda, mps and cpu that exists.

    Raise ConfigError if it does not exist.
    """
    if name == "auto":
        return torch.device(next(kind for kind in OF_AUTO if is_there(kind)))
    if not is_there(kind := name or "cpu"):
        raise ConfigError(
            f"engine.device = {name!r}: torch {torch.__version__} finds no such device; install a torch build for it "
            "(and its driver), or set engine.device to cpu, or to auto for the best available device"
        )
    return torch.device(kind)


def multiplies_bfloat16() -> bool:
    """Return True if this CPU has instructions for bfloat16 products.

    Without them such a product is many times slower than in float32.
    """
    x86 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return x86 or (platform.machine() in ("aarch64", "arm64") and onednn_has_bf16())


def dtype_of(engine: EngineConfig) -> str:
    """Return the dtype that `engine.dtype` names, auto by `auto_dtype`."""
    return auto_dtype(device_of(engine.device).type) if engine.dtype == "auto" else engine.dtype


def auto_dtype(kind: str) -> str:
    """Return the dtype of "auto" on a device (cuda, mps or cpu), in training and in evaluation.

    It is bfloat16 on a GPU and on a CPU with instructions for it, else float32.
    """
    return "bfloat16" if kind != "cpu" or multiplies_bfloat16() else "float32"


def dtype_facts(engine: EngineConfig) -> dict[str, str]:
    """Return {"dtype": ...} if the recipe leaves it to the machine, for the record with which a resume is compared; else {}."""
    return {"dtype": dtype_of(engine)} if engine.dtype == "auto" else {}


def slow_bfloat16(model: nn.Module) -> str:
    """Return a warning for a model in bfloat16 on a CPU without instructions for it; "" for any other."""
    weight = next(model.parameters())
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu" or multiplies_bfloat16():
        return ""
    return (
        "engine.dtype = bfloat16: this CPU has no instructions for bfloat16 products, which are many times slower here than in "
        "float32; set engine.dtype to auto or float32"
    )


def faster_dtype(model: nn.Module, engine: EngineConfig) -> str:
    """Return the setting for training a large model in bfloat16, if this device multiplies faster in it than in float32.

    Otherwise return "".
    """
    large = sum(p.numel() for p in model.parameters()) > LARGE
    faster = auto_dtype(next(model.parameters()).device.type) == "bfloat16"
    return "engine.dtype: auto" if engine.dtype == "float32" and large and faster else ""


LARGE = 20_000_000
"""Parameters above which a policy counts as a large, pretrained one."""

LARGE_FILES = 50_000_000
"""Bytes of weight files above which a process keeps freed memory."""

_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2  # of glibc's mallopt


def keep_memory(weights: Path) -> None:
    """Make this process keep freed memory, and take large blocks in huge pages, if the weights in a folder are large.

    By default glibc returns each large block to the system, and a step asks for gigabytes of fresh pages that the kernel clears
    one by one. Results do not change. Nothing happens if the C library has no mallopt, or with a GPU, whose memory torch
    keeps anyway. Call it before the weights are loaded: torch reads its variable once.
    """
    size = sum(file.stat().st_size for file in weights.glob("*.safetensors")) if weights.is_dir() else LARGE_FILES
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if size < LARGE_FILES or mallopt is None or torch.cuda.is_available():
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, (1 << 31) - 1), (_TOP_PAD, 256 << 20)):
        mallopt(name, value)
    FreedMemory.is_kept = True


GROWTH = 1.4
"""Ratio of a process's resident memory to that after a step, above which freed memory is returned to the system."""


class FreedMemory:
    """Return of freed memory to the system once a training process has grown by `GROWTH`.

    A run makes one and calls it after each step. The tensors of two steps differ in size, so free blocks remain between live ones,
    and a process that keeps freed memory (`keep_memory`) grows with every step. After memory was returned the kernel clears pages
    again, which slows the next step; therefore it is not returned after every step.
    """

    is_kept: ClassVar[bool] = False
    """True if `keep_memory` has acted in this process."""

    def __init__(self) -> None:
        self.first: int | None = None
        """Resident bytes after the first step, and after the first step since memory was returned."""

    def after_step(self, resident: int | None = None) -> bool:
        """Return freed memory if necessary, after each step.

        True if it was returned. resident: bytes; by default those of this process.
        """
        now = resident_memory() if resident is None else resident
        if not self.is_kept or now is None:
            return False
        if self.first is None or now <= GROWTH * self.first:
            self.first = now if self.first is None else self.first
            return False
        ctypes.CDLL(None).malloc_trim(0)
        self.first = None
        return True


def resident_memory() -> int | None:
    """Return the bytes of this process in memory; None if the system does not report them."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def placed(model: PreTrainedModel, device: str | None) -> PreTrainedModel:
    """Return the model on the device, laid out for the engine (`adjacent`).

    The stock path's logits are float32 in half precision too.
    """
    if (where := device_of(device)).type != "cpu":
        model.to(where)  # type: ignore[arg-type]
    head = model.get_output_embeddings()
    if type(head) is nn.Linear and head.weight.dtype in (torch.bfloat16, torch.float16):
        wide = FloatHead(head.in_features, head.out_features, bias=False, device="meta")
        wide.weight, wide.bias = head.weight, head.bias  # the same parameters: a tied head stays tied
        model.set_output_embeddings(wide)
    return adjacent(model)
