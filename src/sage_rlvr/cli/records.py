"""`eval` of exact records: where a policy lies, and its numbers in lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from sage_rlvr.config import world_of
from sage_rlvr.errors import DataError, SageError
from sage_rlvr.evaluation.record import Record
from sage_rlvr.results.words import world_words
from sage_rlvr.stats.intervals import share_interval
from sage_rlvr.stats.passk import curve
from sage_rlvr.stats.support import reachable, success_probability
from sage_rlvr.stats.tempered import tempered

if TYPE_CHECKING:
    from sage_rlvr.evaluation.evaluate import Target


def target_of(what: str, world: str | None) -> Target:
    """`engines.evaluate.resolve`, with a damaged run.json refused by name."""
    from sage_rlvr.evaluation.evaluate import resolve

    chosen = None if world is None else world_of(world)
    try:
        return resolve(what, chosen)
    except SageError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{Path(what) / 'run.json'} is damaged ({error!r}); evaluate {Path(what) / 'policy'} with --world RECIPE instead"
        ) from error


def eval_lines(record: Record, ks: Sequence[int]) -> list[str]:
    """A table in text: one line per temperature, 95 % intervals over problems."""
    head = (
        f"{record.meta['name']}: {world_words(record.meta['world'])}; {record.problems} {record.meta['split']} problems (draw "
        f"{record.meta.get('draw')}), exact, 95 % intervals over problems"
    )
    lines = [head, "  T     " + "".join(f"pass@{k:<18}" for k in ks) + "distinct right in 256"]
    for t in sorted(record.logps, reverse=True):
        rows = record.logps[t]
        values = curve(success_probability(rows), list(ks))
        cells = []
        for column in values.T:
            found = share_interval(column)
            cells.append(f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]  ")
        lines.append(f"  {t:<5g} " + "".join(f"{cell:<23}" for cell in cells) + f"{np.mean(reachable(rows, 256)):.1f}")
    return lines


def power_lines(record: Record, ks: Sequence[int]) -> list[str]:
    """The same over powers of whole completions, with the bound that the normalizer leaves; [] where there are none."""
    if not record.norms:
        return []
    lines = [
        f"{record.meta['name']} tempered over whole completions, pi(y)^power normalized per problem; +-: bound of the normalizer",
        "  power " + "".join(f"pass@{k:<18}" for k in ks) + "+- pass@1  distinct right in 256",
    ]
    for one in tempered(record.logps[1.0], record.norms):
        cells = [share_interval(column) for column in curve(one.p, list(ks)).T]
        said = "".join(f"{f'{c.value:.3f} [{c.low:.3f}, {c.high:.3f}]  ':<23}" for c in cells)
        note = f"{one.bound.mean():<9.1g}  {one.distinct(256):.1f}"
        lines.append(
            f"  {one.power:<5g} " + (said + note if one.known else "not available: " + note.split()[0] + " open")
        )
    return lines


def print_cross_check(console: Console, found: Mapping[str, float]) -> None:
    """What `cross_check` found, in one line; a disagreement is loud, and says what to do."""
    agree = bool(found["agree"])
    line = (
        f"cross-check of the exact numbers by sampling: sampled {found['sampled']:.4f} ({100 * found['level']:g} % "
        f"interval {found['low']:.4f} to {found['high']:.4f}), exact {found['exact']:.4f}: "
    )
    advice = "WARNING: THEY DISAGREE, trust neither before `sage-rlvr doctor` has passed; if it does, report this"
    console.print(
        line + ("they agree" if agree else advice), style="" if agree else "bold red", markup=False, soft_wrap=True
    )
