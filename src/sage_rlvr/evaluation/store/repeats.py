"""Detect duplicated samples: one seed used twice, or completions that independent draws would not have in common.

    P(two independent draws of one problem give the same y, and p(y) <= e) = sum over p(y) <= e of p(y)^2 <= e

Over all pairs of samples of all problems the chance is at most pairs * e. So an equal pair with p(y) <= ALARM / pairs
happens by chance in fewer than one of 1 / ALARM evaluations, whatever the policy: no guess about lengths or collapse is
needed where the sampler's log-probs are there. Where they are not (imported samples), or where truncated sampling may
have left them unnormalized, this only warns.
"""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass

import numpy as np

from sage_rlvr.evaluation.store.identity import Identity
from sage_rlvr.evaluation.store.sample import unescape

ALARM = 1e-9


@dataclass(frozen=True)
class Repeat:
    """sentence: what is repeated, where, and what to do. certain: it cannot be chance."""

    sentence: str
    certain: bool


def signs_of(db: sqlite3.Connection, chosen: str, n: int, identity: Identity) -> list[Repeat]:
    """All signs. chosen: the FROM clause of the samples (s) of chosen problems (c), the first :n of each."""
    signs = [_repeated_seed(db, chosen, n)]
    if not identity.greedy:
        signs += [_impossible(db, chosen, n, identity.truncated_sampling), _all_the_same(db, chosen, n)]
    return [sign for sign in signs if sign is not None]


def _repeated_seed(db: sqlite3.Connection, chosen: str, n: int) -> Repeat | None:
    """The first seed that two samples have; unknown seeds (NULL) are left out."""
    twice = f"SELECT s.seed{chosen} WHERE s.seed IS NOT NULL GROUP BY s.seed HAVING count(*) > 1 LIMIT 1"
    rows = db.execute(
        f"SELECT s.problem, s.sample, s.seed{chosen} WHERE s.seed = ({twice}) ORDER BY c.rank, s.sample LIMIT 2",
        {"n": n},
    ).fetchall()
    if not rows:
        return None
    (one, first, seed), (two, second, _) = rows
    return Repeat(
        f"samples {first} of problem {unescape(one)!r} and {second} of {unescape(two)!r} have the "
        f"same seed {seed}: repeats with one seed are one sample, so n is smaller than it seems; sample again with "
        "Identity.seed_of in a new folder",
        certain=True,
    )


def limit(pairs: int) -> float:
    """The log-probability, nats, below which one equal pair among so many is beyond chance."""
    return math.log(ALARM / max(pairs, 1))


def _impossible(db: sqlite3.Connection, chosen: str, n: int, truncated: bool) -> Repeat | None:
    """The least likely of the completions that a problem has twice, if chance would not have made it (see above)."""
    (pairs,) = db.execute(
        f"SELECT ifnull(sum(m * (m - 1) / 2), 0) FROM (SELECT count(*) m{chosen} GROUP BY c.rank)", {"n": n}
    ).fetchone()
    equal = (
        f"SELECT s.problem, s.token_ids, min(s.sample), s.rollout_logps{chosen} WHERE s.token_ids IS NOT NULL"
        " GROUP BY c.rank, s.text_hash, s.token_ids HAVING count(*) > 1"
    )
    beyond, least = limit(pairs), []
    for problem, tokens, first, logps in db.execute(equal, {"n": n}):
        value = math.nan if logps is None else float(np.frombuffer(logps, "<f4").sum(dtype=float))
        if value < beyond:  # NaN is not
            least.append((value, problem, first, tokens))
    if not least:
        return None
    value, problem, first, tokens = min(least)
    sql = "SELECT sample FROM samples WHERE problem = ? AND token_ids = ? AND sample > ? ORDER BY sample LIMIT 1"
    (second,) = db.execute(sql, (problem, tokens, first)).fetchone()
    return Repeat(
        f"samples {first} and {second} of problem {unescape(problem)!r} are the same "
        f"{len(tokens) // 4} tokens, which the sampler draws with probability e^{value:.0f}; {len(least)} such "
        "completions: the sampler does not follow its seeds (an unset seed, a cache), so n is smaller than it seems",
        certain=not truncated,
    )


def _all_the_same(db: sqlite3.Connection, chosen: str, n: int) -> Repeat | None:
    """Whether on every problem (three at least) all of two or more samples are the same text: greedy in disguise."""
    each = f"SELECT count(DISTINCT s.text_hash) texts{chosen} GROUP BY c.rank HAVING count(*) > 1"
    several, most = db.execute(f"SELECT count(*), max(texts) FROM ({each})", {"n": n}).fetchone()
    if several < 3 or most > 1:
        return None
    return Repeat(
        f"on all {several} problems every sample is the same text although the temperature is above 0: probably greedy "
        "decoding or one seed for all repeats. Unless the policy has collapsed, n is effectively 1",
        certain=False,
    )
