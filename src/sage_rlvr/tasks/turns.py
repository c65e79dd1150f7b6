"""The policy's output on a problem: a completion, or its turns of an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Response = str | tuple[str, ...]
"""The policy's output: a completion, or its turns of an episode."""


@dataclass(frozen=True)
class Turn:
    """A turn of an episode. `Worked.examples` of a task with turns makes it; fine-tuning and the rendering of episodes read it.

    learned: whether fine-tuning trains on this turn of the policy; it never trains on a reply.
    """

    who: Literal["policy", "environment"]
    text: str
    learned: bool = True


__all__ = ["Response", "Turn"]
