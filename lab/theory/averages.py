"""What a method pays a completion on average over the others of its group: a sum over all compositions of the others.

A `Listing` holds every completion of a prompt with its probability. A rollout plan with a second stage is a sum over both stages.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.advantages import GroupSignals, sees
from sage_rlvr.core.extras import Extra
from sage_rlvr.core.method import Method, group_advantages, seen_of
from sage_rlvr.core.rollout_plans import Staged, is_guided, is_staged, kept_by, trained_on
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import State
from sage_rlvr.errors import ConfigError, DataError

LARGEST_COMPOSITIONS = 300_000


@dataclass(frozen=True, eq=False)
class Listing:
    """The completions of one prompt, each once.

    signals  of all rows (B, T) under the policy that generates (old_logps) and the reference
    probs    (B,) probability of each row under that policy; they sum to 1 (what was left out is not in here)
    rewards  (B,) the verifier's raw rewards
    ref_log_probs  (B, T, V) of the reference, for exact divergences; None where no method needs it
    """

    signals: Signals
    probs: Float[Tensor, " B"]
    rewards: Float[Tensor, " B"]
    ref_log_probs: Float[Tensor, "B T V"] | None = None

    def __post_init__(self) -> None:
        rows = self.signals.mask.shape[0]
        for name in ("probs", "rewards"):
            if tuple(getattr(self, name).shape) != (rows,):
                raise DataError(
                    f"Listing.{name} has shape {tuple(getattr(self, name).shape)}; give one per row, ({rows},)."
                )
        total = float(self.probs.double().sum())
        if not (bool((self.probs >= 0).all()) and abs(total - 1) < 1e-4):
            raise DataError(
                f"Listing.probs sum to {total:.6g}; list every completion once, or divide by what is listed."
            )

    def repeated(self, times: int) -> Listing:
        """Each completion `times` times with 1 / times of its probability and row numbers of its own.

        Noise that is a function of the row number, as in `Random`, is thereby averaged over `times` draws.
        """
        rows = torch.arange(len(self.probs)).repeat(times)
        ref = None if self.ref_log_probs is None else self.ref_log_probs[rows]
        return Listing(self.signals.take(rows), self.probs[rows] / times, self.rewards[rows], ref)


def mean_advantages(
    method: Method,
    listing: Listing,
    group_size: int,
    others: Float[Tensor, "P G"] | None = None,
    state: State | None = None,
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """(B,) advantage of each completion averaged over the G - 1 others of its group, given that the group is kept,
    and (B,) the probability that it is kept: with a second stage, how many kept ones there are for each of the first stage.

    Completions that look alike to extras and advantage form a class: of equal reward, and where a part sees more,
    of equal length, log-probs and answer. The sum runs over all compositions of G - 1 others by class with their multinomial
    probabilities. `state`: of the method's parts, None = at their start.
    """
    traits, ids = _traits(method, listing)
    classes, member = torch.unique(traits, dim=0, return_inverse=True)
    mass = torch.zeros(len(classes), dtype=torch.float64).index_add(0, member, listing.probs.double())
    means, kept = averages(method, classes, group_size, others, state, ids).at((mass / mass.sum())[None])
    if not bool((kept[0] * mass > 0).any()):
        raise DataError(
            f"{method.name}: no group of {group_size} is ever kept by its rollout plan, because all completions that "
            "have any probability earn the same; there is no expectation over kept groups."
        )
    return means[0, member].float(), kept[0, member].float()


class Averages(Protocol):
    """What a member of each of M classes of completions is paid, whatever the chances of the classes."""

    def at(self, mass: Float[Tensor, "N M"]) -> tuple[Float[Tensor, "N M"], Float[Tensor, "N M"]]:
        """(mean advantage of a kept completion, how many are kept for each one drawn first), at N laws of the classes; float64."""


@dataclass(frozen=True, eq=False)
class GroupAverages:
    """The advantage of a member of each of M classes beside every composition of the G - 1 others.

    counts      (K, M) how many of the others each class has
    advantages  (M, K) of the member; kept (M, K), 1 where the group is kept
    """

    counts: Int[Tensor, "K M"]
    advantages: Float[Tensor, "M K"]
    kept: Float[Tensor, "M K"]

    def at(self, mass: Float[Tensor, "N M"]) -> tuple[Float[Tensor, "N M"], Float[Tensor, "N M"]]:
        """(mean advantage given that the group is kept, probability that it is kept) at N laws over the classes; float64."""
        chances = _chances(self.counts, mass)
        weights = [chances * kept for kept in self.kept]
        total = torch.stack([weight.sum(1) for weight in weights], 1)
        paid = torch.stack([(w * own).sum(1) for w, own in zip(weights, self.advantages, strict=True)], 1)
        return torch.where(total > 0, paid / total, 0.0), total


@dataclass(frozen=True, eq=False)
class StagedAverages:
    """Every outcome of two stages: a first one of G, and a second whose size follows from it.

    first, second  (R, M) how many of each stage are of each class
    paid           (R, M) the sum of the advantages of those that are trained on, by class; copies (R, M), how many they are
    """

    first: Int[Tensor, "R M"]
    second: Int[Tensor, "R M"]
    paid: Float[Tensor, "R M"]
    copies: Float[Tensor, "R M"]

    def at(self, mass: Float[Tensor, "N M"]) -> tuple[Float[Tensor, "N M"], Float[Tensor, "N M"]]:
        """(mean advantage of one that is trained on, how many of those for each one of the first stage) at N laws; float64."""
        chances = _chances(self.first, mass) * _chances(self.second, mass)
        paid, copies = chances @ self.paid, chances @ self.copies
        drawn = mass.double() * int(self.first[0].sum())
        return torch.where(copies > 0, paid / copies, 0.0), torch.where(drawn > 0, copies / drawn, 0.0)

    def mean_size(self, mass: Float[Tensor, "N M"]) -> Float[Tensor, " N"]:
        """Completions of a prompt that are drawn on average, both stages together."""
        chances = _chances(self.first, mass) * _chances(self.second, mass)
        return chances @ (self.first + self.second).sum(1).double()


def _chances(counts: Int[Tensor, "K M"], mass: Float[Tensor, "N M"]) -> Float[Tensor, "N K"]:
    """Multinomial chances of the counts at N laws over the classes."""
    draws, place = torch.unique(counts.sum(1), return_inverse=True)
    ways = torch.tensor([math.lgamma(n + 1) for n in draws.tolist()])[place] - torch.lgamma(counts + 1.0).sum(1)
    chances: Tensor = (ways + torch.special.xlogy(counts, mass.double()[:, None]).sum(2)).exp()
    return chances


def averages(
    method: Method,
    classes: Float[Tensor, "M D"],
    group_size: int,
    others: Float[Tensor, "P G"] | None = None,
    state: State | None = None,
    ids: Int[Tensor, " N"] | None = None,
) -> Averages:
    """`Averages` of a method over classes of completions: rows of rewards (M, 1), or of all that its parts see, and then their
    answers are places among `ids`."""
    ids = torch.zeros(1, dtype=torch.int64) if ids is None else ids
    if is_staged(method.rollout):
        return staged_averages(method, method.rollout, classes, group_size)
    counts, state = _compositions(len(classes), group_size - 1), method.start() if state is None else state
    found = [_of_class(method, classes, ids, own, counts, others, state) for own in range(len(classes))]
    advantages, kept = (torch.stack(part) for part in zip(*found, strict=True))
    return GroupAverages(counts, advantages, kept)


def changed_rewards(method: Method) -> list[Extra]:
    """The extras that change what the advantage reads."""
    return [extra for extra in method.extras if extra.changes_rewards]


def sees_stages(method: Method) -> bool:
    """Whether `staged_averages` can list a method with a second stage: its parts see rewards alone, its allocation one prompt."""
    blind = not sees(method.advantage) and not changed_rewards(method)
    coupled = method.rollout is not None and method.rollout.couples_prompts
    return blind and not coupled and not is_guided(method.rollout)


def staged_averages(method: Method, plan: Staged, classes: Float[Tensor, "M 1"], group_size: int) -> StagedAverages:
    """`averages` of a method with a second stage. ConfigError where its parts see more than rewards, or its plan other prompts."""
    if not sees_stages(method):
        raise ConfigError(
            f"{method.name}: {type(plan).__name__} with these parts looks at more than the rewards of one prompt, or draws "
            "under guidance, so its two stages have no list of outcomes; take an advantage of rewards alone and an allocation "
            "of each prompt by itself."
        )
    rewards, rows = classes[:, 0], []
    for first in _compositions(len(classes), group_size):
        size = int(plan.extra(rewards.repeat_interleave(first)[None])[0])
        for second in _compositions(len(classes), size):
            groups = trained_on(plan, first, second)
            found = [_paid_to(method, plan, rewards, group) for group in groups if group.any()]
            none = torch.zeros(2, len(classes), dtype=torch.float64)
            rows.append((first, second, *sum(found, none)))
    return StagedAverages(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _paid_to(method: Method, plan: Staged, rewards: Float[Tensor, " M"], counts: Int[Tensor, " M"]) -> Float[Tensor, "2 M"]:
    """(sum of advantages, number of completions) of each class in one group; 0 where it is not kept."""
    group = rewards.repeat_interleave(counts)[None].float()
    if not bool(plan.keeps(group)[0]):
        return torch.zeros(2, len(rewards), dtype=torch.float64)
    paid = group_advantages(method, group, None, method.start())[0][0].double()
    sums = torch.zeros(len(rewards), dtype=torch.float64)
    return torch.stack([sums.index_add(0, torch.arange(len(rewards)).repeat_interleave(counts), paid), counts.double()])


def _traits(method: Method, listing: Listing) -> tuple[Float[Tensor, "B D"], Int[Tensor, " K"]]:
    """What the parts see of each completion: its reward; its length; log-probs of policy and reference; its answer, as a
    place among the K ids that are returned beside it: 64 bits do not fit a float."""
    columns, ids = [listing.rewards.double()], torch.zeros(1, dtype=torch.int64)
    if method.group_extras or sees(method.advantage):
        seen = seen_of(listing.signals, (1, len(listing.rewards)))
        answers = torch.zeros_like(seen.lengths) if seen.answers is None else seen.answers
        columns.append(seen.lengths[0].double())
        if any(extra.needs for extra in changed_rewards(method)) or sees(method.advantage):
            reference = torch.zeros_like(seen.policy) if seen.reference is None else seen.reference
            ids, kinds = torch.unique(answers[0], return_inverse=True)
            right = torch.zeros_like(seen.policy) if seen.ref_right is None else seen.ref_right
            columns += [seen.policy[0].double(), reference[0].double(), kinds.double(), right[0].double()]
    return torch.stack(columns, 1), ids


def _seen(classes: Float[Tensor, "K G D"], ids: Int[Tensor, " N"]) -> GroupSignals:
    """What parts see of groups made of classes, all of one problem; the columns and ids of `_traits`."""
    lengths = classes[..., 1].long()
    if classes.shape[-1] == 2:
        return GroupSignals(lengths, torch.zeros_like(lengths, dtype=torch.float32))
    policy, reference, answers, right = (classes[..., i] for i in (2, 3, 4, 5))
    return GroupSignals(lengths, policy.float(), reference.float(), ids[answers.long()], torch.ones_like(lengths), right.float())


def _compositions(classes: int, draws: int) -> Int[Tensor, "K M"]:
    """All ways to draw that many from M classes."""
    places = draws + classes - 1
    number = math.comb(places, draws)
    if number > LARGEST_COMPOSITIONS:
        raise ConfigError(
            f"{classes} different rewards in groups of {draws + 1} have {number:,} compositions, more than "
            f"{LARGEST_COMPOSITIONS:,}; take a smaller group_size or fewer reward values."
        )
    bars = torch.tensor(list(itertools.combinations(range(places), classes - 1)), dtype=torch.long)
    bars = bars.reshape(number, classes - 1)
    ends = torch.cat([torch.full((number, 1), -1), bars, torch.full((number, 1), places)], 1)
    return ends.diff(dim=1) - 1


def _of_class(
    method: Method,
    classes: Float[Tensor, "M D"],
    ids: Int[Tensor, " N"],
    own: int,
    counts: Int[Tensor, "K M"],
    others: Float[Tensor, "P G"] | None,
    state: State,
) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
    """(advantage, whether the group is kept) of a member of class `own` beside each composition, float64."""
    rest = torch.repeat_interleave(torch.arange(len(classes)).repeat(len(counts)), counts.reshape(-1))
    group = torch.cat([torch.full((len(counts), 1), own), rest.reshape(len(counts), -1)], 1)
    rewards, seen = classes[group][..., 0].float(), None if classes.shape[1] == 1 else _seen(classes[group], ids)
    kept = torch.ones(len(group)) if method.rollout is None else kept_by(method.rollout, rewards, state)
    return _first_advantages(method, rewards, seen, others, state).double(), kept.double()


def _first_advantages(
    method: Method,
    rewards: Float[Tensor, "K G"],
    seen: GroupSignals | None,
    others: Float[Tensor, "P G"] | None,
    state: State,
) -> Tensor:
    """(K,) the first member's advantage in each group; beside `others` where the advantage looks across prompts."""
    if not method.advantage.couples_prompts:
        return group_advantages(method, rewards, seen, state)[0][:, 0]
    if others is None:
        raise DataError(
            f"{method.name}: its advantage looks across the prompts of a step; pass others=, the rewards (P, G) of the "
            "step's other prompts."
        )
    if sees(method.advantage):
        raise ConfigError(
            f"{method.name}: its {type(method.advantage).__name__} reads more of other prompts' completions than the rewards in "
            "others=; list whole steps of groups with step_of_groups."
        )
    if changed_rewards(method):
        raise ConfigError(f"{method.name}: others= are given without what its extras see of a completion.")
    fixed = others.float()
    return torch.stack([method.advantage(torch.cat([row[None], fixed]))[0, 0] for row in rewards])
