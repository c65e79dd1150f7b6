"""The processes of a launch: how many they are, and how each of them leaves."""

from __future__ import annotations

import gc
import os

import torch.distributed as dist


def world_size() -> int:
    """Ranks of this launch: 1, or what torchrun and accelerate say."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leave_gloo() -> None:
    """Destroy a process group of gloo (CPU ranks), if there is one; registered with `atexit` by the trainer.

    Neither TRL nor PyTorch does, and gloo's threads then drop their last tensors while the interpreter goes down: now and
    then a finished training ends by SIGABRT, "terminate called without an active exception" (pytorch #190489). NCCL's
    groups are left alone, since destroying one waits for the other ranks, which may be the ones that failed.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()
        gc.collect()  # a trainer's model holds the group in a cycle, and only the end of its last holder joins the threads
