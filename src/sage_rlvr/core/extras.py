"""Extras: what a published method changes beside its advantage, surrogate, KL term and reduction, in one class with a few hooks.

    before_rollout   which problems a step asks                                        loop
    after_rewards    the rewards that the advantage reads                              loop, TRL, verl
    on_advantages    the advantages of whole completions                               loop, TRL, verl
    on_loss          what the loss of a token gains                                    loop
    start, learn     the running state: before the first step, and after a rollout     loop, TRL, verl

A method has any number of them, called in order. An extra overrides the hooks that it needs; an engine that does not call one of
them refuses the extra. What an extra cannot stand beside, it says itself (`conflict`).
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.advantages import Seen
from sage_rlvr.core.keys import Key
from sage_rlvr.core.rollout_plans import is_staged
from sage_rlvr.core.signals import Batch, check_equation
from sage_rlvr.core.state import PartState, State
from sage_rlvr.errors import ConfigError
from sage_rlvr.registry import Registry, in_snake_case

if TYPE_CHECKING:
    from sage_rlvr.core.method import Method

Groups = Float[Tensor, "P G"]


@dataclass(frozen=True)
class Extra(ABC):
    """An addition to a method. Hooks are pure: they leave their arguments as they are, and draw only by `key`.

    P prompts, G completions of each; `after_rewards`, `on_advantages` and `learn` see groups of one size, each group by itself.
    equation: what it does, as one line, which `describe` prints. needs: the optional signals that its hooks read, as an advantage
    names them ("logps", "answers", ...). legend: what the symbols of `equation` mean. prefers: which right answers gain.
    """

    equation: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    legend: ClassVar[str] = ""
    prefers: ClassVar[str] = ""

    def before_rollout(
        self, asked: Int[Tensor, " P"], problems: Int[Tensor, " N"], step: int, key: Key, state: PartState
    ) -> Int[Tensor, " P"]:
        """Places of the P problems that the step asks, among `problems`, the ids of all N training problems.

        asked: those that it would ask otherwise. An id is that of `Seen.problems`.
        """
        return asked

    def after_rewards(self, rewards: Groups, seen: Seen, state: PartState) -> Groups:
        """The rewards that the advantage reads, of those that verifier and reward transform gave."""
        return rewards

    def on_advantages(self, advantages: Groups, rewards: Groups, seen: Seen, state: PartState) -> Groups:
        """The advantages of whole completions, before token weights and a KL in the reward. rewards: as the advantage read them."""
        return advantages

    def on_loss(self, batch: Batch, step: int, total_steps: int) -> Float[Tensor, "B T"]:
        """What the loss of each token gains, in the graph of `batch.logps`; anything may stand off the mask."""
        return torch.zeros_like(batch.logps)

    def start(self) -> dict[str, Tensor]:
        """The running state before the first step; {} = none. Engines store it in checkpoints, and its numbers are metrics."""
        return {}

    def learn(self, rewards: Groups, seen: Seen, state: PartState) -> dict[str, Tensor]:
        """The state after a rollout with these rewards, with the names and dtypes of `start`."""
        return dict(state)

    def conflict(self, method: Method) -> str:
        """Why it cannot be part of this method, and the next step: the end of a sentence that begins with its name. "" = it can."""
        if sum(type(other) is type(self) for other in method.extras) > 1:
            return "is there twice: keep one of the two."
        if method.is_stored_alone:
            return "changes a policy gradient, and with alone=True there is none: set alone=False, or remove the extra."
        if self.start() and is_staged(method.rollout):
            return (
                "has a state, which moves with groups of one size, but the rollout plan makes groups of several: use a plan "
                "without a second stage."
            )
        return ""

    @property
    def slot(self) -> str:
        """Where its state and metrics are: "extra/name_of_the_class"."""
        return f"extra/{in_snake_case(type(self).__name__)}"

    @property
    def chooses_problems(self) -> bool:
        """Whether it chooses problems."""
        return type(self).before_rollout is not Extra.before_rollout

    @property
    def adds_loss(self) -> bool:
        """Whether it adds to the loss."""
        return type(self).on_loss is not Extra.on_loss

    @property
    def changes_advantages(self) -> bool:
        """Whether it changes rewards or advantages."""
        changed = (type(self).after_rewards, type(self).on_advantages)
        return changed != (Extra.after_rewards, Extra.on_advantages)

    def own_state(self, state: State, device: torch.device | None = None) -> PartState:
        """Its own state within that of all parts; {} if it has none."""
        return {name: tensor.to(device) for name, tensor in state.get(self.slot, {}).items()}


def check_extra_class(who: str, part: Any) -> object:
    """ConfigError unless the class is an `Extra` with an equation and at least one hook."""
    if not issubclass(part, Extra):
        raise ConfigError(f"{who}: {part.__name__} is no Extra; write class {part.__name__}(sage_rlvr.core.Extra)")
    hooks = ("before_rollout", "after_rewards", "on_advantages", "on_loss")
    if all(vars(Extra)[hook] is getattr(part, hook) for hook in hooks):
        raise ConfigError(f"{who}: {part.__name__} does nothing; define at least one of {', '.join(hooks)}")
    return check_equation("what it does,")(who, part)


EXTRAS: Registry[type] = Registry("extra", check=check_extra_class)


def learned(extras: tuple[Extra, ...], rewards: Groups, seen: Seen, state: State) -> State:
    """`state` after a rollout, in which that of the extras has moved."""
    for extra in extras:
        if own := extra.own_state(state, rewards.device):
            new = extra.learn(rewards, seen, own)
            state = {**state, extra.slot: {name: tensor.detach() for name, tensor in new.items()}}
    return state
