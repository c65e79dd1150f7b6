"""Exact expected gradients of a method on the real policy: a problem's completions, all listed, in place of samples.

A `Case` holds a problem with its completions (`completions.py`) under a policy, and a reference. `state_gradient` puts
them through the loop's own `objective`, by `theory.expected`; `equation6` is the direction to compare with, written a
second time by itself:

    J = -E_pi[R] + beta (E_pi[sum_t log pi - log ref] - E_pi[sum_t log q])              SAGE, arXiv 2605.18864, Eq. (6)

differentiated through everything, the probabilities of the completions included. Gradients are first taken with respect
to the logits of the S states of the listing, where they cost milliseconds, and pulled back through the model once: two
terms with the same gradient there have the same gradient in the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lab.theory.expected import Listing, expected_loss
from sage_rlvr.core.guides import Guide
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method
from sage_rlvr.core.signals import Signals
from sage_rlvr.models.enumeration.completions import MOST_STATES, Enumerated, enumerate_to
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks.base import Task

GROUP_SIZE = 16
"""Completions a prompt, as in the demo; the mean advantage of GRPO, and the factor (G - 1) / G of Dr. GRPO, go with it."""
LEVELS, GRID = 32, (200, 512)
"""How the mean over a guide's noise is taken, see `shaping_of`."""
SAME = 2e-6
"""Gradients with respect to logits that differ by less than this share are the same up to the rounding of float32."""

Linear = Literal["q", "log q", "neither"]


@dataclass(frozen=True, eq=False)
class View:
    """Rows of a listing: all completions, or one for each last state, which is enough for sums over the vocabulary."""

    tokens: Tensor
    states: Tensor
    listing: Listing

    @property
    def mask(self) -> Tensor:
        """(B, T) counted tokens."""
        return self.listing.signals.mask

    def logps(self, table: Tensor) -> Tensor:
        """table (S, V) of log-probs -> (B, T) those of the tokens, 0 off the mask."""
        flat = table[self.states[self.mask], self.tokens[self.mask]]
        return torch.zeros(self.mask.shape, dtype=flat.dtype).masked_scatter(self.mask, flat)


@dataclass(eq=False)
class Case:
    """A problem with its completions under a policy, and a reference.

    logits (S, V) of the policy in the states of the listing, in its graph; table, ref_table (S, V) float64 log-probs of
    policy and reference; rewards (B,) of the verifier. Gradients are flat vectors over `params`, (P,) float32.
    """

    name: str
    listed: Enumerated
    policy: PreTrainedModel
    params: tuple[torch.nn.Parameter, ...]
    logits: Tensor
    table: Tensor
    ref_table: Tensor
    rewards: Tensor
    pulled: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    known: dict[Method, Tensor] = field(default_factory=dict)

    @property
    def right(self) -> float:
        """Probability of a right completion."""
        return float((self.every.listing.probs * self.rewards).sum())

    @property
    def kl(self) -> float:
        """KL(policy || reference) of the whole completion, nats."""
        signals, probs = self.every.listing.signals, self.every.listing.probs
        assert signals.ref_logps is not None
        return float((probs * (signals.old_logps - signals.ref_logps).sum(1)).sum())

    @cached_property
    def every(self) -> View:
        """All completions."""
        rows = torch.arange(len(self.listed.probs))
        probs = _sequence_logps(self.listed, self.table).exp()
        return self._view(rows, probs, self.rewards, wide=False)

    @cached_property
    def by_state(self) -> View:
        """For each last state one completion with the probability of all that end there; no rewards."""
        last = self.listed.last_states
        states, place = torch.unique(last, return_inverse=True)
        rows = torch.empty_like(states).scatter_(0, place, torch.arange(len(last)))
        probs = torch.zeros(len(states), dtype=torch.float64).index_add(0, place, self.every.listing.probs)
        return self._view(rows, probs, torch.zeros(len(states)), wide=True)

    def _view(self, rows: Tensor, probs: Tensor, rewards: Tensor, wide: bool) -> View:
        listed, table, ref = self.listed, self.table, self.ref_table
        mask, states, tokens = listed.mask[rows], listed.states[rows], listed.tokens[rows]
        entropies, ref_entropies = (torch.special.entr(law.exp()).sum(1) for law in (table, ref))

        def along(values: Tensor) -> Tensor:
            return torch.where(mask, values, 0.0)

        signals = Signals(
            old_logps=along(table[states, tokens]),
            ref_logps=along(ref[states, tokens]),
            mask=mask,
            row_ids=rows,
            entropies=along(entropies[states]),
            ref_entropies=along(ref_entropies[states]),
        )
        wanted = ref[states].float() if wide else None
        return View(tokens, states, Listing(signals, probs, rewards, wanted))

    def pull(self, gradient: Tensor) -> Tensor:
        """gradient (S, V) with respect to the logits -> (P,) with respect to the parameters.

        A multiple of one that was pulled before, up to the rounding of float32, is not pulled again.
        """
        for known, vector in self.pulled:
            factor = float((known * gradient).sum() / known.square().sum().clamp(min=1e-300))
            if float((factor * known - gradient).norm()) <= SAME * float(gradient.norm()):
                return factor * vector
        parts = torch.autograd.grad(self.logits, self.params, gradient.to(self.logits.dtype), retain_graph=True)
        vector = torch.cat([part.reshape(-1) for part in parts])
        self.pulled.append((gradient, vector))
        return vector


def _sequence_logps(listed: Enumerated, table: Tensor) -> Tensor:
    """(B,) log-probs of whole completions."""
    return torch.where(listed.mask, table[listed.states, listed.tokens], 0.0).sum(1)


def open_case(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    tokens: Tokens,
    task: Task,
    problem: Any,
    *,
    max_new_tokens: int,
    remainder: float = 1e-3,
    most_states: int = MOST_STATES,
) -> Case:
    """List a problem's completions under `policy` until at most `remainder` is left. Raises what `enumerate_to` raises."""
    prompt = tokens.encode_prompt(task.prompt(problem))
    listed = enumerate_to(policy, tokens, prompt, max_new_tokens, remainder=remainder, most_states=most_states)
    rewards = torch.zeros(len(listed.probs))
    rewards[listed.finished] = torch.tensor([float(task.verify(problem, t).right) for t in listed.texts(tokens)])
    logits = listed.logits(policy)
    with torch.no_grad():
        ref = torch.log_softmax(listed.logits(reference).double(), -1)
    params = tuple(p for p in policy.parameters() if p.requires_grad)
    table = torch.log_softmax(logits.detach().double(), -1)
    return Case(task.prompt(problem), listed, policy, params, logits, table, ref, rewards)


@dataclass(frozen=True, eq=False)
class Gradients:
    """(P,) exact expected gradients of a method's loss: of the KL term with beta = 1, and of the reward term."""

    kl: Tensor
    reward: Tensor

    def whole(self, beta: float) -> Tensor:
        """Of both: on-policy no ratio is clipped, and the loss is linear in beta."""
        return self.reward + beta * self.kl


def state_gradient(case: Case, method: Method, *, log_q: Tensor | None = None, rewarded: bool = True) -> Tensor:
    """(S, V) exact expected gradient of the loop's loss with respect to the logits of the states, float64.

    Per completion, not per token: a constant reduction divides by 1. log_q replaces the guide's, in the rows of the view
    that the method is put through (`view_of`). rewarded = False gives the KL term alone; by_state listings have no rewards.
    """
    view = view_of(case, method) if not rewarded else case.every
    listing = view.listing if rewarded else replace(view.listing, rewards=torch.zeros_like(view.listing.rewards))
    leaf = case.table.clone().requires_grad_(True)
    table = torch.log_softmax(leaf, -1)
    wide = "distributions" in method.needs
    loss = expected_loss(
        method,
        listing,
        view.logps(table),
        group_size=GROUP_SIZE,
        log_q=log_q,
        log_probs=table[view.states].float() if wide else None,
        max_tokens=1,
    )
    return torch.autograd.grad(loss, leaf)[0]


def view_of(case: Case, method: Method) -> View:
    """Where a method's KL term is summed: over the states where it is a sum over the vocabulary, else over completions."""
    return case.by_state if "distributions" in method.needs else case.every


def gradients(case: Case, method: Method, log_q: Tensor | None = None) -> Gradients:
    """Exact expected gradients of `method`, whose anchor must have beta = 1 and act at step 0. log_q: `state_gradient`'s."""
    return Gradients(kl_gradient(case, method, log_q), _remembered(case, replace(method, anchor=None)))


def kl_gradient(case: Case, method: Method, log_q: Tensor | None = None) -> Tensor:
    """(P,) exact expected gradient of the method's KL term alone, remembered where no log_q is given."""
    if log_q is None:
        return _remembered(case, method, rewarded=False)
    return case.pull(state_gradient(case, method, log_q=log_q, rewarded=False))


def _remembered(case: Case, method: Method, rewarded: bool = True) -> Tensor:
    if method not in case.known:
        case.known[method] = case.pull(state_gradient(case, method, rewarded=rewarded))
    return case.known[method]


def equation6(case: Case, log_q: Tensor | None = None, *, beta: float = 1.0, rewarded: bool = False) -> Tensor:
    """(S, V) gradient of -E[R] + beta (E[sum log pi - log ref] - E[sum log q]), q fixed, everything else differentiated.

    rewarded = False leaves -E[R] out. Written from the equation alone: nothing of the estimators is used.
    """
    listed = case.listed
    leaf = case.table.clone().requires_grad_(True)
    logps = _sequence_logps(listed, torch.log_softmax(leaf, -1))
    penalty = logps - _sequence_logps(listed, case.ref_table)
    if log_q is not None:
        penalty = penalty - torch.where(listed.mask, log_q.double(), 0.0).sum(1)
    value = beta * penalty - (case.rewards if rewarded else 0.0)
    return torch.autograd.grad((logps.exp() * value).sum(), leaf)[0]


@dataclass(frozen=True, eq=False)
class Shaping:
    """q of a guide, its noise averaged, (B, T) each, 0 off the mask: log E[q] and E[log q], the same without noise."""

    of_q: Tensor
    of_log_q: Tensor

    def of(self, linear: Linear) -> Tensor:
        """What stands for log q in a gradient that is linear in q, or in log q."""
        return self.of_q if linear == "q" else self.of_log_q


def shaping_of(guide: Guide, view: View, key: Key) -> Shaping:
    """A guide's q on a view, in expectation over its noise.

    A q that looks at nothing has one law at every token: its means are taken over a grid of the noise. Elsewhere that takes
    `LEVELS` equally likely values of the normal law, the same at all tokens, since a token's mean asks for its own law alone.
    """
    signals, mask = view.listing.signals, view.mask
    if not is_noisy(guide, view, key):
        log_q = guide(signals, 0, 1, key)
        return Shaping(log_q, log_q)
    if guide.depends_on == "nothing":
        mean, mean_log = _blind(guide)
        return Shaping(torch.where(mask, mean, 0.0), torch.where(mask, mean_log, 0.0))
    total, total_log = torch.zeros_like(signals.old_logps), torch.zeros_like(signals.old_logps)
    for n in range(LEVELS):
        log_q = guide(signals, 0, 1, _Level(key.seed, n))
        total, total_log = total + log_q.exp(), total_log + log_q
    return Shaping((total / LEVELS).log(), total_log / LEVELS)


@lru_cache(maxsize=32)
def _blind(guide: Guide) -> tuple[float, float]:
    """log E[q] and E[log q] of a q that looks at nothing, over tokens that are nothing and a grid of its noise."""
    rows = GRID[0] * GRID[1]
    nothing, mask = torch.zeros(rows, 1), torch.ones(rows, 1, dtype=torch.bool)
    signals = Signals(nothing, nothing, mask, torch.arange(rows), nothing, nothing)
    many = guide(signals, 0, 1, _Grid(0)).double()
    return float(many.exp().mean().log()), float(many.mean())


@dataclass(frozen=True)
class _Grid(Key):
    """A key whose rows are the pairs of `GRID` equally likely values of a uniform and of a normal number."""

    def uniform(self, step: int, name: str, row_ids: Tensor, positions: int | Tensor) -> Tensor:
        return ((row_ids % GRID[0] + 0.5) / GRID[0])[:, None]

    def normal(self, step: int, name: str, row_ids: Tensor, positions: int | Tensor) -> Tensor:
        return torch.special.ndtri((row_ids // GRID[0] + 0.5).double() / GRID[1]).float()[:, None]


@dataclass(frozen=True)
class _Level(Key):
    """A key that draws the same value everywhere: the middle of the n-th of `LEVELS` equally likely parts of the law."""

    n: int = 0

    def fold(self, name: str) -> Key:
        return self

    def uniform(self, step: int, name: str, row_ids: Tensor, positions: int | Tensor) -> Tensor:
        columns = positions.shape[-1] if isinstance(positions, Tensor) else 1
        return torch.full((len(row_ids), columns), (self.n + 0.5) / LEVELS, device=row_ids.device)

    def normal(self, step: int, name: str, row_ids: Tensor, positions: int | Tensor) -> Tensor:
        level = NormalDist().inv_cdf((self.n + 0.5) / LEVELS)
        return torch.full_like(self.uniform(step, name, row_ids, positions), level)


def is_noisy(guide: Guide, view: View, key: Key) -> bool:
    """Whether another key gives the guide another q here."""
    signals = view.listing.signals
    return not torch.equal(guide(signals, 0, 1, key), guide(signals, 0, 1, key.fold("lab/again")))


def drawn_log_q(guide: Guide, signals: Signals, rows: Tensor, key: Key, times: int) -> Tensor:
    """(times, rows, T) log q of numbered copies; ids do not clash, because copy c of row r is number c * B + r."""
    ids = (torch.arange(times)[:, None] * len(signals.mask) + rows[None, :]).reshape(-1)
    return guide(signals.take(rows.repeat(times), ids), 0, 1, key).reshape(times, len(rows), -1)
