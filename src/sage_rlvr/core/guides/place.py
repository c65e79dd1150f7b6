"""Place: q > 1 at the states of a class that the task names, or at the first tokens of an answer.

*Locked at the Entrance* (arXiv 2608.29188) reports that coverage is lost before the first operator of an answer; this guide
makes the KL term pull there, or at any other chosen place, and nowhere more.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch

from sage_rlvr.core.guides.base import GUIDES, Banded, DependsOn, PerToken
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.errors import ConfigError
from sage_rlvr.ids import name_id


@GUIDES.register(label="Place")
@dataclass(frozen=True)
class Place(Banded):
    """q_t = 1 + ratio at the states of some classes, or at the first tokens; 1 elsewhere. `outside` reverses this.

    Either `classes` or `first` is set. The class of a state is what the task returns for the text so far
    (`sage_rlvr.tasks.ClassifiesStates`), so q depends on the state only, and acts and cancels under the same KL terms as `Branch`.

    classes: names of the task's classes of states, for example ("first operator", "operator").
    first: number of tokens at the beginning of a completion; needs no task.
    ratio: increase of q at these places.
    outside: True sets q = 1 + ratio everywhere except at these places.
    """

    name: ClassVar[str] = "place"
    depends_on: ClassVar[DependsOn] = "state"
    classes: tuple[str, ...] = ()
    _: KW_ONLY
    first: int | None = None
    ratio: float = 0.3
    outside: bool = False
    q_min: float = 0.6
    q_max: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.classes, str):
            raise ConfigError(f"Place: classes = {self.classes!r} is one text; write a list: [{self.classes}]")
        if not self.classes and self.first is None:
            raise ConfigError("Place: classes is missing; name classes of states, or set first, the number of tokens")
        if self.classes and self.first is not None:
            raise ConfigError(f"Place: classes = {list(self.classes)} and first = {self.first}; set one of the two")
        if self.first is not None and self.first < 1:
            raise ConfigError(f"Place: first = {self.first}; set the number of tokens at the beginning of an answer, 1 or more")
        if not math.isfinite(self.ratio):
            raise ConfigError(f"Place: ratio = {self.ratio!r} is not finite; 0.3 is the default")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"places"} if self.classes else ())

    @property
    def equation(self) -> str:
        where = " or ".join(self.classes) if self.classes else f"t < {self.first}"
        return f"1 + {self.ratio:g} * [{'not ' if self.outside else ''}{f'({where})' if self.outside else where}]"

    def raw_q(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        """1 + ratio at the places, (B, T)."""
        if self.first is not None:
            inside = signals.positions < self.first
        else:
            wanted = torch.tensor([name_id(name) for name in self.classes], device=signals.mask.device)
            inside = torch.isin(signals.require("places", "Place"), wanted)
        return 1.0 + self.ratio * (inside != self.outside).float()
