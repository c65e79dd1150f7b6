"""What `Anchor.effect` claims, written down a second time: q on a tree, and the gradient of the functional that an effect names.

`claimed_gradient` differentiates the functional that an `Effect` names, by central differences in float64, with nothing of
the KL code of `core`. `measured.py` has what the loop descends, and `effect_map.py` lays the two side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import xlogy
from torch import Tensor

from lab.theory.tree import Logits, TokenTree
from sage_rlvr.core.effect import Effect
from sage_rlvr.core.guides import Compose, Guide, factors
from sage_rlvr.core.guides.base import DependsOn
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals

Array = NDArray[np.float64]
KEY = Key(0)
LARGEST_LISTING = 300


# ---- q on a tree


@dataclass(frozen=True, eq=False)
class Draws:
    """log q of a guide for every completion of a tree, in D draws of its noise or of the rest of its batch.

    by_kind: for each kind of factor the sum of the log q of the factors of that kind, (D, L, T), 0 off the mask; chances
    (D,) of the draws, summing to 1.
    """

    by_kind: Mapping[DependsOn, Array]
    chances: Array


def draw_q(
    guide: Guide, tree: TokenTree, logits: Logits, ref_logits: Logits, *, draws: int = 1, rows: int = 2, key: Key = KEY
) -> Draws:
    """log q at on-policy samples, by kind of factor, in `draws` draws of its noise.

    A guide of the batch gives each completion its q in the company of the same `rows` - 1 others: each of the
    L**(rows - 1) companies `draws` times, or `draws` sampled ones where there are more than 300.
    """
    signals = signals_on(tree, logits, ref_logits)
    if not looks_at_batch(guide):
        many = signals.take(torch.arange(len(tree)).repeat(draws))
        found = {kind: value.reshape(draws, *tree.mask.shape) for kind, value in _by_kind(guide, many, key).items()}
        return Draws({kind: value.double().numpy() for kind, value in found.items()}, np.full(draws, 1.0 / draws))
    stacks: dict[DependsOn, list[Array]] = {}
    companies = list(companies_of(tree.probs(logits), rows, draws, key))
    for others, _, own_key in companies:
        own = [_by_kind(guide, signals.take(torch.tensor([i, *others])), own_key) for i in range(len(tree))]
        for kind in own[0]:
            stacks.setdefault(kind, []).append(torch.stack([each[kind][0] for each in own]).double().numpy())
    return Draws(
        {kind: np.stack(many) for kind, many in stacks.items()}, np.array([chance for _, chance, _ in companies])
    )


def companies_of(probs: Tensor, rows: int, draws: int, key: Key) -> Iterator[tuple[tuple[int, ...], float, Key]]:
    """(the other rows - 1 completions of a batch, its chance, a key of its own)."""
    if len(probs) ** (rows - 1) > LARGEST_LISTING:
        noise = torch.Generator().manual_seed(key.seed)
        for draw in range(draws):
            sampled = torch.multinomial(probs, rows - 1, replacement=True, generator=noise).tolist()
            yield tuple(sampled), 1.0 / draws, key.fold(f"{draw}")
        return
    for others in itertools.product(range(len(probs)), repeat=rows - 1):
        for draw in range(draws):
            yield others, math.prod(float(probs[i]) for i in others) / draws, key.fold(f"{draw} {others}")


def _by_kind(guide: Guide, signals: Signals, key: Key) -> dict[DependsOn, Tensor]:
    """The log q of the factors of each kind, (B, T), without those that are flat."""
    found: dict[DependsOn, Tensor] = {}
    for part, log_q in Compose((guide,)).each(signals, 0, 1, key):
        if factors(part):
            found[part.depends_on] = found.get(part.depends_on, torch.zeros_like(log_q)) + log_q
    return found


def looks_at_batch(guide: Guide) -> bool:
    """Whether a factor of the guide depends on the other rows of the batch."""
    return any(part.depends_on == "batch" for part in factors(guide))


def signals_on(tree: TokenTree, logits: Logits, ref_logits: Logits) -> Signals:
    """What a guide reads of every completion of the tree, one row each, under the policy (S, V) and the reference (S, V)."""
    return tree.listing(logits, ref_logits, torch.zeros(len(tree))).signals


# ---- the claim, a second time


def claimed_gradient(
    effect: Effect, tree: TokenTree, logits: Logits, ref_logits: Logits, q: Draws | None = None, step: float = 1e-5
) -> Logits:
    """(S, V) gradient of the functional that `effect` names, by central differences of width `step` in float64.

    Local effects: F(pi) = sum_s d(s) c(s) D(pi(.|s), f(.|s)), d the visits of the current policy, held fixed, as are c and
    f, which hold what the roles of `effect` make of q. "sequence": F(pi) = sum_y pi(y) [ log(pi / pi_ref)(y) - sum_t m_t ],
    m the mean of log q given state and token. Why a mean, and of what: with q fixed, every estimator's gradient is a sum of
    g(q_t) grad log pi(y_t | s_t), so that of all that q_t depends on only E[g(q_t) | s_t, y_t] is left in expectation; g is
    q where q multiplies (k3: 1 - q ref / pi) and log q where it is added (k2, k3_is: log pi - log q ref). With return-to-go
    the terms of s < t are not in the sum at t, which for a q_s that looks ahead of s is the same mean once more.
    """
    world = _World(tree, logits, ref_logits, q)
    value = _sequence_value(effect, world) if effect.descends == "sequence" else _local_value(effect, world)
    gradient, here = np.zeros(world.allowed.shape), world.logits
    for entry in zip(*np.nonzero(world.allowed), strict=True):
        ends = []
        for sign in (1.0, -1.0):
            moved = here.copy()
            moved[entry] += sign * step
            ends.append(value(moved))
        gradient[entry] = (ends[0] - ends[1]) / (2 * step)
    return torch.from_numpy(gradient)


class _World:
    """A tree and its policies as numpy arrays, and conditional means of q on it."""

    def __init__(self, tree: TokenTree, logits: Logits, ref_logits: Logits, q: Draws | None) -> None:
        self.mask, self.allowed = tree.mask.numpy(), tree.allowed.numpy()
        self.states, self.tokens = tree.states.numpy(), tree.tokens.numpy()
        self.logits = logits.detach().double().numpy()
        self.log_ref = self.log_softmax(ref_logits.detach().double().numpy())
        self.probs = np.exp(self.of_leaves(self.log_softmax(self.logits)).sum(1))
        self.kinds = {} if q is None else dict(q.by_kind)
        self.chances = np.ones(1) if q is None else q.chances
        self.visits = self._sum_by_state(np.broadcast_to(self.probs[:, None], self.mask.shape))

    def log_softmax(self, logits: Array) -> Array:
        """(S, V), -inf where a token does not continue a state."""
        masked = np.where(self.allowed, logits, -np.inf)
        shifted = masked - masked.max(1, keepdims=True)
        found: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        return found

    def of_leaves(self, table: Array) -> Array:
        """(L, T) entries of a table (S, V) along the completions, 0 off the mask."""
        return np.where(self.mask, table[self.states, self.tokens], 0.0)

    def log_q(self, effect: Effect, *roles: str) -> Array:
        """(D, L, T) log q of the factors with one of these roles; zeros where there are none."""
        chosen = [value for kind, value in self.kinds.items() if effect.role(kind) in roles]
        return sum(chosen, np.zeros((len(self.chances), *self.mask.shape)))

    def mean_by_token(self, values: Array) -> Array:
        """(D, L, T) -> (S, V) mean over draws and over the completions through (state, token); 0 where none passes."""
        table = np.zeros(self.allowed.shape)
        share = np.zeros(self.allowed.shape)
        where = (self.states[self.mask], self.tokens[self.mask])
        weight = np.broadcast_to(self.probs[:, None], self.mask.shape)
        np.add.at(table, where, (weight * np.tensordot(self.chances, values, 1))[self.mask])
        np.add.at(share, where, weight[self.mask])
        return np.divide(table, share, out=table, where=share > 0)

    def mean_by_state(self, values: Array) -> Array:
        """(D, L, T) -> (S,) mean over draws and over the completions through the state."""
        return self._sum_by_state(self.probs[:, None] * np.tensordot(self.chances, values, 1)) / self.visits

    def overall_mean(self, values: Array) -> float:
        """Mean over draws and counted tokens of what depends on neither."""
        return float(np.tensordot(self.chances, values, 1)[self.mask].mean())

    def _sum_by_state(self, per_token: Array) -> Array:
        sums = np.bincount(self.states[self.mask], weights=per_token[self.mask], minlength=len(self.allowed))
        return np.asarray(sums, dtype=np.float64)


def _sequence_value(effect: Effect, world: _World) -> Callable[[Array], float]:
    paid = world.of_leaves(world.mean_by_token(world.log_q(effect, "bonus")))
    if any(role == "drift" for _, role in effect.roles):
        paid = paid + world.mask * world.overall_mean(world.log_q(effect, "drift"))
    log_ref = world.of_leaves(world.log_ref)

    def value(logits: Array) -> float:
        log_pi = world.of_leaves(world.log_softmax(logits)).sum(1)
        return float((np.exp(log_pi) * (log_pi - (log_ref + paid).sum(1))).sum())

    return value


def _local_value(effect: Effect, world: _World) -> Callable[[Array], float]:
    """sum over (state, strength, log f) of strength * D(pi(.|s), f): one entry per state, under js one a drawn q."""
    if effect.descends == "js":
        states, strengths, shifts = _tilted(effect, world)
    else:
        power = effect.alpha or 1.0
        scaled, noise = np.exp(power * world.log_q(effect, "scales")), np.exp(power * world.log_q(effect, "noise"))
        strengths = world.visits * world.mean_by_state(scaled) * world.overall_mean(noise)
        states, shifts = np.arange(len(world.allowed)), _shift(effect, world)
    anchors = np.exp(np.where(world.allowed[states], world.log_ref[states] + shifts, -np.inf))
    measure = _measure(effect)

    def value(logits: Array) -> float:
        pi = np.exp(world.log_softmax(logits))[states]
        return float((strengths * measure(pi, anchors)).sum())

    return value


def _shift(effect: Effect, world: _World) -> Array:
    """(S, V) log of the factor that shapes the anchor: the mean of q under the forward KL, of log q under the reverse."""
    moved = world.log_q(effect, "moves")
    if effect.descends == "forward":
        return np.log(np.where(world.allowed, world.mean_by_token(np.exp(moved)), 1.0))
    return world.mean_by_token(moved)


def _tilted(effect: Effect, world: _World) -> tuple[NDArray[np.int64], Array, Array]:
    """Every drawn q at its state: states (N,), visits times chance (N,), log q (N, 1); equal ones are summed."""
    log_q = world.log_q(effect, "tilts")[:, world.mask]
    weight = world.chances[:, None] * np.broadcast_to(world.probs[:, None], world.mask.shape)[world.mask]
    states = np.broadcast_to(world.states[world.mask], log_q.shape)
    pairs, member = np.unique(np.stack([states.ravel(), log_q.ravel()], 1), axis=0, return_inverse=True)
    strengths = np.asarray(np.bincount(member.ravel(), weights=weight.ravel()), dtype=np.float64)
    return pairs[:, 0].astype(np.int64), strengths, pairs[:, 1:]


def _measure(effect: Effect) -> Callable[[Array, Array], Array]:
    """The sum over the tokens of a state of two measures p and f, (N, V) -> (N,): Csiszar's divergences, and Eq. (5)."""
    alpha = effect.alpha or 0.0
    found: dict[str, Callable[[Array, Array], Array]] = {
        "reverse": lambda p, f: (xlogy(p, p) - xlogy(p, f)).sum(1),
        "forward": lambda p, f: (xlogy(f, f) - xlogy(f, p) - f + p).sum(1),
        "js": lambda p, f: (xlogy(p, p) + xlogy(f, f) - xlogy(p + f, (p + f) / 2)).sum(1),
        "alpha": lambda p, f: (
            (f**alpha * p ** (1 - alpha) - (1 - alpha) * p - alpha * f).sum(1) / (alpha * (alpha - 1))
        ),
    }
    return found[effect.descends]
