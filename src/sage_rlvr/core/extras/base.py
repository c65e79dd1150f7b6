"""The hooks of an `Extra`.

    before_rollout          which problems a step asks                                        loop
    after_rewards           the rewards that the advantage reads                              loop, TRL, verl
    on_advantages           the advantages of completions                                     loop, TRL, verl
    on_loss, loss_weights   a term of the loss of each token, and its weights                 loop
    token_weights           the factor on the advantage of each token, of a `TokenWeight`     loop, TRL, verl
    rewards_of              rewards instead of the verifier's, of a `RewardSource`            loop, TRL
    stored_loss             the loss of each token of stored correct answers, of a `Buffer`   loop
    start, learn            the running state: before the first step, and after a rollout     loop, TRL, verl

A method has any number of extras, called in order. An extra overrides the hooks that it needs. An engine that does not call one
of these hooks raises an error for the extra, or implements it by its own settings (training/engines.py). `conflict` returns why
an extra cannot be combined with a method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.advantages import Advantage, GroupSignals, ZeroVariance
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


class MethodParts(Protocol):
    """Members of a `Method` that `conflict` of an extra and `describe` read; a protocol, because `Method` imports both.

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
    """An addition to a method. Hooks are pure: they do not change their arguments, and get random numbers only from `key`.

    P prompts, G completions each. `after_rewards`, `on_advantages` and `learn` see groups of one size, each group by itself.
    A hook that a step calls only once is declared by an abstract subclass, a kind: `TokenWeight`, `RewardSource`, `Buffer`. A
    method has at most one extra of each kind. A member that is not a method may be a class attribute, a field or a property.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Optional signals that its hooks read, named as for an advantage ("logps", "answers", ...); none by default.

        "entropy_gradient" puts `Batch.entropies` into the graph.
        """
        return frozenset()

    @property
    def prefers(self) -> str:
        """Kind of correct answers that gain; "" = none."""
        return ""

    @property
    def ascends(self) -> str:
        """Quantity that its term of the loss raises in expectation; "" = not known."""
        return ""

    @property
    def depends_on(self) -> str:
        """The text "batch" if it compares the tokens of the rollout; "" by default."""
        return ""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that it reads; run.json stores their hashes, and a missing file raises an error. None by default."""
        return ()

    @property
    def file_contents(self) -> str:
        """Required content of these files, for the error about a missing one; "" by default."""
        return ""

    kind_name: ClassVar[str] = ""
    """The name of an abstract class of which a method has at most one, by which `the_one` finds an extra of that kind."""

    def before_rollout(
        self, selected: Int[Tensor, " P"], problems: Int[Tensor, " N"], step: int, key: Key, state: PartState
    ) -> Int[Tensor, " P"]:
        """Return the places of the P problems that the step asks, as indices into `problems`.

        Args:
            selected: the places that would be asked otherwise.
            problems: ids of all N training problems, as in `GroupSignals.problems`.
            step: the optimizer step.
            key: the run's key.
            state: the extra's own state.
        """
        return selected

    def after_rewards(self, rewards: Groups, seen: GroupSignals, state: PartState) -> Groups:
        """Return the rewards that the advantage reads.

        Args:
            rewards: those of the verifier, changed by the extras before this one.
            seen: the signals of the groups.
            state: the extra's own state.
        """
        return rewards

    def on_advantages(self, advantages: Groups, rewards: Groups, seen: GroupSignals, state: PartState) -> Groups:
        """Return the advantages of completions, before token weights and a KL in the reward.

        rewards: as the advantage read them.
        """
        return advantages

    def loss_weights(
        self, signals: Signals, step: int, total_steps: int, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """Return the weights of `on_loss`, 0 off the mask, and the state after them; called once per rollout.

        Args:
            signals: of the policy that generated the rollout. `advantages`, if `needs` names them, are those of completions.
            step: the optimizer step, from 0.
            total_steps: steps of the run.
            state: the state after `learn`.
        """
        return signals.mask.float(), state

    def on_loss(self, batch: Batch, step: int, total_steps: int) -> PerToken:
        """Return the term that is added to the loss of each token, after multiplication by `loss_weights`; called once per update.

        The result is in the graph of the policy's log-probs or entropies. Values off the mask are ignored.
        """
        return torch.zeros_like(batch.logps)

    def start(self) -> dict[str, Tensor]:
        """Return the running state before the first step; {} = none.

        Engines store it in checkpoints, and its numbers are metrics.
        """
        return {}

    def learn(self, rewards: Groups, seen: GroupSignals, state: PartState) -> dict[str, Tensor]:
        """Return the state after a rollout with these rewards, with the names and dtypes of `start`."""
        return dict(state)

    def dead(self, size: int) -> ZeroVariance | None:
        """Return the rewards of `after_rewards` in zero-variance groups of `size` completions; None = not declared."""
        return None

    def conflict(self, method: MethodParts) -> str:
        """Return the reason if the extra cannot be combined with this method, and the next step; "" if it can.

        The text is the end of a sentence that begins with the extra's name.
        """
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
        """Return the reason if the method has another extra of the same kind; "" if not."""
        if sum(other.kind is self.kind for other in method.extras) < 2:
            return ""
        if self.kind is type(self):
            return "is there twice: keep one of the two."
        return f"is one of two {in_snake_case(self.kind.__name__).replace('_', ' ')}s, and a method has one: keep one of the two."

    @property
    def kind(self) -> type[Extra]:
        """Class of which a method has at most one extra: the declared kind that it inherits, else its own class."""
        return declared_kind(type(self)) or type(self)

    @property
    def slot(self) -> str:
        """Key of its state and prefix of its metrics: "extra/name_of_the_class"."""
        return f"extra/{in_snake_case(type(self).__name__)}"

    @property
    def hook(self) -> str:
        """Hook that tells `describe` where its equation is printed; "" if on a line of its own."""
        if self.chooses_problems or self.changes_advantages:
            return ""
        if self.adds_loss and not self.changes_rewards:
            return "on_loss"
        if self.changes_rewards and not self.adds_loss:
            return "after_rewards"
        return ""

    @property
    def made_for(self) -> int | None:
        """Length limit of a completion, in tokens, that it assumes; None = any."""
        return None

    @property
    def chooses_problems(self) -> bool:
        """True if it chooses problems."""
        return type(self).before_rollout is not Extra.before_rollout

    @property
    def adds_loss(self) -> bool:
        """True if it adds to the loss."""
        return type(self).on_loss is not Extra.on_loss

    @property
    def weighs_loss(self) -> bool:
        """True if its term of the loss has weights computed once per rollout."""
        return type(self).loss_weights is not Extra.loss_weights

    @property
    def reads_groups(self) -> bool:
        """True if one of its hooks is called with the rewards of a rollout."""
        return self.changes_rewards or self.changes_advantages or type(self).learn is not Extra.learn

    @property
    def changes_rewards(self) -> bool:
        """True if it changes the rewards that the advantage reads."""
        return type(self).after_rewards is not Extra.after_rewards

    @property
    def changes_advantages(self) -> bool:
        """True if it changes the advantages of completions."""
        return type(self).on_advantages is not Extra.on_advantages

    @property
    def changes_credit(self) -> bool:
        """True if it changes rewards or advantages."""
        return self.changes_rewards or self.changes_advantages

    def own_state(self, state: State, device: torch.device | None = None) -> PartState:
        """Return its own state within that of all parts; {} if it has none."""
        return {name: tensor.to(device) for name, tensor in state.get(self.slot, {}).items()}

    def moved(self, state: State, own: PartState) -> State:
        """Return the state of all parts, in which its own is `own`."""
        return {**state, self.slot: {name: tensor.detach() for name, tensor in own.items()}} if self.slot in state else state


def check_extra_class(who: str, part: Any) -> object:
    """Return the class; raise ConfigError unless it is an `Extra` with an equation and a hook, or of a kind without other hooks."""
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
    return next((base for base in reversed(part.__mro__) if vars(base).get("kind_name")), None)


_check_declared = check_part(Extra, "what it does,", "a hook")


EXTRAS: Registry[type] = Registry("extra", check=check_extra_class)


def the_one(extras: tuple[Extra, ...], kind_name: str) -> Any:
    """The extra of a declared kind, of which a method has at most one; None where it has none. By name: a method without a buffer
    does not import what stores answers."""
    return next((extra for extra in extras if extra.kind_name == kind_name), None)


def learned(extras: tuple[Extra, ...], rewards: Groups, seen: GroupSignals, state: State) -> State:
    """Return `state` after a rollout, in which the state of the extras is updated by `learn`."""
    for extra in extras:
        if own := extra.own_state(state, rewards.device):
            state = extra.moved(state, extra.learn(rewards, seen, own))
    return state
