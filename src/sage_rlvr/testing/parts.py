"""The laws of the other parts of a method, one function per kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal

import torch
from torch import Tensor

from sage_rlvr.core.advantages import Advantage, GroupSignals, ZeroVariance, sees
from sage_rlvr.core.extras import Extra, TokenWeight, weights_of
from sage_rlvr.core.extras.replay.answers import Answers
from sage_rlvr.core.extras.replay.base import Buffer, buffer_budget, buffer_loss
from sage_rlvr.core.extras.source import RewardSource, Substituted
from sage_rlvr.core.method import needs_of
from sage_rlvr.core.reductions import Reduction
from sage_rlvr.core.rollout_plans import RolloutPlan, is_staged, kept_by, learned_by
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.state import PartState, has_state, start_of
from sage_rlvr.core.surrogates import Surrogate
from sage_rlvr.errors import DataError
from sage_rlvr.testing.guides import READ
from sage_rlvr.testing.tried import (
    KEY,
    changed,
    check_declared,
    check_recipe,
    equal,
    filled,
    holed,
    rollout_signals,
    signals,
    unholed,
    value_of,
)


def check_advantage(advantage: Advantage, seed: int = 0) -> None:
    """Check (P, G) float32, finite, without gradient; in zero-variance groups the declared value (`ZeroVariance`), or else 0."""
    part, size = advantage.at(0, 4), max(4, advantage.least_group)
    rewards = torch.randint(0, 2, (6, size), generator=torch.Generator().manual_seed(seed)).float()
    advantages = _output_of("advantage", part, rewards.clone().requires_grad_(True), seed)
    assert advantages.shape == rewards.shape and advantages.dtype == torch.float32, "advantages must be (P, G) float32"
    assert bool(advantages.isfinite().all()) and not advantages.requires_grad, "advantages must be finite and without gradient"
    if type(part).dead is not Advantage.dead or not has_state(part):
        check_dead("advantage", part, size, seed)
    if part.random:
        _check_draws(part, rewards, seed)
    check_recipe("advantage", advantage)


def _check_draws(part: Any, rewards: Tensor, seed: int) -> None:
    """Check that a random advantage repeats its draws for one step and key, and that `expected` is their mean."""
    draws = torch.stack([_output_of("advantage", part, rewards, seed, step) for step in range(400)])
    assert torch.equal(draws[0], _output_of("advantage", part, rewards, seed, 0)), "the same step and key must give the same draws"
    gap = (draws.mean(dim=0) - _output_of("advantage", part, rewards, seed, None)).abs()
    assert bool((gap <= 5 * draws.std(dim=0) / 20 + 1e-4).all()), "its `expected` is not the mean of its draws"


def check_dead(kind: Literal["advantage", "extra"], part: Any, size: int, seed: int = 0) -> None:
    """Check advantages of all-correct, all-wrong and no-correct groups of `size`, over ten steps with other groups present."""
    declared: ZeroVariance = part.dead(size)
    drawn = torch.Generator().manual_seed(seed)
    steps = [torch.randint(0, 2, (5, size), generator=drawn).float() for _ in range(10)]
    none = [torch.randint(0, 3, (5, size), generator=drawn) / 4 for _ in range(10)]
    groups = {"all_right": torch.ones(5, size), "all_wrong": torch.zeros(5, size), "none_right": None}
    for name, dead in groups.items():
        wanted, rows = getattr(declared, name), []
        for index, (others, differing) in enumerate(zip(steps, none, strict=True)):
            rewards = torch.cat([differing if dead is None else dead, others])
            try:
                rows.append(_output_of(kind, part, rewards, seed + index)[:5])
            except DataError:
                assert wanted == "refused", f"{name}: the advantage rejects these rewards; declare 'refused'"
                break
        else:
            advantages, expected = torch.stack(rows), "not refused" if wanted == "refused" else f"{wanted} is declared"
            constant = bool((advantages - advantages.flatten()[0]).abs().max() < 1e-6)
            near = constant and not isinstance(wanted, str) and abs(float(advantages.flatten()[0]) - wanted) < 1e-5
            held = not constant if isinstance(wanted, str) else near
            assert held and wanted != "refused", (
                f"a group with {name.replace('_', ' ')} earns {advantages[0, 0].tolist()}, and {expected}"
            )


def _output_of(kind: str, part: Any, rewards: Tensor, seed: int, step: int | None = 1) -> Tensor:
    """Output of an advantage or an extra's `after_rewards` for groups whose completions differ in everything that it may read.

    step: the step of a random advantage; None is its mean over the draws.
    """
    more = (step, KEY) if kind == "advantage" and part.random and step is not None else ()
    drawn = torch.Generator().manual_seed(seed)
    policy, reference = (-4.0 * torch.rand(rewards.shape, generator=drawn) for _ in range(2))
    longest = 2 + ((part.made_for if kind == "extra" else None) or 7)
    lengths, answers = (torch.randint(1, most, rewards.shape, generator=drawn) for most in (longest, 4))
    problems = torch.arange(len(rewards))[:, None].expand(rewards.shape)
    rows = torch.arange(rewards.numel()).reshape(rewards.shape)
    counts = _base_counts(problems)
    seen = GroupSignals(lengths, policy, reference, answers, problems, torch.full(rewards.shape, -1.5), rows, base_counts=counts)
    if kind == "advantage":
        given = (rewards, seen) if sees(part) else (rewards,)
        mean = part.random and step is None
        return part.expected(*given) if mean else value_of(kind, part, *given, *more)  # type: ignore[no-any-return]
    learned = part.learn(rewards, seen, part.start())  # a state at its start distinguishes nothing
    return part.after_rewards(rewards, seen, learned)  # type: ignore[no-any-return]


def _base_counts(problems: Tensor) -> Tensor:
    """(P, G, 2) stored samples of the base model: right ones are the problem's number among 9, and again from 0 on."""
    return torch.stack([problems % 10, torch.full_like(problems, 9)], dim=-1)


def check_surrogate(surrogate: Surrogate, seed: int = 0) -> None:
    """Check (B, T) losses with a gradient, and finite metrics."""
    given = signals(seed)
    ratios = torch.zeros(given.mask.shape, requires_grad=True)
    loss, statistics = surrogate(ratios, torch.ones(len(given.mask), 1), given.mask)
    assert loss.shape == given.mask.shape and loss.requires_grad, "a surrogate must return (B, T) losses with a gradient"
    assert all(math.isfinite(value) for value in statistics.values()), "its statistics must be finite"
    check_recipe("surrogate", surrogate)


def check_reduction(reduction: Reduction, seed: int = 0) -> None:
    """Check that values off the mask do not count, NaN included, and that micro-batches with the full budget add up to the full
    loss."""
    mask = signals(seed).mask
    values = torch.where(mask, torch.ones(mask.shape), math.nan)
    budget = reduction.budget(mask, mask.shape[1])
    whole = reduction(values, mask, budget)
    parts = [reduction(values[i : i + 1], mask[i : i + 1], budget) for i in range(len(mask))]
    assert bool(whole.isfinite()) and torch.allclose(whole, torch.stack(parts).sum()), "micro-batches do not add up"
    assert reduction.divisor in ("row", "batch", "constant"), "divisor must be row, batch or constant"
    check_recipe("reduction", reduction)


def check_extra(extra: Extra, seed: int = 0) -> None:
    """Check finite values of the input's shape, without gradient (a loss with one), each group independent; hooks and state are
    pure.

    Its weights must read only signals in `needs`, and no values off the mask.
    """
    _check_groups(extra, seed)
    _check_loss(extra, seed)
    if extra.dead(4) is not None:
        check_dead("extra", extra, 4, seed)
    if isinstance(extra, TokenWeight):
        _check_token_weight(extra, seed)
    if isinstance(extra, RewardSource):
        _check_reward_source(extra)
    if isinstance(extra, Buffer):
        _check_buffer(extra, seed)
    check_recipe("extra", extra)


def _check_groups(extra: Extra, seed: int) -> None:
    """Check the hooks of groups: `before_rollout`, `after_rewards`, `on_advantages` and `learn`."""
    drawn = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 2, (5, 4), generator=drawn).float()
    policy, reference = (-4.0 * torch.rand(rewards.shape, generator=drawn) for _ in range(2))
    lengths, answers = (torch.randint(1, 6, rewards.shape, generator=drawn) for _ in range(2))
    problems, rows = torch.arange(5)[:, None].expand(rewards.shape), torch.arange(20).reshape(rewards.shape)
    counts = _base_counts(problems)
    seen = GroupSignals(lengths, policy, reference, answers, problems, torch.full(rewards.shape, -1.5), rows, rewards, counts)
    state = extra.start()
    chosen = extra.before_rollout(torch.tensor([3, 1, 4]), torch.arange(5), 1, KEY, state)
    assert chosen.shape == (3,) and bool(((chosen >= 0) & (chosen < 5)).all()), "before_rollout must return (P,) places of problems"

    def credited(some: slice) -> tuple[Tensor, Tensor]:
        own = GroupSignals(**{field.name: getattr(seen, field.name)[some] for field in fields(seen)})
        earned = extra.after_rewards(rewards[some].clone(), own, state)
        return earned, extra.on_advantages(earned - earned.mean(dim=1, keepdim=True), earned, own, state)

    for whole, one in zip(credited(slice(5)), credited(slice(1, 2)), strict=True):
        assert whole.shape == rewards.shape and bool(whole.isfinite().all()), "hooks must return (P, G), finite"
        assert not whole.requires_grad, "rewards and advantages must have no gradient"
        assert torch.allclose(whole[1:2], one, atol=1e-6), "what a group gets must not depend on the others"
    once, again = (extra.learn(rewards, seen, state) for _ in range(2))
    assert equal(once, again) and equal(state, extra.start()), "the given state was modified; return a new one"
    assert _dtypes(once) == _dtypes(state), "learn must keep names and dtypes"


def _check_loss(extra: Extra, seed: int) -> None:
    """Check the hooks of tokens: `loss_weights` and `on_loss`."""
    given, state = rollout_signals(seed), extra.start()
    weights, moved = extra.loss_weights(given, 1, 4, state)
    assert weights.shape == given.mask.shape and not weights.requires_grad, "loss_weights must be (B, T), without gradient"
    assert bool(weights.isfinite().all()) and not weights[~given.mask].any(), "loss_weights must be finite, and 0 off the mask"
    assert equal(state, extra.start()) and moved.keys() == state.keys(), "loss_weights must return a new state beside its weights"
    _check_reading("loss_weights", lambda some: extra.loss_weights(some, 1, 4, extra.start())[0], given, extra)
    leaf = torch.where(given.mask, given.old_logps, 0.0).requires_grad_(True)
    term = extra.on_loss(Batch(2 * leaf, leaf.detach(), None, given.mask, torch.ones(5), entropies=-leaf), 1, 4)
    assert term.shape == given.mask.shape and bool(term[given.mask].isfinite().all()), "on_loss must return (B, T), finite"
    assert term.requires_grad is extra.adds_loss, "on_loss must have a gradient"


def _check_token_weight(weight: TokenWeight, seed: int) -> None:
    """Check (B, T), finite at counted tokens, without gradient; pure: random weights repeat at one step and key."""
    given, state = rollout_signals(seed), {weight.slot: weight.start()}
    (weights, moved), (again, same) = (weights_of(weight, given, 1, 4, KEY, state) for _ in range(2))
    assert torch.equal(weights[given.mask], again[given.mask]), "the same call must give the same weights"
    assert bool(weights[given.mask].isfinite().all()) and not weights.requires_grad, "token weights are finite, without gradient"
    before, after = weight.start(), moved[weight.slot]
    assert equal(state[weight.slot], before), "the given state was modified; return a new one"
    assert equal(after, same[weight.slot]) and _dtypes(after) == _dtypes(before), (
        "the new state must be a function of the old one, with its names and dtypes"
    )
    assert all(bool(one.double().isfinite().all()) for one in after.values()), "a state must be finite"
    _check_reading("token_weights", lambda some: weights_of(weight, some, 1, 4, KEY)[0], given, weight)


def _check_reading(hook: str, weigh: Callable[[Signals], Tensor], given: Signals, extra: Extra) -> None:
    """Check that weights (B, T) at counted tokens depend only on the signals in `needs`, and on no values off the mask."""
    who = f"{type(extra).__name__}.{hook}"
    check_declared(who, weigh, given, needs_of(extra))
    weights = weigh(given)
    for other in (unholed(weigh(changed(given, holed))), weigh(filled(given))):
        same = torch.allclose(other[given.mask], weights[given.mask], atol=1e-6)  # sums over more columns round differently
        assert same, f"{who}: what is off the mask changes the weights; {READ}"


def _dtypes(state: PartState) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in state.items()}


def _check_reward_source(source: RewardSource) -> None:
    """Check (B,) finite rewards and supports without gradient, each row independent; one without an answer has no support."""
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False], [True, False, False]])
    drawn = torch.Generator().manual_seed(0)
    logps, before = (torch.where(mask, -torch.rand(4, 3, generator=drawn), math.nan) for _ in range(2))

    def of(rows: Tensor) -> Substituted:
        leaf = logps[rows].requires_grad_(True)
        known = None if source.baseline == "none" else before[rows]
        return Substituted(leaf, mask[rows], known, mask[rows].any(dim=1), torch.tensor([0, 10, 3, 0])[rows])

    earned, single = (source.rewards_of(of(rows)) for rows in (torch.arange(4), torch.tensor([1])))
    for whole, one in ((earned.rewards, single.rewards), (earned.support, single.support)):
        assert whole.shape == (4,) and whole.dtype == torch.float32 and bool(whole.isfinite().all()), (
            "(B,) finite float32"
        )
        assert not whole.requires_grad, "a reward must have no gradient"
        assert torch.allclose(whole[1:2], one), "the reward of a completion must not depend on the others"
    assert float(earned.support[2]) == 0, "a completion without an answer must have no support"
    assert source.baseline in ("initial", "current", "none") and 0 <= source.given < 1 and source.ngram >= 1, (
        "its settings"
    )


def _check_buffer(buffer: Buffer, seed: int) -> None:
    """Check that loss and metrics are finite and add up over prompts, that an empty buffer adds 0, and that values off the mask
    do not count."""
    given = signals(seed, rows=6)
    rewards, answers = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]), torch.arange(6).reshape(2, 3)
    tokens, logps = torch.ones_like(given.mask, dtype=torch.long), given.old_logps
    stored = Answers.of_rollout(torch.tensor([4, 9]), rewards, answers, tokens, given.mask, logps, 1, rewards - 0.5)
    rows = buffer.rows(buffer.rule.add(Answers.of(buffer.start()), stored), 0, KEY, torch.tensor([4, 9]))
    off = torch.where(rows.mask, rows.answers.logps - 0.1, math.nan).requires_grad_(True)
    budget = buffer_budget(buffer, rows, rows.mask.shape[1])
    loss, numbers = buffer_loss(buffer, off, rows, budget)
    (gradient,) = torch.autograd.grad(loss, off)
    assert bool(loss.isfinite()) and bool(gradient.isfinite().all()), "loss and gradient must be finite"
    assert not gradient[~rows.mask].any() and all(map(math.isfinite, numbers.values())), "values off the mask change the loss"
    parts = [buffer_loss(buffer, off[rows.owners == n], rows.of_owners(n, n + 1), budget) for n in (0, 1)]
    assert torch.allclose(sum(part[0] for part in parts), loss), "the loss of a prompt must not depend on the others"
    sums = {name: sum(part[1][name] for part in parts) for name in numbers}
    assert all(math.isclose(sums[name], numbers[name], abs_tol=1e-5) for name in numbers), (
        "divide a sum over rows by rows.whole"
    )
    none = buffer.rows(Answers.of(buffer.start()), 0, KEY, torch.tensor([4, 9]))
    assert not buffer_loss(buffer, torch.zeros(0, 0), none, 1.0)[0].any(), "an empty buffer must add 0"


def check_rollout_plan(plan: RolloutPlan) -> None:
    """Check (P,) bool, each group independent; a running state is pure; for a second stage (P,) integers."""
    rewards, state = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]), start_of({"rollout": plan})
    kept = kept_by(plan, rewards, state)
    assert kept.shape == (3,) and kept.dtype == torch.bool and plan.max_refills >= 0, "keeps must return (P,) bool"
    assert torch.equal(kept[1:2], kept_by(plan, rewards[1:2], state)), (
        "whether a group is kept must not depend on the others"
    )
    if state:
        after, again = learned_by(plan, rewards, state)["rollout"], learned_by(plan, rewards, state)["rollout"]
        before = start_of({"rollout": plan})["rollout"]
        assert equal(after, again) and equal(state["rollout"], before), (
            "the given state was modified; return a new one"
        )
        assert _dtypes(after) == _dtypes(before), "the new state must have the names and dtypes of the first"
    if is_staged(plan):
        extra = plan.extra(rewards)
        assert extra.shape == (3,) and extra.dtype == torch.int64, "extra must return (P,) int64"
        assert bool((extra >= 0).all()) and int(extra.max()) <= plan.max_completions - 3, "`max_completions` bounds both stages"
        assert torch.equal(extra, plan.extra(rewards)), "an allocation must be a function of the rewards"
    check_recipe("rollout_plan", plan)


def check_schedule(schedule: Schedule) -> None:
    """Check for a finite float at every step, the same at every call."""
    values = [schedule(step, 20) for step in range(20)]
    assert all(math.isfinite(value) for value in values), "a schedule must return finite numbers"
    assert values == [schedule(step, 20) for step in range(20)], "a schedule must have no memory"
    check_recipe("schedule", schedule)
