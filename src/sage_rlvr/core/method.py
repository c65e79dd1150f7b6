"""A `Method` selects one part of each kind; `shape`, `advantages_of` and `objective` compute it, `describe` prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from sage_rlvr.core.advantages import Advantage, GroupSignals, PromptWeight, sees
from sage_rlvr.core.anchor import Anchor, anchor_logps, anchor_metrics, is_sampled, sampled
from sage_rlvr.core.describe import describe
from sage_rlvr.core.divergences import divergence
from sage_rlvr.core.extras import Extra, TokenWeight, learned, the_one, weights_of
from sage_rlvr.core.guides import clamped
from sage_rlvr.core.keys import Key
from sage_rlvr.core.kl import estimate
from sage_rlvr.core.laws import per_token
from sage_rlvr.core.parts import require_kind
from sage_rlvr.core.reductions import Reduction
from sage_rlvr.core.reward_kl import kl_share, reward_penalty
from sage_rlvr.core.rollout_plans import RolloutPlan, is_staged
from sage_rlvr.core.signals import Batch, Signals, check_needs, masked_mean
from sage_rlvr.core.state import State, Stateful, called, has_state, start_of
from sage_rlvr.core.surrogates import Surrogate
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.registry import Registry

if TYPE_CHECKING:
    from sage_rlvr.core.extras.replay.base import Buffer
    from sage_rlvr.core.extras.source import RewardSource

PerToken = Float[Tensor, "B T"]
NO_SIGNAL = "advantage/no_signal_frac"
"""Metric: fraction of a step's updates in which no row `has_signal`."""


@dataclass(frozen=True)
class Method:
    """An RLVR method as a value: one choice for each independent part.

    advantage         rewards (P, G) -> advantages (P, G)
    surrogate         log-ratios and advantages -> per-token loss (B, T)
    anchor            the KL term, None = no KL; a guide other than Flat in it makes the method a SAGE
    reduction         per-token loss -> scalar
    rollout           which groups of a rollout are kept, how often missing groups are sampled anew, and how many more completions a
                      prompt gets in a second stage; None = keep all, one stage
    extras            all other additions, each with its hooks (core/extras)
    """

    name: str
    advantage: Advantage
    surrogate: Surrogate
    anchor: Anchor | None
    reduction: Reduction
    rollout: RolloutPlan | None = None
    extras: tuple[Extra, ...] = ()

    def __post_init__(self) -> None:
        require_kind(self.name, "advantage", self.advantage, Advantage)
        require_kind(self.name, "surrogate", self.surrogate, Surrogate)
        require_kind(self.name, "reduction", self.reduction, Reduction)
        if self.rollout is not None:
            require_kind(self.name, "rollout", self.rollout, RolloutPlan)
        for extra in self.extras:
            require_kind(self.name, "extras", extra, Extra)
        for extra in self.extras:
            if reason := extra.conflict(self):
                raise ConfigError(f"{self.name}: {type(extra).__name__} {reason}")
        in_reward = self.anchor is not None and not self.anchor.is_off and self.anchor.placement == "reward"
        if in_reward and self.reduction.divisor == "row":
            raise ConfigError(
                f"{self.name}: placement='reward' with the sequence_mean reduction divides each row's KL by its "
                "length, so the penalty is not the gradient of any KL; use a constant reduction: method dr_grpo or "
                "rloo, or reduction: fixed_budget in compose."
            )
        if self.reads_labels and (in_reward or not self.advantage.gives_labels):
            raise ConfigError(
                f"{self.name}: {type(self.surrogate).__name__} needs labels, 0 or 1 per completion: set advantage: "
                "{name: signed, right: 1, wrong: 0}, and no KL in the reward."
            )
        counts, counted = self.advantage.counts, "tokens" if self.reduction.divisor == "batch" else "rows"
        if counts not in (None, counted):
            raise ConfigError(
                f"{self.name}: {self.advantage} divides by the {counts} that it keeps, but "
                f"{type(self.reduction).__name__} divides by all {counted}, so the result is a mean over neither; use "
                f"reduction: {'token_mean' if counts == 'tokens' else 'fixed_budget or sequence_mean'}."
            )
        self._check_stages()
        if self.anchor is None and "ref_logps" in self.needs:
            raise ConfigError(
                f"{self.name}: a part needs the reference, but the method has no KL term; set one of weight 0, "
                "Anchor(0.0, source=...), to select the reference."
            )

    def _check_stages(self) -> None:
        """Raise ConfigError for parts that require groups of one size, if the rollout plan has a second stage."""
        if not is_staged(self.rollout):
            return
        unfit: list[object] = [self.advantage] if has_state(self.advantage) or self.advantage.couples_prompts else []
        unfit += [self.surrogate] if self.surrogate.sees_batch else []
        unfit += [one for one in [kl_prompts(self.anchor)] if one is not None and one.random]
        for part in unfit:
            raise ConfigError(
                f"{self.name}: {type(self.rollout).__name__} makes groups of unequal size, and {type(part).__name__} "
                "uses all groups of a step at once, or has a state: use a part that needs one group at a time, such "
                "as GroupCentered or LeaveOneOut with Clip, or a rollout plan without a second stage."
            )
        least = self.advantage.least_group
        if least > 2 and self.rollout.baseline != "union":
            raise ConfigError(
                f"{self.name}: {self.advantage} needs groups of at least {least}, but a second stage may have only 2 "
                "completions; set baseline='union', or lower the method's k."
            )

    @property
    def needs(self) -> frozenset[str]:
        """Optional signals that an engine must compute: logps, ref_logps, ref_right, entropies, ref_entropies, answers, problems,
        base_counts, hidden, entropy_drift, entropy_gradient, distributions.

        `entropy_gradient` puts the entropies of each update into the graph, for an extra's term of the loss.
        `distributions` are log-probs of every next token, of policy (in the graph) and reference: `Batch.log_probs`.
        """
        unread = self.buffer is not None and self.buffer.alone and not self.buffer.reads_advantages
        parts: tuple[Advantage | Surrogate | Extra, ...] = self.extras
        if not unread:
            parts = (self.advantage, self.surrogate, *self.extras)
        needs = frozenset[str]().union(*map(needs_of, parts))
        if self.anchor is not None and not self.anchor.is_off:
            needs |= self.anchor.needs
        return needs | {"ref_logps"} if "ref_entropies" in needs else needs

    @cached_property
    def token_weight(self) -> TokenWeight | None:
        """The extra that weighs tokens."""
        weight: TokenWeight | None = the_one(self.extras, "token_weight")
        return weight

    @cached_property
    def reward_source(self) -> RewardSource | None:
        """The extra that computes rewards instead of the verifier."""
        source: RewardSource | None = the_one(self.extras, "reward_source")
        return source

    @cached_property
    def buffer(self) -> Buffer | None:
        """The extra that stores right answers and trains on them."""
        buffer: Buffer | None = the_one(self.extras, "buffer")
        return buffer

    @property
    def group_extras(self) -> tuple[Extra, ...]:
        """The extras that are called with the rewards of a rollout."""
        return tuple(extra for extra in self.extras if extra.reads_groups)

    @property
    def reads_labels(self) -> bool:
        """True if the surrogate reads advantages as labels, 0 or 1 per completion."""
        return self.surrogate.reads_labels

    @property
    def is_replay_only(self) -> bool:
        """True if it trains only on stored answers."""
        return self.buffer is not None and self.buffer.alone

    @property
    def parts(self) -> dict[str, Stateful]:
        """Return the parts that may have a running state, by field or slot, in the order in which a rollout passes them."""
        rollout = {} if self.rollout is None else {"rollout": self.rollout}
        return rollout | {"advantage": self.advantage} | {extra.slot: extra for extra in self.extras if extra.start()}

    def at(self, step: int, total_steps: int) -> Method:
        """Return the method with the advantage of that step; itself if the advantage does not change over training."""
        advantage = self.advantage.at(step, total_steps)
        return self if advantage is self.advantage else replace(self, advantage=advantage)

    def sampled(self) -> Method:
        """Return the method as TRL and verl descend it: a KL that they cannot sum exactly is estimated from the sampled tokens."""
        return replace(self, anchor=sampled(self.anchor)) if self.anchor is not None and is_sampled(self.anchor) else self

    def start(self) -> State:
        """Return the running state of the parts before the first step; empty if none has one."""
        return start_of(self.parts)

    def describe(self) -> str:
        """Return the loss that is actually optimized, with values filled in, and the expected gradient of its KL term."""
        return describe(self)


METHODS: Registry[Callable[..., Method]] = Registry("method")


def shape(method: Method, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
    """Return log q of the generation batch, (B, T) float32; zeros without an anchor. Call it once per rollout."""
    if method.anchor is None or method.anchor.is_off:
        return torch.zeros_like(signals.old_logps)
    return method.anchor.guide(signals, step=step, total_steps=total_steps, key=key)


def q_clamped(
    method: Method, signals: Signals, step: int, total_steps: int, key: Key, log_q: PerToken
) -> Bool[Tensor, "B T"]:
    """Return True at tokens at which a factor of q is at an edge of its band, (B, T) bool.

    Call it once per rollout, for `Batch.q_clamped`. log_q: of `shape`.
    """
    if method.anchor is None or method.anchor.is_off:
        return torch.zeros_like(signals.mask)
    return clamped(method.anchor.guide, signals, step, total_steps, key, log_q)


def needs_of(part: Advantage | Surrogate | Extra) -> frozenset[str]:
    """Return the optional signals that a part reads. Raise ConfigError for one that no engine computes."""
    return check_needs(type(part).__name__, part.needs)


@dataclass(frozen=True, eq=False)
class Advantages:
    """Output of `credit`.

    advantages    (B,), or (B, T) if a part works per token
    grouped       (P, G), those of completions, before token weight and KL; (B,) if the groups are of several sizes
    state         running state of the parts after the rollout
    kl_weights    (B,), the factor of each row on beta, 0 for a row of no group; None = 1
    loss_weights  of the extras that weight their term of the loss, for `Batch.loss_weights`
    """

    advantages: Tensor
    grouped: Float[Tensor, "P G"] | Float[Tensor, " B"]
    state: State
    loss_weights: Mapping[str, PerToken] = field(default_factory=dict)
    kl_weights: Float[Tensor, " B"] | None = None


def kl_prompts(anchor: Anchor | None) -> PromptWeight | None:
    """Return the prompt weight of a KL term that acts; None if there is none."""
    return None if anchor is None or anchor.is_off else anchor.prompts


def has_signal(method: Method | None, grouped: Tensor, mask: Bool[Tensor, "B T"]) -> Bool[Tensor, " B"]:
    """Return the rows with a counted token on which more than the KL acts: an advantage other than 0, without a KL in the reward.

    An extra's term of the loss acts without an advantage, and a label of 0 is a signal too: then all rows with a counted token.

    Args:
        method: None if only a guide is known.
        grouped: as in `Advantages`.
        mask: (B, T), true at counted tokens.
    """
    if method is not None:
        adds = any(extra.adds_loss for extra in method.extras)
        if adds or method.reads_labels:
            return mask.any(dim=1)
    return (grouped.reshape(len(mask), -1) != 0).any(dim=1) & mask.any(dim=1)


@dataclass(frozen=True)
class _Sized:
    """Consecutive rows of a rollout, first to last, all in groups of one size."""

    first: int
    last: int
    group_size: int

    def of(self, signals: Signals) -> Signals:
        """Return these rows of the rollout's signals, with their row ids unchanged."""
        rows = torch.arange(self.first, self.last, device=signals.mask.device)
        return signals if len(rows) == len(signals.mask) else signals.take(rows, signals.row_ids[rows])

    def cut(self, values: PerToken | None) -> PerToken | None:
        """Return these rows of values (B, T)."""
        return None if values is None else values[self.first : self.last]


def _sized(rewards: Tensor | Sequence[Tensor]) -> tuple[list[Tensor], list[_Sized]]:
    """Return the rewards of each size of groups, and their rows."""
    parts = [rewards] if isinstance(rewards, Tensor) else list(rewards)
    ends = torch.tensor([part.numel() for part in parts]).cumsum(0).tolist()
    firsts = [0, *ends[:-1]]
    sizes = [_Sized(a, b, part.shape[-1]) for a, b, part in zip(firsts, ends, parts, strict=True)]
    return parts, sizes


def advantages_of(
    method: Method,
    rewards: Float[Tensor, "P G"] | Sequence[Float[Tensor, "P G"]],
    signals: Signals | None = None,
    log_q: PerToken | None = None,
    step: int = 0,
    total_steps: int = 1,
    key: Key | None = None,
    state: State | None = None,
) -> Tensor:
    """Return only the advantages of `credit`. `state`: of the method's parts, None = before the first step."""
    return credit(method, rewards, signals, log_q, step, total_steps, key, state).advantages


@torch.no_grad()
def credit(
    method: Method,
    rewards: Float[Tensor, "P G"] | Sequence[Float[Tensor, "P G"]],
    signals: Signals | None = None,
    log_q: PerToken | None = None,
    step: int = 0,
    total_steps: int = 1,
    key: Key | None = None,
    state: State | None = None,
    ungrouped: int = 0,
) -> Advantages:
    """Return advantages (B,), or (B, T) if a part looks at tokens; B = P * G, row-major; and the state after this rollout.

    In order: `after_rewards` of the extras -> the advantage -> `on_advantages` -> `learn` -> `loss_weights` -> the token weight
    -> minus beta times the KL, if that is in the reward. The token weight comes before the KL, which it must not multiply.

    With the anchor in the reward, A_t = A_group - beta * c * (K_t - mean of K_t over the *other* rows of the group that
    still count at t), K_t the sum from t on of log pi_old - log pi_ref - log q; the KL is never divided by the group's
    std. c = (G - 1) / G for an advantage that subtracts the mean of the group including the row itself: that mean shrinks the
    expected force of the reward by c, and beta keeps its meaning. c = 1 for every other advantage.

    Args:
        method: its parts are called.
        rewards: (P, G), or a sequence of groups of one size each; the B rows are then those of the first, of the second
            and so on. Such an advantage looks at one group at a time, which `Method` checks; token weight and loss weights look at
            all rows.
        signals: of the B rows.
        log_q: (B, T) from `shape`.
        step: the optimizer step, from 0.
        total_steps: steps of the run.
        key: the run's, for an advantage or a token weight that is random.
        state: of the method's parts before the rollout, None = before the first step; it is not changed.
        ungrouped: number of last rows that belong to no group, such as completions without a reward. Their advantage is 0; token
            weight and loss weights read them like groups of equal rewards.
    """
    state, method = method.start() if state is None else state, method.at(step, total_steps)
    parts, sizes = _sized(rewards)
    per_size, drawn = [], _drawn(method.advantage, step, key)
    prompts, of_prompts = kl_prompts(method.anchor), list[Tensor]()
    for part, rows in zip(parts, sizes, strict=True):
        seen = None
        if sees(method.advantage) or method.group_extras or prompts is not None:
            seen = seen_of(rows.of(_need(signals, "the advantage or an extra")), tuple(part.shape))
        if prompts is not None and seen is not None:
            of_prompts.append(prompts(part, seen, *_drawn(prompts, step, key)).repeat_interleave(part.shape[1]))
        values, state = group_advantages(method, part, seen, state, drawn)
        per_size.append(values)
    grouped = per_size[0] if len(per_size) == 1 else torch.cat([values.reshape(-1) for values in per_size])
    advantages, weights = pad(grouped.reshape(-1), (0, ungrouped)), dict[str, PerToken]()
    for extra in method.extras:
        if extra.weighs_loss:
            given = replace(_need(signals, "an extra"), advantages=advantages)
            own = extra.own_state(state, advantages.device)
            weights[extra.slot], own = extra.loss_weights(given, step, total_steps, own)
            state = extra.moved(state, own)
    if (weight := method.token_weight) is not None:
        given = replace(_need(signals, "an extra"), advantages=advantages)
        factor, state = weights_of(weight, given, step, total_steps, key, state)
        advantages = advantages[:, None] * factor
    beta = 0.0 if method.anchor is None else method.anchor.beta_at(step, total_steps)
    kl_weights = pad(torch.cat(of_prompts), (0, ungrouped)) if of_prompts else None
    if method.anchor is None or method.anchor.placement == "loss" or beta == 0.0:
        return Advantages(advantages, grouped, state, weights, kl_weights)
    known = _need(signals, "placement='reward'")
    penalties = [
        reward_penalty(rows.of(known), rows.cut(log_q), rows.group_size, kl_share(method.advantage, rows.group_size))
        for rows in sizes
    ]
    penalty = beta * pad(torch.cat(penalties), (0, 0, 0, ungrouped))
    penalty = penalty if kl_weights is None else kl_weights[:, None] * penalty
    per_token = (advantages if advantages.dim() == 2 else advantages[:, None]) - penalty
    return Advantages(per_token, grouped, state, weights, kl_weights)


def _drawn(part: Advantage | PromptWeight, step: int, key: Key | None) -> tuple[()] | tuple[int, Key]:
    """Return the last arguments of an advantage or a prompt weight: (step, key) if it is random, else ()."""
    if not part.random:
        return ()
    if key is None:
        raise DataError(f"advantages_of: {type(part).__name__} draws at random; pass key= (the key of the run).")
    return step, key


def _need(signals: Signals | None, who: str) -> Signals:
    if signals is None:
        raise DataError(f"advantages_of: {who} works per token; pass the signals of the batch.")
    return signals


def group_advantages(
    method: Method,
    rewards: Float[Tensor, "P G"],
    seen: GroupSignals | None,
    state: State,
    drawn: tuple[()] | tuple[int, Key] = (),
) -> tuple[Float[Tensor, "P G"], State]:
    """Return the advantages with the extras around them, and the state after both. `seen` is computed only if one of them reads it.

    For a method whose advantage changes over training, call `Method.at` first.

    Args:
        method: as in `credit`, like rewards and state; the groups have one size.
        drawn: step and key for a random advantage; without them it returns its mean, for exact sums.
    """
    extras = method.group_extras
    if not extras:
        return plain_advantages(method.advantage, rewards, seen, state, drawn)
    assert seen is not None
    seen = replace(seen, verdicts=rewards)
    verified, before = rewards, state
    for extra in extras:
        changed = extra.after_rewards(rewards, seen, extra.own_state(before, rewards.device))
        rewards = _shaped(extra, "after_rewards", changed, rewards)
    values, state = plain_advantages(method.advantage, rewards, seen, state, drawn)
    for extra in extras:
        changed = extra.on_advantages(values, rewards, seen, extra.own_state(before, rewards.device))
        values = _shaped(extra, "on_advantages", changed, values)
    return values, learned(extras, verified, seen, state)  # not from shaped rewards, which would feed back what extras paid


def plain_advantages(
    advantage: Advantage, rewards: Float[Tensor, "P G"], seen: GroupSignals | None, state: State, drawn: tuple[()] | tuple[int, Key]
) -> tuple[Float[Tensor, "P G"], State]:
    """Return the output of an advantage without extras (its mean if nothing is `drawn`), and the state of all parts after it."""
    more = (seen,) if sees(advantage) else ()
    if advantage.random and not drawn:
        return advantage.expected(rewards, *more), state
    return called(advantage, "advantage", state, rewards.device, rewards, *more, *drawn)


def _shaped(extra: Extra, hook: str, value: object, like: Tensor) -> Tensor:
    """Return the tensor that a hook returned. Raise ConfigError unless it is a tensor of that shape."""
    if isinstance(value, Tensor) and value.shape == like.shape:
        return value
    got = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise ConfigError(f"{type(extra).__name__}.{hook} must return a tensor {tuple(like.shape)}, got {got}")


def seen_of(signals: Signals, shape: tuple[int, ...]) -> GroupSignals:
    """Return the signals that parts of a group may see besides rewards, from the signals of its rows."""

    def of_row(logps: PerToken | None) -> Tensor | None:
        return (
            None if logps is None else torch.where(signals.mask, logps, 0.0).double().sum(dim=1).float().reshape(shape)
        )

    def grouped(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.reshape(shape)

    lengths, policy, reference = signals.mask.sum(dim=1).reshape(shape), of_row(signals.old_logps), of_row(signals.ref_logps)
    answers, problems, right, rows = (
        grouped(one) for one in (signals.answers, signals.problems, signals.ref_right, signals.row_ids)
    )
    counts = None if signals.base_counts is None else signals.base_counts.reshape(*shape, 2)
    return GroupSignals(lengths, policy, reference, answers, problems, right, rows, base_counts=counts)  # type: ignore[arg-type]


def objective(
    method: Method, batch: Batch, step: int, total_steps: int, budget: float | None = None
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """Return the scalar to minimize and its metrics (Python floats, family/name).

    `budget` is `method.reduction.budget(...)` of the complete update, so that micro-batches add up; None = this batch
    only. With beta = 0 or without an anchor `ref_logps` and `log_q` are never read. `batch.weights` act on the loss, not
    on the other metrics.
    """
    mask = batch.mask.bool()
    logps, old_logps = _on_mask(batch.logps, mask), _on_mask(batch.old_logps.detach(), mask)
    advantages = batch.advantages.detach().float()
    advantages = _on_mask(advantages, mask) if advantages.dim() == 2 else advantages[:, None]
    seen = (replace(batch, mask=mask),) if method.surrogate.sees_batch else ()
    per_token, metrics = method.surrogate(logps - old_logps, advantages, mask, *seen)
    beta = 0.0 if method.anchor is None else method.anchor.beta_at(step, total_steps)
    if method.anchor is not None and beta != 0.0:
        penalty, more = _anchor_term(method.anchor, batch, logps, old_logps, mask)
        if penalty is not None and method.anchor.prompts is not None:
            penalty, share = _per_prompt(batch, penalty, mask)
            more = more | {"kl/prompt_weight": share}
        per_token = per_token if penalty is None else per_token + beta * penalty
        metrics = metrics | more
    for extra in method.extras:
        if extra.adds_loss:
            term = _term_of(extra, replace(batch, logps=logps, old_logps=old_logps, mask=mask), step, total_steps)
            per_token, metrics = per_token + term, metrics | {f"{extra.slot}/loss": masked_mean(term, mask)}
    if batch.weights is not None:
        per_token = per_token * batch.weights.detach().float()[:, None]
    budget = method.reduction.budget(mask, batch.max_tokens) if budget is None else budget
    loss = method.reduction(per_token, mask, budget)
    if batch.entropies is not None:
        metrics = metrics | {"policy/entropy": masked_mean(batch.entropies, mask)}
    return loss, metrics | {"loss": float(loss.detach())}


def _per_prompt(batch: Batch, penalty: PerToken, mask: Bool[Tensor, "B T"]) -> tuple[PerToken, float]:
    """Return a KL term (B, T) times the weight of each row's prompt, and the mean weight of the counted tokens."""
    if batch.kl_weights is None:
        raise DataError("objective: the KL term weighs prompts but Batch.kl_weights is None; take them from `credit`.")
    weights = batch.kl_weights.detach().float()[:, None].expand_as(penalty)
    return weights * penalty, masked_mean(weights, mask)


def _term_of(extra: Extra, batch: Batch, step: int, total_steps: int) -> PerToken:
    """Return an extra's term of the loss of each token, (B, T) in the graph, 0 off the mask."""
    values = extra.on_loss(batch, step, total_steps)
    if not extra.weighs_loss:
        return _on_mask(values, batch.mask)
    if extra.slot not in batch.loss_weights:
        raise DataError(f"objective: Batch.loss_weights has none of {type(extra).__name__}; take them from `credit`.")
    weights = _on_mask(batch.loss_weights[extra.slot].detach(), batch.mask)
    return torch.where(weights != 0, weights * values, 0.0)


def _on_mask(values: PerToken, mask: Bool[Tensor, "B T"]) -> PerToken:
    """Return float32 values with 0 off the mask, so that values there reach neither the result nor the gradient."""
    return torch.where(mask, values.float(), 0.0)


def _anchor_term(
    anchor: Anchor, batch: Batch, logps: PerToken, old_logps: PerToken, mask: Bool[Tensor, "B T"]
) -> tuple[PerToken | None, dict[str, float]]:
    """Return the per-token penalty (None if it is already in the advantages) and the anchor's metrics."""
    if batch.ref_logps is None:
        raise DataError("objective: the KL term has beta > 0 but Batch.ref_logps is None; compute it (method.needs).")
    ref_logps = _on_mask(batch.ref_logps.detach(), mask)
    log_q = None if batch.log_q is None else _on_mask(batch.log_q.detach(), mask)
    metrics = anchor_metrics(anchor, logps, ref_logps, log_q, mask, batch.q_clamped)
    if anchor.placement == "reward":
        return None, metrics
    if anchor.estimator == "exact":
        return _exact_term(anchor, batch, log_q, mask), metrics
    return estimate(anchor.estimator, logps, anchor_logps(ref_logps, log_q), old_logps), metrics


def _exact_term(anchor: Anchor, batch: Batch, log_q: PerToken | None, mask: Bool[Tensor, "B T"]) -> PerToken:
    """Return the divergence at each counted position, (B, T), 0 off the mask; its q is one number per position."""
    if batch.log_probs is None or batch.ref_log_probs is None:
        raise DataError(
            "objective: estimator='exact' needs Batch.log_probs and Batch.ref_log_probs, (B, T, V) log-probs of every "
            "next token; compute them if method.needs has 'distributions', or use a sampled estimator (k3, k3_is)."
        )
    shift = torch.zeros(int(mask.sum()), device=mask.device) if log_q is None else log_q[mask]
    kind = anchor.divergence
    assert kind is not None, "Anchor refuses estimator='exact' without a divergence"

    def term(part: slice, log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
        return divergence(kind, log_probs, ref_log_probs.float() + shift[part, None], anchor.alpha)

    divergences = per_token(term, mask, batch.log_probs, batch.ref_log_probs.detach())
    return torch.zeros_like(batch.logps, dtype=torch.float32).masked_scatter(mask, divergences)
