"""Detect duplicated samples: one seed used twice, or completions that independent draws would not share.

    P(two independent draws of one problem give the same y, and p(y) <= e) = sum over p(y) <= e of p(y)^2 <= e

Over all pairs of samples of all problems the chance is at most pairs * e. So an equal pair with p(y) <= ALARM / pairs
happens by chance in fewer than one of 1 / ALARM evaluations, whatever the policy: no guess about lengths or collapse is needed if
the sampler's log-probs are known. If they are not (imported samples), or truncated sampling may have left them unnormalized, this
only warns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALARM = 1e-9

Ints = NDArray[np.int64]
Tokens = Callable[[Ints], Sequence[Sequence[Any]]]
"""Numbers of samples -> the token ids of each, and their log-probs; None if unknown."""


@dataclass(frozen=True)
class Repeat:
    """sentence: the repetition, its place, and the next step. certain: it cannot be chance."""

    sentence: str
    certain: bool


@dataclass(frozen=True)
class Drawn:
    """M samples, by problem. names: of the P problems; owners (M,): the problem of each; numbers (M,) within it; seeds: None if
    unknown; texts (M,): hashes."""

    names: Sequence[str]
    owners: Ints
    numbers: Ints
    seeds: Sequence[int | None]
    texts: Ints


def signs_of(drawn: Drawn, tokens_of: Tokens, *, greedy: bool, truncated: bool) -> list[Repeat]:
    """All signs. greedy: decoding at temperature 0; truncated: top_p, top_k or min_p cut the sampler's distribution."""
    signs = [_repeated_seed(drawn)]
    if not greedy:
        signs += [_impossible(drawn, tokens_of, truncated), _all_the_same(drawn)]
    return [sign for sign in signs if sign is not None]


def _repeated_seed(drawn: Drawn) -> Repeat | None:
    """The first seed that two samples have; unknown seeds are left out."""
    owners: dict[int, int] = {}
    for row, seed in enumerate(drawn.seeds):
        if seed is None or (first := owners.setdefault(seed, row)) == row:
            continue
        one, other = (drawn.names[drawn.owners[at]] for at in (first, row))
        return Repeat(
            f"samples {drawn.numbers[first]} of problem {one!r} and {drawn.numbers[row]} of {other!r} have the "
            f"same seed {seed}: repeats with one seed are one sample, so n is smaller than it seems; sample again with "
            "Identity.seed_of in a new folder",
            certain=True,
        )
    return None


def limit(pairs: int) -> float:
    """The log-probability, nats, below which one equal pair among so many is beyond chance."""
    return math.log(ALARM / max(pairs, 1))


def _impossible(drawn: Drawn, tokens_of: Tokens, truncated: bool) -> Repeat | None:
    """The least likely of the completions that a problem has twice, if it is too unlikely by chance (see above)."""
    order = np.lexsort((drawn.texts, drawn.owners))
    equal = (np.diff(drawn.owners[order]) == 0) & (np.diff(drawn.texts[order]) == 0)
    twice = np.unique(np.concatenate([order[:-1][equal], order[1:][equal]]))
    rows_of: dict[tuple[int, bytes], list[int]] = {}
    ids, logps = tokens_of(twice)
    for index, tokens in enumerate(ids):
        if tokens is not None:
            rows_of.setdefault((int(drawn.owners[twice[index]]), tokens.tobytes()), []).append(index)
    many = np.bincount(drawn.owners)
    beyond, least = limit(int((many * (many - 1) // 2).sum())), []
    for first, *others in rows_of.values():
        if others and logps[first] is not None and (value := float(logps[first].sum(dtype=float))) < beyond:  # NaN is not
            least.append((value, first, others[0]))
    if not least:
        return None
    value, first, second = min(least)
    name = drawn.names[drawn.owners[twice[first]]]
    return Repeat(
        f"samples {drawn.numbers[twice[first]]} and {drawn.numbers[twice[second]]} of problem {name!r} are the same "
        f"{len(ids[first])} tokens, which the sampler draws with probability e^{value:.0f}; {len(least)} such "
        "completions: the sampler does not follow its seeds (an unset seed, a cache), so n is smaller than it seems",
        certain=not truncated,
    )


def _all_the_same(drawn: Drawn) -> Repeat | None:
    """Whether on every problem (three at least) all of two or more samples are the same text: greedy in disguise."""
    pairs = np.unique(np.stack([drawn.owners, drawn.texts]), axis=1)
    several = np.bincount(drawn.owners) > 1
    if several.sum() < 3 or np.bincount(pairs[0])[several].max() > 1:
        return None
    return Repeat(
        f"on all {several.sum()} problems every sample is the same text although the temperature is above 0: probably greedy "
        "decoding or one seed for all repeats. Unless the policy has collapsed, n is effectively 1",
        certain=False,
    )
