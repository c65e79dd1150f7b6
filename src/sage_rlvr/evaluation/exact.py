"""Exact evaluation of tasks that enumerate their right completions: sum the probabilities of all of them.

p(problem) = sum over right completions y of pi(y, end | prompt) (`models/enumeration/solutions.py`): no sampling noise, any
temperature from the same logits, and every quantity of Definition 4.1 (empirical support) follows from the list. Sampling remains
as the cross-check: `sampled_counts` samples, verifies and counts, and the two must agree within the interval of the samples.

Tempering a policy over full completions also needs sum over all completions y of pi(y | x)^power. Completions are enumerated
down to a floor (`models/enumeration/completions.py`). The mass below the floor is bounded and not guessed: the completions that
begin with a prefix u have together at most pi(u)^power, since each has at most pi(u) and all of them sum to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from transformers import PreTrainedModel

from sage_rlvr.core.keys import Key
from sage_rlvr.errors import DataError
from sage_rlvr.models.enumeration.completions import Enumerated, enumerate_completions
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.sampler import sample
from sage_rlvr.tasks.base import Task, verdicts

FLOOR, MOST_STATES = 1e-4, 40_000  # of an enumeration


def probabilities(logps: Sequence[np.ndarray]) -> np.ndarray:
    """(N,) probability of being right, one per problem; rounding above 1 is cut off."""
    return np.array([min(1.0, float(np.exp(row).sum())) for row in logps])


def sampled_counts(
    model: PreTrainedModel,
    tokens: Tokens,
    task: Task,
    problems: Sequence[object],
    *,
    n: int,
    max_new_tokens: int,
    seed: int,
    temperature: float = 1.0,
) -> np.ndarray:
    """(N,) number of right completions among `n` samples per problem: the cross-check of `solution_logps`."""
    counts = np.zeros(len(problems), dtype=np.int64)
    key = Key(seed).fold("evaluation")
    for i, problem in enumerate(problems):
        prompt = tokens.encode_prompt(task.prompt(problem))
        rollout = sample(
            model,
            [prompt],
            group_size=n,
            max_new_tokens=max_new_tokens,
            eos_id=tokens.eos_ids,
            pad_id=tokens.pad_id,
            key=key,
            step=i,
            temperature=temperature,
            entropies=False,
        )
        counts[i] = sum(verdict.right for verdict in verdicts(task, [(problem, text) for text in tokens.texts(rollout)]))
    return counts


# ------------------------------------------------------------------------------------------------------------------
# normalizers for tempering over full completions


def log_normalizers(
    model: PreTrainedModel,
    tokens: Tokens,
    task: Task,
    problems: Sequence[object],
    powers: Sequence[float],
    *,
    max_new_tokens: int,
    floor: float = FLOOR,
    most_states: int = MOST_STATES,
    progress: Callable[[int], None] = lambda n: None,
) -> dict[float, np.ndarray]:
    """Bounds on log sum_y pi(y | x)^power in nats: {power: (N, 2) float64, lower and upper}, equal (0, 0) at power 1.

    y are the completions that end with an end token; longer ones than `max_new_tokens` are part of the bounded mass. A problem with
    more than `most_states` prefixes above the floor gets a higher floor and so a wider bound. Raises DataError for a power below 1:
    then completions below the floor have more weight than those above it, and no bound holds.
    """
    wrong = [power for power in powers if not (power >= 1 and math.isfinite(power))]
    if wrong:
        raise DataError(
            f"power = {wrong[0]!r}: the bounds hold only for powers >= 1 (sharper than the policy); use powers in [1, inf)."
        )
    rows: dict[float, list[tuple[float, float]]] = {float(power): [] for power in powers}
    for problem in problems:
        prompt = tokens.encode_prompt(task.prompt(problem))
        listed = _listed(partial(enumerate_completions, model, tokens, prompt, max_new_tokens, most_states=most_states), floor)
        for power, bounds in rows.items():
            bounds.append(_bounds(listed, power))
        progress(1)
    return {power: np.array(bounds).reshape(-1, 2) for power, bounds in rows.items()}


def _listed(enumerated: Callable[..., Enumerated], floor: float) -> Enumerated:
    """The enumeration at `floor`, or at the lowest of floor * sqrt(10), floor * 10, ... that allows it."""
    try:
        return enumerated(floor=floor)
    except DataError:
        if floor * math.sqrt(10) >= 1:
            raise
    return _listed(enumerated, floor * math.sqrt(10))


def _bounds(listed: Enumerated, power: float) -> tuple[float, float]:
    if power == 1:  # probabilities sum to 1
        return 0.0, 0.0
    logs = power * torch.log(listed.probs)
    ended, rest = (float(torch.logsumexp(logs[rows], 0)) for rows in (listed.finished, ~listed.finished))
    return ended, min(0.0, float(np.logaddexp(ended, rest)))
