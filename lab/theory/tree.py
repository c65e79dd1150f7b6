"""TokenTree: a finite policy over completions of varying length, in which every probability and every sum is exact.

A tree is a set of completions of which none is the beginning of another. A state is a prefix; the policy is a table of
logits (S, V), one row per state, in which only tokens that lead on to a completion have any probability. The tree lists
its completions for `theory.expected`, so that any `Method` the loop runs has its exact expected gradient here, through
the same `shape` and `objective`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lab.theory.averages import Listing
from lab.theory.expected import expected_loss, loss_over_groups
from sage_rlvr.core.extras import entropy_drift
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import State
from sage_rlvr.errors import ConfigError, DataError, TrainingDiverged

Logits = Float[Tensor, "S V"]
OverLeaves = Float[Tensor, " L"]


@dataclass(frozen=True, eq=False)
class Descent:
    """Where gradient descent on a method's expected loss came to rest.

    logits (S, V); probs (L,) of the completions there; steps: tried, those taken back included; residual: the largest
    entry of sqrt(w) |d|, d the natural gradient in units of the loss and w the probability of coming through the entry.
    An entry that is to rise counts with at least d sqrt(w / w_ref) / 100, so that a right answer which the reference
    hardly has is not taken for one that does not matter. converged: residual below the tolerance. What is to fall on and
    has less than tolerance^2 left is at rest: for digits of a small probability lower the tolerance.
    """

    logits: Logits
    probs: OverLeaves
    steps: int
    residual: float
    converged: bool


class TokenTree:
    """completions: token sequences, none empty, none twice, none the beginning of another; leaf i is completions[i].

    tokens, states (L, T) long and mask (L, T) bool list them; allowed (S, V) bool says which tokens continue a state.
    State 0 is the empty prefix. Raises DataError for a set that is no tree.
    """

    def __init__(self, completions: Sequence[Sequence[int]]) -> None:
        self.completions = tuple(tuple(int(t) for t in c) for c in completions)
        self._check()
        places: dict[tuple[int, ...], int] = {}
        for completion in self.completions:
            for t in range(len(completion)):
                places.setdefault(completion[:t], len(places))
        self.prefixes = tuple(places)
        width, vocab = max(map(len, self.completions)), 1 + max(map(max, self.completions))
        self.tokens = torch.zeros(len(self.completions), width, dtype=torch.long)
        self.states, self.mask = torch.zeros_like(self.tokens), torch.zeros_like(self.tokens, dtype=torch.bool)
        self.allowed = torch.zeros(len(places), vocab, dtype=torch.bool)
        for i, completion in enumerate(self.completions):
            along = [places[completion[:t]] for t in range(len(completion))]
            self.tokens[i, : len(completion)] = torch.tensor(completion)
            self.states[i, : len(completion)] = torch.tensor(along)
            self.mask[i, : len(completion)] = True
            self.allowed[along, list(completion)] = True

    def _check(self) -> None:
        known = set(self.completions)
        if not known or () in known:
            raise DataError("TokenTree: give at least one completion, and none without a token.")
        if len(known) < len(self.completions):
            twice = next(c for c in self.completions if self.completions.count(c) > 1)
            raise DataError(f"TokenTree: completion {twice} is listed twice.")
        if min(map(min, self.completions)) < 0:
            raise DataError("TokenTree: tokens are numbered from 0.")
        for completion in self.completions:
            if head := next((completion[:t] for t in range(1, len(completion)) if completion[:t] in known), None):
                raise DataError(f"TokenTree: {head} is a completion and also the beginning of {completion}; end it.")

    @classmethod
    def full(cls, vocab: int, depth: int) -> TokenTree:
        """All vocab**depth completions of one length, in lexical order."""
        return cls(list(itertools.product(range(vocab), repeat=depth)))

    @classmethod
    def bandit(cls, actions: int) -> TokenTree:
        """One state, each action a completion of one token."""
        return cls.full(actions, 1)

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def lengths(self) -> Tensor:
        """(L,) tokens of each completion."""
        return self.mask.sum(1)

    # ---- a policy on the tree

    def log_probs(self, logits: Logits) -> Logits:
        """(S, V) log pi(v | s), -inf where v does not continue s; float64, differentiable in the logits.

        DataError for logits of another shape.
        """
        if logits.shape != self.allowed.shape:
            wanted = tuple(self.allowed.shape)
            raise DataError(f"TokenTree: logits have shape {tuple(logits.shape)}; this tree's are (S, V) = {wanted}.")
        return torch.log_softmax(logits.double().masked_fill(~self.allowed, -math.inf), 1)

    def logps(self, logits: Logits) -> Float[Tensor, "L T"]:
        """(L, T) log-probs of the completions' tokens, 0 off the mask; float64."""
        flat = self.log_probs(logits)[self.states[self.mask], self.tokens[self.mask]]
        return torch.zeros(self.mask.shape, dtype=flat.dtype).masked_scatter(self.mask, flat)

    def probs(self, logits: Logits) -> OverLeaves:
        """(L,) probability of each completion; they sum to 1."""
        return self.logps(logits).sum(1).exp()

    def entropies(self, logits: Logits) -> Float[Tensor, "L T"]:
        """(L, T) entropy in nats of the next token at each prefix, 0 off the mask (Eq. 12 of SAGE)."""
        probs = self.log_probs(logits).exp()
        by_state = torch.special.entr(torch.where(probs > 0, probs, 1.0)).sum(1)  # whose slope at 0 is infinite
        return torch.where(self.mask, by_state[self.states], 0.0)

    def visits(self, logits: Logits) -> Float[Tensor, " S"]:
        """(S,) probability of coming through each state."""
        mass = self.probs(logits)[:, None].expand(self.mask.shape)[self.mask]
        return torch.zeros(len(self.prefixes), dtype=mass.dtype).index_add(0, self.states[self.mask], mass)

    def logits_of(self, probs: OverLeaves) -> Logits:
        """(S, V) logits of the policy with these completion probabilities, on any scale.

        DataError where a completion has none, because a softmax gives every token some.
        """
        mass = torch.as_tensor(probs).detach().double()
        if tuple(mass.shape) != (len(self),) or not bool((mass > 0).all()):
            raise DataError(f"logits_of: give a positive probability for each of the {len(self)} completions.")
        spread = mass[:, None].expand(self.mask.shape)[self.mask]
        table = torch.zeros(self.allowed.shape, dtype=torch.float64)
        table.index_put_((self.states[self.mask], self.tokens[self.mask]), spread, accumulate=True)
        return torch.where(self.allowed, table.clamp(min=1e-300).log(), 0.0)

    # ---- what a method expects on it

    def listing(
        self, old_logits: Logits, ref_logits: Logits, rewards: OverLeaves, distributions: bool = False
    ) -> Listing:
        """Every completion under the generating policy and the reference; `rewards` (L,)."""
        paid = torch.as_tensor(rewards).detach()
        with torch.no_grad():
            signals = Signals(
                old_logps=self.logps(old_logits),
                ref_logps=self.logps(ref_logits),
                mask=self.mask,
                row_ids=torch.arange(len(self)),
                entropies=self.entropies(old_logits),
                ref_entropies=self.entropies(ref_logits),
                answers=torch.arange(1, len(self) + 1),  # each completion is an answer of its own
                problems=torch.ones(len(self), dtype=torch.int64),
                ref_right=None if len(paid) != len(self) else self.probs(ref_logits)[paid == 1].sum().log().expand(len(self)),
                entropy_drift=entropy_drift(self.log_probs(old_logits)[self.states]),
            )
            ref = self.log_probs(ref_logits)[self.states] if distributions else None
            return Listing(signals, self.probs(old_logits), paid, ref)

    def expected_loss(
        self,
        method: Method,
        logits: Logits,
        ref_logits: Logits,
        rewards: OverLeaves,
        *,
        old_logits: Logits | None = None,
        group_size: int = 8,
        step: int = 0,
        total_steps: int = 1,
        key: Key | None = None,
        log_q: Float[Tensor, "L T"] | None = None,
        others: Float[Tensor, "P G"] | None = None,
        draws: int = 1,
        brute_force: bool = False,
        state: State | None = None,
        stored: OverLeaves | None = None,
    ) -> Float[Tensor, ""]:
        """Mean of the loop's loss over groups of `group_size` completions drawn from `old_logits` (default `logits`).

        log_q (L, T) replaces the guide's. draws: over how many draws the noise of a random guide is averaged. others,
        state, stored: see `theory.expected.expected_loss`. brute_force lists every group in place of every completion; it takes the
        rewards of no other prompts and one draw, that of each row's place in its group.
        """
        wide = "distributions" in method.needs
        listing = self.listing(logits.detach() if old_logits is None else old_logits, ref_logits, rewards, wide)
        logps = self.logps(logits)
        log_probs = self.log_probs(logits)[self.states] if wide else None
        entropies = self.entropies(logits) if "entropy_gradient" in method.needs else None
        when: dict[str, Any] = {"group_size": group_size, "step": step, "total_steps": total_steps, "key": key}
        when["state"] = state
        if brute_force:
            if others is not None or draws > 1:
                raise ConfigError(
                    "TokenTree: brute_force lists the groups of one prompt with one draw; leave out others, draws."
                )
            return loss_over_groups(method, listing, logps, log_q=log_q, log_probs=log_probs, entropies=entropies, **when)
        if draws > 1:
            listing, logps = listing.repeated(draws), logps.repeat(draws, 1)
            log_probs = None if log_probs is None else log_probs.repeat(draws, 1, 1)
            log_q = None if log_q is None else log_q.repeat(draws, 1)
            stored = None if stored is None else stored.repeat(draws)
            entropies = None if entropies is None else entropies.repeat(draws, 1)
        laws: dict[str, Any] = {"log_q": log_q, "log_probs": log_probs, "entropies": entropies}
        return expected_loss(method, listing, logps, others=others, stored=stored, **laws, **when)

    def expected_gradient(
        self, method: Method, logits: Logits, ref_logits: Logits, rewards: OverLeaves, **options: Any
    ) -> Logits:
        """(S, V) gradient of `expected_loss`, same arguments: what one step of the loop descends on average."""
        leaf = logits.detach().double().requires_grad_(True)
        loss = self.expected_loss(method, leaf, ref_logits, rewards, **options)
        return torch.autograd.grad(loss, leaf)[0] if loss.requires_grad else torch.zeros_like(leaf)

    def descend(
        self,
        method: Method,
        ref_logits: Logits,
        rewards: OverLeaves,
        *,
        start: Logits | None = None,
        tolerance: float = 1e-6,
        max_steps: int = 2000,
        **options: Any,
    ) -> Descent:
        """Follow the expected gradient, on-policy at every step, until it vanishes; from the reference by default.

        The steps are natural-gradient steps, g / (visits(s) pi(v|s)), with momentum: for a tabular softmax that is F^-1 g up
        to a constant of the state, so they come to rest where plain descent does, in some hundreds of steps in place of
        hundreds of thousands. An entry moves by at most 1 nat per step; a step that overshoots is taken back, the momentum
        dropped and the rate lowered. Entries that fewer than one run in 1e30 comes through stay where they are: float32, in
        which the loop's objective computes, hardly holds their weight. Its rounding also is what keeps k3_is from a
        tolerance much below 1e-6 where pi_ref / pi is large. `options` are those of `expected_loss`.

        Returns the best point seen where `max_steps` did not suffice (converged = False). Raises TrainingDiverged where
        the gradient is not finite.
        """
        reference = self._weights(ref_logits)
        logits = (ref_logits if start is None else start).double()
        options = {"ref_logits": ref_logits, "rewards": rewards, **options}
        here = best = self._point(method, logits, reference, options)
        velocity, rate, kept = torch.zeros_like(here.logits), 1.0, 0
        for taken in range(max_steps):
            if here.length < tolerance:
                return Descent(here.logits, self.probs(here.logits), taken, here.length, True)
            push = (kept / (kept + 3.0)) * velocity - rate * here.direction
            there = self._point(method, here.logits + push.clamp(-1.0, 1.0), reference, options)
            if here.overshoots(there) and (kept or rate > 1e-3):
                rate, kept = (rate if kept else rate * 0.5), 0
                velocity = torch.zeros_like(velocity)
                continue
            velocity, here, kept, rate = there.logits - here.logits, there, kept + 1, min(rate * 1.05, 1e3)
            best = min(best, here, key=lambda point: point.length)
        return Descent(best.logits, self.probs(best.logits), max_steps, best.length, best.length < tolerance)

    def _weights(self, logits: Logits) -> Logits:
        """(S, V) probability of coming through each token of each state."""
        return self.visits(logits)[:, None] * self.log_probs(logits).exp()

    def _point(self, method: Method, logits: Logits, reference: Logits, options: dict[str, Any]) -> _Point:
        logits = logits.detach()
        gradient = self.expected_gradient(method, logits, **options)
        if not bool(torch.isfinite(gradient).all()):
            raise TrainingDiverged(f"{method.name}: the expected gradient is not finite on this tree.")
        weight = self._weights(logits)
        direction = torch.where(self.allowed & (weight > 1e-30), gradient / weight.clamp(min=1e-30), 0.0)
        return _Point(logits, direction, weight, _length(direction, weight, reference))


def _length(direction: Logits, weight: Logits, reference: Logits) -> float:
    """The residual of `Descent`; what is to rise is measured against its weight under the reference."""
    share = (weight / reference.clamp(min=1e-300)).clamp(max=1.0)
    rising = 0.01 * share.sqrt() * (-direction).clamp(min=0.0)
    return float(torch.maximum(weight.sqrt() * direction.abs(), rising).max())


@dataclass(frozen=True, eq=False)
class _Point:
    """Logits, the natural gradient there, the probability of coming through each entry, and the residual."""

    logits: Logits
    direction: Logits
    weight: Logits
    length: float

    def overshoots(self, there: _Point) -> bool:
        """A step to `there` lengthens the gradient and turns it by more than 60 degrees.

        One that lengthens it alone is none: while a rare answer grows, the pull on it does too.
        """
        if there.length <= 1.02 * self.length:
            return False
        weight, (a, b) = self.weight + there.weight, (self.direction, there.direction)
        return float((weight * a * b).sum()) < 0.5 * math.sqrt(float((weight * a * a).sum() * (weight * b * b).sum()))
