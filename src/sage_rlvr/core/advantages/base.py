"""The protocol of advantages, and shared helpers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.signals import check_equation
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.registry import Registry

Groups = Float[Tensor, "P G"]
Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class Seen:
    """Signals of P groups of G completions that a part can read besides rewards; each (P, G), None unless requested by `needs`.

    lengths            tokens of a completion, the end token included
    policy, reference  log pi_old and log pi_ref of the whole completion, nats, float32
    answers            int64: equal within a group iff two completions give the same answer (`Task.answer_key`); 0: none
    problems           int64: the problem of the group, the same number whenever it comes back
    ref_right          log-probability of a right completion of the problem under the reference, exact, nats
    rows               int64: number of the completion within the step, by which a part draws; always there in training
    verdicts           the rewards before the reward transform; None if there is no transform
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


def sees(part: object) -> bool:
    """Whether an advantage or reward transform is called with a `Seen`, which is so if it has an attribute `needs`."""
    return getattr(part, "needs", None) is not None


Paid = float | Literal["compared", "refused"]


@dataclass(frozen=True)
class Dead:
    """What each completion of a group earns that has nothing to compare: all rewards 1, all 0, or none 1 though they may differ.

    A number; "compared" where it is no constant, because the part tells such completions apart by what else it sees or by the
    other groups; "refused" where it reads labels and these are none.
    """

    all_right: Paid = 0.0
    all_wrong: Paid = 0.0
    none_right: Paid = "compared"

    def __str__(self) -> str:
        found = ((name.replace("_", " "), getattr(self, name)) for name in ("all_right", "all_wrong", "none_right"))
        return ", ".join(f"{name}: {paid if isinstance(paid, str) else f'{paid:g}'}" for name, paid in found)


def silent(part: Any, size: int) -> Dead:
    """`dead` of a part that reads any reward: 0 wherever all rewards of the group are equal."""
    return Dead()


def silent_of_labels(part: Any, size: int) -> Dead:
    """`dead` of a part that reads 0 and 1 only: 0 wherever all are equal."""
    return Dead(none_right="refused")


@runtime_checkable
class Advantage(Protocol):
    """Maps the rewards of P groups of G completions to advantages of the same shape: float32, no gradient.

    `equation` is A as one line of text. Optional attributes, read with getattr: `legend`, a line that says what the
    symbols of `equation` mean; `ascends`, what the expected gradient of the reward term ascends at on-policy samples,
    and `prefers`, which right answers it prefers (`describe` prints them); `couples_prompts`, True where the
    advantages of a prompt depend on the rewards of the other prompts of the step, so that a batch must not be cut
    before they are computed; `takes_group_mean`, True where the baseline of a completion holds its own reward;
    `against_kl`, a note on what beta weighs against it; `least_group`, the smallest group that it is defined for,
    where that is above 2; `gives_labels`, True where A is 1 for a right and 0 for a wrong completion; `counts`, "rows" or
    "tokens", where A divides by how many of them it keeps, which the reduction has to count too; `needs`, the
    optional signals: "logps" (of the policy), "ref_logps", "ref_right", "answers", "problems". A part that has `needs` at all, an
    empty set included, is called with a `Seen` after the rewards. `dead`, (group size) -> `Dead`, without which it is `silent`.
    `at`, of one that changes over training: (step, total_steps) -> the advantage of that step, which is the one that is called
    (`Method.at`). `start`, of one with a running state (core/state.py): what a group earns depends on the state and on the group,
    so that no batch has to be whole.
    """

    @property
    def equation(self) -> str:
        """A as one line of text."""

    @property
    def __call__(self) -> Callable[..., Any]: ...


ADVANTAGES: Registry[type] = Registry("advantage", check=check_equation("A"))


def at_step(part: Part, step: int, total_steps: int) -> Part:
    """The part at a step: the result of `at`, or the part itself if it does not change during training."""
    at = getattr(part, "at", None)
    found: Part = part if at is None else at(step, total_steps)
    return found


def expected_of(part: Advantage) -> Callable[..., Any]:
    """The mean over the draws of a random advantage; any other advantage unchanged. ConfigError if the mean is not declared."""
    if not getattr(part, "random", False):
        return part
    mean: Callable[..., Any] | None = getattr(part, "expected", None)
    if mean is None:
        raise ConfigError(f"{type(part).__name__} draws at random but has no `expected` (its mean, for exact sums); define it.")
    return mean


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
    advice = advice or f"it counts right completions, so rewards must be 0 or 1: remove the reward transform, or use {instead}"
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
