"""Compute the exact KL between two policies on the completions of their sample stores (`kl.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.core import laws
from sage_rlvr.core.divergences import forward_kl, unnormalized_kl
from sage_rlvr.errors import ConfigError, refuse
from sage_rlvr.evaluation.kl import DTYPE, SIDES, Side, TokenKl, about_of, kl_path, known_kl, states_of
from sage_rlvr.evaluation.policies import load_here
from sage_rlvr.evaluation.sample_run import SampleRun
from sage_rlvr.evaluation.sampling import EvalSet, check_vocabulary, padded, prompts_of
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.sample import own_of
from sage_rlvr.ids import name_id
from sage_rlvr.models.scoring import distributions, engine_scores
from sage_rlvr.progress import Counting
from sage_rlvr.tasks.abilities import ClassifiesStates
from sage_rlvr.tasks.rows import Say
from sage_rlvr.training.places import places_of

POSITIONS = 4096  # tokens of prompts and completions in one forward of each model


@dataclass(frozen=True, eq=False)
class Completion:
    """A stored completion as tokens.

    own (T,): tokens that the policy sampled; in an episode, not those of the environment
    states (T,): number of the class of the state before each

    `kl_of_stores` makes it from a store's rows and scores it."""

    prompt: tuple[int, ...]
    ids: NDArray[np.int64]
    own: NDArray[np.bool_]
    states: NDArray[np.int64] | None = None


def kl_of_stores(
    run: SampleRun, base: SampleRun, stores: Mapping[str, SampleStore], task: EvalSet, n: int, counting: Counting, say: Say
) -> tuple[TokenKl, Path]:
    """The KL of a policy and its base on the first n completions of every problem in both stores ("policy", "base"), and its file
    in the policy's store; read from the file if it exists. Raises ConfigError if the prompts or temperatures of the two stores
    differ."""
    _check_alike(stores["policy"], stores["base"])
    classes = states_of(task.task)
    about, path = about_of(stores, task, n), kl_path(Path(stores["policy"].path), base.policy)
    if known := known_kl(path, about):
        return known, path
    say(f"KL to {base.policy}: loading both policies")
    (model, tokens), (reference, others) = load_here(run.model, DTYPE), load_here(base.model, DTYPE)
    check_vocabulary(f"--kl-to {base.policy}", others, tokens)
    prompts, _ = prompts_of(task, tokens, run.chat_template, run.options)
    rows = {name: _completions(stores[name], task, {p: q.ids for p, q in prompts.items()}, n) for name in SIDES}
    if isinstance(task.task, ClassifiesStates):
        rows = {name: _classed(own, task.task, tokens.tokenizer) for name, own in rows.items()}
    sides = {}
    with counting(sum(map(len, rows.values()))) as advance:
        for name in SIDES:
            sums = []
            for batch in batches(rows[name], _most(model, reference)):
                sums.append(sums_of(model, reference, batch, about["temperature"], max(1, len(classes))))
                advance(len(batch))
            by_class = np.concatenate(sums).reshape(len(task.problems), n, -1, 3)
            tokens, reverse, forward = np.moveaxis(by_class.sum(2), 2, 0)
            states = {state: Side(*np.moveaxis(by_class[:, :, i], 2, 0)) for i, state in enumerate(classes)}
            sides[name] = Side(tokens, reverse, forward, states)
    kl = TokenKl(about, tuple(task.problems), sides)
    kl.save(path)
    return kl, path


def _check_alike(policy: SampleStore, base: SampleStore) -> None:
    """Raise ConfigError if completions of the two answer other prompts, or were sampled at other temperatures."""
    one, other = policy.identity, base.identity
    hot, hot_base = one.decoding["temperature"], other.decoding["temperature"]
    where = f"--kl-to: {policy.path} and {base.path}:"
    refuse(
        (one.task_hash != other.task_hash, f"{where} other problems; use the settings of one for both"),
        (
            one.template_hash != other.template_hash,
            f"{where} prompts are rendered differently; render both with --chat-template format",
        ),
        (hot != hot_base, f"{where} temperatures {hot:g} and {hot_base:g}; draw both at one"),
        (one.greedy, f"{where} temperature 0 has no distribution whose KL is finite; draw at a temperature above 0"),
    )


def _completions(store: SampleStore, task: EvalSet, prompts: Mapping[str, tuple[int, ...]], n: int) -> list[Completion]:
    """The first n completions of every problem, by problem."""
    rows = store.samples(problems=list(task.problems), n=n)
    completions = []
    for row in rows:
        ids = np.asarray(row.token_ids, dtype=np.int64)
        own = np.ones(len(ids), dtype=bool) if row.turns is None else own_of(row.turns)
        completions.append(Completion(prompts[row.problem], ids, own))
    return completions


def _classed(rows: Sequence[Completion], task: ClassifiesStates, tokenizer: Any) -> list[Completion]:
    """The completions with the classes of their states."""
    numbers = {name_id(name): number for number, name in enumerate(task.state_classes)}
    tokens, mask = padded([row.ids for row in rows])
    places = places_of(task.state_class, tokenizer, tokens, mask).tolist()
    found = (np.array([numbers[place] for place in line[: len(row.ids)]]) for line, row in zip(places, rows, strict=True))
    return [replace(row, states=states) for row, states in zip(rows, found, strict=True)]


def _most(*models: PreTrainedModel) -> int:
    """Positions in a batch. A model that the engine does not score gives all of its logits at once."""
    if all(engine_scores(model) for model in models):
        return POSITIONS
    return max(1, laws.NUMBERS // max(int(model.config.vocab_size) for model in models))


def batches(rows: Sequence[Completion], most: int) -> Iterator[list[Completion]]:
    """Rows in their order, as many at a time as fit into `most` positions, a prompt counted once; at least one."""
    part: list[Completion] = []
    used = 0
    for row in rows:
        again = bool(part) and part[-1].prompt == row.prompt
        more = len(row.ids) + (0 if again else len(row.prompt))
        if part and used + more > most:
            yield part
            part, used, more = [], 0, len(row.ids) + len(row.prompt)
        part.append(row)
        used += more
    if part:
        yield part


def sums_of(
    policy: PreTrainedModel, base: PreTrainedModel, rows: Sequence[Completion], temperature: float, classes: int = 1
) -> NDArray[np.float64]:
    """(B, classes, 3): tokens, reverse and forward KL of each completion, summed over the tokens that a policy sampled after
    states of each class; completions without states have one class. Rows with equal prompts must be adjacent."""
    device = next(policy.parameters()).device
    groups = [(list(prompt), len(list(some))) for prompt, some in groupby(rows, key=lambda row: row.prompt)]
    owners = torch.tensor([number for number, (_, many) in enumerate(groups) for _ in range(many)], device=device)
    tokens, mask = (part.to(device) for part in padded([row.ids for row in rows]))
    own = padded([row.own for row in rows])[0].to(device)[mask]
    reverse, forward = divergences(policy, base, [prompt for prompt, _ in groups], tokens, mask, owners, temperature)
    number = torch.zeros_like(tokens) if rows[0].states is None else padded([row.states for row in rows])[0].to(device)
    cells = mask.nonzero()[:, 0] * classes + number[mask]

    def summed(values: Tensor) -> NDArray[np.float64]:
        sums = torch.zeros(len(rows) * classes, dtype=torch.float64, device=device)
        found: NDArray[np.float64] = sums.index_add_(0, cells, torch.where(own, values.double(), 0.0)).cpu().numpy()
        return found.reshape(len(rows), classes)

    return np.stack([summed(torch.ones_like(reverse)), summed(reverse), summed(forward)], axis=-1)


@torch.no_grad()
def divergences(
    policy: PreTrainedModel,
    base: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Tensor,
    mask: Tensor,
    owners: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Reverse and forward KL, nats, at each counted token, in the order of `mask.nonzero()`; both exactly 0 for equal policies.

    prompts: ids of each of P; tokens, mask (B, T) of the completions; owners (B,): their prompts' numbers, ascending. Log-probs
        over the vocabulary are in memory for only a few tokens at a time. Raises ConfigError for heads of different widths.
    """
    widths = [int(model.config.vocab_size) for model in (policy, base)]
    if widths[0] != widths[1]:
        raise ConfigError(f"--kl-to: the heads have {widths[0]:,} and {widths[1]:,} words; pass the model that the policy is from")
    mine, theirs = (distributions(model, prompts, tokens, mask, owners, temperature) for model in (policy, base))
    total, size = int(mask.sum()), max(1, laws.NUMBERS // widths[0])
    reverse, forward = [], []
    for first in range(0, total, size):
        part = slice(first, first + size)
        p, f = mine(part), theirs(part)
        # Sum p log(p / f) - p + f, not only p log(p / f): the float32 log-probs of a token share the rounding
        # error of their logsumexp, which enters the latter in full and the former by its square.
        reverse.append(unnormalized_kl(p, f))
        forward.append(forward_kl(p, f))
    return torch.cat(reverse), torch.cat(forward)


__all__ = ["Completion", "batches", "divergences", "kl_of_stores", "sums_of"]
