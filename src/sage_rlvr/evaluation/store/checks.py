"""Checks of samples before they are committed: each can be used, and together they are whole chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError, short
from sage_rlvr.evaluation.store.sample import FINISHES, LABELS, TOKEN_LEVEL, Chunk, Sample, is_integer, policy_turns


def checked(samples: Sequence[Sample], size: int, turns: int = 1) -> tuple[list[Sample], list[Chunk]]:
    """The samples by (problem, sample), and the whole chunks that they are. DataError names the first that cannot be used."""
    for sample in samples:
        if reason := next(_reasons(sample, turns), None):
            raise DataError(f"problem {sample.problem!r}, sample {sample.sample!r}: {reason}")
    rows = sorted(samples, key=lambda sample: (sample.problem, sample.sample))
    _check_seeds(rows)
    chunks = []
    for problem, group in groupby(rows, key=lambda row: row.problem):
        numbers = [int(row.sample) for row in group]
        chunks += [Chunk(problem, first, size) for first in _firsts(problem, numbers, size)]
    return rows, chunks


def _check_seeds(rows: Sequence[Sample]) -> None:
    """DataError where two samples have one seed."""
    owners: dict[int, Sample] = {}
    for row in rows:
        if row.seed is None:
            continue
        owner = owners.setdefault(row.seed, row)
        if (owner.problem, owner.sample) != (row.problem, row.sample):
            raise DataError(
                f"problem {row.problem!r}, sample {row.sample} has the seed {row.seed} of problem {owner.problem!r}, "
                f"sample {owner.sample}: repeats with one seed are one sample; take each from Identity.seed_of"
            )


def _firsts(problem: str, numbers: list[int], size: int) -> list[int]:
    """The first sample of each chunk. DataError where the numbers are not those of whole chunks."""
    firsts = sorted({number - number % size for number in numbers})
    complete = [first + i for first in firsts for i in range(size)]
    if numbers != complete:
        odd = sorted(set(complete) ^ set(numbers)) or [number for number in numbers if numbers.count(number) > 1]
        raise DataError(
            f"problem {problem!r}: samples {_short(numbers)} are no whole chunks of {size} "
            f"(look at {_short(odd)}); commit each chunk whole, with every sample once"
        )
    return firsts


def _short(numbers: Sequence[int]) -> str:
    return str(list(numbers)) if len(numbers) < 9 else f"[{numbers[0]}, {numbers[1]}, ..., {numbers[-1]}]"


def _reasons(row: Sample, turns: int) -> Iterator[str]:
    """Why a sample cannot be stored. turns: the most of an episode, 1 for completions."""
    if not isinstance(row.problem, str) or not row.problem:
        yield "the problem's id is a text that is not empty"
    if not is_integer(row.sample, 2**31):
        yield "samples are numbered from 0"
    if row.verdict not in LABELS:
        yield f"verdict {row.verdict!r}; it is one of {', '.join(LABELS)}"
    if row.finish not in FINISHES:
        yield f'finish {row.finish!r}; it is "stop", "length" or None'
    if row.seed is not None and not is_integer(row.seed, 2**63):
        yield f"seed {row.seed!r} is not in [0, 2^63); take it from Identity.seed_of"
    if not _fits_turns(row, turns):
        yield f"turns do not fit a store of episodes of at most {turns} turns, or the sample's tokens"
    ids = np.asarray([] if row.token_ids is None else row.token_ids)
    if not _are_token_ids(ids):
        yield f"token_ids must be a list of whole numbers from 0 on; shape {ids.shape}, {ids.dtype}"
    for name in ("text", "reason", "prompt_hash", "answer"):
        value = getattr(row, name)
        if not isinstance(value, str) and (name, value) != ("answer", None):
            yield f"{name} = {short(value)}: must be a text"
    if isinstance(row.latency_s, bool) or not isinstance(row.latency_s, (int, float, np.integer, np.floating, type(None))):
        yield f"latency_s = {short(row.latency_s)}: must be a number of seconds, or None"
    for name in TOKEN_LEVEL:
        if getattr(row, name) is not None:
            values = np.asarray(getattr(row, name))
            if row.token_ids is not None and values.shape != ids.shape:
                yield f"{name} has the shape {values.shape}, its {ids.size} tokens need ({ids.size},)"
            if values.dtype.kind not in "fiu":
                yield f"{name} = {short(values.tolist())}: must be a list of numbers"


def _are_token_ids(ids: NDArray[Any]) -> bool:
    if ids.ndim != 1:
        return False
    return not ids.size or bool(ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() < 2**31)


def _fits_turns(row: Sample, turns: int) -> bool:
    """Whether a completion (turns = 1) has no turns, or an episode as many as it may have, with all of its tokens."""
    if row.turns is None or turns == 1:
        return row.turns is None and turns == 1
    tokens = sum(count for _, _, count in row.turns)
    if row.token_ids is not None and tokens != len(np.asarray(row.token_ids)):
        return False
    return 1 <= len(policy_turns(row.turns)) <= turns
