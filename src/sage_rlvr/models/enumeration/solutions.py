"""Correct completions of a task that can list them, scored under a policy: every one teacher-forced, nothing sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.sampler import pad_right
from sage_rlvr.models.scoring import logps_at
from sage_rlvr.tasks.abilities import Enumerable
from sage_rlvr.tasks.base import Task

ROWS_PER_CHUNK = 512


@torch.no_grad()
def solution_logps(
    model: PreTrainedModel,
    tokens: Tokens,
    task: Task,
    problems: Sequence[object],
    temperatures: Sequence[float] = (1.0,),
    progress: Callable[[int], None] = lambda n: None,
) -> dict[float, list[np.ndarray]]:
    """Return the log-probability of every correct completion (its end token included) of every problem, at each temperature.

    The result is {temperature: [float64 array of log-probs, in `task.solutions` order] per problem}.
    """
    model.eval()
    logps: dict[float, list[np.ndarray]] = {t: [] for t in temperatures}
    for chunk, solutions in _chunks(task, problems):
        prompts = [tokens.encode_prompt(task.prompt(p)) for p in chunk]
        # Any of the end tokens ends a completion, so a right text is as likely as all of its ends together.
        rows = [[*tokens.encode(s), end] for listed in solutions for s in listed for end in tokens.eos_ids]
        counts = [len(listed) * len(tokens.eos_ids) for listed in solutions]
        per_row = _row_logps(model, prompts, rows, counts, temperatures)
        for t in temperatures:
            ended = np.logaddexp.reduce(per_row[t].reshape(-1, len(tokens.eos_ids)), axis=1)
            logps[t].extend(np.split(ended, np.cumsum([len(listed) for listed in solutions])[:-1]))
        progress(len(chunk))
    return logps


def lister(task: Task) -> Callable[[object], list[str]]:
    """Return the task's `solutions`. Raise ConfigError if it has none."""
    if not isinstance(task, Enumerable):
        raise ConfigError(
            f"task {task.name}: its right completions cannot be listed; evaluate by sampling: --samples 64; for "
            "alpha-DPG set z: group"
        )
    return task.solutions


def _chunks(task: Task, problems: Sequence[object]) -> Iterator[tuple[list[object], list[list[str]]]]:
    """Yield consecutive problems with about `ROWS_PER_CHUNK` correct completions together."""
    listed = lister(task)
    chunk: list[object] = []
    solutions: list[list[str]] = []
    for problem in problems:
        chunk.append(problem)
        solutions.append(listed(problem))
        if sum(map(len, solutions)) >= ROWS_PER_CHUNK:
            yield chunk, solutions
            chunk, solutions = [], []
    if chunk:
        yield chunk, solutions


def _row_logps(
    model: PreTrainedModel,
    prompts: list[list[int]],
    rows: list[list[int]],
    counts: list[int],
    temperatures: Sequence[float],
) -> dict[float, np.ndarray]:
    if not rows:
        return {t: np.zeros(0) for t in temperatures}
    ids, lengths = pad_right(rows, next(model.parameters()).device)
    mask = torch.arange(ids.shape[1], device=ids.device)[None, :] < lengths[:, None]
    owners = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(counts)).to(ids.device)
    by_temperature = logps_at(model, prompts, ids, mask, owners, temperatures)
    return {t: logps.double().sum(1).cpu().numpy() for t, logps in by_temperature.items()}


def log_right(
    model: PreTrainedModel, tokens: Tokens, task: Task, problem: object, temperature: float, max_new_tokens: int
) -> float:
    """Return log P(right) of one problem, nats: over its correct completions that end within `max_new_tokens`; -inf without any.

    One problem per call, so that the number does not depend on the other problems.
    """
    logps = solution_logps(model, tokens, task, [problem], (temperature,))[temperature][0]
    short = [len(tokens.encode(text)) < max_new_tokens for text in lister(task)(problem)]  # and one token for the end
    return float(np.logaddexp.reduce(logps[short])) if any(short) else -np.inf
