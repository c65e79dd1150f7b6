"""Episodes: a policy and an environment take turns. Training, evaluation and TRL play them here.

    prompt -> [turn of the policy -> reply of the environment] ... -> last turn        one row: prompt + completion tokens

The completion of a row holds both; which tokens the policy drew is marked. The environment reads the policy's words only
(`sage_rlvr.tasks.base`), its replies are tokenized here, and a turn ends where the policy ends it.

An episode is finished where the environment says so, or with the task's last turn. It is unfinished, and judged as a
completion that was cut off, where a turn met the limit, or where a reply left no room in the model's positions.
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
from sage_rlvr.models.policy import Asking, Tokens
from sage_rlvr.models.sampler import Rollout, sample
from sage_rlvr.tasks.base import NO_ANSWER, Response, Turn, replies, turns_of
from sage_rlvr.tasks.chat import encodable


@dataclass(frozen=True)
class DrawnTurn:
    """A turn as it was drawn: ids with its end token, log-probs and entropies (None: not computed) of each, nats. Whoever draws
    turns for `play` makes it: training by this package's sampler, evaluation by a `Generator`."""

    ids: list[int]
    logps: list[float]
    entropies: list[float] | None = None

    def cut(self, most: int) -> DrawnTurn:
        """The first `most` tokens: an episode's own limit, where what draws turns does not hold to it."""
        if len(self.ids) <= most:
            return self
        return DrawnTurn(self.ids[:most], self.logps[:most], None if self.entropies is None else self.entropies[:most])


@dataclass
class Episode:
    """What has been said so far. own: which of `ids` the policy drew. logps, entropies: of each id, 0 where it is not its own.
    `play` makes it; `rollout_of` and evaluation read it.

    turns: who said what, the policy's without their end tokens; the last of an unfinished episode carries the mark that no
    verifier accepts. counts: tokens of each turn.
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
    """Whether the entropies of all its turns are known."""

    @property
    def context(self) -> list[int]:
        """What the next turn is drawn from."""
        return [*self.prompt, *self.ids]

    @property
    def policy_turns(self) -> tuple[str, ...]:
        """The policy's turns."""
        return tuple(turn.text for turn in self.turns if turn.who == "policy")

    @property
    def text(self) -> str:
        """All of it, as it is shown: every turn on lines of its own."""
        return "\n".join(turn.text for turn in self.turns)

    @property
    def drawn(self) -> int:
        """Tokens that the policy drew."""
        return sum(self.own)

    def add(self, turn: Turn, drawn: DrawnTurn) -> None:
        """A turn, and its tokens."""
        policy, many = turn.who == "policy", len(drawn.ids)
        self.turns.append(turn)
        self.counts.append(many)
        self.ids += drawn.ids
        self.own += [policy] * many
        self.logps += drawn.logps if policy else [0.0] * many
        self.entropies += drawn.entropies if policy and drawn.entropies is not None else [0.0] * many
        self.measured = self.measured and not (policy and drawn.entropies is None)


DrawTurns = Callable[[int, list[int], list[list[int]], list[int]], list[DrawnTurn]]
"""(turn, places of the rows, their contexts, the most tokens of each) -> a turn of each."""


def play(
    asking: Asking,
    problems: Sequence[Any],
    prompts: Sequence[Sequence[int]],
    draw: DrawTurns,
    *,
    limit: int,
    window: int | None = None,
) -> list[Episode]:
    """One episode for each problem and its prompt's tokens. limit: tokens of the policy in one; window: positions of the model.

    A row's episode depends on its own problem, prompt and draws only.
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
    """Add a turn of the policy; whether it ended by itself."""
    ended = drawn.ids[-1] in tokens.eos_ids
    episode.add(Turn("policy", tokens.decode([drawn.ids], [ended])[0]), drawn)
    return ended


def _cut(text: str) -> str:
    """The last turn of an unfinished episode: with the mark that no verifier accepts."""
    return text if text.endswith(NO_ANSWER) else text + NO_ANSWER


def responses_of(tokens: Tokens, rollout: Rollout) -> list[Response]:
    """What the policy wrote in each row: its text, or the turns of an episode, as `Episode.policy_turns` has them."""
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
    """The positions that a model has; None if its config names none."""
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    return positions


def sample_episodes(
    model: PreTrainedModel,
    asking: Asking,
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
    """`group_size` episodes of each problem. The first turn is drawn as a completion is; turn k of row r at the row's number from a
    key of its own, `key` folded by k.
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
    """The rows of a rollout, each as a turn."""
    rows = zip(rollout.tokens.tolist(), rollout.logps.tolist(), rollout.lengths.tolist(), strict=True)
    return [DrawnTurn(ids[:n], logps[:n]) for ids, logps, n in rows]


def rollout_of(episodes: Sequence[Episode], pad_id: int, device: torch.device | str = "cpu") -> Rollout:
    """Episodes as the rows of a rollout, without entropies."""
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
