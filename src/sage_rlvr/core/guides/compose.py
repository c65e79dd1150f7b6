"""Guides made of guides: the product of several, and the placebo that keeps q's values and destroys their places."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from sage_rlvr.core.guides.base import DependsOn, Guide, Mask, Multiplies, PerToken, band_of, is_clamped
from sage_rlvr.core.guides.flat import Flat
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.errors import ConfigError

_STRENGTH: tuple[DependsOn, ...] = ("nothing", "state", "token", "batch")


def factors(guide: Guide) -> tuple[Guide, ...]:
    """The guides that a product multiplies, without those that are `Flat`; a guide that is no product is its own."""
    parts = guide.guides if isinstance(guide, Compose) else (guide,)
    return tuple(part for part in parts if not isinstance(part, Flat))


def is_flat(guide: Guide) -> bool:
    """True for `Flat` and for products of nothing but `Flat`."""
    return not factors(guide)


@torch.no_grad()
def clamped(guide: Guide, signals: Signals, step: int, total_steps: int, key: Key) -> Mask:
    """Counted tokens where the q of some factor stands at an edge of that factor's own band, (B, T) bool.

    The product alone does not tell: two factors inside their bands can have the q of one at its edge.
    """
    pairs = Compose((guide,)).each(signals, step, total_steps, key)
    edges = [is_clamped(part, log_q) for part, log_q in pairs]
    return torch.stack([torch.zeros_like(signals.mask), *edges]).any(dim=0) & signals.mask


@dataclass(frozen=True)
class Compose(Multiplies):
    """q = product of the guides' q: the sum of their log q, each inside its own band.

    Two guides of one kind draw independent noise. The empty product is `Flat`.
    """

    name: ClassVar[str] = "compose"
    guides: tuple[Guide, ...]

    def __post_init__(self) -> None:
        parts: list[Guide] = []
        for guide in self.guides:
            if not isinstance(guide, Guide):
                raise ConfigError(f"Compose: {guide!r} is not a guide; give guides, for example (Branch(), Token()).")
            parts.extend(guide.guides if isinstance(guide, Compose) else (guide,))
        object.__setattr__(self, "guides", tuple(parts))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(guide.needs for guide in self.guides))

    @property
    def depends_on(self) -> DependsOn:
        return max((guide.depends_on for guide in self.guides), key=_STRENGTH.index, default="nothing")

    @property
    def equation(self) -> str:
        return " * ".join(f"[{guide.equation}]" for guide in self.guides) or "1"

    @property
    def q_min(self) -> float:
        return math.prod(band_of(guide)[0] for guide in self.guides)

    @property
    def q_max(self) -> float:
        return math.prod(band_of(guide)[1] for guide in self.guides)

    def __call__(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        """log q, (B, T) float32."""
        parts = self.each(signals, step, total_steps, key)
        return sum((log_q for _, log_q in parts), torch.zeros_like(signals.old_logps))

    def each(self, signals: Signals, step: int, total_steps: int, key: Key) -> Iterator[tuple[Guide, PerToken]]:
        """(guide, its log q) for each factor, with the noise that it has in the product."""
        seen: Counter[type] = Counter()
        for guide in self.guides:
            copy = seen[type(guide)]
            seen[type(guide)] += 1
            yield guide, guide(signals, step, total_steps, key.fold(f"compose/{copy}") if copy else key)


@dataclass(frozen=True)
class Placebo(Multiplies):
    """The q of `guide`, permuted over the batch's counted tokens: the same strength, in places that mean nothing.

    The permutation is a function of the key, the step, the row ids and the positions, so that padding and the order
    of the rows do not matter. A control: what remains of a guide's effect here is strength or noise, not guidance.
    """

    name: ClassVar[str] = "placebo"
    depends_on: ClassVar[DependsOn] = "batch"
    guide: Guide

    def __post_init__(self) -> None:
        if not isinstance(self.guide, Guide):
            raise ConfigError(f"Placebo: {self.guide!r} is not a guide; give one, for example Placebo(Branch()).")

    @property
    def needs(self) -> frozenset[str]:
        return self.guide.needs

    @property
    def equation(self) -> str:
        return f"[{self.guide.equation}] permuted over the batch's counted tokens"

    @property
    def q_min(self) -> float:
        return band_of(self.guide)[0]

    @property
    def q_max(self) -> float:
        return band_of(self.guide)[1]

    @torch.no_grad()
    def __call__(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        """log q, (B, T) float32; the multiset of its counted values is that of `guide`."""
        log_q = self.guide(signals, step, total_steps, key)
        places = _canonical_places(signals)
        words = key.bits(step, "placebo/order", signals.row_ids, signals.positions).reshape(-1)[places]
        placed = torch.zeros_like(log_q).reshape(-1)
        placed[places[words.argsort(stable=True)]] = log_q.reshape(-1)[places]
        return placed.reshape(log_q.shape)


def _canonical_places(signals: Signals) -> Int[Tensor, " N"]:
    """Flat indices of the counted tokens, by row id and then by position: independent of padding and row order."""
    by_row = signals.row_ids.argsort()
    flat = torch.arange(signals.mask.numel(), device=signals.mask.device).reshape(signals.mask.shape)
    return flat[by_row][signals.mask[by_row]]
