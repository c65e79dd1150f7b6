"""Guides built from guides: products, and the placebo that permutes the values of q over tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.guides.base import (
    GUIDES,
    DependsOn,
    Guide,
    PerToken,
    band_of,
    is_clamped,
)
from sage_rlvr.core.guides.flat import Flat
from sage_rlvr.core.keys import Key, widest_float
from sage_rlvr.core.signals import Mask, Signals
from sage_rlvr.errors import ConfigError

Within = Literal["batch", "length", "row"]
_STRENGTH: tuple[DependsOn, ...] = ("nothing", "state", "token", "batch")
_SETS = {
    "batch": "the batch's counted tokens",
    "length": "the counted tokens of the batch's rows of one length",
    "row": "the counted tokens of each row",
}


def factors(guide: Guide) -> tuple[Guide, ...]:
    """Return the factors of a product without `Flat`; a guide that is not a product is its only factor."""
    parts = guide.guides if isinstance(guide, Compose) else (guide,)
    return tuple(part for part in parts if not isinstance(part, Flat))


def is_flat(guide: Guide) -> bool:
    """Return True for `Flat` and for products of `Flat` only."""
    return not factors(guide)


def check_reach(guide: Guide, logits: int) -> None:
    """Call `check_reach` of each factor with that vocabulary size."""
    for part in factors(guide):
        part.check_reach(logits)


@torch.no_grad()
def clamped(guide: Guide, signals: Signals, step: int, total_steps: int, key: Key, log_q: PerToken) -> Mask:
    """Return the counted tokens at which the q of some factor is at an edge of that factor's band, (B, T) bool.

    log_q: of the guide for the same arguments. A product does not show its edges, for two factors inside their bands can multiply
    to the edge of one band: its factors are computed again.
    """
    alone = factors(guide) == (guide,)
    pairs = [(guide, log_q)] if alone else Compose((guide,)).each(signals, step, total_steps, key)
    edges = [is_clamped(part, log_q) for part, log_q in pairs]
    return torch.stack([torch.zeros_like(signals.mask), *edges]).any(dim=0) & signals.mask


@GUIDES.register
@dataclass(frozen=True)
class Compose(Guide):
    """q = product of the guides' q: the sum of their log q, each inside its band.

    Two guides of one kind have independent noise. The empty product is `Flat`.

    guides: the factors of the product.
    """

    name: ClassVar[str] = "compose"
    guides: tuple[Guide, ...]

    def __post_init__(self) -> None:
        parts: list[Guide] = []
        for guide in self.guides:
            if not isinstance(guide, Guide):
                raise ConfigError(f"Compose: {guide!r} is not a guide; pass guide objects, for example (Branch(), Token()).")
            parts.extend(guide.guides if isinstance(guide, Compose) else (guide,))
        object.__setattr__(self, "guides", tuple(parts))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(guide.needs for guide in self.guides))

    @property
    def depends_on(self) -> DependsOn:
        return max((guide.depends_on for guide in self.guides), key=_STRENGTH.index, default="nothing")

    @property
    def looks_ahead(self) -> bool:
        return any(guide.looks_ahead for guide in self.guides)

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
        """Yield (guide, its log q) for each factor, with the noise that it has in the product."""
        seen: Counter[type] = Counter()
        for guide in self.guides:
            copy = seen[type(guide)]
            seen[type(guide)] += 1
            yield guide, guide(signals, step, total_steps, key.fold(f"compose/{copy}") if copy else key)


@GUIDES.register(label="Placebo")
@dataclass(frozen=True)
class Placebo(Guide):
    """The q of `guide`, permuted over counted tokens: the same strength at random positions, as a control.

    The permutation is a function of the key, the step, the row ids and the positions, so that padding and the order of
    the rows do not matter. The effect that remains is due to strength or noise rather than to the positions. `within`
    sets the tokens among which log q is permuted: those of the full "batch", of rows of the same "length", or of the
    same "row". A set of one row keeps that row's sum of log q. `centered` subtracts from log q its mean over that set.

    In the loss the default is the control: E[q] does not change. In the reward, where log q is a reward, the default is no
    control: each token gets the batch's mean of log q, which is a price on length, and 1 / B of its row's own sum. With
    `centered` the mean over the permutations of a row's reward from any of its tokens on is 0, batch by batch, so
    that the expected gradient is that of no guide, and only noise is added. within="length" without `centered` gives each length
    the reward that the guide gives it. within="row" without `centered` gives each completion the guide's sum, which is the only
    effect of a guide that rewards completions as a unit, such as `Rarity`; centered, that sum is 0 for every permutation.

    guide: the guide whose q is permuted.
    """

    name: ClassVar[str] = "placebo"
    guide: Guide
    _: KW_ONLY
    within: Within = "batch"
    centered: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.guide, Guide):
            raise ConfigError(f"Placebo: {self.guide!r} is not a guide; pass a guide object, for example Placebo(Branch()).")
        if self.within not in _SETS:
            raise ConfigError(f"Placebo: within = {self.within!r}; choose one of {', '.join(_SETS)}.")

    def check_reach(self, logits: int) -> None:
        """Check the factors of the permuted guide."""
        check_reach(self.guide, logits)

    @property
    def depends_on(self) -> DependsOn:
        return "token" if self.within == "row" and self.guide.depends_on != "batch" else "batch"

    @property
    def looks_ahead(self) -> bool:
        return self.within == "row"

    @property
    def pays_nothing(self) -> bool:
        """True if log q has mean 0 over its noise for every batch: in the reward it is then noise without a drift."""
        return self.centered

    @property
    def needs(self) -> frozenset[str]:
        return self.guide.needs

    @property
    def equation(self) -> str:
        mean = ", over its geometric mean there" if self.centered else ""
        return f"[{self.guide.equation}] permuted over {_SETS[self.within]}{mean}"

    @property
    def q_min(self) -> float:
        low, high = band_of(self.guide)
        return low / high if self.centered else low

    @property
    def q_max(self) -> float:
        low, high = band_of(self.guide)
        return (high / low if low else math.inf) if self.centered else high

    @torch.no_grad()
    def __call__(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        """Return log q, (B, T) float32: per set the multiset of counted values of `guide`, minus their mean if centered."""
        log_q = self.guide(signals, step, total_steps, key)
        places = _canonical_indices(signals)
        words = key.bits(step, "placebo/order", signals.row_ids, signals.positions).reshape(-1)[places]
        sets = self._sets(signals).reshape(-1)[places]
        by_set, shuffled = sets.argsort(stable=True), words.argsort(stable=True)
        shuffled = shuffled[sets[shuffled].argsort(stable=True)]
        values = log_q.reshape(-1)[places[by_set]]
        placed = torch.zeros_like(log_q).reshape(-1)
        placed[places[shuffled]] = _less_its_mean(values, sets[by_set]) if self.centered else values
        return placed.reshape(log_q.shape)

    def _sets(self, signals: Signals) -> Int[Tensor, "B T"]:
        """Return the number of the set within which each token is permuted."""
        lengths = signals.mask.sum(dim=1)
        number = {"batch": torch.zeros_like(lengths), "length": lengths, "row": signals.row_ids}[self.within]
        return number[:, None].expand(signals.mask.shape)


def _less_its_mean(values: Float[Tensor, " N"], sets: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return each value minus the mean over its set, `sets` being sorted; summed in that order, in float64 if the device has it."""
    starts = torch.ones_like(sets, dtype=torch.bool)
    starts[1:] = sets[1:] != sets[:-1]
    member = starts.cumsum(0) - 1
    wide = values.to(widest_float(values.device))
    sums, counts = torch.zeros_like(wide).index_add(0, member, wide), torch.bincount(member)
    return (wide - sums[member] / counts[member]).float()


def _canonical_indices(signals: Signals) -> Int[Tensor, " N"]:
    """Return flat indices of the counted tokens, by row id and then by position: independent of padding and row order."""
    by_row = signals.row_ids.argsort()
    flat = torch.arange(signals.mask.numel(), device=signals.mask.device).reshape(signals.mask.shape)
    return flat[by_row][signals.mask[by_row]]
