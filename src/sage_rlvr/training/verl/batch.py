"""A batch of verl in the order of the core: complete groups one after the other, without padding rows. Works without verl.

verl's driver has rows under the keys {uid}_{session}_{output}, in an order that balances its workers. `Order` maps each row of the
core to its row there. A row's number counts the prompts of the batch in the order in which they were requested, so that noise is
a function of the seed, the step and that number, and a resume needs no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.anchor import Anchor, anchor_metrics
from sage_rlvr.core.guides import clamped
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Advantages, Method, credit
from sage_rlvr.core.signals import Signals, masked_mean
from sage_rlvr.core.state import State, state_metrics
from sage_rlvr.errors import DataError


@dataclass(frozen=True, eq=False)
class Order:
    """The rows of verl's batch in the order of the core.

    places (N,): the row of the core's row n in verl's batch of `rows` rows
    owners (N,): its prompt, ascending
    several: whether a completion came in several pieces (an agent loop with more than one output).
    """

    places: Tensor
    owners: Tensor
    rows: int
    several: bool

    @classmethod
    def of(cls, keys: Sequence[str], tags: Sequence[Mapping[str, Any]], arrival: Mapping[str, int]) -> Order:
        """Make the order from keys and tags of a batch. arrival: uid of a prompt -> when it was requested; prompts that were not
        requested in this process (restored with a checkpoint) come last."""
        completions = []
        for row, (key, tag) in enumerate(zip(keys, tags, strict=True)):
            if not tag.get("is_padding", False):
                uid, session, output = key.rsplit("_", 2)
                completions.append((arrival.get(uid, len(arrival)), uid, int(session), int(output), row))
        completions.sort()
        uids = {uid: None for _, uid, *_ in completions}
        numbers = {uid: n for n, uid in enumerate(uids)}
        owners = torch.tensor([numbers[uid] for _, uid, *_ in completions], dtype=torch.long)
        places = torch.tensor([row for *_, row in completions], dtype=torch.long)
        return cls(places, owners, len(keys), any(output for *_, output, _ in completions))

    def take(self, values: Tensor) -> Tensor:
        """Values (rows, ...) of verl's batch as the core's (N, ...)."""
        return values[self.places]

    def back(self, values: Tensor) -> Tensor:
        """Inverse of `take`; 0 in padding rows."""
        # By place, not by reshaping: verl's rows of one group are not next to each other.
        whole = values.new_zeros(self.rows, *values.shape[1:])
        whole[self.places] = values
        return whole

    def groups(self) -> list[Tensor]:
        """The rows of all groups of each size, (P, G) of places among the N, smaller groups first."""
        sizes = self.owners.unique_consecutive(return_counts=True)[1].tolist()
        rows = torch.arange(len(self.owners)).split(sizes)
        return [torch.stack([part for part in rows if len(part) == size]) for size in sorted(set(sizes))]


def key_of_update(seed: int, update: int) -> Key:
    """The key of an update's noise. update: its number within verl's global step, above 0 where `parameter_sync_step` is."""
    return Key(seed).fold(f"local update {update}") if update else Key(seed)


def signals_of(order: Order, fields: Mapping[str, Tensor], problems: Tensor | None = None) -> Signals:
    """The signals of a batch, N rows; fields: padded (rows, T) `old_log_probs`, `response_mask`, and where they are there
    `ref_log_prob`, `entropy` and `rm_scores`; problems: (rows,)."""

    def of(name: str) -> Tensor | None:
        return order.take(fields[name]) if name in fields else None

    scores, old = of("rm_scores"), of("old_log_probs")
    if old is None:
        raise DataError(
            "sage on verl: old_log_probs are missing from the batch where q is computed; this verl is not structured "
            "like 0.9."
        )
    return Signals(
        old_logps=old,
        ref_logps=of("ref_log_prob"),
        mask=order.take(fields["response_mask"]).bool(),
        row_ids=torch.arange(len(order.places)),
        entropies=of("entropy"),
        rewards=None if scores is None else scores.float().sum(dim=1),
        problems=None if problems is None else order.take(problems),
    )


@dataclass(frozen=True, eq=False)
class Shaped:
    """q of a batch: log_q (N, T), metrics under this package's names."""

    log_q: Tensor
    metrics: dict[str, float]


def shaped(anchor: Anchor, signals: Signals, step: int, total_steps: int, key: Key) -> Shaped:
    """log q at the policy that verl scored the batch with, and the metrics of the anchor there, before its update."""
    log_q = anchor.guide(signals, step=step, total_steps=total_steps, key=key)
    held = clamped(anchor.guide, signals, step, total_steps, key, log_q)
    reference = signals.require("ref_logps", "the anchor")
    return Shaped(log_q, anchor_metrics(anchor, signals.old_logps, reference, log_q, signals.mask, held))


def credit_batch(
    method: Method,
    order: Order,
    rewards: Tensor,
    signals: Signals,
    log_q: Tensor | None,
    step: int,
    total_steps: int,
    key: Key,
    state: State,
) -> Advantages:
    """`credit` of rewards (N,): advantages (N, T), 0 off the mask and for a completion without another to compare it to.

    DataError if completions came in pieces, and where groups differ in size for a method that looks at all of them at once.
    """
    if order.several:
        raise DataError(
            f"{method.name} on verl: an agent loop returned one completion in several pieces, which cannot be "
            "compared; use a guide with verl's own objective (sage.guide without sage.method)"
        )
    parts = [rows for rows in order.groups() if rows.shape[1] > 1]  # a single completion cannot be compared
    if len(parts) > 1 and (bool(state) or method.advantage.couples_prompts):
        raise DataError(
            f"{method.name} on verl: groups of {' and '.join(str(len(rows[0])) for rows in parts)} completions (some "
            "failed), but its parts need groups of equal size; set trainer.v1.sampler.sync_refill_failed_groups=true"
        )
    wide = torch.zeros(signals.mask.shape)
    if not parts:
        return Advantages(wide, torch.zeros(0), state)
    alone = [rows.flatten() for rows in order.groups() if rows.shape[1] == 1]  # read by statistics of the rollout all the same
    chosen = torch.cat([*(rows.flatten() for rows in parts), *alone])
    own = signals.take(chosen, signals.row_ids[chosen])  # under the numbers that the rows have in the batch: noise goes by these
    shift = None if log_q is None else log_q[chosen]
    grouped = [rewards[rows].float() for rows in parts]
    rewards_of = grouped[0] if len(parts) == 1 else grouped
    more = sum(map(len, alone))
    credited = credit(method, rewards_of, own, shift, step, total_steps, key, state, ungrouped=more)
    values = credited.advantages if credited.advantages.dim() == 2 else credited.advantages[:, None]
    # 0 off the mask: `advantage/zero_frac` reads complete rows, and padding may contain anything.
    wide[chosen] = torch.where(own.mask, values.float(), 0.0)
    return Advantages(wide, credited.grouped, credited.state)


def step_metrics(order: Order, signals: Signals, advantages: Tensor | None, state: State) -> dict[str, float]:
    """Return a row of metrics under this package's names, of a batch before its update."""
    metrics: dict[str, float] = {}
    if signals.rewards is not None:
        rewards = signals.rewards
        dead = [bool((rewards[row] == rewards[row[0]]).all()) for rows in order.groups() for row in rows]
        metrics |= {"reward/mean": float(rewards.mean()), "reward/zero_variance_frac": sum(dead) / len(dead)}
    if signals.entropies is not None:
        metrics["policy/entropy"] = masked_mean(signals.entropies, signals.mask)
    if advantages is not None:
        metrics["advantage/abs_mean"] = masked_mean(advantages.abs(), signals.mask)
        metrics["advantage/zero_frac"] = float((advantages == 0).all(dim=1).float().mean())
    return metrics | state_metrics(state)
