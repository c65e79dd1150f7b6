"""The laws that a part must obey, as functions: those of this package are held to them, and so can be your own.

from sage_rlvr.testing import check_guide, check_method
check_guide(MyGuide())                    # AssertionError says which law is broken
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sage_rlvr.core.advantages import Advantage, Dead, Seen, at_step, sees, silent
from sage_rlvr.core.buffers import Answers, Buffer, buffer_budget, buffer_loss
from sage_rlvr.core.dynamic_sampling import RolloutPlan, kept_by, learned_by
from sage_rlvr.core.guides import Guide, band_of
from sage_rlvr.core.keys import Key
from sage_rlvr.core.loss_terms import LossTerm
from sage_rlvr.core.method import Method, credit, objective, q_clamped, shape
from sage_rlvr.core.reductions import Reduction
from sage_rlvr.core.reward_sources import RewardSource, Substituted
from sage_rlvr.core.rewards import RewardTransform
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.stages import is_staged
from sage_rlvr.core.state import PartState, called, has_state, start_of
from sage_rlvr.core.surrogates import Surrogate
from sage_rlvr.core.token_weights import TokenWeight
from sage_rlvr.errors import DataError
from sage_rlvr.schema import build, dump

SIGNALS = ("old_logps", "ref_logps", "entropies", "ref_entropies")
KEY = Key(3407)
Change = Callable[[Tensor], Tensor]


# ---- what the laws are tried on


def signals(seed: int, rows: int = 5, columns: int = 9, dtype: torch.dtype = torch.float32) -> Signals:
    """Random signals with ragged rows, one of them empty, and NaN wherever the mask is 0."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, columns + 1, (rows, 1), generator=drawn)
    lengths[int(torch.randint(0, rows, (1,), generator=drawn))] = 0
    mask = torch.arange(columns)[None, :] < lengths

    def draw(scale: float) -> Tensor:
        values = (scale * torch.rand(rows, columns, generator=drawn)).to(dtype)
        return torch.where(mask, values, math.nan)

    row_ids = torch.randperm(100, generator=drawn)[:rows]
    return Signals(-draw(4.0), -draw(4.0), mask, row_ids, entropies=draw(3.5), ref_entropies=draw(3.5))


def changed(given: Signals, change: Change, row_ids: Tensor | None = None) -> Signals:
    """The signals with every tensor changed alike."""
    tensors = {name: change(getattr(given, name)) for name in (*SIGNALS, "mask")}
    return Signals(**tensors, row_ids=given.row_ids if row_ids is None else row_ids)


def run(guide: Guide, given: Signals, step: int = 3) -> Tensor:
    """log q at one step of 40."""
    return guide(given, step=step, total_steps=40, key=KEY)


def uncast(given: Signals, change: Change) -> Signals:
    """The signals with tensors changed behind the cast and the detach that `Signals` does."""
    copy = changed(given, lambda value: value)
    for name in SIGNALS:
        object.__setattr__(copy, name, change(getattr(given, name)))
    return copy


def holed(value: Tensor) -> Tensor:
    """With columns that do not count behind the second: an environment's turn in the middle of an episode."""
    return torch.cat([value[:, :2], _padding(value), value[:, 2:]], dim=1)


def unholed(value: Tensor) -> Tensor:
    """Without them again."""
    return torch.cat([value[:, :2], value[:, 9:]], dim=1)


def _padding(value: Tensor) -> Tensor:
    """Seven columns that do not count, full of NaN where NaN exists."""
    fill = False if value.dtype == torch.bool else math.nan
    return torch.full((value.shape[0], 7, *value.shape[2:]), fill, dtype=value.dtype)


class _NoHalf(TorchDispatchMode):
    """Fails at the first operation that makes a tensor of 16 bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        halves = [t for t in (made if isinstance(made, tuple | list) else [made]) if isinstance(t, Tensor)]
        assert all(t.dtype not in (torch.bfloat16, torch.float16) for t in halves), f"{func} computes in 16 bits"
        return made


# ---- guides


def check_guide(guide: Guide, seed: int = 0) -> None:
    """All laws of a guide: values, padding, order, repeatability, gradient, precision, micro-batches, recipe."""
    assert isinstance(guide, Guide), f"{guide!r} lacks one of needs, depends_on, equation"
    check_values(guide, seed)
    check_padding(guide, seed)
    check_order(guide, seed)
    check_repeats(guide, seed)
    check_no_gradient(guide)
    check_precision(guide, seed)
    if guide.depends_on != "batch":
        check_rows_apart(guide, seed)
    check_recipe("guide", guide)


def check_values(guide: Guide, seed: int) -> None:
    """float32 of the signals' shape, finite, inside the band, 0 off the mask."""
    given = signals(seed)
    log_q = run(guide, given)
    low, high = band_of(guide)
    assert log_q.dtype == torch.float32 and log_q.shape == given.mask.shape, "log q is (B, T) float32"
    assert bool((log_q[~given.mask] == 0).all()), "an uncounted token keeps its reference log-prob: log q is 0 there"
    assert bool(log_q.isfinite().all()), "log q is finite"
    least = math.log(low) if low > 0 else -math.inf
    assert bool(((log_q >= least - 1e-6) & (log_q <= math.log(high) + 1e-6)).all()), "log q is in the guide's band"


def check_padding(guide: Guide, seed: int) -> None:
    """Columns that do not count change nothing, on either side or in the middle."""
    given = signals(seed)
    columns = given.mask.shape[1]
    right = run(guide, changed(given, lambda value: torch.cat([value, _padding(value)], dim=1)))
    assert torch.equal(right[:, :columns], run(guide, given)) and not right[:, columns:].any(), "right padding matters"
    left = run(guide, changed(given, lambda value: torch.cat([_padding(value), value], dim=1)))
    assert torch.equal(left[:, 7:], run(guide, given)), "left padding matters"
    middle = run(guide, changed(given, holed))
    assert torch.equal(unholed(middle), run(guide, given)), "what an environment says in the middle of an episode matters"


def check_order(guide: Guide, seed: int) -> None:
    """The order of the rows does not matter; their ids do."""
    given = signals(seed)
    order = torch.randperm(len(given.mask), generator=torch.Generator().manual_seed(seed))
    permuted = changed(given, lambda value: value[order], given.row_ids[order])
    assert torch.equal(run(guide, permuted), run(guide, given)[order]), "the order of the rows matters"


def check_repeats(guide: Guide, seed: int) -> None:
    """The same arguments give the same answer, whatever happened before: noise comes from the key alone."""
    given = signals(seed)
    first = run(guide, given)
    torch.rand(3)
    run(guide, signals(seed + 1), step=7)
    assert torch.equal(run(guide, given), first), "two calls differ; take noise from the key"


def check_no_gradient(guide: Guide) -> None:
    """Leaves that want a gradient reach the guide itself, as they would if `Signals` did not detach."""
    given = uncast(signals(0), lambda value: torch.nan_to_num(value).requires_grad_(True))
    assert not run(guide, given).requires_grad, "a gradient passes; decorate the call with @torch.no_grad()"


def check_precision(guide: Guide, seed: int) -> None:
    """bf16 comes in; no operation makes 16 bits of it, and the same guide fed with float64 gives the same q."""
    given = signals(seed, dtype=torch.bfloat16)
    with _NoHalf():
        found = run(guide, given)
    wide = run(guide, uncast(given, Tensor.double))
    assert torch.allclose(found.double(), wide.double(), rtol=0, atol=2e-6), "float32 loses digits"


def check_rows_apart(guide: Guide, seed: int) -> None:
    """A row's q does not depend on the other rows, unless the guide says that it depends on the batch."""
    given = signals(seed)
    part = changed(given, lambda value: value[2:4], given.row_ids[2:4])
    assert torch.equal(run(guide, part), run(guide, given)[2:4]), "q depends on other rows; say depends_on = 'batch'"


# ---- the other parts of a method


def value_of(kind: str, part: Any, *args: Any) -> Any:
    """What a part gives for `args`, with its state at the start if it has one, which must be pure and only tensors."""
    start = start_of({kind: part})
    if not start:
        return part(*args)
    found, after = called(part, kind, start, torch.device("cpu"), *args)
    again, same = called(part, kind, start, torch.device("cpu"), *args)
    before, own = start_of({kind: part})[kind], after[kind]
    assert torch.equal(found, again) and _equal(own, same[kind]), (
        "the same state gives the same value and the same new state"
    )
    assert _equal(start[kind], before), "the state that is given stays as it is; return a new one"
    assert own and {n: t.dtype for n, t in own.items()} == {n: t.dtype for n, t in before.items()}, (
        "the new state has the names and dtypes of the one at the start"
    )
    assert all(bool(one.double().isfinite().all()) for one in own.values()), "a state is finite"
    return found


def _equal(one: PartState, other: PartState) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def check_recipe(kind: str, part: Any) -> None:
    """What is written down of the part makes an equal one."""
    again = build(kind, dump(part))
    assert again == part, f"a recipe gives {again!r} back for {part!r}; make it a frozen dataclass, and register it"


def check_advantage(advantage: Advantage, seed: int = 0) -> None:
    """(P, G) float32, finite, without gradient; where there is nothing to compare what it declares (`Dead`), or else 0."""
    part, size = at_step(advantage, 0, 4), max(4, getattr(advantage, "least_group", 2))
    rewards = torch.randint(0, 2, (6, size), generator=torch.Generator().manual_seed(seed)).float()
    found = _paid("advantage", part, rewards.clone().requires_grad_(True), seed)
    assert found.shape == rewards.shape and found.dtype == torch.float32, "advantages are (P, G) float32"
    assert bool(found.isfinite().all()) and not found.requires_grad, "advantages are finite and have no gradient"
    if hasattr(part, "dead") or not has_state(part):
        check_dead("advantage", part, size, seed)
    check_recipe("advantage", advantage)


def check_dead(kind: Literal["advantage", "reward_transform"], part: Any, size: int, seed: int = 0) -> None:
    """What groups of `size` earn that are all right, all wrong, or have none right, beside ten steps of other groups."""
    declared: Dead = getattr(part, "dead", partial(silent, part))(size)
    drawn = torch.Generator().manual_seed(seed)
    steps = [torch.randint(0, 2, (5, size), generator=drawn).float() for _ in range(10)]
    none = [torch.randint(0, 3, (5, size), generator=drawn) / 4 for _ in range(10)]
    groups = {"all_right": torch.ones(5, size), "all_wrong": torch.zeros(5, size), "none_right": None}
    for name, dead in groups.items():
        wanted, found = getattr(declared, name), []
        for place, (beside, differing) in enumerate(zip(steps, none, strict=True)):
            rewards = torch.cat([differing if dead is None else dead, beside])
            try:
                found.append(_paid(kind, part, rewards, seed + place)[:5])
            except DataError:
                assert wanted == "refused", f"{name}: it refuses these rewards; declare 'refused'"
                break
        else:
            paid, said = torch.stack(found), "not refused" if wanted == "refused" else f"{wanted} is declared"
            constant = bool((paid - paid.flatten()[0]).abs().max() < 1e-6)
            near = constant and not isinstance(wanted, str) and abs(float(paid.flatten()[0]) - wanted) < 1e-5
            held = not constant if isinstance(wanted, str) else near
            assert held and wanted != "refused", (
                f"a group with {name.replace('_', ' ')} earns {paid[0, 0].tolist()}, and {said}"
            )


def _paid(kind: str, part: Any, rewards: Tensor, seed: int) -> Tensor:
    """What an advantage or a reward transform makes of groups whose completions differ in all that it may see."""
    drawn = torch.Generator().manual_seed(seed)
    policy, reference = (-4.0 * torch.rand(rewards.shape, generator=drawn) for _ in range(2))
    longest = 2 + getattr(part, "max_tokens", 7)
    lengths, answers = (torch.randint(1, most, rewards.shape, generator=drawn) for most in (longest, 4))
    if not sees(part):
        return value_of(kind, part, *((rewards,) if kind == "advantage" else (rewards, lengths)))  # type: ignore[no-any-return]
    problems = torch.arange(len(rewards))[:, None].expand(rewards.shape)
    seen = Seen(lengths, policy, reference, answers, problems, torch.full(rewards.shape, -1.5))
    found: Tensor = value_of(kind, part, rewards, seen)
    if kind == "advantage" or not has_state(part):
        return found
    moved, cpu = start_of({kind: part}), torch.device("cpu")
    for _ in range(2):  # a state at its start tells nothing apart
        found, moved = called(part, kind, moved, cpu, rewards, seen)
    return found


def check_surrogate(surrogate: Surrogate, seed: int = 0) -> None:
    """(B, T) losses with a gradient, and finite numbers beside them."""
    given = signals(seed)
    ratios = torch.zeros(given.mask.shape, requires_grad=True)
    loss, found = surrogate(ratios, torch.ones(len(given.mask), 1), given.mask)
    assert loss.shape == given.mask.shape and loss.requires_grad, "a surrogate gives (B, T) losses in the graph"
    assert all(math.isfinite(value) for value in found.values()), "its numbers are finite"
    check_recipe("surrogate", surrogate)


def check_reduction(reduction: Reduction, seed: int = 0) -> None:
    """What is off the mask does not count, NaN included; micro-batches with the whole budget add up to the whole."""
    mask = signals(seed).mask
    values = torch.where(mask, torch.ones(mask.shape), math.nan)
    budget = reduction.budget(mask, mask.shape[1])
    whole = reduction(values, mask, budget)
    parts = [reduction(values[i : i + 1], mask[i : i + 1], budget) for i in range(len(mask))]
    assert bool(whole.isfinite()) and torch.allclose(whole, torch.stack(parts).sum()), "micro-batches do not add up"
    assert reduction.divisor in ("row", "batch", "constant"), "divisor is row, batch or constant"
    check_recipe("reduction", reduction)


def check_reward_transform(transform: RewardTransform, seed: int = 0) -> None:
    """(P, G) in, (P, G) finite out; what it declares of groups with nothing to compare (`Dead`)."""
    rewards = torch.randint(0, 2, (6, 4), generator=torch.Generator().manual_seed(seed)).float()
    found = _paid("reward_transform", transform, rewards, seed)
    assert found.shape == rewards.shape and bool(found.isfinite().all()), (
        "a reward transform gives (P, G) finite rewards"
    )
    if hasattr(transform, "dead"):
        check_dead("reward_transform", transform, 4, seed)
    check_recipe("reward_transform", transform)


def check_token_weight(weight: TokenWeight, seed: int = 0) -> None:
    """(B, T), finite at counted tokens, without gradient."""
    given = signals(seed)
    found = value_of("token_weight", weight, given)
    assert found.shape == given.mask.shape, "a token weight is (B, T)"
    assert bool(found[given.mask].isfinite().all()) and not found.requires_grad, "it is finite and has no gradient"
    check_recipe("token_weight", weight)


def check_loss_term(term: LossTerm, seed: int = 0) -> None:
    """Weights (B, T), finite and 0 off the mask, without gradient; values (B, T), finite at counted tokens, in the graph."""
    given = replace(signals(seed), advantages=torch.ones(5))
    weights = value_of("loss_term", term, given, 1, 4)
    assert weights.shape == given.mask.shape and not weights.requires_grad, "weights are (B, T), without gradient"
    assert bool(weights.isfinite().all()) and not weights[~given.mask].any(), "weights are finite, and 0 off the mask"
    leaf = torch.where(given.mask, given.old_logps, 0.0).requires_grad_(True)
    batch = Batch(2 * leaf, leaf.detach(), None, given.mask, torch.ones(5), entropies=-leaf)
    values = term.values(batch)
    assert values.shape == given.mask.shape and values.requires_grad, "values are (B, T), in the graph"
    assert bool(values[given.mask].isfinite().all()), "values are finite"
    check_recipe("loss_term", term)


def check_reward_source(source: RewardSource) -> None:
    """(B,) finite rewards and supports without gradient, each row by itself; one without an answer has no support."""
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False], [True, False, False]])
    drawn = torch.Generator().manual_seed(0)
    logps, before = (torch.where(mask, -torch.rand(4, 3, generator=drawn), math.nan) for _ in range(2))

    def of(rows: Tensor) -> Substituted:
        leaf = logps[rows].requires_grad_(True)
        known = None if source.baseline == "none" else before[rows]
        return Substituted(leaf, mask[rows], known, mask[rows].any(dim=1), torch.tensor([0, 10, 3, 0])[rows])

    paid, alone = source(of(torch.arange(4))), source(of(torch.tensor([1])))
    for whole, one in ((paid.rewards, alone.rewards), (paid.support, alone.support)):
        assert whole.shape == (4,) and whole.dtype == torch.float32 and bool(whole.isfinite().all()), (
            "(B,) finite float32"
        )
        assert not whole.requires_grad, "a reward has no gradient"
        assert torch.allclose(whole[1:2], one), "a completion is paid for itself, whatever the others are"
    assert float(paid.support[2]) == 0, "a completion without an answer has no support"
    assert source.baseline in ("initial", "current", "none") and 0 <= source.given < 1 and source.ngram >= 1, (
        "its settings"
    )
    check_recipe("reward_source", source)


def check_rollout_plan(plan: RolloutPlan) -> None:
    """(P,) bool, each group by itself; a running state is pure; of a second stage (P,) whole numbers."""
    rewards, state = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]), start_of({"rollout": plan})
    kept = kept_by(plan, rewards, state)
    assert kept.shape == (3,) and kept.dtype == torch.bool and plan.max_refills >= 0, "keeps gives (P,) bool"
    assert torch.equal(kept[1:2], kept_by(plan, rewards[1:2], state)), (
        "a group is kept for itself, whatever the others are"
    )
    if state:
        after, again = learned_by(plan, rewards, state)["rollout"], learned_by(plan, rewards, state)["rollout"]
        before = start_of({"rollout": plan})["rollout"]
        assert _equal(after, again) and _equal(state["rollout"], before), (
            "the state that is given stays; return a new one"
        )
        kinds = {name: one.dtype for name, one in before.items()}
        assert {name: one.dtype for name, one in after.items()} == kinds, (
            "the new state has the names and dtypes of the first"
        )
    if is_staged(plan):
        extra = plan.extra(rewards)
        assert extra.shape == (3,) and extra.dtype == torch.int64, "extra gives (P,) int64"
        assert bool((extra >= 0).all()) and int(extra.max()) <= plan.most - 3, "at most `most` in both stages"
        assert torch.equal(extra, plan.extra(rewards)), "an allocation is a function of the rewards"
    check_recipe("rollout_plan", plan)


def check_buffer(buffer: Buffer, seed: int = 0) -> None:
    """Its loss and numbers are finite and add up over prompts; an empty buffer adds 0; what is off the mask does not count."""
    given = signals(seed, rows=6)
    rewards, answers = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]), torch.arange(6).reshape(2, 3)
    tokens, logps = torch.ones_like(given.mask, dtype=torch.long), given.old_logps
    found = Answers.of_rollout(torch.tensor([4, 9]), rewards, answers, tokens, given.mask, logps, 1, rewards - 0.5)
    rows = buffer.rows(buffer.rule.add(Answers.of(buffer.start()), found), 0, KEY, torch.tensor([4, 9]))
    off = torch.where(rows.mask, rows.answers.logps - 0.1, math.nan).requires_grad_(True)
    budget = buffer_budget(buffer, rows, rows.mask.shape[1])
    loss, numbers = buffer_loss(buffer, off, rows, budget)
    (gradient,) = torch.autograd.grad(loss, off)
    assert bool(loss.isfinite()) and bool(gradient.isfinite().all()), "loss and gradient are finite"
    assert not gradient[~rows.mask].any() and all(map(math.isfinite, numbers.values())), "what is off the mask counts"
    parts = [buffer_loss(buffer, off[rows.owners == n], rows.of_owners(n, n + 1), budget) for n in (0, 1)]
    assert torch.allclose(sum(part[0] for part in parts), loss), "a prompt's loss does not depend on the others"
    sums = {name: sum(part[1][name] for part in parts) for name in numbers}
    assert all(math.isclose(sums[name], numbers[name], abs_tol=1e-5) for name in numbers), (
        "divide a sum over rows by rows.whole"
    )
    none = buffer.rows(Answers.of(buffer.start()), 0, KEY, torch.tensor([4, 9]))
    assert not buffer_loss(buffer, torch.zeros(0, 0), none, 1.0)[0].any(), "an empty buffer adds nothing"
    check_recipe("buffer", buffer)


def check_schedule(schedule: Schedule) -> None:
    """A finite float at every step, the same whenever it is asked."""
    values = [schedule(step, 20) for step in range(20)]
    assert all(math.isfinite(value) for value in values), "a schedule gives finite numbers"
    assert values == [schedule(step, 20) for step in range(20)], "a schedule has no memory"
    check_recipe("schedule", schedule)


def check_method(method: Method, seed: int = 0) -> None:
    """It shapes, weighs and descends: finite loss and gradient on a random batch, a description, and a recipe.

    The loss and its gradient do not depend on columns that do not count, in the middle of a row either. Its guide is held to
    `check_guide`, its buffer to `check_buffer`. A method of exact divergences is run without their term, which wants distributions.
    """
    given = signals(seed, rows=6)
    if "distributions" not in method.needs:
        loss, gradient = _descent(method, given)
        spread = changed(given, holed)
        other, again = _descent(method, spread)
        same = torch.allclose(loss, other, atol=1e-6) and torch.allclose(gradient, unholed(again), atol=1e-6)
        assert same, "what an environment says in the middle of an episode matters"
    else:
        _credited(method, given)
    assert method.describe(), "a method describes itself"
    if method.anchor is not None:
        check_guide(method.anchor.guide, seed)
    if method.buffer is not None:
        check_buffer(method.buffer, seed)
    check_recipe("method", method)


def _credited(method: Method, given: Signals) -> tuple[Tensor | None, Any]:
    """log q and advantages of six completions of two prompts."""
    log_q = shape(method, given, 1, 4, KEY)
    return log_q, credit(method, torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]), given, log_q, 1, 4)


def _descent(method: Method, given: Signals) -> tuple[Tensor, Tensor]:
    """Loss of six completions, and its gradient (B, T) by their log-probs."""
    mask, (log_q, worth) = given.mask, _credited(method, given)
    logps = torch.where(mask, given.old_logps, 0.0).clone().requires_grad_(True)
    batch = Batch(
        logps=logps, old_logps=given.old_logps, advantages=worth.advantages, mask=mask, ref_logps=given.ref_logps,
        log_q=log_q, q_clamped=q_clamped(method, given, 1, 4, KEY), max_tokens=9,
        entropies=given.entropies, term_weights=worth.term_weights,
    )  # fmt: skip
    loss, metrics = objective(method, batch, 1, 4)
    (gradient,) = torch.autograd.grad(loss, logps)
    assert bool(loss.isfinite()) and bool(gradient.isfinite().all()), "loss and gradient are finite"
    assert not gradient[~mask].any() and all(map(math.isfinite, metrics.values())), "what is off the mask counts"
    return loss.detach(), gradient
