"""Batch sources with memory: distinct right answers of prompts, and what trains on them."""

from sage_rlvr.core.buffers.answers import Answers, Bounds
from sage_rlvr.core.buffers.base import BUFFERS, Buffer, Rows, buffer_budget, buffer_loss
from sage_rlvr.core.buffers.likelihood import Likelihood
from sage_rlvr.core.buffers.rehearsal import Rehearsal
from sage_rlvr.core.buffers.replay import Replay

__all__ = [
    "BUFFERS", "Answers", "Bounds", "Buffer", "Likelihood", "Rehearsal", "Replay", "Rows", "buffer_budget", "buffer_loss",
]  # fmt: skip
