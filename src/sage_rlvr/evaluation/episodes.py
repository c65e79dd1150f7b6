"""Episodes of an evaluation, for any generator with token ids as input and output (`sage_rlvr.models.episodes`).

Turn 0 is sampled like a completion, with its sample's seed; turn k of the sample has another seed, a function of the sample's seed
and k, so that every generator's random numbers stay reproducible.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.episodes import DrawnTurn, Episode, play
from sage_rlvr.models.generation import Generation, Generator, Request
from sage_rlvr.models.policy import PromptRenderer

ROWS = 128  # contexts per call of the generator in later turns, when all contexts differ


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a later turn, in [0, 2^63): 63 bits of SHA-256 of "seed/turn"; for turn 0 the sample's seed (golden test)."""
    if turn == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{turn}".encode("ascii")).digest()[:8], "big") >> 1


def generate_episodes(
    generator: Generator,
    asking: PromptRenderer,
    problems: Sequence[Any],
    requests: Sequence[Request],
    *,
    limit: int,
    window: int | None = None,
) -> list[list[Generation]]:
    """`generator.generate(requests)` for episodes: one request per problem. limit: tokens of the policy in an episode; window:
    positions of the model. Raises ConfigError for a generator that does not return its tokens.
    """
    seeds = [seed for request in requests for seed in request.seeds]
    owners = [row for row, request in enumerate(requests) for _ in request.seeds]
    known = True

    def draw(turn: int, indices: list[int], contexts: list[list[int]], rooms: list[int]) -> list[DrawnTurn]:
        nonlocal known
        if turn == 0:
            drawn = [one for rows in generator.generate(requests) for one in rows]
        else:
            rows = zip(indices, contexts, rooms, strict=True)
            turn_requests = [Request(tuple(context), (turn_seed(seeds[row], turn),), room) for row, context, room in rows]
            parts = [turn_requests[first : first + ROWS] for first in range(0, len(turn_requests), ROWS)]
            drawn = [one for part in parts for (one,) in generator.generate(part)]
        known = known and all(one.logps is not None for one in drawn)
        return [_drawn(generator, one) for one in drawn]

    prompts = [requests[owner].prompt for owner in owners]
    episodes = play(asking, [problems[owner] for owner in owners], prompts, draw, limit=limit, window=window)
    made = iter([_generation(episode, known) for episode in episodes])
    return [[next(made) for _ in request.seeds] for request in requests]


def _drawn(generator: Generator, one: Generation) -> DrawnTurn:
    """A turn of the policy; log-probs are 0 if the generator returns none, and `generate_episodes` then drops them."""
    if one.token_ids is None:
        raise ConfigError(
            f"generator {generator.name!r} does not return the sampled tokens, which the next turn of an episode needs; "
            "use sampler, transformers or vllm, or a server that returns token ids"
        )
    ids = [int(token) for token in one.token_ids]
    logps = [0.0] * len(ids) if one.logps is None else one.logps.tolist()
    return DrawnTurn(ids, logps, None if one.entropies is None else one.entropies.tolist())


def _generation(episode: Episode, known: bool) -> Generation:
    """known: whether the log-probs of every turn are known."""
    ids, entropies = np.array(episode.ids, np.int32), np.array(episode.entropies, np.float32)
    logps = np.array(episode.logps, np.float32) if known else None
    turns = tuple((turn.who, turn.text, count) for turn, count in zip(episode.turns, episode.counts, strict=True))
    finish = "stop" if episode.finished else "length"
    return Generation(episode.text, ids, logps, entropies if episode.measured else None, finish, turns)  # type: ignore[arg-type]


__all__ = ["generate_episodes", "turn_seed"]
