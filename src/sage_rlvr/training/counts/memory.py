"""Memory of the machine that trains: free memory, memory of this process, and the peak of a step."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from sage_rlvr.config import TrainConfig
from sage_rlvr.models.devices import device_of
from sage_rlvr.training.loop_state import TrainState


def reset_peak(loop: TrainState) -> None:
    """Start a new peak measurement, if the system can."""
    if next(loop.policy.parameters()).device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(loop: TrainState) -> int | None:
    """Return the peak in bytes since then; None if the system does not report it."""
    if next(loop.policy.parameters()).device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return _bytes_in("/proc/self/status", "VmHWM")


def unused_memory(config: TrainConfig) -> int | None:
    """Return the bytes that this process can still allocate on the training device; None if the system does not report it."""
    if device_of(config.engine.device).type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    free, own = _bytes_in("/proc/meminfo", "MemAvailable"), _bytes_in("/proc/self/status", "VmRSS")
    if free is None or own is None:
        return None
    with suppress(OSError, ValueError):  # the limit of a container
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()) - own)
    return free


def free_memory(config: TrainConfig) -> int | None:
    """Return the bytes that a run can have: unused ones, and those of this process; None if the system does not report it."""
    unused = unused_memory(config)
    on_gpu = device_of(config.engine.device).type == "cuda"
    own = torch.cuda.memory_allocated() if on_gpu else _bytes_in("/proc/self/status", "VmRSS")
    return None if unused is None or own is None else unused + own


def _bytes_in(file: str, name: str) -> int | None:
    """Return a field, given in kilobytes, of a kernel file; None if it does not exist."""
    with suppress(OSError, ValueError):
        for row in Path(file).read_text().splitlines():
            if row.startswith(f"{name}:"):
                return 1024 * int(row.split()[1])
    return None
