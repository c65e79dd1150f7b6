"""Memory of the machine that trains: what is free, what this process holds, and the peak of a step."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from sage_rlvr.config import TrainConfig
from sage_rlvr.models.devices import device_of
from sage_rlvr.training.loop_state import Loop


def reset_peak(loop: Loop) -> None:
    """Begin a new peak, where the system can."""
    if next(loop.policy.parameters()).device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(loop: Loop) -> int | None:
    """Bytes at the peak since then; None where the system does not say."""
    if next(loop.policy.parameters()).device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return _bytes_in("/proc/self/status", "VmHWM")


def unused_memory(config: TrainConfig) -> int | None:
    """Bytes that this process can still have where the recipe trains; None where the system does not say."""
    if device_of(config.engine.device).type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    free, own = _bytes_in("/proc/meminfo", "MemAvailable"), _bytes_in("/proc/self/status", "VmRSS")
    if free is None or own is None:
        return None
    with suppress(OSError, ValueError):  # the limit of a container
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()) - own)
    return free


def free_memory(config: TrainConfig) -> int | None:
    """Bytes that a run can have: what is unused, and what this process holds; None where the system does not say."""
    unused = unused_memory(config)
    on_gpu = device_of(config.engine.device).type == "cuda"
    own = torch.cuda.memory_allocated() if on_gpu else _bytes_in("/proc/self/status", "VmRSS")
    return None if unused is None or own is None else unused + own


def _bytes_in(file: str, name: str) -> int | None:
    """A field in kilobytes of a file of the kernel; None where it is not there."""
    with suppress(OSError, ValueError):
        for row in Path(file).read_text().splitlines():
            if row.startswith(f"{name}:"):
                return 1024 * int(row.split()[1])
    return None
