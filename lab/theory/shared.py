"""A world whose prompts share parameters: what a tabular tree cannot show, because there no prompt moves another.

A prompt is of one of several types. Its answers are grouped into strategies; a strategy works for a prompt with a frequency that
depends on the type, and answers under a strategy that works are right now and then. The policy is

    pi(y | x) proportional to base(y | x) exp(theta[type of x, strategy of y] + phi . features(x, y))

so that what one prompt learns moves all others of its type, and prompts that were never trained on. An answer is one token. Its
probabilities are sums, and the expected gradient of any `Method` is the loop's own `objective` over all answers of all prompts
(`theory.expected`): exact for a method whose parts see rewards alone, and for the others where the groups of one prompt can be
listed. `sampled_loss` draws groups instead, as many as wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lab.theory.averages import Averages, Listing, averages, changed_rewards, mean_advantages
from lab.theory.expected import check_expectation, loss_of_means, step_of_groups
from sage_rlvr.core.advantages import sees
from sage_rlvr.core.extras import entropy_drift
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method, shape
from sage_rlvr.core.rollout_plans import is_staged
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import State, has_state
from sage_rlvr.errors import ConfigError, DataError

Theta = Float[Tensor, " D"] | Float[Tensor, "N A"]


@dataclass(frozen=True)
class Law:
    """How worlds are drawn; chosen by what the base does on them and by nothing that was trained.

    prompts      half of them to train on, the rest to test
    works        mean frequency with which a strategy works for a prompt; Beta(spread works, spread (1 - works)) over types
    right        chance that an answer under a working strategy is right; a prompt without a right answer is drawn again
    zipf         the base's log-probability falls by zipf log(rank): of strategies, one order for all prompts
    noise        standard deviation of what the base adds to a strategy for a prompt, nats
    within       the same law among the answers of a strategy, in an order of the prompt's own
    tell         by how much the mean of the features of right answers is shifted, in standard deviations
    """

    prompts: int = 200
    types: int = 5
    strategies: int = 20
    answers: int = 10
    features: int = 6
    works: float = 0.3
    spread: float = 1.5
    right: float = 0.15
    zipf: float = 1.0
    noise: float = 1.0
    within: float = 1.0
    tell: float = 0.5

    def __post_init__(self) -> None:
        if self.prompts < 2 or min(self.types, self.strategies, self.answers) < 1:
            raise ConfigError(f"Law: {self}; give at least 2 prompts and 1 of types, strategies and answers.")
        if not (0 < self.works < 1 and 0 < self.right <= 1):
            raise ConfigError(f"Law: works = {self.works}, right = {self.right}; both are chances above 0.")


@dataclass(frozen=True, eq=False)
class SharedWorld:
    """One drawn world: N prompts with A answers each, the first `train` of them to train on.

    base (N, A) log base(y | x); strategies (A,); types (N,); features (N, A, F); right (N, A). float64 where not counted.
    Parameters are (types * strategies + F,), shared; or (N, A), a logit of its own for every answer of every prompt, the policy
    that can represent any law.
    """

    base: Float[Tensor, "N A"]
    strategies: Int[Tensor, " A"]
    types: Int[Tensor, " N"]
    features: Float[Tensor, "N A F"]
    right: Bool[Tensor, "N A"]
    train: int

    @classmethod
    def draw(cls, seed: int, law: Law = Law()) -> SharedWorld:
        """A world as a function of its seed."""
        generator = torch.Generator().manual_seed(seed)
        options = {"generator": generator, "dtype": torch.float64}
        n, s, m = law.prompts, law.strategies, law.answers
        types = torch.arange(n) % law.types
        frequency = _beta(law.spread * law.works, law.spread * (1 - law.works), (law.types, s), generator)
        right = torch.zeros(n, s, m, dtype=torch.bool)
        while len(dead := (~right.any(2).any(1)).nonzero()[:, 0]):
            works = torch.rand(len(dead), s, **options) < frequency[types[dead]]  # type: ignore[call-overload]
            right[dead] = works[:, :, None] & (torch.rand(len(dead), s, m, **options) < law.right)  # type: ignore[call-overload]
        order = torch.randperm(s, generator=generator).double()
        liked = -law.zipf * (order + 1).log() + law.noise * torch.randn(n, s, **options)  # type: ignore[call-overload]
        places = torch.rand(n, s, m, **options).argsort(2).double()  # type: ignore[call-overload]
        base = (liked[:, :, None] - law.within * (places + 1).log()).reshape(n, s * m)
        features = torch.randn(n, s * m, law.features, **options)  # type: ignore[call-overload]
        toward = torch.randn(law.features, **options)  # type: ignore[call-overload]
        toward = law.tell * toward / toward.norm() if law.features else toward
        features = features + right.reshape(n, -1)[:, :, None] * toward
        return cls(
            torch.log_softmax(base, 1), torch.arange(s).repeat_interleave(m), types, features, right.reshape(n, -1), n // 2
        )

    @property
    def start(self) -> Theta:
        """Shared parameters of the base, zeros."""
        return torch.zeros(self._table + self.features.shape[2], dtype=torch.float64)

    @property
    def table(self) -> Theta:
        """The same for a policy with a logit for every answer of every prompt."""
        return torch.zeros_like(self.base)

    @cached_property
    def _table(self) -> int:
        return (int(self.types.max()) + 1) * (int(self.strategies.max()) + 1)

    @cached_property
    def prompts(self) -> tuple[Tensor, Tensor]:
        """Numbers of the prompts to train on and of those to test."""
        every = torch.arange(len(self.base))
        return every[: self.train], every[self.train :]

    # ---- a policy on it

    def log_probs(self, theta: Theta, which: Tensor | None = None, temperature: float = 1.0) -> Float[Tensor, "N A"]:
        """(N, A) log pi(y | x) of the prompts `which` (all by default), float64, differentiable in theta.

        DataError for parameters of another shape.
        """
        rows = slice(None) if which is None else which
        if theta.shape == self.base.shape:
            logits = self.base[rows] + theta[rows]
        elif theta.shape == (self._table + self.features.shape[2],):
            by_type = theta[: self._table].reshape(-1, int(self.strategies.max()) + 1)[self.types[rows]]
            logits = self.base[rows] + by_type[:, self.strategies] + self.features[rows] @ theta[self._table :]
        else:
            raise DataError(
                f"SharedWorld: parameters have shape {tuple(theta.shape)}; give those of world.start, {tuple(self.start.shape)}, "
                f"or of world.table, {tuple(self.base.shape)}."
            )
        return torch.log_softmax(logits / temperature, 1)

    def solved(self, theta: Theta, which: Tensor | None = None, temperature: float = 1.0) -> Float[Tensor, " N"]:
        """(N,) P(right) of each prompt."""
        rows = slice(None) if which is None else which
        return torch.where(self.right[rows], self.log_probs(theta, which, temperature).exp(), 0.0).sum(1)

    def kl(self, theta: Theta, which: Tensor | None = None) -> float:
        """Mean KL(policy || base) in nats."""
        rows = slice(None) if which is None else which
        found = self.log_probs(theta, which)
        return float((found.exp() * (found - self.base[rows])).sum(1).mean())

    # ---- what a method expects on it

    def listing(self, theta: Theta, which: Tensor | None = None, needs: frozenset[str] = frozenset()) -> Listing:
        """Every answer of every prompt to train on (or of `which`), prompts equally likely; reference: the base.

        needs: `method.needs`, for the signals beyond the log-probs.
        """
        which = self.prompts[0] if which is None else which
        return self._listing(self.log_probs(theta.detach(), which), which, needs)

    def _listing(self, found: Tensor, which: Tensor, needs: frozenset[str]) -> Listing:
        signals = self._signals(found, which, torch.arange(found.numel()), needs)
        return Listing(signals, found.exp().reshape(-1) / len(found), self.right[which].double().reshape(-1))

    def _signals(self, policy: Tensor, which: Tensor, rows: Tensor, needs: frozenset[str]) -> Signals:
        """Of the rows of the flattened (prompts, answers) that are named, one token each; policy (prompts, answers) detached."""
        reference, prompt = self.base[which], rows // policy.shape[1]
        more: dict[str, Callable[[], Tensor]] = {
            "ref_right": lambda: reference.masked_fill(~self.right[which], -math.inf).logsumexp(1)[prompt],
            "entropies": lambda: -(policy * policy.exp()).sum(1)[prompt][:, None],
            "ref_entropies": lambda: -(reference * reference.exp()).sum(1)[prompt][:, None],
            "entropy_drift": lambda: entropy_drift(policy[:, None, :])[prompt],
        }
        return Signals(
            old_logps=policy.reshape(-1)[rows][:, None],
            ref_logps=reference.reshape(-1)[rows][:, None],
            mask=torch.ones(len(rows), 1, dtype=torch.bool),
            row_ids=torch.arange(len(rows)),
            answers=rows + 1,
            problems=prompt + 1,
            **{name: found() for name, found in more.items() if name in needs},
        )

    def averages(self, method: Method, group_size: int) -> Averages | None:
        """What a method whose parts see rewards alone pays right and wrong answers; None for any other.

        It is the same for every policy: computed once, it makes a training exact in milliseconds a step.
        """
        part = method.advantage
        if sees(part) or changed_rewards(method) or has_state(part) or part.couples_prompts:
            return None
        return averages(method, torch.tensor([[0.0], [1.0]], dtype=torch.float64), group_size)

    def expected_loss(
        self, method: Method, theta: Theta, *, group_size: int = 16, step: int = 0, total_steps: int = 1,
        key: Key | None = None, paid: Averages | None = None,
    ) -> Float[Tensor, ""]:  # fmt: skip
        """Mean of the loop's loss over groups of `group_size` answers to the training prompts, drawn from the policy itself.

        paid: `averages`, where it is kept from step to step. ConfigError where a method has no expectation over single answers,
        and where it sees more than rewards and one prompt has too many groups to list: a smaller group, fewer answers, or
        `sampled_loss`.
        """
        check_expectation(method)
        if method.buffer is not None:
            raise ConfigError(f"{method.name}: what its buffer holds of every prompt is no part of this world; use one without.")
        which, logps = self.prompts[0], self.log_probs(theta, self.prompts[0])
        listing = self._listing(logps.detach(), which, method.needs)
        paid = self.averages(method.at(step, total_steps), group_size) if paid is None else paid
        if paid is None:
            means, kept = self._listed(method.at(step, total_steps), listing, group_size)
        else:
            solved = (listing.probs * listing.rewards).reshape(logps.shape).sum(1).double() * len(which)
            at = paid.at(torch.stack([1 - solved, solved], 1))
            right = self.right[which]
            means, kept = (torch.where(right, f[:, 1:], f[:, :1]).float().reshape(-1) for f in at)
        log_q = shape(method, listing.signals, step, total_steps, Key(0) if key is None else key)
        return loss_of_means(
            method, listing, logps.reshape(-1, 1), means, kept, group_size=group_size, step=step, total_steps=total_steps,
            log_q=log_q, max_tokens=1, entropies=_entropies(method, logps),
        )  # fmt: skip

    def _listed(self, method: Method, listing: Listing, group_size: int) -> tuple[Tensor, Tensor]:
        """`mean_advantages` of each prompt by itself, by every composition of its groups."""
        width, found = self.base.shape[1], []
        for first in range(0, len(listing.probs), width):
            rows = torch.arange(first, first + width)
            own = Listing(listing.signals.take(rows), listing.probs[rows] * self.train, listing.rewards[rows])
            found.append(mean_advantages(method, own, group_size))
        means, kept = (torch.cat(part) for part in zip(*found, strict=True))
        return means, kept

    def sampled_loss(
        self, method: Method, theta: Theta, generator: torch.Generator, *, group_size: int = 16, groups: int = 16, step: int = 0,
        total_steps: int = 1, state: State | None = None,
    ) -> tuple[Float[Tensor, ""], State]:  # fmt: skip
        """The loop's loss of one step with that many groups for every training prompt, drawn from the policy; and the state of
        the method's parts after it. ConfigError for a rollout plan with a second stage, of which it draws the first alone."""
        if is_staged(method.rollout):
            raise ConfigError(
                f"{method.name}: drawn groups have one stage here, and {type(method.rollout).__name__} has two; use the exact "
                "expectation, groups=0."
            )
        which = self.prompts[0]
        found = self.log_probs(theta, which)
        listing = self._listing(found.detach(), which, method.needs)
        drawn = torch.multinomial(found.detach().exp(), groups * group_size, replacement=True, generator=generator)
        members = (drawn + torch.arange(len(found))[:, None] * found.shape[1]).reshape(-1, group_size)
        key = Key(int(torch.randint(2**31, (), generator=generator)))
        return step_of_groups(
            method, listing, found.reshape(-1, 1), members, step=step, total_steps=total_steps, key=key, max_tokens=1, state=state,
            entropies=_entropies(method, found),
        )  # fmt: skip

    def expected_gradient(self, method: Method, theta: Theta, *, group_size: int = 16) -> Theta:
        """The gradient of `expected_loss`: what one step of the loop descends on average."""
        leaf = theta.detach().clone().requires_grad_(True)
        return torch.autograd.grad(self.expected_loss(method, leaf, group_size=group_size), leaf)[0]

    def fit(
        self, method: Method, start: Theta | None = None, *, steps: int = 400, rate: float = 0.05, group_size: int = 16,
        groups: int = 0, seed: int = 0,
    ) -> Theta:  # fmt: skip
        """Parameters after that many Adam steps on the training prompts, on-policy at every step; the rate falls to 0 by a cosine.

        groups: 0 for the exact gradient, else that many sampled groups per prompt and step.
        """
        known: Method | None = None
        paid: Averages | None = None
        generator = torch.Generator().manual_seed(seed)
        leaf = (self.start if start is None else start).detach().clone().requires_grad_(True)
        adam = torch.optim.Adam([leaf], lr=rate)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
        state = method.start()
        for step in range(steps):
            when: dict[str, Any] = {"group_size": group_size, "step": step, "total_steps": steps}
            adam.zero_grad()
            if groups:
                loss, state = self.sampled_loss(method, leaf, generator, groups=groups, state=state, **when)
            else:
                if (now := method.at(step, steps)) != known:
                    known, paid = now, self.averages(now, group_size)
                loss = self.expected_loss(method, leaf, paid=paid, **when)
            loss.backward()
            adam.step()
            falling.step()
        return leaf.detach()


def _beta(a: float, b: float, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Beta draws from two gamma draws of a generator of one's own."""
    x, y = (torch._standard_gamma(torch.full(size, c, dtype=torch.float64), generator=generator) for c in (a, b))
    return x / (x + y)


def _entropies(method: Method, logps: Float[Tensor, "X A"]) -> Float[Tensor, "B 1"] | None:
    """The entropy of each prompt's answers beside every answer, in the graph, where an extra of the method descends it."""
    if "entropy_gradient" not in method.needs:
        return None
    found: Tensor = torch.special.entr(logps.exp()).sum(1, keepdim=True)
    return found.expand_as(logps).reshape(-1, 1)
