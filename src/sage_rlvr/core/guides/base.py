"""The base class of guides, and helpers of the built-in guides: band, mask, and statistics over counted tokens."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.keys import Key
from sage_rlvr.core.parts import HOME, Part
from sage_rlvr.core.signals import Mask, Signals, check_needs
from sage_rlvr.errors import ConfigError, DataError, choose_from
from sage_rlvr.members import check_inherits
from sage_rlvr.registry import Registry

DependsOn = Literal["nothing", "state", "token", "batch"]
Source = Literal["policy", "reference"]
PerToken = Float[Tensor, "B T"]


@dataclass(frozen=True, eq=False, repr=False)
class Guide(Part):
    """A positive factor q_t on the reference probability of each sampled token, returned as log q.

    A subclass is a frozen dataclass with `needs`, `depends_on`, `equation` and `__call__` (or of `Banded`, with `raw_q`); the rest
    has defaults. A member that is not a method may be a class attribute, a field or a property. A misspelled one raises
    ConfigError. `a * b` is the guide whose q is the product of both.
    """

    @property
    def name(self) -> str:
        """Name in recipes and in the names of methods; by default the class name in lower case."""
        return ""

    @property
    @abstractmethod
    def needs(self) -> frozenset[str]:
        """Names of the optional signals that q reads: keys of `core.signals.NEEDS`. Required."""

    @property
    @abstractmethod
    def depends_on(self) -> DependsOn:
        """Kind of dependence of q, given the key: nothing, the state (prefix), the sampled token, or the batch. Required.

        "batch" means that q is the same for every possible next token of a state, apart from the other rows: a q of the sampled
        token is "token", even if the guide ranks that token within the batch.
        """

    @property
    def q_min(self) -> float:
        """The lower edge of the band; 0 if there is none."""
        return 0.0

    @property
    def q_max(self) -> float:
        """The upper edge of the band; inf if there is none."""
        return math.inf

    @property
    def looks_ahead(self) -> bool:
        """True if q_t depends on tokens of its row after t."""
        return False

    @property
    def pays_nothing(self) -> bool:
        """True if the mean of log q over the guide's noise is 0 at every token."""
        return False

    @property
    def reads_totals(self) -> bool:
        """True if of a batch's other rows q reads only sums by `Signals.total`, so that no rank needs those of the others."""
        return False

    @abstractmethod
    def __call__(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        """Return log q, (B, T) float32, 0 off the mask, without gradient, the same for the same arguments."""

    def check_reach(self, logits: int) -> None:
        """Raise ConfigError if q is 1 everywhere for a policy with that many logits; a guide that can decide this overrides it."""

    def __mul__(self, other: Guide) -> Guide:
        # by name: compose.py imports this module
        if not isinstance(other, Guide):
            return NotImplemented
        product: Guide = GUIDES["compose"]((self, other))
        return product


def check_declared(who: str, guide: Any) -> None:
    """Raise ConfigError for a guide or guide class that lacks a member, or whose `depends_on` or `needs` is unknown.

    who: its name in error messages. For a class only plain attributes are checked; properties are checked on instances.
    """
    kind: Any = guide if isinstance(guide, type) else type(guide)
    check_inherits(who, kind, Guide, HOME, f"{', '.join(_MEMBERS.values())} and {_CALL}")
    given = [base for base in kind.__mro__ if base not in (Guide, Banded, Part)]
    own = {name for base in given for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    raw = issubclass(kind, Banded) and kind.__call__ is Banded.__call__
    if kind is not guide:  # an instance may have set what its class does not show
        own |= set(vars(guide))
    wanted = _MEMBERS | (_BAND if raw else {"__call__": _CALL})
    if lacking := [name for name in wanted if name not in own]:
        raise ConfigError(f"{who}: {kind.__name__} lacks {', '.join(lacking)}; declare {', '.join(wanted[n] for n in lacking)}")
    if kind is guide:  # of a class: what it declares, and None for a field without a default
        on, needs = (getattr_static(guide, name, None) for name in ("depends_on", "needs"))
    else:
        on, needs = guide.depends_on, guide.needs
    if isinstance(on, str) and on not in get_args(DependsOn):
        raise ConfigError(
            f"{who}: depends_on = {on!r}: declare what q depends on: nothing, state (the text so far), token (the "
            f"sampled token) or batch (other rows){choose_from(on, get_args(DependsOn))}"
        )
    check_needs(who, needs)


_MEMBERS = {
    "needs": 'needs: ClassVar[frozenset[str]] = frozenset() (the signals that it reads, as frozenset({"entropies"}))',
    "depends_on": 'depends_on: ClassVar[str] = "state"',
    "equation": 'equation: ClassVar[str] = "q as one line of text"',
}
_CALL = "__call__(self, signals, step, total_steps, key), or subclass Banded and define raw_q"
_BAND = {
    "q_min": "q_min: float = 0.6",
    "q_max": "q_max: float = 1.4",
    "raw_q": "raw_q(self, signals, step, total_steps, key)",
}
GUIDES: Registry[type] = Registry(
    "guide", check=check_declared, form="sage_rlvr.Banded as its base, needs, depends_on, equation and raw_q(self, signals, step, "
    "total_steps, key)"
)


class Banded(Guide):
    """A guide defined by `raw_q`; q is clamped to the band [q_min, q_max], masked, and its log returned.

    A subclass is a frozen dataclass with fields q_min and q_max; 0.6 and 1.4 are those of SAGE (arXiv 2605.18864).
    """

    def __post_init__(self) -> None:
        if not 0 < self.q_min <= 1 <= self.q_max < math.inf:
            raise ConfigError(
                f"{type(self).__name__}: band q_min = {self.q_min!r}, q_max = {self.q_max!r}; q multiplies a "
                "probability, so set 0 < q_min <= 1 <= q_max, for example 0.6 and 1.4."
            )

    def raw_q(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        """Return q before clamping, (B, T); values off the mask are ignored."""
        raise NotImplementedError(f"{type(self).__name__} must define raw_q")

    @torch.no_grad()
    def __call__(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        """Return log q, (B, T) float32, nats; 0 off the mask."""
        raw = self.raw_q(signals, step, total_steps, key)
        if not isinstance(raw, Tensor):
            raise DataError(f"{type(self).__name__}.raw_q must return q as a tensor (B, T), got {type(raw).__name__} {raw!r:.80}")
        raw = raw.float()
        # where, not a product with the mask: off the mask q may be NaN, and NaN * 0 is NaN
        return torch.where(signals.mask, raw.clamp(self.q_min, self.q_max).log(), 0.0)


def band_of(guide: Guide) -> tuple[float, float]:
    """Return (q_min, q_max) of a guide; (0, inf) if it declares no band."""
    return float(guide.q_min), float(guide.q_max)


def is_clamped(guide: Guide, log_q: PerToken) -> Bool[Tensor, "B T"]:
    """Return True at tokens with log q at an edge of the band (float32 tolerance), (B, T); always False for a band of one point.

    Not for products: `clamped` checks the factors of a product separately.
    """
    low, high = band_of(guide)
    if low == high:
        return torch.zeros_like(log_q, dtype=torch.bool)
    tolerance = 1e-6  # log(0.6) in float32 is not math.log(0.6): without it no token would count as clamped
    at_low = log_q <= (math.log(low) + tolerance if low > 0 else -math.inf)
    return at_low | (log_q >= (math.log(high) - tolerance if high < math.inf else math.inf))


def row_quantiles(values: PerToken, mask: Mask, shares: Sequence[float]) -> list[Float[Tensor, "B 1"]]:
    """Return quantiles of each row's counted values with linear interpolation, (B, 1) each; inf for a row that has none."""
    ordered = torch.where(mask, values, math.inf).sort(dim=1).values  # inf: what is not counted comes last
    found = []
    for share in shares:
        rank = share * (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0).to(values.dtype)
        below = rank.floor().long()
        low, high = ordered.gather(1, below), ordered.gather(1, rank.ceil().long())
        found.append(torch.where(low == high, low, torch.lerp(low, high, rank - below)))  # lerp of inf and inf is NaN
    return found


CHUNK = 1 << 22
"""Values that `batch_quantiles` reads at a time."""
BINS = 1 << 16


def batch_quantiles(
    values: Float[Tensor, "B T"], mask: Mask, shares: Sequence[float], total: Callable[[Tensor], Tensor] = lambda counts: counts
) -> list[Float[Tensor, ""]]:
    """Return quantiles of all counted values of a batch, float32, with linear interpolation; inf if nothing is counted.

    They are exact for any number of values: the 32 bits of a float32, read as a whole number, sort as the floats do, so a histogram
    of the upper 16 bits finds the bin of each wanted rank, and one of the lower 16 bits the value in it. Nothing is sorted, and
    memory for `CHUNK` values is needed beside them.

    Args:
        values: float32.
        mask: of the counted ones.
        shares: in [0, 1].
        total: the sum of a tensor of counts over the processes that hold the batch's other rows (`Signals.total`): of 65,536 int64,
            and then of as many for each bin.
    """
    flat, counted = values.detach().float().reshape(-1).split(CHUNK), mask.reshape(-1).split(CHUNK)

    def keys() -> Iterator[Tensor]:
        for some, kept in zip(flat, counted, strict=True):
            bits = some[kept].view(torch.int32)
            yield bits ^ ((bits >> 31) & 0x7FFFFFFF)  # of a negative float the other bits count downward

    ends = total(_histogram((key >> 16) + BINS // 2 for key in keys())).cumsum(0)
    if not (count := int(ends[-1])):
        return [values.new_full((), math.inf, dtype=torch.float32) for _ in shares]
    places = [share * (count - 1) for share in shares]
    ranks = torch.tensor(sorted({end for place in places for end in (math.floor(place), math.ceil(place))}), device=values.device)
    bins = torch.searchsorted(ends, ranks, right=True)
    wanted = list(dict.fromkeys(bins.tolist()))
    low = {one: _histogram((key & 0xFFFF)[(key >> 16) == one - BINS // 2] for key in keys()) for one in wanted}
    inside = dict(zip(low, total(torch.stack([*low.values()])).cumsum(1), strict=True))
    before = ends.roll(1).index_fill(0, torch.zeros(1, dtype=torch.long, device=ends.device), 0)
    found = {}
    for rank, one in zip(ranks.tolist(), bins.tolist(), strict=True):
        lower = torch.searchsorted(inside[one], rank - before[one], right=True)
        key = ((one - BINS // 2) << 16) + lower.to(torch.int32)
        found[rank] = (key ^ ((key >> 31) & 0x7FFFFFFF)).view(torch.float32)
    between = [(found[math.floor(place)], found[math.ceil(place)], place % 1.0) for place in places]
    return [torch.where(low == high, low, torch.lerp(low, high, share)) for low, high, share in between]


def _histogram(parts: Iterable[Tensor]) -> Int[Tensor, " bins"]:
    counts = [torch.bincount(part, minlength=BINS) for part in parts]
    return counts[0] if len(counts) == 1 else torch.stack(counts).sum(0)


def require_source(guide: str, signal: str) -> None:
    """Raise ConfigError unless `signal` is "policy" or "reference", from which a guide can read its uncertainty."""
    if signal not in ("policy", "reference"):
        raise ConfigError(f"{guide}: signal = {signal!r}; choose 'policy' (generated the data) or 'reference'.")
