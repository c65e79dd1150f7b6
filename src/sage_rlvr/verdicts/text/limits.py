"""Limits of the numbers of a comparison: the sentences from which the page selects, and `caveats(results)` for a terminal."""

from __future__ import annotations

from sage_rlvr.errors import suggest
from sage_rlvr.verdicts.results import Results

ONCE = "Each arm was trained once: the results are about these checkpoints on such problems. Another seed could reorder the arms."
FIXED = "Intervals over training seeds hold these problems fixed: other problems could give other numbers."
CHOSEN_HERE = "The best temperature of each policy was selected on these problems, so each best pass@1 has a small upward bias."


def caveats(results: Results) -> list[str]:
    """Limits of the printed numbers."""
    if not results.records:
        return []
    control = results.design.control or results.design.base or ""
    rows = results.table.where(arm=control, task="").exact()
    if len(rows.temperatures) == 1 and not results.several:
        run = results.runs.get((control, min(rows.seeds, default=0)))
        path = None if run is None else run.path
        what = path or ("BASE" if control == results.design.base == "base" else control)
        only = f"{control} was evaluated only at T = {rows.temperatures[0]:g}, so there is no frontier to compare with"
        unnamed = "" if path else f" ({what}: its run or model)"
        return [f"{only}: {suggest('eval', what, '--frontier')}{unnamed}.", ONCE]
    return [FIXED if results.several else ONCE]
