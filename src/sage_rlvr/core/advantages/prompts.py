"""Prompt weights: how much a prompt counts, given how many of its completions were correct; and the advantage that they multiply.

    c of n       correct completions, of the step's group (of = "group") or of the base model's stored samples (of = "base")
    w_x          a function of c and n: `Focal`, `Posterior` or `PromptGate`
    PromptWeighted   w_x * A, for any advantage A
    PlaceboPrompts   the same weights, permuted over the prompts of the step

An `Anchor` takes a prompt weight too (`prompts`), which then multiplies beta.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Groups,
    GroupSignals,
    ZeroVariance,
    ZeroVarianceValue,
    sees,
)
from sage_rlvr.core.advantages.prompt_weight import COUNTED, PROMPT_WEIGHTS, Of, PerPrompt, PromptWeight
from sage_rlvr.core.keys import Key
from sage_rlvr.core.state import has_state
from sage_rlvr.errors import ConfigError


@PROMPT_WEIGHTS.register
@dataclass(frozen=True)
class Focal(PromptWeight):
    """(1 - c/n)^gamma: prompts with many right completions count less (F-GRPO, arXiv 2602.06717). gamma = 0: all weigh 1."""

    gamma: float = 1.0
    of: Of = "group"

    def __post_init__(self) -> None:
        _check_of(self)
        if not 0 <= self.gamma < math.inf:
            raise ConfigError(f"Focal: gamma = {self.gamma!r}; set a finite number >= 0; 0 weighs all prompts alike.")

    @property
    def equation(self) -> str:
        return f"(1 - c/n)^{self.gamma:g}"

    def weigh(self, right: PerPrompt, tried: PerPrompt) -> PerPrompt:
        """Return (1 - c/n)^gamma."""
        return (1.0 - right / tried) ** self.gamma


@dataclass(frozen=True, eq=False, repr=False)
class _OfPrior(PromptWeight):
    """A weight from a Beta posterior of P(right)."""

    _: KW_ONLY
    right: float = 1.0
    wrong: float = 1.0

    def __post_init__(self) -> None:
        _check_of(self)
        if not (0 < self.right < math.inf and 0 < self.wrong < math.inf):
            raise ConfigError(
                f"{type(self).__name__}: right = {self.right!r}, wrong = {self.wrong!r} are the parameters of a Beta law; set both "
                "> 0, 1 and 1 for a uniform P(right)."
            )

    def _failing(self, right: PerPrompt, tried: PerPrompt, k: int) -> PerPrompt:
        """E[(1 - P)^k] under the posterior: B(a, b + k) / B(a, b)."""
        a, b = self.right + right, self.wrong + tried - right
        return (torch.lgamma(b + k) - torch.lgamma(b) + torch.lgamma(a + b) - torch.lgamma(a + b + k)).exp()


@PROMPT_WEIGHTS.register
@dataclass(frozen=True)
class Posterior(_OfPrior):
    """E[k (1 - P)^(k-1)], how much pass@k rises with P(right), P ~ Beta(right + c, wrong + n - c) (BBG, arXiv 2606.15455).

    With a uniform prior it is k B(1 + c, n - c + k) / B(1 + c, 1 + n - c), from k at P = 0 to about 0 after a success.

    k: the k of pass@k. right, wrong: parameters of the Beta prior.
    """

    k: int = 256
    of: Of = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_k(self, self.k)

    @property
    def equation(self) -> str:
        return f"E[{self.k} (1 - P)^{self.k - 1}],  P ~ Beta({self.right:g} + c, {self.wrong:g} + n - c)"

    def weigh(self, right: PerPrompt, tried: PerPrompt) -> PerPrompt:
        """Return the posterior mean of k (1 - P)^(k-1)."""
        return self.k * self._failing(right, tried, self.k - 1)


@PROMPT_WEIGHTS.register
@dataclass(frozen=True)
class PromptGate(_OfPrior):
    """1 for a prompt whose share c/n is at most `at_most` and below `below`, and whose pass@k is above `above`; 0 for any other.

    pass@k is the unbiased estimate if n >= k, else its mean under P ~ Beta(right + c, wrong + n - c). That mean is mostly the
    prior: with a uniform prior, c = 0 has pass@k = k / (n + 1 + k), above 0.4 for every n < 1.5 k - 1.

    at_most = 0: prompts without a correct completion. k: None ignores pass@k. right, wrong: parameters of the Beta prior.
    """

    at_most: float = 1.0
    below: float | None = None
    k: int | None = None
    above: float = 0.0
    of: Of = "group"
    gates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.at_most <= 1 and (self.below is None or 0 < self.below <= 1) and 0 <= self.above < 1):
            raise ConfigError(
                f"PromptGate: at_most = {self.at_most!r}, below = {self.below!r}, above = {self.above!r}; set shares from 0 "
                "to 1, below above 0, and above below 1."
            )
        if self.k is not None:
            _check_k(self, self.k)
        elif self.above:
            raise ConfigError(f"PromptGate: above = {self.above!r} is a bound of pass@k without a k; set k, or remove above.")

    @property
    def is_none_right(self) -> bool:
        """True if it admits exactly the groups without a correct completion."""
        return self.of == "group" and self.at_most == 0 and self.k is None

    @property
    def equation(self) -> str:
        bounds = ["c = 0" if self.at_most == 0 else f"c/n <= {self.at_most:g}"] if self.at_most < 1 else []
        bounds += [f"c/n < {self.below:g}"] if self.below is not None else []
        bounds += [f"pass@{self.k} > {self.above:g}"] if self.k is not None else []
        return f"[{' and '.join(bounds) or 'any'}]"

    @property
    def legend(self) -> str:
        """Meaning of c, n and pass@k."""
        prior = f"pass@{self.k} of n < {self.k} by its mean under P ~ Beta({self.right:g} + c, {self.wrong:g} + n - c)"
        return super().legend + (f",  {prior}" if self.k is not None else "")

    def raises(self, advantage: Advantage) -> str:
        """Return the exact objective for groups without a correct completion: all have the same advantage and no baseline."""
        if not self.is_none_right:
            return super().raises(advantage)
        paid = advantage.dead(2).all_wrong
        scale = "" if isinstance(paid, str) or paid == -1 else f"{-paid:g} * "
        return f"{scale}(1 - P)^(G-1) grad P = {scale}(1/G) grad pass@G, P = P(right), exactly"

    def weigh(self, right: PerPrompt, tried: PerPrompt) -> PerPrompt:
        """Return 1 for prompts within all bounds, else 0."""
        shares = right / tried
        admitted = shares <= self.at_most
        if self.below is not None:
            admitted &= shares < self.below
        if self.k is not None:
            admitted &= self.pass_at_k(right, tried) > self.above
        return admitted.double()

    def pass_at_k(self, right: PerPrompt, tried: PerPrompt) -> PerPrompt:
        """Return pass@k (P,): unbiased if n >= k, else its posterior mean."""
        assert self.k is not None
        wrong, k = tried - right, self.k
        # C(n - c, k) / C(n, k), 0 where fewer than k are wrong
        logs = torch.lgamma(wrong + 1) + torch.lgamma((tried - k).clamp(min=0) + 1)
        logs = logs - torch.lgamma((wrong - k).clamp(min=0) + 1) - torch.lgamma(tried + 1)
        unbiased = torch.where(wrong >= k, 1.0 - logs.exp(), 1.0)
        return torch.where(tried >= k, unbiased, 1.0 - self._failing(right, tried, k))


@PROMPT_WEIGHTS.register
@dataclass(frozen=True)
class PlaceboPrompts(PromptWeight):
    """The weights of `weight`, permuted over the prompts of each step: the control for which prompts count more.

    A step keeps the multiset of its weights, so also their mean. The permutation is uniform at each step, a function of key, step
    and row numbers: a resumed run permutes in the same way, and the order of prompts does not matter.

    weight: the prompt weight to permute.
    """

    weight: PromptWeight
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.weight, PromptWeight) or self.weight.random:
            raise ConfigError(f"PlaceboPrompts: {self.weight!r} is no prompt weight to permute; pass one, for example Focal().")

    @property
    def of(self) -> Of:
        """Completions that the permuted weight counts; the next two members are the permuted weight's as well."""
        return self.weight.of

    @property
    def gates(self) -> bool:
        return self.weight.gates

    @property
    def legend(self) -> str:
        return self.weight.legend

    @property
    def equation(self) -> str:
        return f"{self.weight.equation} permuted over the prompts of the step"

    def raises(self, advantage: Advantage) -> str:
        own = advantage.ascends
        return f"(the mean w_x of the step) * ({own}), up to O(1/P) for P prompts" if own else ""

    def weigh(self, right: PerPrompt, tried: PerPrompt) -> PerPrompt:
        """Return the weights before they are permuted."""
        return self.weight.weigh(right, tried)

    def __call__(self, verdicts: Groups, seen: GroupSignals, *drawn: int | Key) -> PerPrompt:
        step, key = drawn
        assert isinstance(step, int) and isinstance(key, Key)
        weights = self.weight(verdicts, seen)
        rows = seen.require("rows", "PlaceboPrompts").amin(dim=1)
        words = key.bits(step, "placebo_prompts/order", rows, 0)[:, 0]
        # from the order of row numbers to that of the words: both are the prompts' own, wherever in the step they stand
        return weights.scatter(0, words.argsort(stable=True), weights[rows.argsort(stable=True)])


def _check_of(weight: PromptWeight) -> None:
    if weight.of not in COUNTED:
        raise ConfigError(f"{type(weight).__name__}: of = {weight.of!r}; set group (of the step) or base (stored samples).")


def _check_k(weight: PromptWeight, k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"{type(weight).__name__}: k = {k!r}; set the k of pass@k, a whole number >= 1.")


@ADVANTAGES.register
@dataclass(frozen=True)
class PromptWeighted(Advantage):
    """w_x * A: any advantage, each prompt times its weight.

    The weight counts the verifier's verdicts, before an extra changes them. A weight of 1 leaves A unchanged, bit for bit.

    advantage: A; must have no running state. weight: w_x; `PlaceboPrompts` of it is the control.
    """

    advantage: Advantage
    weight: PromptWeight

    def __post_init__(self) -> None:
        if not isinstance(self.advantage, Advantage) or has_state(self.advantage) or self.advantage.random:
            raise ConfigError(
                f"PromptWeighted: advantage = {self.advantage!r} is no advantage of rewards and completions only; pass one, for "
                "example GroupNormalized()."
            )
        if not isinstance(self.weight, PromptWeight):
            raise ConfigError(f"PromptWeighted: weight = {self.weight!r} is no prompt weight; pass one, for example Focal().")
        inner = self.weight.weight if isinstance(self.weight, PlaceboPrompts) else self.weight
        if isinstance(inner, PromptGate) and inner.is_none_right and self.advantage.dead(2).all_wrong == 0:
            raise ConfigError(
                f"PromptWeighted: {type(self.advantage).__name__} gives groups without a right completion nothing, and {inner} "
                "admits no others, so no prompt would count; use Signed(1, 1)."
            )

    @property
    def needs(self) -> frozenset[str]:
        """Signals of both parts; an empty set at least, because row numbers and verdicts are read."""
        return (self.advantage.needs or frozenset()) | self.weight.needs

    @property
    def random(self) -> bool:
        """True if the weight is random."""
        return self.weight.random

    @property
    def couples_prompts(self) -> bool:
        return self.advantage.couples_prompts or self.weight.random

    @property
    def least_group(self) -> int:
        """Smallest group of the advantage; the next four members are the advantage's as well."""
        return self.advantage.least_group

    @property
    def takes_group_mean(self) -> bool:
        return self.advantage.takes_group_mean

    @property
    def prefers(self) -> str:
        return self.advantage.prefers

    @property
    def evens(self) -> bool:
        return self.advantage.evens

    @property
    def counts(self) -> str | None:
        return self.advantage.counts

    @property
    def against_kl(self) -> str:
        own = self.advantage.against_kl
        return "the reward is weighted by w_x" + (f"; in it {own}" if own else ", the KL is not")

    @property
    def legend(self) -> str:
        own = f"{self.advantage.legend},  " if self.advantage.legend else ""
        return f"{own}w_x = {self.weight.equation},  {self.weight.legend}"

    @property
    def equation(self) -> str:
        return f"w_x [{self.advantage.equation}]"

    @property
    def ascends(self) -> str:
        return self.weight.raises(self.advantage)

    def at(self, step: int, total_steps: int) -> PromptWeighted:
        """Return the weighted advantage at a step."""
        own = self.advantage.at(step, total_steps)
        return self if own is self.advantage else replace(self, advantage=own)

    def dead(self, size: int) -> ZeroVariance:
        """Return the weighted advantages in zero-variance groups, if they depend only on the group."""
        own = self.advantage.dead(size)
        alone = self.weight.of == "group" and not self.weight.random

        def times(paid: ZeroVarianceValue, right: int) -> ZeroVarianceValue:
            if paid in (0, "refused"):
                return paid
            if not alone:
                return "compared"
            weight = float(self.weight.weigh(*torch.tensor([[right], [size]], dtype=torch.float64)))
            return 0.0 if weight == 0 else paid if isinstance(paid, str) else weight * paid

        none = "refused" if self.weight.of == "group" else times(own.none_right, 0)
        return ZeroVariance(times(own.all_right, size), times(own.all_wrong, 0), none)

    def __call__(self, rewards: Groups, seen: GroupSignals, *drawn: int | Key) -> Groups:
        return self._own(rewards, seen) * self._weights(rewards, seen, self.weight, *drawn)[:, None]

    def expected(self, rewards: Groups, seen: GroupSignals) -> Groups:
        """Return the mean over a placebo's permutations: every prompt has the mean weight of the step."""
        assert isinstance(self.weight, PlaceboPrompts)
        return self._own(rewards, seen) * self._weights(rewards, seen, self.weight.weight).mean()

    def _own(self, rewards: Groups, seen: GroupSignals) -> Groups:
        advantages: Groups = self.advantage(rewards, *((seen,) if sees(self.advantage) else ()))
        return advantages

    def _weights(self, rewards: Groups, seen: GroupSignals, weight: PromptWeight, *drawn: int | Key) -> PerPrompt:
        return weight(rewards if seen.verdicts is None else seen.verdicts, seen, *drawn)
