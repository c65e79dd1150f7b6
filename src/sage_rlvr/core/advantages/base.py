"""The base class of advantages, and shared helpers."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.parts import Part, check_part
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.registry import Registry

Groups = Float[Tensor, "P G"]


@dataclass(frozen=True, eq=False)
class GroupSignals:
    """Signals of P groups of G completions that a part can read besides rewards; each (P, G), None unless requested by `needs`.

    lengths            tokens of a completion, including the end token
    policy, reference  log pi_old and log pi_ref of the completion (sum over its tokens), nats, float32
    answers            int64: equal within a group iff two completions give the same answer (`Task.answer_key`); 0: none
    problems           int64: the problem of the group, the same number each time the problem is asked
    ref_right          log-probability of a correct completion of the problem under the reference, exact, nats
    base_counts        int64, (P, G, 2): stored samples of the base model for the problem: the correct ones, and all
    rows               int64: number of the completion within the step, the address of a part's random numbers; always set in
                       training
    verdicts           the rewards before an extra changed them; None if no extra reads groups
    """

    lengths: Int[Tensor, "P G"]
    policy: Groups
    reference: Groups | None = None
    answers: Int[Tensor, "P G"] | None = None
    problems: Int[Tensor, "P G"] | None = None
    ref_right: Groups | None = None
    rows: Int[Tensor, "P G"] | None = None
    verdicts: Groups | None = None
    base_counts: Int[Tensor, "P G 2"] | None = None

    def require(self, name: str, who: str) -> Tensor:
        """Return the field called `name`; raise DataError that names the part `who` if the field was not computed."""
        value = getattr(self, name)
        if value is None:
            raise DataError(
                f"{who} reads {name!r} of the completions, which the engine did not compute (see method.needs)."
            )
        return value  # type: ignore[no-any-return]


ZeroVarianceValue = float | Literal["compared", "refused"]


@dataclass(frozen=True)
class ZeroVariance:
    """Advantages in a zero-variance group: all correct, all wrong, or none correct (the rewards may then differ).

    Each is a number; or "compared" if it is not constant, because the part distinguishes such completions by other signals or by
    other groups; or "refused" if the part reads labels and these rewards are not labels.
    """

    all_right: ZeroVarianceValue = 0.0
    all_wrong: ZeroVarianceValue = 0.0
    none_right: ZeroVarianceValue = "compared"

    def __str__(self) -> str:
        cases = ((name.replace("_", " "), getattr(self, name)) for name in ("all_right", "all_wrong", "none_right"))
        return ", ".join(f"{name}: {value if isinstance(value, str) else f'{value:g}'}" for name, value in cases)


def silent_of_labels(part: Any, size: int) -> ZeroVariance:
    """Return `dead` of a part that reads only rewards 0 and 1: 0 if all rewards are equal."""
    return ZeroVariance(none_right="refused")


@dataclass(frozen=True, eq=False, repr=False)
class Advantage(Part):
    """Map from the rewards of P groups of G completions to advantages of the same shape: float32, no gradient.

    A subclass is a frozen dataclass with `equation` and `__call__`; its fields are what a recipe may set. All other members have a
    default and may be overridden by a class attribute, a field or a property (methods by a method). A misspelled member raises
    ConfigError.
    """

    @property
    def ascends(self) -> str:
        """Quantity that the expected gradient of the reward term ascends at on-policy samples; "" = not known."""
        return ""

    @property
    def prefers(self) -> str:
        """Kind of correct answers of a prompt that it prefers; "" = none."""
        return ""

    @property
    def against_kl(self) -> str:
        """Note on how its scale compares with the KL term (the meaning of beta); "" = none."""
        return ""

    @property
    def needs(self) -> frozenset[str] | None:
        """Optional signals that it reads: "logps" (of the policy), "ref_logps", "ref_right", "answers", "problems", "base_counts".

        If this is a set, even an empty one, the call gets a `GroupSignals` after the rewards; None by default.
        """
        return None

    @property
    def couples_prompts(self) -> bool:
        """True if the advantages of a prompt depend on the rewards of the other prompts of the step.

        The advantages must then be computed before a batch is split.
        """
        return False

    @property
    def takes_group_mean(self) -> bool:
        """True if the baseline of a completion includes its own reward."""
        return False

    @property
    def gives_labels(self) -> bool:
        """True if A is 1 for a correct completion and 0 for a wrong one."""
        return False

    @property
    def least_group(self) -> int:
        """Smallest group size for which it is defined; 2 by default."""
        return 2

    @property
    def counts(self) -> str | None:
        """Unit, "rows" or "tokens", of which A's divisor counts only the kept ones; the reduction must count it too. None = no."""
        return None

    @property
    def random(self) -> bool:
        """True if it uses random numbers: the call then gets the step and the run's `Key` as last arguments.

        Requires `expected`.
        """
        return False

    @property
    def evens(self) -> bool:
        """True if it removes the preferences of extras and of the reward source."""
        return False

    @abstractmethod
    def __call__(self, rewards: Groups, *more: Any, **state: Any) -> Any:
        """Return the advantages (P, G) of rewards (P, G).

        Args:
            rewards: (P, G).
            *more: a `GroupSignals` if `needs` is a set, then the step and the run's `Key` if `random`.
            **state: the running state, if the advantage has `start`; the call then returns the advantages and the new state.
        """

    def start(self) -> dict[str, Tensor]:
        """Return the running state before the first step (core/state.py); {} = none.

        The advantages of a group may depend only on the state and on that group, so that a batch may be split.
        """
        return {}

    def at(self, step: int, total_steps: int) -> Self:
        """Return the advantage to call at a step; override it if the advantage changes over training."""
        return self

    def expected(self, rewards: Groups, *more: Any) -> Groups:
        """Return the mean of a random advantage over its random numbers, for exact sums. Raise ConfigError if it is not defined."""
        raise ConfigError(f"{type(self).__name__} draws at random but has no `expected` (its mean, for exact sums); define it.")

    def dead(self, size: int) -> ZeroVariance:
        """Return the advantages in zero-variance groups of `size` completions; 0 by default."""
        return ZeroVariance()


ADVANTAGES: Registry[type] = Registry(
    "advantage", check=check_part(Advantage, "A"), form="sage_rlvr.core.Advantage as its base, equation and __call__(self, rewards)"
)


def sees(part: Advantage) -> bool:
    """Return True if an advantage is called with a `GroupSignals`, that is, if its `needs` are a set (even an empty one)."""
    return part.needs is not None


def centered(rewards: Groups, smallest_group: int, who: str) -> Groups:
    """Return rewards minus their group mean; exactly 0 in a group whose rewards are all equal."""
    values = checked(rewards, smallest_group, who)
    return torch.where(all_equal(values), 0.0, values - values.mean(dim=1, keepdim=True))


def checked(rewards: Groups, smallest_group: int, who: str) -> Groups:
    """Return rewards as float32 without a gradient. Raise DataError for a wrong shape or a group that is too small."""
    if rewards.dim() != 2:
        raise DataError(f"{who}: rewards have shape {tuple(rewards.shape)}; pass shape (prompts, completions per prompt).")
    if rewards.shape[1] < smallest_group:
        raise DataError(f"{who}: group_size is {rewards.shape[1]}; it needs at least {smallest_group} per prompt.")
    return rewards.detach().float()


def all_equal(values: Groups) -> Tensor:
    """Return (P, 1) bool: True if the rewards of the group are all equal."""
    return values.amax(dim=1, keepdim=True) == values.amin(dim=1, keepdim=True)


def leave_one_out(values: Groups) -> Groups:
    """Return values minus the mean of the other values of their group."""
    return (values - values.mean(dim=1, keepdim=True)) * (values.shape[1] / (values.shape[1] - 1))


def mean_where(values: Groups, chosen: Groups) -> Groups:
    """Return the mean of the values at which `chosen` is 1, (P, 1); 0 if there are none."""
    return (values * chosen).sum(dim=1, keepdim=True) / chosen.sum(dim=1, keepdim=True).clamp(min=1)


def require_binary(
    rewards: Groups, who: str, instead: str = "GroupNormalized or GroupCentered, which take any reward", advice: str = ""
) -> None:
    """Raise DataError that names the first reward other than 0 and 1, and its place.

    Args:
        rewards: (P, G).
        who: the part, as the message calls it.
        instead: a part that accepts such rewards.
        advice: the reason and the next step, if it is not that `who` counts correct completions and `instead` does not.
    """
    advice = advice or f"it counts right completions, so rewards must be 0 or 1: remove the extra on rewards, or use {instead}"
    wrong = ((rewards != 0) & (rewards != 1)).nonzero()
    if len(wrong):
        prompt, member = wrong[0].tolist()
        raise DataError(
            f"{who}: the reward of prompt {prompt}, completion {member} is {float(rewards[prompt, member]):g}; {advice}."
        )


def log_choose(n: Tensor, k: int) -> Tensor:
    """Return the log of the binomial coefficient C(n, k), float64; -inf if k > n."""
    n = n.double()
    known = torch.lgamma(n + 1) - math.lgamma(k + 1) - torch.lgamma((n - k).clamp(min=0) + 1)
    return torch.where(n >= k, known, -math.inf)
