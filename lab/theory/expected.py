"""The expected loss of a method over listed completions: the loop's own `objective`, with sums in place of samples.

A `Listing` holds every completion of a prompt with its probability. `expected_loss` gives `objective` all of them as one
batch, each row weighted by its probability and carrying the advantage that it has on average over the other members of
its group; that average is a sum over all reward compositions of the other G - 1. Its gradient is the expected gradient
of one step of the loop, without a single sample. `loss_over_groups` is the brute-force twin: every group of G
completions, one after another, through `credit` and `objective` as the loop calls them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lab.theory.averages import Listing, mean_advantages
from lab.theory.stored import stored_loss
from sage_rlvr.core.extras import weights_of
from sage_rlvr.core.guides import factors
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method, credit, needs_of, objective, shape
from sage_rlvr.core.reward_kl import kl_share, return_to_go
from sage_rlvr.core.rollout_plans import Staged, is_guided, is_staged, kept_by, trained_on
from sage_rlvr.core.signals import Batch
from sage_rlvr.core.state import State
from sage_rlvr.errors import ConfigError, DataError

LARGEST_GROUPS = 20_000


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
    check_expectation(method)
    key = Key(0) if key is None else key
    _check_shapes(listing, logps=logps, log_q=log_q)
    longest = int(listing.signals.mask.sum(1).max()) if max_tokens is None else max_tokens
    advantages, kept = mean_advantages(method.at(step, total_steps), listing, group_size, others, state)
    term = torch.zeros((), dtype=logps.dtype)
    if method.buffer is not None:
        share = method.buffer.weight_at(step, total_steps)
        term = share * stored_loss(method.buffer, listing, logps, advantages, longest, stored)
    if method.is_replay_only:
        return term
    return term + loss_of_means(
        method, listing, logps, advantages, kept, group_size=group_size, step=step, total_steps=total_steps,
        log_q=shape(method, listing.signals, step, total_steps, key) if log_q is None else log_q,
        log_probs=log_probs, entropies=entropies, max_tokens=longest, state=state,
    )  # fmt: skip


def loss_of_means(
    method: Method,
    listing: Listing,
    logps: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    kept: Float[Tensor, " B"],
    *,
    group_size: int,
    step: int,
    total_steps: int,
    log_q: Float[Tensor, "B T"],
    log_probs: Float[Tensor, "B T V"] | None = None,
    entropies: Float[Tensor, "B T"] | None = None,
    max_tokens: int | None = None,
    state: State | None = None,
) -> Float[Tensor, ""]:
    """`objective` over every listed completion with its mean advantage and its chance of being kept (`mean_advantages`).

    The listing may hold the completions of several prompts, their probabilities divided by the number of prompts.
    """
    signals, state = listing.signals, method.start() if state is None else state
    weights = listing.probs.float() * kept
    weights = weights / weights.sum() * len(weights)
    weighed = {
        extra.slot: extra.loss_weights(signals, step, total_steps, extra.own_state(state))[0]
        for extra in method.extras
        if extra.weighs_loss
    }
    batch = Batch(
        logps=logps,
        old_logps=signals.old_logps,
        ref_logps=signals.ref_logps,
        mask=signals.mask,
        advantages=_in_reward(method, advantages, listing, log_q, group_size, step, total_steps, state),
        log_q=log_q,
        max_tokens=int(signals.mask.sum(1).max()) if max_tokens is None else max_tokens,
        log_probs=log_probs,
        ref_log_probs=listing.ref_log_probs,
        weights=weights,
        entropies=entropies,
        loss_weights=weighed,
    )
    budget = None
    if method.reduction.divisor == "batch":
        budget = float((weights * signals.mask.sum(1)).sum())
    return objective(method, batch, step, total_steps, budget)[0]


def _check_shapes(listing: Listing, **per_token: Tensor | None) -> None:
    wanted = tuple(listing.signals.mask.shape)
    for name, value in per_token.items():
        if value is not None and tuple(value.shape) != wanted:
            raise DataError(f"{name} has shape {tuple(value.shape)}; the listing has (rows, tokens) = {wanted}.")


def check_expectation(method: Method) -> None:
    """ConfigError where a method has no expectation over single completions."""
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
    if any(extra.changes_advantages or extra.chooses_problems for extra in method.extras):
        raise ConfigError(
            f"{method.name}: an extra sees whole groups, so it has no expectation over single completions; use loss_over_groups "
            "on a small listing."
        )
    for part in method.extras:
        if "advantages" not in needs_of(part) and part.depends_on != "batch":
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
        weights, _ = weights_of(method.token_weight, listing.signals, step, total_steps, None, state)
        advantages = advantages[:, None] * weights
    if method.anchor is None or method.anchor.placement == "loss":
        return advantages
    beta = method.anchor.beta_at(step, total_steps)
    if beta == 0.0:
        return advantages
    penalty = beta * kl_share(method.advantage, group_size) * return_to_go(listing.signals, log_q)
    return (advantages if advantages.dim() == 2 else advantages[:, None]) - penalty


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
    """The same mean by brute force: one call of `credit` and `objective` for each of the B**G groups.

    Kept groups are weighted by their probability divided by that of being kept. log_q replaces the guide's. state: of the
    method's parts before the step, None = at their start; every group meets the same. With a second stage every outcome of
    both, divided as a step of many prompts is: by the mean divisor. ConfigError
    beyond 20,000 groups and for a buffer, which outlives a group; DataError where none is kept and for wrong shapes.
    """
    _check_memory(method)
    key = Key(0) if key is None else key
    _check_shapes(listing, logps=logps, log_q=log_q)
    rows = len(listing.probs)
    if rows**group_size > LARGEST_GROUPS:
        raise ConfigError(
            f"{rows}**{group_size} groups are more than {LARGEST_GROUPS:,}; take fewer rows or smaller groups."
        )
    longest = int(listing.signals.mask.sum(1).max()) if max_tokens is None else max_tokens
    total, mass = torch.zeros((), dtype=logps.dtype), 0.0
    for chance, members in _outcomes(method, listing, group_size):
        rewards = listing.rewards[members].float()[None]
        if method.rollout is not None and not bool(kept_by(method.rollout, rewards, state or method.start())[0]):
            continue
        if is_staged(method.rollout):
            chance *= method.reduction.budget(listing.signals.mask[members], longest)
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


def _outcomes(method: Method, listing: Listing, group_size: int) -> Iterator[tuple[float, Tensor]]:
    """Every group of completions, with its chance; with a second stage those of every outcome of both."""
    probs, rows = listing.probs.double(), range(len(listing.probs))
    for first in itertools.product(rows, repeat=group_size):
        members = torch.tensor(first)
        if not is_staged(plan := method.rollout):
            yield float(probs[members].prod()), members
            continue
        for second in itertools.product(rows, repeat=_second_size(plan, listing, members)):
            chance = float(probs[members].prod() * probs[list(second)].prod())
            for group in trained_on(plan, first, second):
                if group:
                    yield chance, torch.tensor(group)


def _second_size(plan: Staged, listing: Listing, members: Int[Tensor, " G"]) -> int:
    """Completions of the second stage after the listing's rows `members`; ConfigError where their groups are too many, or drawn
    from another law than the listing's."""
    if is_guided(plan):
        raise ConfigError(f"{type(plan).__name__}: its second stage is drawn under guidance; take theory/guided.py")
    size, rows = int(plan.extra(listing.rewards[members].float()[None])[0]), len(listing.probs)
    if rows ** (size + len(members)) > LARGEST_GROUPS:
        raise ConfigError(
            f"{rows}**{size + len(members)} groups with a second stage are more than {LARGEST_GROUPS:,}; take fewer rows, smaller "
            f"groups, or a lower max_completions than {plan.max_completions}."
        )
    return size


def _check_memory(method: Method) -> None:
    if method.buffer is not None:
        raise ConfigError(f"{method.name}: its buffer holds answers of other rollouts than this group; use expected_loss.")


def step_of_groups(
    method: Method,
    listing: Listing,
    logps: Float[Tensor, "B T"],
    members: Int[Tensor, " G"] | Int[Tensor, "N G"],
    *,
    step: int = 0,
    total_steps: int = 1,
    key: Key | None = None,
    log_q: Float[Tensor, "B T"] | None = None,
    log_probs: Float[Tensor, "B T V"] | None = None,
    entropies: Float[Tensor, "B T"] | None = None,
    max_tokens: int | None = None,
    state: State | None = None,
) -> tuple[Float[Tensor, ""], State]:
    """The loop's loss of one group, the listing's rows `members`, or of N groups in one step, as the loop computes it:
    `shape`, `credit`, `objective`; and the state of the method's parts after it. The other arguments are those of
    `loss_over_groups`; max_tokens defaults to the longest completion of the listing. ConfigError for a buffer."""
    _check_memory(method)
    size, members = members.shape[-1], members.reshape(-1)
    signals, rewards = listing.signals.take(members), listing.rewards[members].float().reshape(-1, size)
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
        group_size=size,
        entropies=None if entropies is None else entropies[members],
        loss_weights=worth.loss_weights,
    )
    return objective(method, batch, step, total_steps)[0], worth.state


def loss_of_group(
    method: Method, listing: Listing, logps: Float[Tensor, "B T"], members: Int[Tensor, " G"], **options: Any
) -> Float[Tensor, ""]:
    """The loss of `step_of_groups`, whose `options` these are, without the state after it."""
    return step_of_groups(method, listing, logps, members, **options)[0]
