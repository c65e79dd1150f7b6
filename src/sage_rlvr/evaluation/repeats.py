"""Samples that are no samples: one seed used twice, or completions that independent draws would not have in common.

    P(two independent draws of one problem give the same y, and p(y) <= e) = sum over p(y) <= e of p(y)^2 <= e

Over all pairs of samples of all problems the chance is at most pairs * e. So an equal pair with p(y) <= ALARM / pairs
happens by chance in fewer than one of 1 / ALARM evaluations, whatever the policy: no guess about lengths or collapse is
needed where the sampler's log-probs are there. Where they are not (imported samples), or where truncated sampling may
have left them unnormalised, this only warns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

ALARM = 1e-9


@dataclass(frozen=True)
class Repeat:
    """sentence: what is repeated, where, and what to do. certain: it cannot be chance."""

    sentence: str
    certain: bool


def repeated_seed(problems: list[str], samples: list[int], seeds: list[int | None]) -> Repeat | None:
    """The first seed that two samples have, None where all differ; unknown seeds (None) are left out."""
    seen: dict[int, int] = {}
    for row, seed in enumerate(seeds):
        if seed is None or seen.setdefault(seed, row) == row:
            continue
        other = seen[seed]
        return Repeat(
            f"samples {samples[other]} of problem {problems[other]!r} and {samples[row]} of {problems[row]!r} have the "
            f"same seed {seed}: repeats with one seed are one sample, so n is smaller than it seems; sample again with "
            "Identity.seed_of in a new folder",
            certain=True,
        )
    return None


def pairs_of(problems: list[str]) -> int:
    """Pairs of samples of the same problem; rows sorted by problem."""
    return sum(math.comb(sum(1 for _ in rows), 2) for _, rows in groupby(problems))


def equal_groups(problems: list[str], keys: list[Any]) -> Iterator[list[int]]:
    """Rows (two or more) of one problem that have the same key; rows sorted by problem."""
    for _, group in groupby(range(len(problems)), key=problems.__getitem__):
        same: dict[Any, list[int]] = {}
        for row in group:
            same.setdefault(keys[row], []).append(row)
        yield from (rows for rows in same.values() if len(rows) > 1)


def impossible_repeat(
    problems: list[str], samples: list[int], tokens: list[Any], logps: list[Any], truncated: bool
) -> Repeat | None:
    """The least likely of the completions that a problem has twice, if chance would not have made it (see above).

    tokens, logps: one array a row or None. truncated: whether the sampler's distribution was cut.
    """
    likelihoods = [math.nan if values is None else float(np.sum(values, dtype=float)) for values in logps]
    keys = [None if ids is None else np.asarray(ids).tobytes() for ids in tokens]
    limit = math.log(ALARM / max(pairs_of(problems), 1))
    found = [
        (likelihoods[rows[0]], rows)
        for rows in equal_groups(problems, keys)
        if keys[rows[0]] is not None and likelihoods[rows[0]] < limit  # NaN is not
    ]
    if not found:
        return None
    value, rows = min(found)
    return Repeat(
        f"samples {samples[rows[0]]} and {samples[rows[1]]} of problem {problems[rows[0]]!r} are the same "
        f"{len(tokens[rows[0]])} tokens, which the sampler draws with probability e^{value:.0f}; {len(found)} such "
        "completions: the sampler does not follow its seeds (an unset seed, a cache), so n is smaller than it seems",
        certain=not truncated,
    )


def all_the_same(problems: list[str], keys: list[Any]) -> Repeat | None:
    """Whether on every problem (three at least) all of two or more samples are the same text: greedy in disguise."""
    groups = [[keys[row] for row in rows] for _, rows in groupby(range(len(problems)), key=problems.__getitem__)]
    several = [group for group in groups if len(group) > 1]
    if len(several) < 3 or any(len(set(group)) > 1 for group in several):
        return None
    return Repeat(
        f"on all {len(several)} problems every sample is the same text although the temperature is above 0: greedy "
        "decoding or one seed for all repeats? If the policy has not collapsed, n is 1 and not more",
        certain=False,
    )
