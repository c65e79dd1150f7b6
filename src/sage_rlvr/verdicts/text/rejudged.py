"""Completions that were judged again, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from sage_rlvr.verdicts.rejudged import Disagreement, Rejudged

SHOWN = 10
TAIL = 80  # characters of a completion that are shown


def lines(rejudged: Sequence[Rejudged]) -> Iterator[str]:
    """Yield the agreement of each set of samples, then the disagreements that say most."""
    yield "judged again by the mathematics verifier (the verdict above is by the files' scores):"
    for one in rejudged:
        agreed = one.decided - one.only_file - one.only_verifier
        share = f" ({agreed / one.decided:.1%})" if one.decided else ""
        yield (
            f"{one.name}: file and verifier agree on {agreed:,} of {one.decided:,} completions{share}; correct by the file alone "
            f"{one.only_file:,}, by the verifier alone {one.only_verifier:,}; undecided {one.undecided:,}; pass@1 "
            f"{one.pass1[0]:.3f} by the file, {one.pass1[1]:.3f} by the verifier"
        )
    telling = most_telling(rejudged)
    if telling:
        yield f"where they differ, {len(telling)} of {sum(len(one.disagreements) for one in rejudged):,}:"
    for d in telling:
        file = "correct" if d.correct else "wrong"
        end = " ".join(d.text[-TAIL:].split())
        yield (
            f"  {d.name}, problem {d.problem}, sample {d.sample}: file {file}, verifier {d.label} ({d.reason}); "
            f"gold {d.gold}; ends with: {end}"
        )


def most_telling(rejudged: Sequence[Rejudged], shown: int = SHOWN) -> list[Disagreement]:
    """Disagreements of both directions in turn, the shortest completions first, which are read fastest; of completions with the
    same gold, verdict and end only one."""
    apart = {(d.correct, d.gold, d.reason, d.text[-TAIL:]): d for one in rejudged for d in one.disagreements}
    ways = [sorted((d for d in apart.values() if d.correct == side), key=lambda d: len(d.text)) for side in (True, False)]
    return [d for d in chain.from_iterable(zip_longest(*ways)) if d is not None][:shown]
