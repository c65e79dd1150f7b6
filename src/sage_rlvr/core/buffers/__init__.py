"""Replay buffers: stored distinct correct answers per prompt, and the losses that train on them.

Read base.py first (the protocol `Buffer`, a slot of `Method`), then answers.py (the stored answers as a value). The losses
are in sage_rlvr.contrib.replay: likelihood, forward KL, importance-weighted replay.
"""

from sage_rlvr.core.buffers.answers import Answers, Bounds
from sage_rlvr.core.buffers.base import BUFFERS, Buffer, StoredAnswers, buffer_budget, buffer_loss

__all__ = [
    "BUFFERS", "Answers", "Bounds", "Buffer", "StoredAnswers", "buffer_budget", "buffer_loss",
]  # fmt: skip
