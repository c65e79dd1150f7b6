"""Groups of a step: which problems and completions they have, what a rollout plan keeps, how the rest is refilled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from extras_common import Doubled
from loop_recorded import draw_groups
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.core import Method, RolloutPlan
from sage_rlvr.errors import TrainingDiverged
from sage_rlvr.methods import METHODS, grpo
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir, read_metrics
from sage_rlvr.training import loop as training
from sage_rlvr.training import rollouts as engine
from sage_rlvr.training import samplers
from sage_rlvr.training.groups import Groups, together
from sage_rlvr.training.loop import build, train, train_step
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.rollouts import draw, problems_of_step
from sage_rlvr.training.state import model_tensors
from training.loop.loop_common import own_problems

Recipe = Callable[..., Path]
Make = Callable[..., TrainState]


@dataclass(frozen=True)
class Plan(RolloutPlan):
    """Keeps groups with more than `least` and fewer than `most` right answers."""

    least: int = 0
    most: int = 4
    max_refills: int = 3
    equation: ClassVar[str] = "keep least < right < most"

    def keeps(self, rewards: Tensor) -> Tensor:
        return (rewards.sum(1) > self.least) & (rewards.sum(1) < self.most)


MIXED, NEVER, ALWAYS = Plan(), Plan(least=4), Plan(least=-1, most=5)


def planned(least: int = 0, most: int = 4, max_refills: int = 3, beta: float = 0.05) -> Method:
    return replace(grpo(beta=beta), name="planned", rollout=Plan(least, most, max_refills))


@pytest.fixture
def make(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> Make:
    """make(plan, "a.b", "value", ...) -> a loop of P = 4, G = 4 whose method has that rollout plan (None: no plan)."""
    monkeypatch.setitem(METHODS, "planned", planned)

    def loop(plan: Plan | None, *words: str, beta: float = 0.05) -> TrainState:
        settings = "" if plan is None else f", least: {plan.least}, most: {plan.most}, max_refills: {plan.max_refills}"
        method = f"{{name: {'grpo' if plan is None else 'planned'}, beta: {beta}{settings}}}"
        pairs = list(zip(words[::2], words[1::2], strict=True))
        return build(load_config(TrainConfig, write_recipe(method, steps=6, name=f"{len(settings)}.yaml"), pairs))

    return loop


def state(loop: TrainState) -> dict[str, Tensor]:
    """Copies of weights and moments."""
    return {name: t.clone() for name, t in (model_tensors(loop.policy) | loop.optimizer.tensors()).items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def rows(groups: Groups) -> list[list[int]]:
    return [row[mask].tolist() for row, mask in zip(groups.rollout.tokens, groups.rollout.mask, strict=True)]


# ---- which problems, which completions


def test_a_step_draws_its_own_problems_first_and_then_others(make: Make) -> None:
    loop = make(MIXED)
    for step in (0, 3, 14, 15):
        names = [str(p) for p in problems_of_step(loop, step, 0, 60)]
        assert names[:4] == [str(p) for p in own_problems(loop, step)]
        assert sorted(names) == sorted(map(str, loop.problems))  # all 60 once, whatever the step began with
    first, second = ([str(p) for p in problems_of_step(loop, step, 4, 52)] for step in (0, 1))
    assert [p for p in first if p in second] != [p for p in second if p in first]  # an order of each step's own
    assert [str(p) for p in problems_of_step(make(MIXED, "seed", "1"), 0, 4, 52)] != first
    assert [str(p) for p in problems_of_step(make(None), 0, 4, 52)] == first  # arms of one seed refill alike


def test_a_small_pool_begins_again_with_what_the_step_has_had(make: Make) -> None:
    loop = make(MIXED, "world.train_problems", "6")
    names = [str(p) for p in problems_of_step(loop, 0, 0, 16)]
    assert len(set(names[:6])) == 6 and set(names[6:10]) == set(names[:4])
    assert names[10:16] == names[4:10]
    assert [str(p) for p in problems_of_step(loop, 0, 9, 3)] == names[9:12]


def test_a_group_does_not_depend_on_the_refill_it_came_in(make: Make) -> None:
    loop = make(MIXED)
    whole = draw(loop, 1, 4, 4)
    apart = together([draw(loop, 1, 4, 1), draw(loop, 1, 5, 3)], loop.tokens.pad_id)
    assert rows(whole) == rows(apart) and torch.equal(whole.rewards, apart.rewards)
    assert apart.problems == whole.problems and apart.prompts == whole.prompts
    assert whole.row_ids.tolist() == apart.row_ids.tolist() == list(range(16, 32))
    again = engine.draw_rollout(loop, whole.prompts, 1, 8)  # a prompt drawn twice in a step gets other completions
    assert [row[mask].tolist() for row, mask in zip(again.tokens, again.mask, strict=True)] != rows(whole)


def test_draws_are_padded_to_the_widest_and_cut_to_what_is_kept(make: Make) -> None:
    loop = make(MIXED)
    parts = [draw(loop, 0, n, 1) for n in range(8)]
    widths = [part.rollout.tokens.shape[1] for part in parts]
    assert min(widths) < max(widths)
    groups = together(parts, pad_id=7)
    assert groups.rollout.tokens.shape == groups.rollout.mask.shape == (32, max(widths))
    assert rows(groups) == [row for part in parts for row in rows(part)]
    for part, padded in zip(parts, groups.rollout.tokens.split(4), strict=True):
        assert bool((padded[:, part.rollout.tokens.shape[1] :] == 7).all())
    kept = torch.tensor(widths) == min(widths)
    narrow = groups.keep(kept)
    assert narrow.rollout.tokens.shape == (4 * int(kept.sum()), min(widths))
    assert rows(narrow) == [row for part, k in zip(parts, kept, strict=True) if k for row in rows(part)]
    assert narrow.numbers.tolist() == kept.nonzero().flatten().tolist()
    assert torch.equal(narrow.row_ids.reshape(-1, 4)[:, 0], 4 * narrow.numbers)
    assert groups.keep(torch.ones(8, dtype=torch.bool)) is groups


# ---- keeping and refilling


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """(first, count) of every draw."""
    seen: list[tuple[int, int]] = []
    inner = samplers.draw

    def recorded(loop: TrainState, step: int, first: int, count: int) -> Groups:
        seen.append((first, count))
        return inner(loop, step, first, count)

    monkeypatch.setattr(samplers, "draw", recorded)
    yield seen


def test_only_marked_groups_are_kept_and_what_is_missing_is_refilled(make: Make, draws: list[tuple[int, int]]) -> None:
    loop, found = make(MIXED), []
    for step in range(6):
        draws.clear()
        drawn = draw_groups(loop, step)
        rewards = drawn.first_stage.rewards
        mixed = (rewards.sum(1) > 0) & (rewards.sum(1) < 4)
        assert torch.equal(drawn.kept_mask, mixed) and int(mixed.sum()) <= 4
        assert bool((drawn.groups[0].rewards.std(1) > 0).all()) and drawn.groups[0].rewards.shape == (int(mixed.sum()), 4)
        kept = 0
        for n, (first, count) in enumerate(draws):  # each refill draws what the draws before it left missing
            assert first == sum(c for _, c in draws[:n]) and count == 4 - kept
            kept += int(mixed[first : first + count].sum())
        assert drawn.refills == len(draws) - 1 <= 3 and (kept == 4 or drawn.refills == 3)
        names = [p.problem_id for p in drawn.first_stage.problems]
        assert len(set(names)) == len(names)
        again = draw_groups(loop, step)
        assert rows(again.first_stage) == rows(drawn.first_stage) and torch.equal(again.kept_mask, drawn.kept_mask)
        found.append(drawn.refills)
    assert max(found) > 0


@pytest.mark.slow
def test_refills_are_bounded(make: Make, draws: list[tuple[int, int]]) -> None:
    for refills in range(4):
        draws.clear()
        drawn = draw_groups(make(replace(NEVER, max_refills=refills)), 0)
        assert draws == [(4 * n, 4) for n in range(refills + 1)]
        assert drawn.refills == refills and not drawn.kept_mask.any() and len(drawn.kept_mask) == 4 * (refills + 1)
    draws.clear()
    draw_groups(make(ALWAYS), 0)
    draw_groups(make(None), 0)
    assert draws == [(0, 4)] * 2


def test_a_plan_sees_the_raw_rewards(make: Make) -> None:
    loop, seen = make(MIXED), []

    def keeps(self: Plan, rewards: Tensor) -> Tensor:
        seen.append(rewards)
        return torch.ones(len(rewards), dtype=torch.bool)

    method = replace(loop.method, extras=(Doubled(),))
    loop = replace(loop, method=replace(method, rollout=type("Looking", (Plan,), {"keeps": keeps})()))
    train_step(loop, 0)
    assert len(seen) == 1 and set(seen[0].flatten().tolist()) == {0.0, 1.0}


# ---- the step


@pytest.mark.slow
def test_a_plan_that_keeps_everything_is_no_plan_bit_for_bit(make: Make) -> None:
    for updates in ((), ("updates.epochs", "2", "updates.minibatches", "2")):
        plain, keeping = make(None, *updates), make(ALWAYS, *updates)
        for step in range(3):
            a, b = train_step(plain, step), train_step(keeping, step)
            assert a == {name: b[name] for name in a} and b["rollout/missing_groups_frac"] == 0.0
            assert b["reward/kept_mean"] == b["reward/mean"] and b["rollout/completions"] == 16
        assert same(state(plain), state(keeping))


def test_without_a_kept_group_nothing_moves(make: Make) -> None:
    for updates in ((), ("updates.epochs", "2")):
        loop = make(NEVER, *updates)
        loop = replace(loop, method=replace(loop.method, rollout=ALWAYS))
        train_step(loop, 0)  # so that there are moments
        before = state(loop)
        loop = replace(loop, method=replace(loop.method, rollout=replace(NEVER, max_refills=1)))
        metrics = train_step(loop, 1)
        assert same(before, state(loop)) and all(p.grad is None for p in loop.policy.parameters())
        assert metrics["rollout/groups_kept"] == 0 and metrics["rollout/missing_groups_frac"] == 1
        assert metrics["rollout/refills"] == 1 and metrics["rollout/completions"] == 32
        assert 0 < metrics["reward/mean"] < 1
        assert not {"loss", "reward/kept_mean", "optimizer/grad_norm"} & set(metrics)


def test_the_gradient_is_that_of_the_kept_groups(make: Make) -> None:
    """-(1/B) sum_i (1/|y_i|) sum_t A_i grad log pi over the kept rows, one plain forward a row."""
    loop = make(MIXED, beta=0.0)
    drawn = draw_groups(loop, 0)
    groups = drawn.groups[0]
    assert drawn.refills > 0 and not drawn.kept_mask.all()
    centered = groups.rewards - groups.rewards.mean(1, keepdim=True)
    advantages = (centered / (groups.rewards.std(1, keepdim=True) + 1e-4)).flatten()
    completions, loss = rows(groups), torch.zeros(())
    for i, completion in enumerate(completions):
        prompt = groups.prompts[i // 4]
        logits = loop.policy(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        logps = torch.log_softmax(logits, -1)[range(len(completion)), completion]
        loss = loss - advantages[i] * logps.mean() / len(completions)
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(loop.policy.parameters()))])
    seen: list[Tensor] = []

    def take(number: int) -> dict[str, float]:
        seen.append(torch.cat([p.grad.flatten() for p in loop.policy.parameters()]))  # type: ignore[union-attr]
        return {}

    loop.optimizer.step = take  # type: ignore[method-assign]
    train_step(loop, 0)
    assert wanted.abs().max() > 1e-3 and torch.allclose(seen[0], wanted, rtol=0, atol=1e-5)


def test_metrics_describe_what_was_drawn_and_what_was_kept(make: Make) -> None:
    loop = make(MIXED)
    drawn = draw_groups(loop, 0)
    rewards, kept = drawn.first_stage.rewards, drawn.kept_mask
    metrics = train_step(loop, 0)
    assert 0 < int(kept.sum()) < len(kept)
    assert metrics["reward/mean"] == pytest.approx(float(rewards.sum()) / rewards.numel())
    assert metrics["reward/kept_mean"] == pytest.approx(float(rewards[kept].sum()) / rewards[kept].numel())
    assert metrics["reward/zero_variance_frac"] == pytest.approx(1 - int(kept.sum()) / len(kept))
    lengths = [len(row) for row in rows(drawn.first_stage)]
    assert metrics["rollout/tokens"] == sum(lengths) and metrics["rollout/completions"] == len(lengths)
    assert metrics["completions/length_mean"] == pytest.approx(sum(lengths) / len(lengths))
    assert metrics["rollout/groups_kept"] == int(kept.sum()) and metrics["rollout/refills"] == drawn.refills
    assert metrics["rollout/missing_groups_frac"] == 1 - int(kept.sum()) / 4
    plain = make(None)
    wanted = int(draw(plain, 0, 0, 4).rollout.mask.sum())
    found = train_step(plain, 0)
    assert found["rollout/tokens"] == wanted and [n for n in found if n.startswith("rollout/")] == ["rollout/tokens"]


def test_chance_goes_by_the_number_of_a_completion_within_the_step(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, seen = make(MIXED), []
    inner = training.shape
    monkeypatch.setattr(
        training, "shape", lambda method, signals, *rest: seen.append(signals) or inner(method, signals, *rest)
    )
    drawn = draw_groups(loop, 0)
    train_step(loop, 0)
    wanted = [4 * n + g for n in drawn.kept_mask.nonzero().flatten().tolist() for g in range(4)]
    assert seen[0].row_ids.tolist() == wanted != list(range(len(wanted)))
    assert seen[0].rewards.tolist() == drawn.groups[0].rewards.flatten().tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "minibatches", "kept", "wanted"),
    [(4, 2, 3, [0, 1, 2, 3]), (4, 2, 1, [0, 2]), (4, 2, 2, [0, 1, 2, 3]), (6, 3, 4, [0, 1, 2, 3, 4, 5])],
)
def test_fewer_groups_share_the_updates_and_an_update_keeps_its_number(
    make: Make, monkeypatch: pytest.MonkeyPatch, prompts: int, minibatches: int, kept: int, wanted: list[int]
) -> None:
    """Two epochs of mini-batches that differ by one group at most; an empty one is left out, and its number with it."""
    sizes_of = ("rollout.prompts_per_step", str(prompts), "updates.minibatches", str(minibatches))
    loop = make(Plan(max_refills=0), "updates.epochs", "2", *sizes_of)
    some = type("Some", (Plan,), {"keeps": lambda self, rewards: torch.arange(len(rewards)) < kept})
    loop = replace(loop, method=replace(loop.method, rollout=some(max_refills=0)))
    numbers: list[int] = []
    sizes: list[int] = []
    inner, select = loop.optimizer.step, training.select
    loop.optimizer.step = lambda number: numbers.append(number) or inner(number)  # type: ignore[method-assign,func-returns-value]
    monkeypatch.setattr(
        training, "select", lambda whole, rows, logps: sizes.append(len(rows)) or select(whole, rows, logps)
    )
    for step in range(2):
        metrics = train_step(loop, step)
        assert metrics["rollout/groups_kept"] == kept
    assert numbers == [2 * minibatches * step + n for step in range(2) for n in wanted]
    assert sum(sizes) == 2 * 2 * 4 * kept and max(sizes) - min(sizes) <= 4


def test_a_batch_set_aside_is_the_one_that_was_kept(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make(MIXED)
    train_step(loop, 0)
    groups = draw_groups(loop, 1).groups[0]
    inner, calls = training.objective, [0]

    def objective(*arguments: Any, **named: Any) -> Any:
        loss, metrics = inner(*arguments, **named)
        calls[0] += 1
        return (loss * float("nan") if calls[0] == 2 else loss), metrics

    monkeypatch.setattr(training, "objective", objective)
    folder = tmp_path / "run"
    with RunDir.open(folder, dump(loop.config)) as run, pytest.raises(TrainingDiverged, match="loss is nan"):
        train(loop.config, run, Silent())
    aside = json.loads((folder / "diverged" / "step-000001" / "batch.json").read_text())
    assert aside["prompts"] == [loop.task.prompt(p) for p in groups.problems]
    kept = load_file(folder / "diverged" / "step-000001" / "rollout.safetensors")
    assert torch.equal(kept["tokens"], groups.rollout.tokens) and torch.equal(kept["mask"], groups.rollout.mask)
    assert [row["step"] for row in read_metrics(folder)] == [0]
