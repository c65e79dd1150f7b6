"""The expected loss of a method over listed completions: the loop's own `objective`, with sums in place of samples.

A `Listing` holds every completion of a prompt with its probability. `expected_loss` gives `objective` all of them as one
batch, each row weighted by its probability and carrying the advantage that it has on average over the other members of
its group; that average is a sum over all reward compositions of the other G - 1. Its gradient is the expected gradient
of one step of the loop, without a single sample. `loss_over_groups` is the brute-force twin: every group of G
completions, one after another, through `credit` and `objective` as the loop calls them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.advantages import Seen, sees
from sage_rlvr.core.guides import factors
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import (
    Method,
    credit,
    group_advantages,
    kl_share,
    objective,
    return_to_go,
    seen_of,
    shape,
)
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.state import State, called
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.theory.stored import stored_loss

LARGEST_COMPOSITIONS = 300_000
LARGEST_GROUPS = 20_000


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


def expected_loss(
    method: Method,
    listing: Listing,
    logps: Float[Tensor, "B T"],
    *,
    group_size: int = 8,
    step: int = 0,
    total_steps: int = 1,
    key: Key | None = None,
    log_q: Float[Tensor, "B T"] | None = None,
    log_probs: Float[Tensor, "B T V"] | None = None,
    entropies: Float[Tensor, "B T"] | None = None,
    max_tokens: int | None = None,
    others: Float[Tensor, "P G"] | None = None,
    state: State | None = None,
    stored: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """The mean of `objective` over rollouts of one prompt; its gradient with respect to `logps` is the expected one.

    logps (B, T) of the current policy in the graph, and entropies (B, T) where method.needs has "entropy_gradient";
    on-policy they equal listing.signals.old_logps. log_q replaces the
    guide's. max_tokens: for the fixed-budget reduction, default the longest completion. others (P, G): rewards of the
    step's other prompts, held fixed, for an advantage that looks across prompts (BNPO). state: the running state of the
    method's parts before the step, None = at their start. stored (B,): which completions the method's buffer holds, None = all
    right ones; its term (`stored_loss`) is added.

    Exact for a sum over tokens divided by a constant or by the row's length. A division by the batch's token count
    (`TokenMean`) is taken in the limit of many groups, E[sum] / E[tokens]. After the first update of a rollout the
    clip sees the mean advantage, which is exact where no ratio has left the clip's interval, and beyond it while the sign
    of A is decided by the row's own reward: two rewards, and no KL in the reward.
    DataError for logps or log_q of another shape than the listing's. ConfigError for a guide that looks at the batch, and
    for a rollout plan with the KL in the reward, where the other members of a kept group are no longer independent of
    the row.
    """
    _check(method)
    key = Key(0) if key is None else key
    signals = listing.signals
    _check_shapes(listing, logps=logps, log_q=log_q)
    if log_q is None:
        log_q = shape(method, signals, step, total_steps, key)
    state = method.start() if state is None else state
    weigh = partial(called, method.loss_term, "loss_term", state, logps.device)
    longest = int(signals.mask.sum(1).max()) if max_tokens is None else max_tokens
    advantages, kept = mean_advantages(method, listing, group_size, others, state)
    term = torch.zeros((), dtype=logps.dtype)
    if method.buffer is not None:
        share = method.buffer.weight_at(step, total_steps)
        term = share * stored_loss(method.buffer, listing, logps, advantages, longest, stored)
    if method.is_stored_alone:
        return term
    weights = listing.probs.float() * kept
    weights = weights / weights.sum() * len(weights)
    batch = Batch(
        logps=logps,
        old_logps=signals.old_logps,
        ref_logps=signals.ref_logps,
        mask=signals.mask,
        advantages=_in_reward(method, advantages, listing, log_q, group_size, step, total_steps, state),
        log_q=log_q,
        max_tokens=longest,
        log_probs=log_probs,
        ref_log_probs=listing.ref_log_probs,
        weights=weights,
        entropies=entropies,
        term_weights=None if method.loss_term is None else weigh(signals, step, total_steps)[0],
    )
    budget = None
    if method.reduction.divisor == "batch":
        budget = float((weights * signals.mask.sum(1)).sum())
    return objective(method, batch, step, total_steps, budget)[0] + term


def _check_shapes(listing: Listing, **per_token: Tensor | None) -> None:
    wanted = tuple(listing.signals.mask.shape)
    for name, value in per_token.items():
        if value is not None and tuple(value.shape) != wanted:
            raise DataError(f"{name} has shape {tuple(value.shape)}; the listing has (rows, tokens) = {wanted}.")


def _check(method: Method) -> None:
    anchor = method.anchor
    live = anchor is not None and not anchor.is_off
    if anchor is not None and live and any(part.depends_on == "batch" for part in factors(anchor.guide)):
        raise ConfigError(
            f"{method.name}: a guide that looks at the whole batch has no expectation over single completions; "
            "measure it over sampled batches."
        )
    if anchor is not None and live and anchor.placement == "reward" and method.rollout is not None:
        raise ConfigError(
            f"{method.name}: with a rollout plan and the KL in the reward the other members of a kept group depend on "
            "the row; use loss_over_groups on a small listing."
        )
    for part in (method.token_weight, method.loss_term):
        if "advantages" not in getattr(part, "needs", ()) and getattr(part, "depends_on", "") != "batch":
            continue
        raise ConfigError(
            f"{method.name}: its {type(part).__name__} looks at the advantages or at the whole batch, so it has no "
            "expectation over single completions; use loss_over_groups on a small listing."
        )


def _in_reward(
    method: Method,
    advantages: Float[Tensor, " B"],
    listing: Listing,
    log_q: Float[Tensor, "B T"],
    group_size: int,
    step: int,
    total_steps: int,
    state: State,
) -> Tensor:
    """The token weight, and minus beta c K_t where the KL is in the reward: its baseline has mean 0 and is left out."""
    if method.token_weight is not None:
        weights, _ = called(method.token_weight, "token_weight", state, advantages.device, listing.signals)
        advantages = advantages[:, None] * weights
    if method.anchor is None or method.anchor.placement == "loss":
        return advantages
    beta = method.anchor.beta_at(step, total_steps)
    if beta == 0.0:
        return advantages
    penalty = beta * kl_share(method, group_size) * return_to_go(listing.signals, log_q)
    return (advantages if advantages.dim() == 2 else advantages[:, None]) - penalty


def mean_advantages(
    method: Method,
    listing: Listing,
    group_size: int,
    others: Float[Tensor, "P G"] | None = None,
    state: State | None = None,
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """(B,) advantage of each completion averaged over the G - 1 others of its group, given that the group is kept,
    and (B,) the probability that it is kept.

    Completions that look alike to reward transform and advantage form a class: of equal reward, and where a part sees more,
    of equal length, log-probs and answer. The sum runs over all compositions of G - 1 others by class with their multinomial
    probabilities. `state`: of the method's parts, None = at their start.
    """
    state = method.start() if state is None else state
    traits, ids = _traits(method, listing)
    classes, member = torch.unique(traits, dim=0, return_inverse=True)
    mass = torch.zeros(len(classes), dtype=torch.float64).index_add(0, member, listing.probs.double())
    counts, chances = _compositions(mass / mass.sum(), group_size - 1)
    found = [_of_class(method, classes, ids, own, counts, chances, others, state) for own in range(len(classes))]
    table = torch.tensor(found, dtype=torch.float64)
    if not bool((table[:, 1] * mass > 0).any()):
        raise DataError(
            f"{method.name}: no group of {group_size} is ever kept by its rollout plan, because all completions that "
            "have any probability earn the same; there is no expectation over kept groups."
        )
    return table[member, 0].float(), table[member, 1].float()


def _traits(method: Method, listing: Listing) -> tuple[Float[Tensor, "B D"], Int[Tensor, " K"]]:
    """What the parts see of each completion: its reward; its length; log-probs of policy and reference, and its answer, as a
    place among the K ids that are returned beside it: 64 bits do not fit a float."""
    columns, ids = [listing.rewards.double()], torch.zeros(1, dtype=torch.int64)
    if method.reward_transform is not None or sees(method.advantage):
        seen = seen_of(listing.signals, (1, len(listing.rewards)))
        answers = torch.zeros_like(seen.lengths) if seen.answers is None else seen.answers
        columns.append(seen.lengths[0].double())
        if sees(method.reward_transform) or sees(method.advantage):
            reference = torch.zeros_like(seen.policy) if seen.reference is None else seen.reference
            ids, kinds = torch.unique(answers[0], return_inverse=True)
            columns += [seen.policy[0].double(), reference[0].double(), kinds.double()]
    return torch.stack(columns, 1), ids


def _seen(classes: Float[Tensor, "K G D"], ids: Int[Tensor, " N"]) -> Seen:
    """What parts see of groups made of classes, all of one problem; the columns and ids of `_traits`."""
    lengths = classes[..., 1].long()
    if classes.shape[-1] == 2:
        return Seen(lengths, torch.zeros_like(lengths, dtype=torch.float32))
    policy, reference, answers = (classes[..., i] for i in (2, 3, 4))
    return Seen(lengths, policy.float(), reference.float(), ids[answers.long()], torch.ones_like(lengths))


def _compositions(mass: Float[Tensor, " M"], draws: int) -> tuple[Int[Tensor, "K M"], Float[Tensor, " K"]]:
    """All ways to draw that many from M classes, and their multinomial probabilities."""
    places = draws + len(mass) - 1
    number = math.comb(places, draws)
    if number > LARGEST_COMPOSITIONS:
        raise ConfigError(
            f"{len(mass)} different rewards in groups of {draws + 1} have {number:,} compositions, more than "
            f"{LARGEST_COMPOSITIONS:,}; take a smaller group_size or fewer reward values."
        )
    bars = torch.tensor(list(itertools.combinations(range(places), len(mass) - 1)), dtype=torch.long)
    bars = bars.reshape(number, len(mass) - 1)
    ends = torch.cat([torch.full((number, 1), -1), bars, torch.full((number, 1), places)], 1)
    counts = ends.diff(dim=1) - 1
    log_chance = math.lgamma(draws + 1) + (torch.special.xlogy(counts, mass) - torch.lgamma(counts + 1.0)).sum(1)
    return counts, log_chance.exp()


def _of_class(
    method: Method,
    classes: Float[Tensor, "M D"],
    ids: Int[Tensor, " N"],
    own: int,
    counts: Int[Tensor, "K M"],
    chances: Float[Tensor, " K"],
    others: Float[Tensor, "P G"] | None,
    state: State,
) -> tuple[float, float]:
    """(mean advantage given kept, probability of being kept) of a member of class `own`."""
    rest = torch.repeat_interleave(torch.arange(len(classes)).repeat(len(counts)), counts.reshape(-1))
    group = torch.cat([torch.full((len(counts), 1), own), rest.reshape(len(counts), -1)], 1)
    rewards, seen = classes[group][..., 0].float(), None if classes.shape[1] == 1 else _seen(classes[group], ids)
    kept = chances if method.rollout is None else chances * method.rollout.keeps(rewards).double()
    own_advantages = _first_advantages(method, rewards, seen, others, state).double()
    total = float(kept.sum())
    return (float((kept * own_advantages).sum() / total) if total > 0 else 0.0), total


def _first_advantages(
    method: Method,
    rewards: Float[Tensor, "K G"],
    seen: Seen | None,
    others: Float[Tensor, "P G"] | None,
    state: State,
) -> Tensor:
    """(K,) the first member's advantage in each group; beside `others` where the advantage looks across prompts."""
    if not getattr(method.advantage, "couples_prompts", False):
        return group_advantages(method, rewards, seen, state)[0][:, 0]
    if others is None:
        raise DataError(
            f"{method.name}: its advantage looks across the prompts of a step; pass others=, the rewards (P, G) of the "
            "step's other prompts."
        )
    if method.reward_transform is not None:
        raise ConfigError(f"{method.name}: others= are given without what its reward transform sees of a completion.")
    fixed = others.float()
    return torch.stack([method.advantage(torch.cat([row[None], fixed]))[0, 0] for row in rewards])


def loss_over_groups(
    method: Method,
    listing: Listing,
    logps: Float[Tensor, "B T"],
    *,
    group_size: int,
    step: int = 0,
    total_steps: int = 1,
    key: Key | None = None,
    log_q: Float[Tensor, "B T"] | None = None,
    log_probs: Float[Tensor, "B T V"] | None = None,
    entropies: Float[Tensor, "B T"] | None = None,
    max_tokens: int | None = None,
    state: State | None = None,
) -> Float[Tensor, ""]:
    """The same mean by brute force: one call of `advantages_of` and `objective` for each of the B**G groups.

    Kept groups are weighted by their probability divided by that of being kept. log_q replaces the guide's. state: of the
    method's parts before the step, None = at their start; every group meets the same. ConfigError
    beyond 20,000 groups and for a buffer, which outlives a group; DataError where none is kept and for wrong shapes.
    """
    if method.buffer is not None:
        raise ConfigError(f"{method.name}: its buffer holds answers of other rollouts than this group; use expected_loss.")
    key = Key(0) if key is None else key
    _check_shapes(listing, logps=logps, log_q=log_q)
    rows = len(listing.probs)
    if rows**group_size > LARGEST_GROUPS:
        raise ConfigError(
            f"{rows}**{group_size} groups are more than {LARGEST_GROUPS:,}; take fewer rows or smaller groups."
        )
    longest = int(listing.signals.mask.sum(1).max()) if max_tokens is None else max_tokens
    total, mass = torch.zeros((), dtype=logps.dtype), 0.0
    for group in itertools.product(range(rows), repeat=group_size):
        members = torch.tensor(group)
        rewards = listing.rewards[members].float()[None]
        if method.rollout is not None and not bool(method.rollout.keeps(rewards)[0]):
            continue
        chance = float(listing.probs[members].double().prod())
        mass += chance
        total = total + chance * loss_of_group(
            method, listing, logps, members, step=step, total_steps=total_steps, key=key, log_q=log_q,
            log_probs=log_probs, entropies=entropies, max_tokens=longest, state=state,
        )  # fmt: skip
    if mass == 0.0:
        raise DataError(
            f"{method.name}: its rollout plan keeps no group of {group_size}; there is no mean over kept groups."
        )
    return total / mass


def loss_of_group(
    method: Method,
    listing: Listing,
    logps: Float[Tensor, "B T"],
    members: Int[Tensor, " G"],
    *,
    step: int = 0,
    total_steps: int = 1,
    key: Key | None = None,
    log_q: Float[Tensor, "B T"] | None = None,
    log_probs: Float[Tensor, "B T V"] | None = None,
    entropies: Float[Tensor, "B T"] | None = None,
    max_tokens: int | None = None,
    state: State | None = None,
) -> Float[Tensor, ""]:
    """The loop's loss of one group, the listing's rows `members`, as one step of the loop computes it: `shape`,
    `credit`, `objective`. The other arguments are those of `loss_over_groups`; max_tokens defaults to the longest
    completion of the listing."""
    signals, rewards = listing.signals.take(members), listing.rewards[members].float()[None]
    own_q = log_q[members] if log_q is not None else shape(method, signals, step, total_steps, key or Key(0))
    worth = credit(method, rewards, signals, own_q, step, total_steps, key or Key(0), state)
    batch = Batch(
        logps=logps[members],
        old_logps=signals.old_logps,
        ref_logps=signals.ref_logps,
        mask=signals.mask,
        advantages=worth.advantages,
        log_q=own_q,
        max_tokens=int(listing.signals.mask.sum(1).max()) if max_tokens is None else max_tokens,
        log_probs=None if log_probs is None else log_probs[members],
        ref_log_probs=None if listing.ref_log_probs is None else listing.ref_log_probs[members],
        group_size=len(members),
        entropies=None if entropies is None else entropies[members],
        term_weights=worth.term_weights,
    )
    return objective(method, batch, step, total_steps)[0]
