"""The guides that the lab compares: each a name and log q of every token of `Atoms`, from signals that cost nothing more.

A family is a list of variants; which of them is shown is chosen on validation problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import rankdata

from lab.studies.guides.completions import Atoms
from lab.theory.reweighting import Floats
from sage_rlvr.core.guides import Branch, Guide
from sage_rlvr.core.guides.random import Random
from sage_rlvr.core.guides.rarity import Rarity
from sage_rlvr.core.guides.token import Token
from sage_rlvr.core.keys import Key

Kind = Literal["paper", "policy", "reference", "rewards", "control", "oracle"]
OfTokens = Callable[[Atoms, Key], Floats]
STEPS = 1000
"""Schedules are read at step 0 of so many: the paper's values at their largest."""
LOG_EPS = math.log(256)


@dataclass(frozen=True)
class Variant:
    """One guide: log q (A, T) before any scaling; `noisy` where it draws noise; `guide` where it is one of core/guides."""

    name: str
    equation: str
    of: OfTokens
    noisy: bool = False
    guide: Guide | None = None


@dataclass(frozen=True)
class Family:
    """Variants of one idea. kind: what a guide may read: the policy, also the reference, also the rewards."""

    name: str
    kind: Kind
    variants: tuple[Variant, ...]


def _guide(name: str, guide: Guide, noisy: bool = False) -> Variant:
    def of(atoms: Atoms, key: Key) -> Floats:
        return np.asarray(guide(atoms.signals(), 0, STEPS, key).double().numpy())

    return Variant(name, guide.equation, of, noisy, guide)


def _plain(name: str, equation: str, of: Callable[[Atoms], Floats]) -> Variant:
    return Variant(name, equation, lambda atoms, key: np.where(atoms.mask, of(atoms), 0.0))


def capped(values: Floats, cap: float) -> Floats:
    """(A, T) -> what each token adds to min(sum so far, cap); the row's sum is min(sum of the row, cap)."""
    return np.diff(np.minimum(np.cumsum(values, axis=1), cap), axis=1, prepend=0.0)


def first(values: Floats, n: int) -> Floats:
    """(A, T), 0 after the first n tokens; completions start in column 0."""
    return np.where(np.arange(values.shape[1])[None, :] < n, values, 0.0)


def whole(values: Floats) -> Callable[[Atoms], Floats]:
    """(A,) of whole completions, spread evenly over their tokens."""
    return lambda atoms: np.asarray((values / atoms.mask.sum(1))[:, None] * atoms.mask)


def percentile(atoms: Atoms, share: float) -> float:
    """The entropy below which `share` of the tokens of a batch drawn from the policy lie."""
    values, weight = atoms.entropies[atoms.mask], atoms.token_mass[atoms.mask]
    order = np.argsort(values)
    place = int(np.searchsorted(np.cumsum(weight[order]), share))
    return float(values[order][min(place, len(order) - 1)])


def _branch_at(share: int) -> Variant:
    def of(atoms: Atoms) -> Floats:
        return np.asarray(np.maximum(atoms.entropies - percentile(atoms, share / 100), 0.0))

    return _plain(f"p{share}", f"log q = a relu(H_t - p{share})", of)


def likelier_share(atoms: Atoms) -> Floats:
    """(A,) of a right completion: the share of its problem's right mass that is likelier, its expected rank in a group."""
    masses, found = atoms.masses, np.zeros(len(atoms.masses.mass))
    ends = np.append(masses.starts[1:], len(masses.problem))
    for start, end in zip(masses.starts, ends, strict=True):
        places = start + np.flatnonzero(masses.right[start:end])
        order = places[np.argsort(-masses.mass[places], kind="stable")]
        found[order] = (np.cumsum(masses.mass[order]) - masses.mass[order]) / max(masses.mass[order].sum(), 1e-300)
    return found


def _right(atoms: Atoms) -> Floats:
    return atoms.masses.right.astype(np.float64)


def _drift(atoms: Atoms) -> Floats:
    return np.asarray(atoms.surprisals - atoms.ref_surprisals)


def _with_reference(cap: float, weight: float) -> Variant:
    return _plain(
        f"cap {cap:.3g}, weight {weight:g}", f"log q = a [min(S, {cap:.3g}) + {weight:g} log pi_ref(y)]",
        lambda a: capped(a.surprisals, cap) - weight * a.ref_surprisals,
    )  # fmt: skip


CAPS = (4.0, 5.0, LOG_EPS, 6.0, 7.0)
FAMILIES: tuple[Family, ...] = (
    Family("Random", "paper", (_guide("paper", Random(), noisy=True),)),
    Family("Token", "paper", (_guide("paper", Token(), noisy=True),)),
    Family("Branch", "paper", (_guide("paper", Branch()),)),
    Family("Branch, percentile", "policy", tuple(_branch_at(share) for share in (50, 80, 90, 95))),
    Family(
        "entropy", "policy",
        (
            _plain("all tokens", "log q = a H_t", lambda a: a.entropies),
            *(_plain(f"first {n}", f"log q = a H_t, t <= {n}", lambda a, n=n: first(a.entropies, n)) for n in (1, 2, 4)),  # type: ignore[misc]
        ),
    ),
    Family("surprisal", "policy", (_plain("all tokens", "q = pi(y_t)^-a", lambda a: a.surprisals),)),
    Family(
        "surprisal, first tokens", "policy",
        tuple(
            _plain(f"first {n}", f"q = pi(y_t)^-a, t <= {n}", lambda a, n=n: first(a.surprisals, n))  # type: ignore[misc]
            for n in (1, 2, 3, 4, 6)
        ),
    ),
    Family("typicality", "policy", (_plain("all tokens", "log q = a (s_t - H_t)", lambda a: a.surprisals - a.entropies),)),
    Family(
        "rarity", "policy",
        tuple(
            _plain(f"cap {c:.3g}", f"q(y) = min(1 / pi(y), e^{c:.3g})^a", lambda a, c=c: capped(a.surprisals, c))  # type: ignore[misc]
            for c in CAPS
        ),
    ),
    Family("tempered reference", "reference", (_plain("all tokens", "q = pi_ref(y_t)^-a", lambda a: a.ref_surprisals),)),
    Family("drift", "reference", (_plain("all tokens", "q = (pi_ref / pi)^a at the token", _drift),)),
    Family(
        "drift, first tokens", "reference",
        tuple(
            _plain(f"first {n}", f"q = (pi_ref / pi)^a, t <= {n}", lambda a, n=n: first(_drift(a), n))  # type: ignore[misc]
            for n in (1, 2, 4)
        ),
    ),
    Family(
        "drift, losses only", "reference",
        (_plain("all tokens", "q = max(1, pi_ref / pi)^a at the token", lambda a: np.maximum(_drift(a), 0.0)),),
    ),
    Family(
        "rarity x reference", "reference",
        tuple(_with_reference(c, w) for c in CAPS[:4] for w in (0.25, 0.5, 0.75)),
    ),
    Family("right", "rewards", (_plain("", "log q = a R", lambda a: whole(_right(a))(a)),)),
    Family(
        "unlikeliness", "rewards",
        (_plain("", "log q = a R x share of the right mass that is likelier", lambda a: whole(_right(a) * likelier_share(a))(a)),),
    ),
    Family(
        "rare and right", "rewards",
        tuple(
            _plain(f"above {c:.3g}", f"log q = a R relu(min(S, {c + 3:.3g}) - {c - 3:.3g})",
                   lambda a, c=c: whole(_right(a) * np.clip(-a.logps - (c - 3), 0.0, 6.0))(a))  # type: ignore[misc]
            for c in (5.0, LOG_EPS, 7.0)
        ),
    ),
)  # fmt: skip
TRAINABLE: tuple[Variant, ...] = (
    _guide("Random", Random(), noisy=True),
    _guide("Token", Token(), noisy=True),
    _guide("Branch", Branch()),
    _guide("Rarity", Rarity()),
    _guide("Rarity, reference", Rarity(reference_power=0.25)),
)
"""As they would be trained: their own strength, each token inside the band."""


def features(atoms: Atoms, reference: bool) -> Floats:
    """(A, F) sums over tokens of cheap signals, of the policy alone or also of the reference: what `tilts.fit` combines."""
    s, h = atoms.surprisals, atoms.entropies
    total = s.sum(1)
    columns = [
        total, h.sum(1), np.maximum(h - 1.2, 0).sum(1), atoms.mask.sum(1), first(s, 2).sum(1), first(s, 4).sum(1),
        first(h, 2).sum(1), np.minimum(s, 1.0).sum(1), *(np.minimum(total, c) for c in (2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0)),
    ]  # fmt: skip
    if reference:
        r = atoms.ref_surprisals
        lost = r.sum(1) - total
        columns += [
            r.sum(1), atoms.ref_entropies.sum(1), first(r, 2).sum(1), first(r, 4).sum(1), np.maximum(s - r, 0).sum(1),
            *(np.minimum(r.sum(1), c) for c in (4.0, 6.0, 7.0, 8.0, 10.0)), *(np.clip(lost, -c, c) for c in (0.5, 1.0, 2.0)),
        ]  # fmt: skip
    return np.stack([np.asarray(c, dtype=np.float64) for c in columns], axis=1)


def placebo(atoms: Atoms, log_q: Floats, seed: int) -> Floats:
    """(A, T): each token's log q drawn from those of a batch of the policy: the same values, in places that mean nothing."""
    chance = np.random.Generator(np.random.Philox(seed))
    values, weight = log_q[atoms.mask], atoms.token_mass[atoms.mask]
    drawn = chance.choice(values, size=int(atoms.mask.sum()), p=weight / weight.sum())
    out = np.zeros_like(log_q)
    out[atoms.mask] = drawn
    return out


# ---- how well a signal tells completions apart


def auc(values: Floats, positive: np.ndarray[Any, Any], weight: Floats) -> float:
    """Chance that a positive drawn by its weight has a larger value than a negative drawn by its; ties count half; nan if one
    kind is missing."""
    order = np.argsort(values, kind="stable")
    _, place = np.unique(values[order], return_inverse=True)
    up = np.bincount(place, np.where(positive, weight, 0.0)[order])
    down = np.bincount(place, np.where(positive, 0.0, weight)[order])
    if up.sum() <= 0 or down.sum() <= 0:
        return math.nan
    below = np.cumsum(down) - down
    return float((up * (below + down / 2)).sum() / (up.sum() * down.sum()))


def lifted(values: Floats, chosen: np.ndarray[Any, Any], oracle: Floats) -> tuple[float, float]:
    """AUC of the chosen right completions against the others, and Spearman's correlation with the oracle's log q."""
    first = auc(values, chosen, np.ones(len(values)))
    if len(values) < 3 or np.ptp(values) == 0 or np.ptp(oracle) == 0:
        return first, math.nan
    return first, float(np.corrcoef(rankdata(values), rankdata(oracle))[0, 1])


def mean_of_finite(values: Floats, weight: Floats) -> float:
    """Weighted mean of the finite ones."""
    seen = np.isfinite(values)
    return float(np.average(values[seen], weights=weight[seen])) if seen.any() else math.nan
