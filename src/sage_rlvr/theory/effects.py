"""What `Anchor.effect` claims, written down a second time, and measured: the map guide x estimator x placement.

`claimed_gradient` differentiates the functional that an `Effect` names, by central differences in float64, with nothing of
the KL code of `core`. `measured_gradient` is what the loop descends: `shape`, `advantages_of` and `objective`, every
completion with its probability. `gradient_map` lays the two side by side for every combination, refused ones included.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import xlogy
from torch import Tensor

from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.anchor import Anchor, anchor_logps
from sage_rlvr.core.divergences import DIVERGENCES, divergence
from sage_rlvr.core.effect import Effect, effect_of
from sage_rlvr.core.guides import Branch, Compose, Flat, Guide, Placebo, Random, Rarity, Token, factors
from sage_rlvr.core.guides.base import DependsOn
from sage_rlvr.core.keys import Key
from sage_rlvr.core.kl import SAMPLED, estimate
from sage_rlvr.core.method import Method, advantages_of, objective, shape, summed_to_go
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import SageError
from sage_rlvr.theory.tree import Logits, TokenTree

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
    signals = _signals(tree, logits, ref_logits)
    if not _looks_at_batch(guide):
        many = signals.take(torch.arange(len(tree)).repeat(draws))
        found = {kind: value.reshape(draws, *tree.mask.shape) for kind, value in _by_kind(guide, many, key).items()}
        return Draws({kind: value.double().numpy() for kind, value in found.items()}, np.full(draws, 1.0 / draws))
    stacks: dict[DependsOn, list[Array]] = {}
    companies = list(_companies(tree.probs(logits), rows, draws, key))
    for others, _, own_key in companies:
        own = [_by_kind(guide, signals.take(torch.tensor([i, *others])), own_key) for i in range(len(tree))]
        for kind in own[0]:
            stacks.setdefault(kind, []).append(torch.stack([each[kind][0] for each in own]).double().numpy())
    return Draws(
        {kind: np.stack(many) for kind, many in stacks.items()}, np.array([chance for _, chance, _ in companies])
    )


def _companies(probs: Tensor, rows: int, draws: int, key: Key) -> Iterator[tuple[tuple[int, ...], float, Key]]:
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


def _looks_at_batch(guide: Guide) -> bool:
    return any(part.depends_on == "batch" for part in factors(guide))


def _signals(tree: TokenTree, logits: Logits, ref_logits: Logits) -> Signals:
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


# ---- the measurement


class Measured(NamedTuple):
    """(S, V) gradient for beta = 1, and (S, V) standard error of its mean over repeats: 0 where nothing is random."""

    gradient: Logits
    standard_error: Logits


def kl_only(anchor: Anchor) -> Method:
    """A method for measuring its KL term: a sum over tokens, and an advantage that does not shrink what it centers."""
    return Method("kl only", LeaveOneOut(), Clip(), anchor, FixedBudget(1))


def measured_gradient(
    anchor: Anchor,
    tree: TokenTree,
    logits: Logits,
    ref_logits: Logits,
    *,
    draws: int = 1,
    repeats: int = 1,
    rows: int = 2,
    key: Key = KEY,
    batches: Sequence[list[_Batch]] | None = None,
) -> Measured:
    """Exact on-policy gradient of the KL term alone, through the loop's own `objective`, divided by beta.

    All rewards are equal, so that every advantage is 0 but for the KL in it; the divisor is a constant. A random guide is
    averaged over `draws` draws, `repeats` times with keys of its own; one of the batch sees each completion among `rows`
    - 1 others, as in `draw_q`, or in the `batches` of each repeat where they were made before.
    """
    method, where, keys = kl_only(anchor), (tree, logits, ref_logits), [key.fold(f"repeat {n}") for n in range(repeats)]
    if _looks_at_batch(anchor.guide):
        made = batches or [_batches(anchor.guide, *where, draws, rows, own) for own in keys]
        found = [_over_batches(method, *where, each) for each in made]
    else:
        options: dict[str, Any] = {"group_size": 2, "draws": draws}
        found = [tree.expected_gradient(method, *where[1:], torch.zeros(len(tree)), **options, key=own) for own in keys]
    stack = torch.stack(found) / anchor.beta_at(0, 1)
    error = stack.std(0) / math.sqrt(len(found)) if len(found) > 1 else torch.zeros_like(stack[0])
    return Measured(stack.mean(0), error)


class _Batch(NamedTuple):
    """A batch whose first row stands for completion `first`, its log q, and its weight in the mean over such batches."""

    first: int
    signals: Signals
    log_q: Tensor
    weight: float


def _batches(
    guide: Guide, tree: TokenTree, logits: Logits, ref_logits: Logits, draws: int, rows: int, key: Key
) -> list[_Batch]:
    """Every completion as the first row, in each of its companies."""
    method = kl_only(unchecked_anchor(beta=1.0, guide=guide))
    signals, probs, found = _signals(tree, logits, ref_logits), tree.probs(logits), []
    for others, chance, own_key in _companies(probs, rows, draws, key):
        for i in range(len(tree)):
            batch = signals.take(torch.tensor([i, *others]))
            found.append(_Batch(i, batch, shape(method, batch, 0, 1, own_key), chance * float(probs[i])))
    return found


def _over_batches(method: Method, tree: TokenTree, logits: Logits, ref_logits: Logits, batches: list[_Batch]) -> Logits:
    """The mean gradient of the first row of these batches. Rows are alike, so it is that of every row."""
    rewards = torch.zeros(1, len(batches[0].log_q))
    return _gradient_of_rows(
        method, tree, logits, ref_logits,
        members=torch.tensor([each.first for each in batches]),
        advantages=torch.stack([advantages_of(method, rewards, each.signals, each.log_q)[0] for each in batches]),
        weights=torch.tensor([each.weight for each in batches]),
        log_q=torch.stack([each.log_q[0] for each in batches]),
    )  # fmt: skip


def _gradient_of_rows(
    method: Method,
    tree: TokenTree,
    logits: Logits,
    ref_logits: Logits,
    members: Tensor,
    advantages: Tensor,
    weights: Tensor,
    log_q: Tensor | None = None,
) -> Logits:
    """Gradient of sum_i weights_i * (loss of row i), row i being completion members_i."""
    leaf = logits.detach().double().requires_grad_(True)
    signals = _signals(tree, logits, ref_logits).take(members)
    wide = "distributions" in method.needs
    batch = Batch(
        logps=tree.logps(leaf)[members],
        old_logps=signals.old_logps,
        ref_logps=signals.ref_logps,
        mask=signals.mask,
        advantages=advantages,
        log_q=log_q,
        log_probs=tree.log_probs(leaf)[tree.states][members] if wide else None,
        ref_log_probs=tree.log_probs(ref_logits)[tree.states][members] if wide else None,
        weights=weights * len(members),
    )
    return torch.autograd.grad(objective(method, batch, 0, 1)[0], leaf)[0]


# ---- what is refused


def unchecked_anchor(**arguments: Any) -> Anchor:
    """An `Anchor` that nobody looked at: for measuring what a refusal keeps away, and for nothing else."""
    anchor = object.__new__(Anchor)
    for field in fields(Anchor):
        default = field.default_factory() if callable(field.default_factory) else field.default
        object.__setattr__(anchor, field.name, arguments.get(field.name, default))
    return anchor


def in_reward_gradient(
    estimator: str, tree: TokenTree, logits: Logits, ref_logits: Logits, divergence_name: str | None = None
) -> Logits:
    """(S, V) gradient where the detached value of any estimator is a price in the reward, with return-to-go and no guide.

    The loop itself only takes k1 there; this is what the others would give, through the loop's surrogate.
    """
    signals = _signals(tree, logits, ref_logits)
    if estimator == "exact":
        log_pi, log_ref = (tree.log_probs(table.detach())[tree.states] for table in (logits, ref_logits))
        price = divergence(divergence_name, log_pi, log_ref)  # type: ignore[arg-type]
    else:
        anchored = anchor_logps(signals.require("ref_logps", "in_reward_gradient"), None)
        price = estimate(estimator, signals.old_logps, anchored, signals.old_logps)  # type: ignore[arg-type]
    to_go = summed_to_go(price.float(), tree.mask)
    method = Method("price", LeaveOneOut(), Clip(), None, FixedBudget(1))
    members, probs = torch.arange(len(tree)), tree.probs(logits).detach()
    return _gradient_of_rows(method, tree, logits, ref_logits, members, -to_go, probs)


# ---- the map

MAP_TREE = TokenTree([(0,), (1, 0), (1, 1), (2, 0, 0), (2, 0, 1), (2, 1)])
MAP_LOGITS = torch.tensor([[0.4, 0.1, -0.2], [0.8, -0.6, 0.0], [-0.2, 0.3, 0.0], [-1.1, 0.7, 0.0]])
MAP_REF = torch.tensor([[-0.3, 0.6, 0.2], [0.1, 0.5, 0.0], [0.6, -0.4, 0.0], [0.2, -0.3, 0.0]])
MAP_GUIDES: dict[str, Guide] = {
    "Flat": Flat(),
    "Random": Random(eps=1.0, sigma=0.2),
    "Token": Token(alpha=0.4, sigma=0.0),
    "Branch": Branch(ratio=0.8, threshold=0.6),
    "Rarity": Rarity(),
    "Placebo(Branch)": Placebo(Branch(ratio=0.8, threshold=0.6)),
    "centered Placebo(Branch)": Placebo(Branch(ratio=0.8, threshold=0.6), centered=True),
    "Branch(p20)": Branch(ratio=0.8, threshold="p20"),
    "Branch * Token": Branch(ratio=0.8, threshold=0.6) * Token(alpha=0.4, sigma=0.0),
}
TERMS: tuple[tuple[str, str | None], ...] = (
    *((name, None) for name in SAMPLED),
    *(("exact", name) for name in DIVERGENCES),
)


@dataclass(frozen=True)
class MapRow:
    """One combination of the map, all of it computed.

    status    runs, warns or refused
    effect    the claim of `Anchor.effect`; for a refused combination what it would give if it ran
    cosine    of the measured gradient with that of the functional which `effect` names; None where it names none
    gap       |measured - claimed| / |claimed|; None for an estimator refused in the reward, which claims nothing
    influence |g - g_flat| / |g_flat|, the relative size of what the guide changes, measured; None where g_flat is 0
    error     standard error of `influence`: above 0 where the guide draws noise or looks at the batch
    """

    guide: str
    estimator: str
    placement: str
    status: str
    effect: str
    cosine: float | None = None
    gap: float | None = None
    influence: float | None = None
    error: float = 0.0


class _Bench:
    """One guide on one tree: its q drawn once for all terms, and what is measured of an anchor with it."""

    rows, draws, companies, repeats = 32, 2000, 16, 4

    def __init__(self, guide: Guide, tree: TokenTree, logits: Logits, ref_logits: Logits) -> None:
        self.where, kinds = (tree, logits, ref_logits), {part.depends_on for part in factors(guide)}
        draws = self.companies * self.repeats if "batch" in kinds else self.draws
        self.q = draw_q(guide, *self.where, draws=draws, rows=self.rows, key=Key(2))
        self.options: dict[str, Any] = {}
        if "batch" in kinds:
            keys = [Key(1).fold(f"repeat {repeat}") for repeat in range(self.repeats)]
            self.options["batches"] = [_batches(guide, *self.where, self.companies, self.rows, key) for key in keys]
        elif "nothing" in kinds:
            self.options |= {"draws": self.draws, "repeats": self.repeats, "key": Key(1)}

    def measure(self, anchor: Anchor) -> Measured:
        """`measured_gradient` here, over the draws that were made once for this guide."""
        return measured_gradient(anchor, *self.where, **self.options)


def gradient_map(
    guides: Mapping[str, Guide] | None = None,
    tree: TokenTree = MAP_TREE,
    logits: Logits = MAP_LOGITS,
    ref_logits: Logits = MAP_REF,
) -> list[MapRow]:
    """Every guide x estimator x placement: what `Anchor` says of it and what was measured on a ragged tree.

    `guides` by the name that their rows carry, `MAP_GUIDES` where None. Noise is averaged over 8,000 draws, guides of the
    batch over 64 batches of 32 rows. What is refused is measured without the refusal.
    """
    prices = {term: _as_price(*term, tree, logits, ref_logits) for term in TERMS if term[0] != "k1"}
    rows = []
    for name, guide in (MAP_GUIDES if guides is None else guides).items():
        bench = _Bench(guide, tree, logits, ref_logits)
        for (estimator, named), placement in itertools.product(TERMS, ("loss", "reward")):
            term = estimator if named is None else f"exact {named}"
            arguments = {
                "beta": 1.0,
                "guide": guide,
                "estimator": estimator,
                "placement": placement,
                "divergence": named,
            }
            refused_there = placement == "reward" and estimator != "k1"
            outcome = prices[estimator, named] if refused_there else _outcome(arguments, bench)
            rows.append(MapRow(name, term, placement, _status(arguments), *outcome))
    return rows


def _outcome(arguments: dict[str, Any], bench: _Bench) -> tuple[Any, ...]:
    """(effect, cosine, gap, influence, error) of one combination."""
    anchor = unchecked_anchor(**arguments)
    flat = measured_gradient(unchecked_anchor(**arguments | {"guide": Flat()}), *bench.where)
    shaped = bench.measure(anchor)
    size = float(flat.gradient.norm())
    if max(size, float(shaped.gradient.norm())) < 1e-5:
        return ("0, for E_pi[grad log pi] = 0: noise and no leash",)
    claim, text = claimed_gradient(anchor.effect, *bench.where, bench.q), anchor.effect.text
    if arguments["estimator"] == "exact" and anchor.effect.role("token"):
        text = "q of the tokens that were not drawn is not known; that of the drawn one moves no anchor"
    gap = float((shaped.gradient - claim).norm() / claim.norm())
    influence = float((shaped.gradient - flat.gradient).norm()) / size
    return text, _cosine(shaped.gradient, claim), gap, influence, float(shaped.standard_error.norm()) / size


def _status(arguments: dict[str, Any]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            Anchor(**arguments)
        except SageError:
            return "refused"
    return "warns" if caught else "runs"


def _as_price(
    estimator: str, named: str | None, tree: TokenTree, logits: Logits, ref_logits: Logits
) -> tuple[str, float]:
    """What an estimator other than k1 is worth in the reward, and its cosine with the gradient of the whole KL(pi || pi_ref)."""
    whole = claimed_gradient(effect_of("k1", "reward", ()), tree, logits, ref_logits)
    cosine = _cosine(in_reward_gradient(estimator, tree, logits, ref_logits, named), whole)
    sizes = []
    for share in (0.02, 0.01):
        nearer = ref_logits + share * (logits - ref_logits)
        sizes.append([float(in_reward_gradient(e, tree, nearer, ref_logits, named).norm()) for e in (estimator, "k1")])
    if abs(sizes[1][0] / sizes[1][1] - 1) < 1e-3:
        return "what k1 gives: only the value of an estimator enters, and this one's is that of k1", cosine
    here, k1 = (far / near for far, near in zip(*sizes, strict=True))
    return f"no KL: at half the distance to pi_ref the force falls by {here:.1f}, that of k1 by {k1:.1f}", cosine


def _cosine(a: Logits, b: Logits) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()))


def markdown(rows: list[MapRow]) -> str:
    """The map as a table for a page: combinations with the same outcome share a row, those of all guides too."""
    guides = list(dict.fromkeys(row.guide for row in rows))
    outcomes: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for row in rows:
        outcome: tuple[str, ...] = (row.placement, row.status, row.effect.replace("|", "\\|"), *_numbers(row))
        outcomes.setdefault(outcome, {}).setdefault(row.guide, []).append(row.estimator)
    lines = []
    for outcome, by_guide in outcomes.items():
        owners: dict[str, list[str]] = {}
        for guide, estimators in by_guide.items():
            owners.setdefault(", ".join(estimators), []).append(guide)
        for terms, names in owners.items():
            everyone = len(names) == len(guides) > 1
            line = " | ".join(["any" if everyone else ", ".join(names), terms, *outcome])
            lines.append((len(guides) if everyone else guides.index(names[0]), f"| {line} |"))
    head = "| guide | estimator | placement | | expected gradient | cosine | gap | change by q |\n" + "|---" * 8 + "|\n"
    return head + "".join(f"{line}\n" for _, line in sorted(lines, key=lambda pair: pair[0]))


def _numbers(row: MapRow) -> tuple[str, str, str]:
    """Cosine, gap and influence with three digits; empty where there is none."""
    cosine, gap, influence = ("" if value is None else f"{value:.3f}" for value in (row.cosine, row.gap, row.influence))
    return cosine, gap, influence + (f" ± {row.error:.3f}" if row.error >= 5e-4 else "")
