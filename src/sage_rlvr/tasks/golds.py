"""Check that the verifier of mathematics can judge by the golds of a data set, before training on them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from sage_rlvr.errors import DataError
from sage_rlvr.tasks.rows import DataRows, Say, tell
from sage_rlvr.verifiers.pool import Pool

TOLERATED = 0.01  # share of golds that may be unreadable without the user's consent
_PROBE = r"\boxed{7919}"  # an answer that equals no gold as text: judging it makes the verifier parse the gold
_WHOLE = re.compile(r"[-+]?\d{1,300}")  # golds that need no check


def check_golds(
    rows: DataRows, golds: Sequence[str], *, allow_unverifiable: bool | None = None, say: Say = tell, pool: Pool | None = None
) -> dict[int, str]:
    """Row -> reason, for the golds that the verifier cannot judge by, computed in worker processes (`Pool`).

    A gold is readable if it is right against itself and a different answer gets a verdict, which makes the verifier parse
    it. Integers are not checked. Unreadable golds are listed; their rows are kept, and only an answer with exactly their text is
    right. Raises DataError above 1 % of the rows, unless `allow_unverifiable`; None: if the caller has no such option.
    """
    distinct = list(dict.fromkeys(gold for gold in golds if not _WHOLE.fullmatch(gold)))
    if not distinct:
        return {}
    with nullcontext(pool) if pool else Pool() as own:
        reasons = dict(zip(distinct, _reasons(distinct, own, say, rows.name), strict=True))
    unreadable = {row: reasons[gold] for row, gold in enumerate(golds) if reasons.get(gold)}
    if not unreadable:
        return unreadable
    shown = [f"{rows.locations[row]}: {golds[row]!r:.80}: {why}" for row, why in list(unreadable.items())[:20]]
    text = (
        f"{rows.name}: {len(unreadable)} of {len(golds)} golds ({len(unreadable) / len(golds):.1%}) cannot be read by the "
        "verifier, so that only an answer of the same spelling would be right:\n  " + "\n  ".join(shown)
    )
    if len(unreadable) > TOLERATED * len(golds) and not allow_unverifiable:
        mend = "mend or leave out those rows"
        if allow_unverifiable is not None:
            mend += (
                ", name another data.answer_column, or take them as they are: data.allow_unverifiable true in the recipe"
            )
        raise DataError(f"{text}\nMore than {TOLERATED:.0%} is refused: {mend}")
    say(text)
    return unreadable


def _reasons(golds: Sequence[str], pool: Pool, say: Say, name: str) -> Iterator[str]:
    """Return the reason why each gold cannot be judged by; "" for one that can."""
    jobs = [(pool.submit(rf"\boxed{{{gold}}}", gold), pool.submit(_PROBE, gold)) for gold in golds]
    last = time.monotonic()
    for done, (itself, other) in enumerate(jobs, start=1):
        same, probe = itself.result(), other.result()
        doubt = probe.reason if probe.label == "undecided" else ""
        yield doubt if same.right else f"not right against itself ({same.reason})"
        if time.monotonic() - last > 5:
            last = time.monotonic()
            say(f"{name}: {done:,} of {len(golds):,} different golds checked")


__all__ = ["check_golds"]
