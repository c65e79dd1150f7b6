"""`plan --from`: a pilot from two arms that were evaluated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sage_rlvr.cli.records import named_records
from sage_rlvr.cli.stores import is_store, read_stores
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.record import check_paired
from sage_rlvr.stats.plan import Pilot, pilot_of_counts, pilot_of_exact
from sage_rlvr.stats.support import success_probability


def pilot_of(arms: Sequence[str], split: str, k: int, run_sd: float, fewer: bool = False) -> Pilot:
    """A pilot for `plan` from two arms, A=PATH[,PATH...] B=...: records, run directories or sample stores.

    fewer: take a smaller k where the stores hold fewer samples than k, for a k that nobody asked for."""
    if len(arms) != 2:
        raise ConfigError(f"--from {' '.join(arms)}: two arms are wanted, A=PATH[,PATH...] B=PATH[,PATH...]")
    if any(is_store(arm) for arm in arms):
        from sage_rlvr.evaluation.verdicts import arms_of, check_alike

        named = arms_of(read_stores(arms))
        if fewer:
            k = min(k, *(scored.n for data in named.values() for scored in data.values()))
        check_alike(named, k)
        a, b = named.values()
        if len(a) > 1:
            raise ConfigError(f"--from: stores of {', '.join(a)}; a plan is for one data set, give the stores of one")
        ((task, one),) = a.items()
        return pilot_of_counts(one.n, one.right, b[task].right, k, run_sd)
    (_, a_records), (_, b_records) = (named_records(arm, split) for arm in arms)
    check_paired([*a_records, *b_records])
    rows = max(len(a_records), len(b_records))
    if {len(a_records), len(b_records)} - {1, rows}:
        raise DataError(f"--from: {len(a_records)} and {len(b_records)} training seeds; give the same number, or one")
    scores = [np.stack([success_probability(r.logps[1.0]) for r in records]) for records in (a_records, b_records)]
    left, right = (np.broadcast_to(x, (rows, x.shape[1])) for x in scores)
    return pilot_of_exact(left, right, k, run_sd)
