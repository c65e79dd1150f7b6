"""Checks of samples before they are committed: each is valid, and together they are complete chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from sage_rlvr.errors import DataError, short
from sage_rlvr.evaluation.store.sample import FINISHES, LABELS, TOKEN_LEVEL, Chunk, Sample, is_integer, policy_turns

_TEXTS = ("text", "reason", "prompt_hash", "answer")
_REAL = (int, float, np.integer, np.floating, type(None))


def checked(samples: Sequence[Sample], size: int, turns: int = 1) -> tuple[list[Sample], list[Chunk]]:
    """The samples by (problem, sample), and the complete chunks that they form. Raises DataError that names the first invalid
    sample."""
    for sample in samples:
        if reason := _reason(sample, turns):
            raise DataError(f"problem {sample.problem!r}, sample {sample.sample!r}: {reason}")
    rows = sorted(samples, key=lambda sample: (sample.problem, sample.sample))
    chunks = sorted({Chunk(row.problem, int(row.sample) - int(row.sample) % size, size) for row in rows})
    given = Counter((row.problem, int(row.sample)) for row in rows)
    whole = Counter((chunk.problem, number) for chunk in chunks for number in chunk.samples)
    if odd := sorted((given - whole) + (whole - given)):
        problem = odd[0][0]
        numbers = [number for name, number in odd if name == problem]
        raise DataError(
            f"problem {problem!r}: its samples are no whole chunks of {size} (look at {short(numbers)}); commit each chunk whole, "
            "with every sample once"
        )
    owners: dict[int | None, Sample] = {}
    for row in rows:
        owner = owners.setdefault(row.seed, row)
        if row.seed is not None and owner is not row:
            raise DataError(
                f"problem {row.problem!r}, sample {row.sample} has the seed {row.seed} of problem {owner.problem!r}, "
                f"sample {owner.sample}: repeats with one seed are one sample; take each from Identity.seed_of"
            )
    return rows, chunks


def _reason(row: Sample, turns: int) -> str | None:
    """Return the reason why a sample cannot be stored, None if it can. turns: the most turns of an episode, 1 for completions."""
    if not isinstance(row.problem, str) or not row.problem:
        return "the problem's id is a text that is not empty"
    if not is_integer(row.sample, 2**31):
        return "samples are numbered from 0"
    for name, value, known in (("verdict", row.verdict, LABELS), ("finish", row.finish, FINISHES)):
        if value not in known:
            return f"{name} {value!r}; it is one of {', '.join(map(repr, known))}"
    if row.seed is not None and not is_integer(row.seed, 2**63):
        return f"seed {row.seed!r} is not in [0, 2^63); take it from Identity.seed_of"
    if not _fits_turns(row, turns):
        return f"turns do not fit a store of episodes of at most {turns} turns, or the sample's tokens"
    ids = np.asarray([] if row.token_ids is None else row.token_ids)
    if ids.ndim != 1 or (ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= 2**31)):
        return f"token_ids must be a list of whole numbers from 0 on; shape {ids.shape}, {ids.dtype}"
    if odd := [name for name in _TEXTS if not isinstance(value := getattr(row, name), str) and (name, value) != ("answer", None)]:
        return f"{odd[0]} = {short(getattr(row, odd[0]))}: must be a text"
    if isinstance(row.latency_s, bool) or not isinstance(row.latency_s, _REAL):
        return f"latency_s = {short(row.latency_s)}: must be a number of seconds, or None"
    for name in TOKEN_LEVEL:
        values = ids if getattr(row, name) is None else np.asarray(getattr(row, name))
        if row.token_ids is not None and values.shape != ids.shape:
            return f"{name} has the shape {values.shape}, its {ids.size} tokens need ({ids.size},)"
        if values.dtype.kind not in "fiu":
            return f"{name} = {short(values.tolist())}: must be a list of numbers"
    return None


def _fits_turns(row: Sample, turns: int) -> bool:
    """Whether a completion (turns = 1) has no turns, or an episode as many as it may have, with all of its tokens."""
    if row.turns is None or turns == 1:
        return row.turns is None and turns == 1
    tokens = sum(count for _, _, count in row.turns)
    fits = row.token_ids is None or tokens == len(np.asarray(row.token_ids))
    return fits and 1 <= len(policy_turns(row.turns)) <= turns
