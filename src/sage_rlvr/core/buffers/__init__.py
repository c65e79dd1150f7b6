"""Replay buffers: stored distinct correct answers per prompt, and the losses that train on them.

Read base.py first (the protocol `Buffer`, a slot of `Method`), then answers.py (the stored answers as a value).
likelihood.py, rehearsal.py and replay.py are the three losses: likelihood, forward KL, importance-weighted replay.
"""

from sage_rlvr.core.buffers.answers import Answers, Bounds
from sage_rlvr.core.buffers.base import BUFFERS, Buffer, StoredAnswers, buffer_budget, buffer_loss
from sage_rlvr.core.buffers.likelihood import Likelihood
from sage_rlvr.core.buffers.rehearsal import Rehearsal
from sage_rlvr.core.buffers.replay import Replay

__all__ = [
    "BUFFERS", "Answers", "Bounds", "Buffer", "Likelihood", "Rehearsal", "Replay", "StoredAnswers", "buffer_budget", "buffer_loss",
]  # fmt: skip
