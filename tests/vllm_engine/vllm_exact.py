"""What samples of the shipped policy are held against: its exact log-probs, and the chance of whole completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import chisquare
from torch.nn.utils.rnn import pad_sequence

from sage_rlvr.core.keys import Key
from sage_rlvr.models.generation import Generation
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.sampler import sample
from sage_rlvr.models.scoring import score

PROMPTS = ("2 3 5 7=24:", "1 4 6 9=10:")
LENGTH = 24


def logps_of(model: Any, tokens: Tokens, prompt: Sequence[int], rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """The model's log-probs of each row's tokens behind the prompt, nats, by the scorer."""
    ids = pad_sequence([torch.tensor(list(row), dtype=torch.long) for row in rows], batch_first=True, padding_value=tokens.pad_id)
    mask = torch.arange(ids.shape[1])[None] < torch.tensor([[len(row)] for row in rows])
    with torch.no_grad():
        found = score(model, [list(prompt)], ids, mask, torch.zeros(len(rows), dtype=torch.long)).logps
    return [found[i, : len(row)].numpy() for i, row in enumerate(rows)]


def fit(model: Any, tokens: Tokens, prompt: Sequence[int], drawn: Sequence[Generation]) -> float:
    """p of a chi-square test that completions were drawn with their exact chances.

    The cells: each completion of which five or more are expected, and all others together. Which ones these are is found among
    samples of our own, so that the ones under test do not choose their cells.
    """
    law: Any = {"group_size": 4000, "max_new_tokens": LENGTH, "eos_id": tokens.eos_ids, "pad_id": tokens.pad_id}
    own = sample(model, [list(prompt)], key=Key(7), entropies=False, **law)
    seen = sorted({tuple(row[:n]) for row, n in zip(own.tokens.tolist(), own.lengths.tolist(), strict=True)})
    chances = np.exp([logps.sum(dtype=np.float64) for logps in logps_of(model, tokens, prompt, seen)])
    cells = {row: chance for row, chance in zip(seen, chances, strict=True) if chance * len(drawn) >= 5}
    assert len(cells) >= 8, "the test needs completions that come often"
    counts = Counter(tuple(int(i) for i in one.token_ids) for one in drawn)  # type: ignore[union-attr]
    observed = [counts[row] for row in cells]
    expected = [chance * len(drawn) for chance in cells.values()]
    rest = (len(drawn) - sum(observed), len(drawn) - sum(expected))
    return float(chisquare([*observed, rest[0]], [*expected, rest[1]]).pvalue)


def far(model: Any, tokens: Tokens, prompt: Sequence[int], drawn: Sequence[Generation]) -> float:
    """The largest difference between the log-probs that a generator gave and the scorer's."""
    own = logps_of(model, tokens, prompt, [one.token_ids for one in drawn])  # type: ignore[misc]
    return max(float(np.abs(a - b.logps).max()) for a, b in zip(own, drawn, strict=True))
