"""What an advantage is, and shared helpers."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.parts import Part, check_part
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.registry import Registry

Groups = Float[Tensor, "P G"]


@dataclass(frozen=True, eq=False)
class Seen:
    """Signals of P groups of G completions that a part can read besides rewards; each (P, G), None unless requested by `needs`.

    lengths            tokens of a completion, the end token included
    policy, reference  log pi_old and log pi_ref of the whole completion, nats, float32
    answers            int64: equal within a group iff two completions give the same answer (`Task.answer_key`); 0: none
    problems           int64: the problem of the group, the same number whenever it comes back
    ref_right          log-probability of a right completion of the problem under the reference, exact, nats
    rows               int64: number of the completion within the step, by which a part draws; always there in training
    verdicts           the rewards before an extra changed them; None where no extra reads groups
    """

    lengths: Int[Tensor, "P G"]
    policy: Groups
    reference: Groups | None = None
    answers: Int[Tensor, "P G"] | None = None
    problems: Int[Tensor, "P G"] | None = None
    ref_right: Groups | None = None
    rows: Int[Tensor, "P G"] | None = None
    verdicts: Groups | None = None

    def require(self, name: str, who: str) -> Tensor:
        """The field called `name`; DataError that names the part, if the field was not computed."""
        value = getattr(self, name)
        if value is None:
            raise DataError(
                f"{who} reads {name!r} of the completions, which the engine did not compute (see method.needs)."
            )
        return value  # type: ignore[no-any-return]


DeadValue = float | Literal["compared", "refused"]


@dataclass(frozen=True)
class Dead:
    """What each completion of a group earns that has nothing to compare: all rewards 1, all 0, or none 1 though they may differ.

    A number; "compared" where it is no constant, because the part tells such completions apart by what else it sees or by the
    other groups; "refused" where it reads labels and these are none.
    """

    all_right: DeadValue = 0.0
    all_wrong: DeadValue = 0.0
    none_right: DeadValue = "compared"

    def __str__(self) -> str:
        cases = ((name.replace("_", " "), getattr(self, name)) for name in ("all_right", "all_wrong", "none_right"))
        return ", ".join(f"{name}: {value if isinstance(value, str) else f'{value:g}'}" for name, value in cases)


def silent_of_labels(part: Any, size: int) -> Dead:
    """`dead` of a part that reads 0 and 1 only: 0 wherever all are equal."""
    return Dead(none_right="refused")


@dataclass(frozen=True, eq=False, repr=False)
class Advantage(Part):
    """Maps the rewards of P groups of G completions to advantages of the same shape: float32, no gradient.

    A subclass is a frozen dataclass, whose fields are what a recipe may set, with `equation` and `__call__`. All other members have
    a default; one that is no method may be a class attribute, a field or a property. ConfigError for a misspelled member.
    """

    if TYPE_CHECKING:  # read-only, so that a part may give each as a class attribute, a field or a property

        @property
        def ascends(self) -> str:
            """What the expected gradient of the reward term ascends at on-policy samples; "" = not known."""

        @property
        def prefers(self) -> str:
            """Which right answers of a prompt it prefers; "" = none."""

        @property
        def against_kl(self) -> str:
            """A note on what beta weighs against it; "" = none."""

        @property
        def needs(self) -> frozenset[str] | None:
            """The optional signals that it reads: "logps" (of the policy), "ref_logps", "ref_right", "answers", "problems".

            Where it is a set, the empty one included, the call gets a `Seen` after the rewards; None by default."""

        @property
        def couples_prompts(self) -> bool:
            """Whether the advantages of a prompt depend on the rewards of the other prompts of the step.

            A batch must not be cut before they are computed then."""

        @property
        def takes_group_mean(self) -> bool:
            """Whether the baseline of a completion holds its own reward."""

        @property
        def gives_labels(self) -> bool:
            """Whether A is 1 for a right and 0 for a wrong completion."""

        @property
        def least_group(self) -> int:
            """The smallest group that it is defined for; 2 by default."""

        @property
        def counts(self) -> str | None:
            """ "rows" or "tokens", where A divides by how many of them it keeps, which the reduction has to count too."""

        @property
        def random(self) -> bool:
            """Whether it draws: the call gets the step and the run's `Key` after all else. One that draws has `expected`."""

        @property
        def evens(self) -> bool:
            """Whether it takes away what extras and reward source prefer."""

    else:  # plain values: a field of a dataclass without a default would take a property for its default
        ascends = prefers = against_kl = ""
        couples_prompts = takes_group_mean = gives_labels = random = evens = False
        needs = counts = None
        least_group = 2

    @abstractmethod
    def __call__(self, rewards: Groups, *more: Any, **state: Any) -> Any:
        """Advantages (P, G) of rewards (P, G).

        more: a `Seen` where `needs` is a set, then the step and the run's `Key` where `random`. state: of one with `start`, whose
        call returns the advantages and the new state.
        """

    def start(self) -> dict[str, Tensor]:
        """The running state before the first step (core/state.py); {} = none. What a group earns may depend on the state and on the
        group alone, so that no batch has to be whole."""
        return {}

    def at(self, step: int, total_steps: int) -> Self:
        """The advantage of a step, which is the one that is called; to be overridden where it changes over training."""
        return self

    def expected(self, rewards: Groups, *more: Any) -> Groups:
        """The mean over the draws of a random advantage, for exact sums. ConfigError where that is not declared."""
        raise ConfigError(f"{type(self).__name__} draws at random but has no `expected` (its mean, for exact sums); define it.")

    def dead(self, size: int) -> Dead:
        """What groups of `size` earn that have nothing to compare; by default 0 wherever all rewards of the group are equal."""
        return Dead()


ADVANTAGES: Registry[type] = Registry(
    "advantage", check=check_part(Advantage, "A"), form="sage_rlvr.core.Advantage as its base, equation and __call__(self, rewards)"
)


def sees(part: Advantage) -> bool:
    """Whether an advantage is called with a `Seen`: its `needs` are a set, the empty one included."""
    return part.needs is not None


def centered(rewards: Groups, smallest_group: int, who: str) -> Groups:
    """Rewards minus their group mean; exactly 0 in a group whose rewards are all equal."""
    values = checked(rewards, smallest_group, who)
    return torch.where(all_equal(values), 0.0, values - values.mean(dim=1, keepdim=True))


def checked(rewards: Groups, smallest_group: int, who: str) -> Groups:
    """Rewards as float32 without a gradient. DataError for a wrong shape or a group that is too small."""
    if rewards.dim() != 2:
        raise DataError(f"{who}: rewards have shape {tuple(rewards.shape)}; pass shape (prompts, completions per prompt).")
    if rewards.shape[1] < smallest_group:
        raise DataError(f"{who}: group_size is {rewards.shape[1]}; it needs at least {smallest_group} per prompt.")
    return rewards.detach().float()


def all_equal(values: Groups) -> Tensor:
    """(P, 1) bool: the rewards of the group are all equal."""
    return values.amax(dim=1, keepdim=True) == values.amin(dim=1, keepdim=True)


def leave_one_out(values: Groups) -> Groups:
    """Values minus the mean of the others of their group."""
    return (values - values.mean(dim=1, keepdim=True)) * (values.shape[1] / (values.shape[1] - 1))


def mean_where(values: Groups, chosen: Groups) -> Groups:
    """(P, 1) mean of the values where `chosen` is 1; 0 where it is nowhere."""
    return (values * chosen).sum(dim=1, keepdim=True) / chosen.sum(dim=1, keepdim=True).clamp(min=1)


def require_binary(
    rewards: Groups, who: str, instead: str = "GroupNormalized or GroupCentered, which take any reward", advice: str = ""
) -> None:
    """DataError that names the first reward other than 0 and 1, and its place.

    advice: why they must be and the next step, where it is not that `who` counts right completions and `instead` does not."""
    advice = advice or f"it counts right completions, so rewards must be 0 or 1: remove the extra on rewards, or use {instead}"
    wrong = ((rewards != 0) & (rewards != 1)).nonzero()
    if len(wrong):
        prompt, member = wrong[0].tolist()
        raise DataError(
            f"{who}: the reward of prompt {prompt}, completion {member} is {float(rewards[prompt, member]):g}; {advice}."
        )


def log_choose(n: Tensor, k: int) -> Tensor:
    """log of the binomial coefficient C(n, k), float64; -inf where k > n."""
    n = n.double()
    known = torch.lgamma(n + 1) - math.lgamma(k + 1) - torch.lgamma((n - k).clamp(min=0) + 1)
    return torch.where(n >= k, known, -math.inf)
