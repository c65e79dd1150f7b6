"""What tempering a policy over whole completions needs beyond its right ones: sum over all completions y of pi(y | x)^power.

Completions are enumerated down to a floor (`models/completions.py`). What lies below the floor is bounded and not guessed: the
completions that begin with a prefix u have together at most pi(u)^power, since each has at most pi(u) and all of them sum to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from sage_rlvr.errors import DataError
from sage_rlvr.models.completions import Enumerated, enumerate_completions
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks.base import Task

Floats = NDArray[np.float64]

FLOOR = 1e-4
MOST_STATES = 40_000


def log_normalizers(
    model: PreTrainedModel,
    tokens: Tokens,
    task: Task,
    problems: Sequence[object],
    powers: Sequence[float],
    *,
    max_new_tokens: int = 32,
    floor: float = FLOOR,
    most_states: int = MOST_STATES,
    progress: Callable[[int], None] = lambda n: None,
) -> dict[float, Floats]:
    """Bounds on log sum_y pi(y | x)^power in nats: {power: (N, 2) float64, lower and upper}, equal (0, 0) at power 1.

    y are the completions that end with an end token; those longer than `max_new_tokens` count among what is bounded. A problem
    with more than `most_states` prefixes above the floor is taken with a higher floor and so has a wider bound. DataError for a
    power below 1: there what lies below the floor weighs more than what lies above it, and no bound holds.
    """
    wrong = [power for power in powers if not (power >= 1 and math.isfinite(power))]
    if wrong:
        raise DataError(
            f"power = {wrong[0]!r}: bounds hold from power 1 on (sharper than the policy); take powers in [1, inf)."
        )
    rows: dict[float, list[tuple[float, float]]] = {float(power): [] for power in powers}
    for problem in problems:
        listed = _listed(model, tokens, tokens.encode_prompt(task.prompt(problem)), max_new_tokens, floor, most_states)
        for power, found in rows.items():
            found.append(_bounds(listed, power))
        progress(1)
    return {power: np.array(found).reshape(-1, 2) for power, found in rows.items()}


def _listed(
    model: PreTrainedModel, tokens: Tokens, prompt: Sequence[int], limit: int, floor: float, most_states: int
) -> Enumerated:
    """The enumeration at `floor`, or at the lowest of floor * sqrt(10), floor * 10, ... that `most_states` prefixes allow."""
    while True:
        try:
            return enumerate_completions(model, tokens, prompt, limit, floor=floor, most_states=most_states)
        except DataError:
            if floor * math.sqrt(10) >= 1:
                raise
            floor *= math.sqrt(10)


def _bounds(listed: Enumerated, power: float) -> tuple[float, float]:
    if power == 1:  # probabilities sum to 1
        return 0.0, 0.0
    logs = power * torch.log(listed.probs)
    ended = float(torch.logsumexp(logs[listed.finished], 0))
    rest = float(torch.logsumexp(logs[~listed.finished], 0))
    return ended, min(0.0, float(np.logaddexp(ended, rest)))


__all__ = ["FLOOR", "MOST_STATES", "log_normalizers"]
