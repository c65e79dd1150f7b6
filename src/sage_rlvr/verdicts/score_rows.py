"""pass@k of every policy as plain rows, for data frames and files of other programs."""

from __future__ import annotations

from typing import Any

from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.stats.passk import powers


def score_rows(results: Results) -> list[dict[str, Any]]:
    """One dict per policy, task, temperature (if known) and k (powers of two, and the largest).

    Each has pass@k with its 95 % interval and the units of that, problems, samples of each (the fewest; None for exact scores),
    training seeds, and the chance floor if known.
    """
    rows = list[dict[str, Any]]()
    for (policy, task, temperature), measured in results.table.policies().items():
        if (one := measured.scores()) is None:
            continue
        chance = results.chances.get(task)
        for k in powers(min(results.k, one.n or results.k)):
            found = one.interval(k, fixed=results.fixed)
            rows.append({
                "policy": policy, "task": task, "temperature": temperature if one.knows_temperature else None, "k": k,
                "pass": found.value, "low": found.low, "high": found.high, "over": found.over, "problems": len(one.problems),
                "samples": one.n, "seeds": len(one.values), "chance": None if chance is None else chance.at(k),
                "below_chance": chance is not None and one.below(k, chance),
            })  # fmt: skip
    return rows
