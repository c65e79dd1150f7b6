"""One policy without another, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sage_rlvr.errors import suggest
from sage_rlvr.verdicts.one_file import Portrait, portraits
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row_counts import TASK
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.text.verdicts import read_line
from sage_rlvr.verdicts.text.words import listed, many


def lines(results: Results) -> Iterator[str]:
    """Yield the lines for a terminal: pass@1 and the largest k first, the file, scores, vote, detectable difference, notes."""
    found = portraits(results)
    for one in found:
        yield f"{_on(one, found)}{_headline(one)}"
    yield ""
    yield from map(read_line, results.given)
    for one in found:
        yield ""
        yield from [_on(one, found).strip()] if len(found) > 1 else ()
        yield from _numbers(one)
    yield from results.failed
    yield ""
    if results.sources:
        options = results.given[0].evaluation.options if results.given else ()
        yield f"compare it: {suggest('compare', results.sources[0], 'OTHER', *options)}"
    yield from results.notes


def _headline(one: Portrait) -> str:
    ks = list(one.passes)
    top = f", and {100 * one.passes[ks[-1]].value:.1f} % in {ks[-1]:,}" if len(ks) > 1 else ""
    return (
        f"{one.arm} solves {100 * one.passes[1].value:.1f} % of {many(one.problems, 'problem')} at the first try{top} "
        f"({many(one.n, 'sample')} each)."
    )


def _numbers(one: Portrait) -> Iterator[str]:
    for k, score in one.passes.items():
        floor = "" if one.chance is None else f"; chance floor {one.chance.at(k):.3f}"
        yield f"pass@{k}: {_bracketed(score)}{floor}"
    level = 100 * next(iter(one.passes.values())).level
    band = f"{level:g} % band over all k at once" if one.banded else "95 % interval at each k"
    yield f"{band}, over {one.problems:,} problems and their samples"
    if one.chance is not None:
        yield f"chance floor: {one.chance.words}"
    yield f"in {one.n} samples {one.never:,} of {many(one.problems, 'problem')} never solved, {one.always:,} always"
    k, all_right = one.all_right
    if k > 1:
        yield f"all of {k} right (pass^{k}): {_bracketed(all_right)}"
    if one.vote is not None:
        k, vote = one.vote
        silent = f"; {100 * one.silent:.1f} % of the samples have no answer" if one.silent else ""
        yield f"majority of {k} (maj@{k}): {_bracketed(vote)}{silent}"
    if one.seen:
        same, apart = (" and ".join(f"{both[i]:.3f} in pass@{k}" for k, both in one.seen.items()) for i in (0, 1))
        yield (
            f"a second file with as many samples of these problems could show a difference of {same} if it solves mostly the same "
            f"problems, of {apart} if it solves others (80 % power, by the band)"
        )
    elif one.seen is not None:
        yield "a comparison of so few problems could not show any difference; more problems are needed"


def _bracketed(score: Interval) -> str:
    return f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"


def _on(one: Portrait, found: Sequence[Portrait]) -> str:
    """Task and temperature as a prefix, each only if the policies differ in it."""
    several = {other.temperature for other in found}
    on = listed("" if one.task == TASK else one.task, f"T = {one.temperature:g}" if len(several) > 1 else "")
    return f"{on}: " if on and len(found) > 1 else ""
