"""Episodes: a policy and an environment take turns. Training, evaluation and TRL play them here.

    prompt -> [turn of the policy -> reply of the environment] ... -> last turn        one row: prompt + completion tokens

The completion of a row contains both, with a mask of the tokens that the policy sampled. The environment reads only the policy's
text (`sage_rlvr.tasks.base`), its replies are tokenized here, and the policy ends its turns.

An episode is finished if the environment ends it, or with the task's last turn. It is unfinished, and judged like a truncated
completion, if a turn met the limit, or if a reply left no room in the model's positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.core.keys import Key
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.policy import PromptRenderer, Tokens
from sage_rlvr.models.sampler import Rollout, sample
from sage_rlvr.tasks.base import NO_ANSWER, Response, Turn, replies, turns_of
from sage_rlvr.tasks.chat import encodable


@dataclass(frozen=True)
class DrawnTurn:
    """A turn as it was sampled: ids with its end token, log-probs and entropies (None: not computed) of each, nats.

    The callback of `play` that samples turns makes it: training by this package's sampler, evaluation by a `Generator`.
    """

    ids: list[int]
    logps: list[float]
    entropies: list[float] | None = None

    def cut(self, most: int) -> DrawnTurn:
        """Return the first `most` tokens, an episode's own limit, for samplers that do not apply it."""
        if len(self.ids) <= most:
            return self
        return DrawnTurn(self.ids[:most], self.logps[:most], None if self.entropies is None else self.entropies[:most])


@dataclass
class Episode:
    """An episode so far. `play` makes it; `rollout_of` and evaluation read it.

    ids               tokens of all turns after the prompt
    own               which of `ids` the policy sampled
    logps, entropies  of each id, 0 for an environment's
    turns             (who, text), the policy's without their end tokens; the last of an unfinished episode has the mark that no
                      verifier accepts
    counts            tokens of each turn
    """

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    finished: bool = False
    measured: bool = True
    """True if the entropies of all its turns are known."""

    @property
    def context(self) -> list[int]:
        """Tokens from which the next turn is sampled."""
        return [*self.prompt, *self.ids]

    @property
    def policy_turns(self) -> tuple[str, ...]:
        """The policy's turns."""
        return tuple(turn.text for turn in self.turns if turn.who == "policy")

    @property
    def text(self) -> str:
        """The complete episode as displayed: every turn on separate lines."""
        return "\n".join(turn.text for turn in self.turns)

    @property
    def drawn(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.own)

    def add(self, turn: Turn, drawn: DrawnTurn) -> None:
        """Add a turn and its tokens."""
        policy, many = turn.who == "policy", len(drawn.ids)
        self.turns.append(turn)
        self.counts.append(many)
        self.ids += drawn.ids
        self.own += [policy] * many
        self.logps += drawn.logps if policy else [0.0] * many
        self.entropies += drawn.entropies if policy and drawn.entropies is not None else [0.0] * many
        self.measured = self.measured and not (policy and drawn.entropies is None)


DrawTurns = Callable[[int, list[int], list[list[int]], list[int]], list[DrawnTurn]]
"""Function (turn, places of the rows, their contexts, token limit of each) -> a turn of each."""


def play(
    asking: PromptRenderer,
    problems: Sequence[Any],
    prompts: Sequence[Sequence[int]],
    draw: DrawTurns,
    *,
    limit: int,
    window: int | None = None,
) -> list[Episode]:
    """Return one episode for each problem and its prompt's tokens. limit: tokens of the policy in one; window: positions of the
    model.

    A row's episode depends only on its problem, prompt and random numbers.
    """
    tokens, turns = asking.tokens, turns_of(asking.task)
    episodes = [Episode(list(prompt)) for prompt in prompts]

    def room(episode: Episode, more: int = 0) -> int:
        left = limit - episode.drawn
        return left if window is None else min(left, window - len(episode.prompt) - len(episode.ids) - more)

    if episodes and min(map(room, episodes)) < 1:
        longest = max(len(episode.prompt) for episode in episodes)
        raise ConfigError(f"a prompt has {longest} tokens, which leaves none of the model's {window} positions for an episode")
    living = list(range(len(episodes)))
    for turn in range(turns):
        if not living:
            break
        rooms = [room(episodes[i]) for i in living]
        drawn = draw(turn, living, [episodes[i].context for i in living], rooms)
        parts = zip(living, drawn, rooms, strict=True)
        ended = [i for i, one, most in parts if _take(episodes[i], one.cut(most), tokens)]
        last = turn + 1 == turns
        replied = [None] * len(ended) if last else replies(asking.task, [(problems[i], episodes[i].policy_turns) for i in ended])
        replied = [None if text is None else encodable(text, tokens.tokenizer) for text in replied]
        living = []
        for i, reply in zip(ended, replied, strict=True):
            episodes[i].finished = reply is None
            ids = [] if reply is None else asking.reply(reply)
            if reply is not None and room(episodes[i], len(ids)) > 0:
                episodes[i].add(Turn("environment", reply), DrawnTurn(ids, []))
                living.append(i)
    for episode in episodes:
        last = episode.turns[-1]  # always the policy's: a reply that leaves no room is not added
        if not episode.finished:
            episode.turns[-1] = Turn(last.who, _cut(last.text))
    return episodes


def _take(episode: Episode, drawn: DrawnTurn, tokens: Tokens) -> bool:
    """Add a turn of the policy; return True if it ended by itself."""
    ended = drawn.ids[-1] in tokens.eos_ids
    episode.add(Turn("policy", tokens.decode([drawn.ids], [ended])[0]), drawn)
    return ended


def _cut(text: str) -> str:
    """Return the last turn of an unfinished episode, with the mark that no verifier accepts."""
    return text if text.endswith(NO_ANSWER) else text + NO_ANSWER


def responses_of(tokens: Tokens, rollout: Rollout) -> list[Response]:
    """Return the policy's text in each row, or the turns of an episode, as in `Episode.policy_turns`."""
    if rollout.own is None:
        return list(tokens.texts(rollout))
    responses: list[Response] = []
    for ids, drawn, finished in zip(rollout.tokens.tolist(), rollout.drawn.tolist(), rollout.finished.tolist(), strict=True):
        runs = [list(run) for own, run in groupby(range(len(ids)), key=drawn.__getitem__) if own]
        turns = [ids[run[0] : run[-1] + 1] for run in runs]
        texts = tokens.decode(turns, [turn[-1] in tokens.eos_ids for turn in turns])
        responses.append(tuple(texts) if finished else (*texts[:-1], _cut(texts[-1])))
    return responses


# ---- on the sampler of the house


def positions_of(model: PreTrainedModel) -> int | None:
    """Return the number of positions of a model; None if its config names none."""
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    return positions


def sample_episodes(
    model: PreTrainedModel,
    asking: PromptRenderer,
    problems: Sequence[Any],
    prompts: Sequence[Sequence[int]],
    *,
    group_size: int,
    max_new_tokens: int,
    key: Key,
    step: int,
    temperature: float,
    row_ids: Tensor,
) -> Rollout:
    """Return `group_size` episodes of each problem.

    The first turn is sampled like a completion; turn k of row r uses the row's number and a separate key, `key` folded by k.
    """
    tokens, first_prompts, rows = asking.tokens, prompts, [i for i in range(len(prompts)) for _ in range(group_size)]

    def draw(turn: int, indices: list[int], contexts: list[list[int]], rooms: list[int]) -> list[DrawnTurn]:
        first = turn == 0
        rollout = sample(
            model,
            first_prompts if first else contexts,
            group_size=group_size if first else 1,
            max_new_tokens=max(rooms),
            eos_id=tokens.eos_ids,
            pad_id=tokens.pad_id,
            key=key if first else key.fold(f"turn/{turn}"),
            step=step,
            temperature=temperature,
            row_ids=row_ids if first else row_ids[torch.tensor(indices)],
            entropies=False,
            limits=None if len(set(rooms)) == 1 else torch.tensor(rooms),
        )
        return drawn_of(rollout)

    problems, prompts = ([some[i] for i in rows] for some in (problems, prompts))
    episodes = play(asking, problems, prompts, draw, limit=max_new_tokens, window=positions_of(model))
    return rollout_of(episodes, tokens.pad_id, model.device)


def drawn_of(rollout: Rollout) -> list[DrawnTurn]:
    """Return the rows of a rollout, each as a turn."""
    rows = zip(rollout.tokens.tolist(), rollout.logps.tolist(), rollout.lengths.tolist(), strict=True)
    return [DrawnTurn(ids[:n], logps[:n]) for ids, logps, n in rows]


def rollout_of(episodes: Sequence[Episode], pad_id: int, device: torch.device | str = "cpu") -> Rollout:
    """Return episodes as the rows of a rollout, without entropies."""
    width = max(len(one.ids) for one in episodes)

    def column(name: str, fill: Any, kind: torch.dtype) -> Tensor:
        rows = [[*getattr(one, name), *[fill] * (width - len(one.ids))] for one in episodes]
        return torch.tensor(rows, dtype=kind, device=device)

    lengths = torch.tensor([len(one.ids) for one in episodes], device=device)
    mask = torch.arange(width, device=device)[None, :] < lengths[:, None]
    finished = torch.tensor([one.finished for one in episodes], device=device)
    kinds = (column("ids", pad_id, torch.long), mask, column("logps", 0.0, torch.float32))
    return Rollout(*kinds, None, finished, column("own", False, torch.bool))


__all__ = ["DrawnTurn", "Episode", "drawn_of", "play", "positions_of", "responses_of", "rollout_of", "sample_episodes"]
