"""The hooks of an `Extra`.

    before_rollout          which problems a step asks                                        loop
    after_rewards           the rewards that the advantage reads                              loop, TRL, verl
    on_advantages           the advantages of whole completions                               loop, TRL, verl
    on_loss, loss_weights   what the loss of a token gains, and its weights                   loop
    token_weights           the factor on the advantage of each token, of a `TokenWeight`     loop, TRL, verl
    rewards_of              rewards in place of the verifier's, of a `RewardSource`           loop, TRL
    stored_loss             the loss of each token of stored right answers, of a `Buffer`     loop
    start, learn            the running state: before the first step, and after a rollout     loop, TRL, verl

A method has any number of them, called in order. An extra overrides the hooks that it needs. An engine that does not call one of
them refuses the extra, or runs it by fields of its own (training/engines.py). What an extra cannot stand beside, it says itself
(`conflict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.advantages import Advantage, Dead, Seen
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.keys import Key
from sage_rlvr.core.parts import Part, check_part
from sage_rlvr.core.reductions import Reduction
from sage_rlvr.core.rollout_plans import RolloutPlan, is_staged
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.state import PartState, State
from sage_rlvr.core.surrogates import Surrogate
from sage_rlvr.errors import ConfigError
from sage_rlvr.registry import Registry, in_snake_case

Groups = Float[Tensor, "P G"]
PerToken = Float[Tensor, "B T"]
Kind = TypeVar("Kind", bound="Extra")


class MethodParts(Protocol):
    """What `conflict` of an extra and `describe` read of a `Method`, which imports both.

    `name`, `advantage`, `surrogate`, `anchor`, `reduction`, `rollout` and `extras` are its fields; `reads_labels`,
    `is_replay_only` and `sampled` are documented there.
    """

    @property
    def name(self) -> str: ...
    @property
    def advantage(self) -> Advantage: ...
    @property
    def surrogate(self) -> Surrogate: ...
    @property
    def anchor(self) -> Anchor | None: ...
    @property
    def reduction(self) -> Reduction: ...
    @property
    def rollout(self) -> RolloutPlan | None: ...
    @property
    def extras(self) -> tuple[Extra, ...]: ...
    @property
    def reads_labels(self) -> bool: ...
    @property
    def is_replay_only(self) -> bool: ...
    def sampled(self) -> MethodParts: ...


@dataclass(frozen=True)
class Extra(Part):
    """An addition to a method. Hooks are pure: they leave their arguments as they are, and draw only by `key`.

    P prompts, G completions of each; `after_rewards`, `on_advantages` and `learn` see groups of one size, each group by itself.
    A hook that a step calls once makes a kind of its own, an abstract class below this: `TokenWeight`, `RewardSource`, `Buffer`.
    A method has at most one extra of such a kind. A member that is no method may be a class attribute, a field or a property.
    """

    if TYPE_CHECKING:  # read-only, so that a part may give each as a class attribute, a field or a property

        @property
        def needs(self) -> frozenset[str]:
            """The optional signals that its hooks read, as an advantage names them ("logps", "answers", ...); none by default.

            "entropy_gradient" puts `Batch.entropies` into the graph."""

        @property
        def prefers(self) -> str:
            """Which right answers gain; "" = none."""

        @property
        def ascends(self) -> str:
            """What its term of the loss raises in expectation; "" = not known."""

        @property
        def depends_on(self) -> str:
            """ "batch" for one that compares the tokens of the rollout; "" by default."""

        @property
        def files(self) -> tuple[str, ...]:
            """Paths of the files that it reads: run.json keeps their hashes, and a missing one is refused; none by default."""

        @property
        def file_contents(self) -> str:
            """What these files have to hold, for the error about a missing one; "" by default."""

    is_kind: ClassVar[bool] = False
    """Of an abstract class: a method has at most one of it. Read from the class that declares it, and not inherited."""

    if not TYPE_CHECKING:  # plain values: a field of a dataclass without a default would take a property for its default
        needs = frozenset()
        prefers = ascends = depends_on = file_contents = ""
        files = ()

    def before_rollout(
        self, selected: Int[Tensor, " P"], problems: Int[Tensor, " N"], step: int, key: Key, state: PartState
    ) -> Int[Tensor, " P"]:
        """Places of the P problems that the step asks, among `problems`, the ids of all N training problems.

        selected: those that it would ask otherwise. An id is that of `Seen.problems`.
        """
        return selected

    def after_rewards(self, rewards: Groups, seen: Seen, state: PartState) -> Groups:
        """The rewards that the advantage reads, of those that the verifier and the extras before it gave."""
        return rewards

    def on_advantages(self, advantages: Groups, rewards: Groups, seen: Seen, state: PartState) -> Groups:
        """The advantages of whole completions, before token weights and a KL in the reward. rewards: as the advantage read them."""
        return advantages

    def loss_weights(
        self, signals: Signals, step: int, total_steps: int, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """The weights of `on_loss`, 0 off the mask, and the state after them: once per rollout, from the policy that generated it.

        `Signals.advantages`, where `needs` names them, are those of whole completions. state: after `learn`.
        """
        return signals.mask.float(), state

    def on_loss(self, batch: Batch, step: int, total_steps: int) -> PerToken:
        """What the loss of each token gains, times its `loss_weights`: once per update, in the graph of the policy's log-probs or
        entropies. Anything may stand off the mask."""
        return torch.zeros_like(batch.logps)

    def start(self) -> dict[str, Tensor]:
        """The running state before the first step; {} = none. Engines store it in checkpoints, and its numbers are metrics."""
        return {}

    def learn(self, rewards: Groups, seen: Seen, state: PartState) -> dict[str, Tensor]:
        """The state after a rollout with these rewards, with the names and dtypes of `start`."""
        return dict(state)

    def dead(self, size: int) -> Dead | None:
        """What `after_rewards` pays groups of `size` with nothing to compare; None: it declares nothing."""
        return None

    def conflict(self, method: MethodParts) -> str:
        """Why it cannot be part of this method, and the next step: the end of a sentence that begins with its name. "" = it can."""
        if reason := self.twice(method):
            return reason
        if method.is_replay_only:
            return "changes a policy gradient, and with alone=True there is none: set alone=False, or remove the extra."
        if type(self).learn is not Extra.learn and is_staged(method.rollout):
            return (
                "learns from groups of one size, but the rollout plan makes groups of several: use a plan "
                "without a second stage."
            )
        if method.reads_labels and self.changes_credit:
            return f"changes what {type(method.surrogate).__name__} reads as labels, 0 or 1 per completion: remove one of the two."
        return ""

    def twice(self, method: MethodParts) -> str:
        """Why it cannot be there where the method has another one of its kind."""
        if sum(other.kind is self.kind for other in method.extras) < 2:
            return ""
        if self.kind is type(self):
            return "is there twice: keep one of the two."
        return f"is one of two {in_snake_case(self.kind.__name__).replace('_', ' ')}s, and a method has one: keep one of the two."

    @property
    def kind(self) -> type[Extra]:
        """That of which a method has one: the declared kind that it inherits, or else its own class."""
        return declared_kind(type(self)) or type(self)

    @property
    def slot(self) -> str:
        """Where its state and metrics are: "extra/name_of_the_class"."""
        return f"extra/{in_snake_case(type(self).__name__)}"

    @property
    def hook(self) -> str:
        """The hook by which `describe` finds the place of its equation; "" where that is a line of its own."""
        if self.chooses_problems or self.changes_advantages:
            return ""
        if self.adds_loss and not self.changes_rewards:
            return "on_loss"
        if self.changes_rewards and not self.adds_loss:
            return "after_rewards"
        return ""

    @property
    def made_for(self) -> int | None:
        """The length limit of a completion, in tokens, that it is made for; None: any."""
        return None

    @property
    def chooses_problems(self) -> bool:
        """Whether it chooses problems."""
        return type(self).before_rollout is not Extra.before_rollout

    @property
    def adds_loss(self) -> bool:
        """Whether it adds to the loss."""
        return type(self).on_loss is not Extra.on_loss

    @property
    def weighs_loss(self) -> bool:
        """Whether what it adds to the loss has weights of the rollout."""
        return type(self).loss_weights is not Extra.loss_weights

    @property
    def reads_groups(self) -> bool:
        """Whether a hook of it is called with the rewards of a rollout."""
        return self.changes_rewards or self.changes_advantages or type(self).learn is not Extra.learn

    @property
    def changes_rewards(self) -> bool:
        """Whether it changes the rewards that the advantage reads."""
        return type(self).after_rewards is not Extra.after_rewards

    @property
    def changes_advantages(self) -> bool:
        """Whether it changes the advantages of whole completions."""
        return type(self).on_advantages is not Extra.on_advantages

    @property
    def changes_credit(self) -> bool:
        """Whether what a completion or one of its tokens is credited with is other than what the advantage makes of verdicts."""
        return self.changes_rewards or self.changes_advantages

    def own_state(self, state: State, device: torch.device | None = None) -> PartState:
        """Its own state within that of all parts; {} if it has none."""
        return {name: tensor.to(device) for name, tensor in state.get(self.slot, {}).items()}

    def moved(self, state: State, own: PartState) -> State:
        """The state of all parts with its own in it."""
        return {**state, self.slot: {name: tensor.detach() for name, tensor in own.items()}} if self.slot in state else state


def check_extra_class(who: str, part: Any) -> object:
    """ConfigError unless the class is an `Extra` with an equation and at least one hook, or of a kind and without other hooks."""
    needs = _check_declared(who, part)
    hooks = ("before_rollout", "after_rewards", "on_advantages", "on_loss")
    kind = declared_kind(part)
    own = [hook for hook in hooks if getattr(part, hook) is not getattr(kind or Extra, hook)]
    if kind is None and not own:
        raise ConfigError(f"{who}: {part.__name__} does nothing; define at least one of {', '.join(hooks)}")
    if kind is not None and own:
        raise ConfigError(
            f"{who}: {part.__name__} is a {kind.__name__}, whose equation would not show its {own[0]}; put {own[0]} into an "
            "extra of its own"
        )
    return needs


def declared_kind(part: type[Extra]) -> type[Extra] | None:
    """The declared kind that a class inherits: `TokenWeight`, `RewardSource` or `Buffer`; None for any other extra."""
    return next((base for base in reversed(part.__mro__) if vars(base).get("is_kind")), None)


_check_declared = check_part(Extra, "what it does,", "a hook")


EXTRAS: Registry[type] = Registry("extra", check=check_extra_class)


def the_one(extras: tuple[Extra, ...], kind: type[Kind]) -> Kind | None:
    """The extra of a declared kind, of which a method has at most one; None where it has none."""
    return next((extra for extra in extras if isinstance(extra, kind)), None)


def learned(extras: tuple[Extra, ...], rewards: Groups, seen: Seen, state: State) -> State:
    """`state` after a rollout, in which that of the extras has moved."""
    for extra in extras:
        if own := extra.own_state(state, rewards.device):
            state = extra.moved(state, extra.learn(rewards, seen, own))
    return state
