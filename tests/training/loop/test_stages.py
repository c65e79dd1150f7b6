"""A second stage on the loop: its completions, groups of several sizes in one update, and that nothing else moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loop_recorded import draw_groups
from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.contrib.methods.dars import Dars, UniformStages
from sage_rlvr.contrib.methods.distinct import DistinctRight
from sage_rlvr.contrib.replay.rft import Likelihood
from sage_rlvr.core import DynamicSampling
from sage_rlvr.core.rollout_plans import FIRST_EXTRA_ROW, GuidedStages
from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.training import loop as training
from sage_rlvr.training.buffer import stored
from sage_rlvr.training.engines import refusals
from sage_rlvr.training.groups import DrawnGroups, Groups, RolloutBatch
from sage_rlvr.training.loop import build, train_step
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.samplers import sampler_of
from sage_rlvr.training.state import model_tensors
from sage_rlvr.verifiers import Verdict

Make = Callable[..., TrainState]
BASELINES = ("union", "stages", "second")


@pytest.fixture
def make(write_recipe: Callable[..., Path]) -> Make:
    """make("{name: dars}", "a.b", "value", ...) -> a loop of P = 4, G = 4."""

    def loop(method: str, *words: str) -> TrainState:
        pairs = list(zip(words[::2], words[1::2], strict=True))
        return build(load_config(TrainConfig, write_recipe(method, steps=6), pairs))

    return loop


@dataclass(frozen=True)
class Given(Dars):
    """As many more completions as it is told, whatever the rewards."""

    more: tuple[int, ...] = (0, 2, 5, 2)

    def extra(self, rewards: Tensor) -> Tensor:
        return torch.tensor(self.more)


class Keeping(Given):
    """Trains on every group."""

    def keeps(self, rewards: Tensor) -> Tensor:
        return torch.ones(len(rewards), dtype=torch.bool)


def with_plan(loop: TrainState, plan: Any, **parts: Any) -> TrainState:
    loop.method = replace(loop.method, rollout=plan, **parts)
    return loop


def in_place_of(loop: TrainState, task: type[Countdown]) -> None:
    """The same world, by another class."""
    loop.task = task(**{one.name: getattr(loop.task, one.name) for one in fields(loop.task)})  # type: ignore[arg-type]
    loop.ask = replace(loop.ask, task=loop.task)


def weights(loop: TrainState) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in (model_tensors(loop.policy) | loop.optimizer.tensors()).items()}


def completions(groups: Groups | RolloutBatch, size: int) -> list[list[tuple[int, ...]]]:
    """By prompt."""
    rows = [tuple(row[mask].tolist()) for row, mask in zip(groups.rollout.tokens, groups.rollout.mask, strict=True)]
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def by_number(parts: tuple[Groups, ...]) -> dict[int, list[tuple[int, ...]]]:
    """The number of each group -> its completions."""
    return {
        n: own for part in parts for n, own in zip(part.numbers.tolist(), completions(part, part.rewards.shape[1]), strict=True)
    }


@pytest.mark.slow
def test_without_room_it_is_its_loss_without_a_plan_bit_for_bit(make: Make) -> None:
    for updates in ((), ("updates.epochs", "2", "updates.minibatches", "2")):
        staged = make("{name: dars, max_completions: 4}", *updates)
        plain = with_plan(make("{name: dars, max_completions: 4}", *updates), DynamicSampling(0))
        for step in range(3):
            a, b = train_step(plain, step), train_step(staged, step)
            assert a == {name: b[name] for name in a} and b["rollout/second_stage"] == 0 == b["rollout/extra_max"]
        assert all(torch.equal(one, weights(staged)[name]) for name, one in weights(plain).items())


@pytest.mark.parametrize("baseline", BASELINES)
def test_completions_depend_on_no_other_prompt_and_on_no_plan(make: Make, baseline: str) -> None:
    loop = make("{name: dars}")
    plain = by_number((draw_groups(with_plan(loop, None), 1).first_stage,))
    some, more = (draw_groups(with_plan(loop, Given(baseline=baseline, more=n)), 1) for n in ((0, 2, 5, 2), (6, 6, 6, 6)))
    assert by_number((some.first_stage,)) == by_number((more.first_stage,)) == plain
    first, all_ = by_number(some.second_stage), by_number(more.second_stage)
    assert sorted(first) == [1, 2, 3] and [len(first[n]) for n in (1, 2, 3)] == [2, 5, 2]
    assert all(own == all_[n][: len(own)] for n, own in first.items())
    assert all_[0][:4] != plain[0], "drawn anew, not once more"
    ids = torch.cat([part.row_ids for part in (some.first_stage, *some.second_stage)]).tolist()
    assert len(set(ids)) == len(ids) == 16 + 9 and ids[:16] == list(range(16)) and min(ids[16:]) >= FIRST_EXTRA_ROW


class Odd(Countdown):
    """Right is what has an odd number of characters, so that any policy's groups have right and wrong completions."""

    def verify(self, problem: Any, completion: str) -> Verdict:
        return Verdict("right" if len(completion) % 2 else "wrong", "by its length")


def trained(drawn: DrawnGroups) -> list[tuple[int, int]]:
    """(number, size) of the groups that a step trains on."""
    return sorted((n, part.rewards.shape[1]) for part in drawn.groups for n in part.numbers.tolist())


def test_which_groups_are_trained_on(make: Make) -> None:
    loop = make("{name: dars}")
    wanted = {
        "union": [(0, 4), (1, 6), (2, 9), (3, 6)],
        "stages": [(0, 4), (1, 2), (1, 4), (2, 4), (2, 5), (3, 2), (3, 4)],
        "second": [(1, 2), (2, 5), (3, 2)],
    }
    for name, groups in wanted.items():
        drawn = draw_groups(with_plan(loop, Keeping(baseline=name)), 1)
        assert trained(drawn) == groups and drawn.kept_mask.tolist() == [name != "second", True, True, True]
    union = draw_groups(with_plan(loop, Keeping()), 1)
    second, whole = by_number(union.second_stage), by_number(union.groups)
    assert all(own == by_number((union.first_stage,))[n] + second.get(n, []) for n, own in whole.items())
    for part in union.groups:
        more = {n: row.tolist() for one in union.second_stage for n, row in zip(one.numbers.tolist(), one.rewards, strict=True)}
        for n, row, said in zip(part.numbers.tolist(), part.rewards, part.undecided, strict=True):
            assert row.tolist() == union.first_stage.rewards[n].tolist() + more.get(n, []) and len(said) == len(row)
    none = draw_groups(with_plan(loop, Keeping(more=(0, 0, 0, 0))), 1)  # whatever a processor makes the policy draw
    assert none.second_stage == () and len(none.groups) == 1
    assert draw_groups(with_plan(loop, Given(more=(0, 0, 0, 0), baseline="second")), 1).groups == ()


def test_without_a_second_stage_to_train_on_nothing_moves(make: Make) -> None:
    loop = with_plan(make("{name: dars, baseline: second}"), Given(more=(0, 0, 0, 0), baseline="second"))
    before = weights(loop)
    metrics = train_step(loop, 0)
    assert all(torch.equal(one, weights(loop)[name]) for name, one in before.items()) and "loss" not in metrics


@pytest.mark.slow
@pytest.mark.parametrize("baseline", BASELINES)
def test_the_gradient_is_that_of_groups_of_their_own_size(make: Make, baseline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """-(1/(B L)) sum_i sum_t A_i grad log pi, one plain forward a row; and the same in micro-batches of one group."""
    loop = with_plan(make(f"{{name: dars, baseline: {baseline}}}"), Keeping(baseline=baseline))
    in_place_of(loop, Odd)
    drawn, loss, rows = draw_groups(loop, 1), torch.zeros(()), 0
    for part in drawn.groups:
        size = part.rewards.shape[1]
        for n, own in enumerate(completions(part, size)):
            rewards = part.rewards[n]
            advantages = rewards - rewards.mean() if baseline == "union" else rewards - (rewards.sum() - rewards) / (size - 1)
            for advantage, completion in zip(advantages, own, strict=True):
                ids = part.prompts[n] + list(completion)
                logits = loop.policy(torch.tensor([ids])).logits[0, len(part.prompts[n]) - 1 : -1]
                logps = torch.log_softmax(logits, -1)[range(len(completion)), list(completion)]
                loss, rows = loss - advantage * logps.sum(), rows + 1
    loss = loss / (rows * loop.config.rollout.max_new_tokens)
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(loop.policy.parameters()))])
    seen: list[Tensor] = []
    sizes: list[int] = []

    def take(self: Any, number: int) -> dict[str, float]:
        seen.append(torch.cat([p.grad.flatten() for p in self.policy.parameters()]))
        self.policy.zero_grad()
        return {}

    select = training.select
    monkeypatch.setattr(training, "select", lambda whole, rows, logps: sizes.append(len(rows)) or select(whole, rows, logps))
    loop.optimizer.step = lambda number: take(loop, number)  # type: ignore[method-assign]
    train_step(loop, 1)
    loop.config = replace(loop.config, updates=replace(loop.config.updates, micro_batch=1))
    train_step(loop, 1)
    assert wanted.abs().max() > 1e-4 and len(seen) == 2 and sorted(sizes) == sorted(size for _, size in trained(drawn))
    for found in seen:
        assert torch.allclose(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()) + 1e-6)


def test_mini_batches_hold_whole_groups(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = with_plan(make("{name: dars}", "updates.epochs", "2", "updates.minibatches", "2"), Keeping())
    sizes = dict(trained(draw_groups(loop, 1)))
    owners: list[Tensor] = []
    inner = training.micro_batches

    def batches(loop: TrainState, whole: Any, groups: RolloutBatch, rows: Tensor) -> Any:
        assert groups.group_size is None and whole.group_size is None
        owners.append(groups.owners[rows])
        return inner(loop, whole, groups, rows)

    monkeypatch.setattr(training, "micro_batches", batches)
    train_step(loop, 1)
    seen = torch.cat(owners).unique(return_counts=True)[1].tolist()
    assert sorted(seen) == sorted(2 * size for size in sizes.values()), "each group whole, once in each of two epochs"
    assert [len(one.unique()) for one in owners] == [2] * 4


def test_metrics_say_what_both_stages_cost_and_what_the_policy_does(make: Make) -> None:
    loop = make("{name: dars, max_completions: 12}")
    drawn = draw_groups(loop, 1)
    first, extra = drawn.first_stage.rewards, Dars(12).extra(drawn.first_stage.rewards)
    plain = train_step(with_plan(make("{name: dars}"), None), 1)
    metrics = train_step(loop, 1)
    assert int(extra.max()) > 0 and metrics["rollout/second_stage"] == int(extra.sum())
    assert metrics["rollout/completions"] == 16 + int(extra.sum()) and metrics["rollout/extra_max"] == int(extra.max())
    assert metrics["rollout/extended_frac"] == float((extra > 0).float().mean())
    tokens = sum(int(part.rollout.mask.sum()) for part in (drawn.first_stage, *drawn.second_stage))
    assert metrics["rollout/tokens"] == tokens > plain["rollout/tokens"]
    same = ("reward/mean", "reward/zero_variance_frac", "completions/length_mean", "verifier/undecided_frac")
    assert [metrics[name] for name in same] == [plain[name] for name in same], "of the first stage alone"
    assert metrics["reward/mean"] == float(first.mean()) and metrics["rollout/groups_kept"] == int(drawn.kept_mask.sum())
    kept = torch.cat([part.rewards.flatten() for part in drawn.groups])
    assert metrics["reward/kept_mean"] == pytest.approx(float(kept.mean()))


def test_the_control_draws_as_many_completions(make: Make) -> None:
    found = []
    for plan in (Dars(), UniformStages()):
        drawn = draw_groups(with_plan(make("{name: dars}"), plan), 1)
        found.append(sum(part.rewards.numel() for part in drawn.second_stage))
        sizes = [part.rewards.shape[1] for part in drawn.second_stage]
        assert plan == Dars() or max(sizes) - min(sizes) <= 1
    assert found[0] == found[1] > 0


def test_parts_that_see_answers_and_a_buffer_take_both_stages(make: Make) -> None:
    advantage, buffer = DistinctRight(2), Likelihood(alone=False, weight=0.5, prompts=4)
    loop = make("{name: compose, title: both, beta: 0.0, rollout_plan: dars, advantage: {name: distinct_right, k: 2}}")
    loop = with_plan(loop, Given(), advantage=advantage)
    drawn = draw_groups(loop, 1)
    assert all(part.answers is not None and part.answers.shape == part.rewards.shape for part in drawn.groups)
    assert train_step(loop, 1)["rollout/second_stage"] == 9
    recipe = "{name: compose, beta: 0.0, rollout_plan: dars, extras: [{name: likelihood, weight: 0.5, prompts: 4}]}"
    loop = make(recipe)
    assert loop.method.buffer == buffer
    drawn = draw_groups(with_plan(loop, Given(more=(6, 6, 6, 6))), 1)
    train_step(loop, 1)
    kept, right = stored(loop), sum(int(part.rewards.sum()) for part in (drawn.first_stage, *drawn.second_stage))
    assert int(kept.tried[:, 1].sum()) == 16 + 24 and int(kept.tried[:, 2].sum()) == right > int(drawn.first_stage.rewards.sum())


# ---- a second stage under guidance


class Hinted(Countdown):
    """A world whose guidance is another target in the prompt: words would be beyond its tokenizer."""

    def guided(self, problem: Any, guidance: str) -> Any:
        return replace(problem, target=problem.target + len(guidance))


@dataclass(frozen=True)
class Says:
    """The same of every problem."""

    words: str = "hint"
    leak: bool = True

    def teach(self, task: Any, problem: Any, said: Any, verdict: Any) -> str:
        assert len(said) == 1 and verdict.label == "wrong"
        return self.words


COMPOSED = "{name: compose, beta: 0.0, advantage: leave_one_out, reduction: fixed_budget, rollout_plan: {name: guided, each: 6%s}}"


def taught(make: Make, words: str = "hint", more: str = "", *edits: str) -> TrainState:
    loop = make(COMPOSED % more, "teacher", "rules", *edits)
    in_place_of(loop, Hinted)
    loop.config = replace(loop.config, teacher=Says(words))
    return loop


def test_guided_completions_are_trained_on_without_guidance_and_weigh_by_the_ratio(make: Make) -> None:
    loop, plain = taught(make, more=", clip: 1.5"), make(COMPOSED % ", guided: false")
    drawn, control = draw_groups(with_plan(loop, Kept()), 1), draw_groups(plain, 1)
    assert by_number((drawn.first_stage,)) == by_number((control.first_stage,))
    again = draw_groups(with_plan(loop, Kept()), 1)
    assert by_number(again.second_stage) == by_number(drawn.second_stage), "as a run that goes on draws it"
    assert [(one.path, one.value) for one in refusals(plain.method, "trl")] == [("rollout", "GuidedStages")]
    (second,), (other,) = drawn.second_stage, control.second_stage
    wrong = (drawn.first_stage.rewards.sum(1) == 0).nonzero().squeeze(1).tolist()
    assert 0 < len(wrong) < 4 and second.numbers.tolist() == wrong == other.numbers.tolist()
    assert second.prompts == other.prompts, "the prompts that they are trained under"
    assert completions(second, 6) != completions(other, 6) and second.guided is not None and bool(second.guided.all())
    assert other.guided is None and torch.equal(second.row_ids, other.row_ids)
    rows = RolloutBatch.of(drawn.groups, loop.tokens.pad_id)
    logps = training.score_rows(loop, loop.policy, rows, torch.arange(len(rows.owners)), entropies=False).logps
    weights, metrics = sampler_of(loop.method).weights(rows, logps)
    assert weights is not None and weights[~rows.column("guided")].eq(1).all()
    for place, mark in enumerate(rows.column("guided").tolist()):
        if mark:
            own = rows.rollout.mask[place]
            ids = rows.rollout.tokens[place][own].tolist()
            problem = [p for part in rows.groups for p in part.problems][int(rows.owners[place])]
            sums = [law(loop, list(loop.ask(p).ids), ids) for p in (problem, loop.task.guided(problem, "hint"))]  # type: ignore[attr-defined]
            assert float(weights[place]) == pytest.approx(min(math.exp(sums[0] - sums[1]), 1.5), rel=1e-3)
    mean = float(weights[rows.column("guided")].mean())
    assert 0 < metrics["hints/frac"] < 1 and metrics["hints/weight_mean"] == pytest.approx(mean)
    assert train_step(loop, 1)["sampler/logp_gap_max"] < 1e-4, "the gap of sampler and scorer is that of the prompts they share"


class Kept(GuidedStages):
    """Trains on every group."""

    def __init__(self) -> None:
        super().__init__(each=6, clip=1.5)

    def keeps(self, rewards: Tensor) -> Tensor:
        return torch.ones(len(rewards), dtype=torch.bool)


def law(loop: TrainState, prompt: list[int], ids: list[int]) -> float:
    logits = loop.policy(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return float(torch.log_softmax(logits, -1)[range(len(ids)), ids].sum().detach())


@pytest.mark.slow
def test_a_teacher_that_says_nothing_is_the_control_bit_for_bit(make: Make) -> None:
    for updates in ((), ("updates.epochs", "2", "updates.minibatches", "2")):
        silent, control = taught(make, "", ", clip: null", *updates), make(COMPOSED % ", guided: false", *updates)
        for step in range(3):
            a, b = train_step(silent, step), train_step(control, step)
            for found in (a, b):  # of the tokens that were drawn without guidance: fewer of them in one of the two
                found.pop("sampler/logp_gap_mean", None), found.pop("sampler/logp_gap_max", None)
            assert {name: one for name, one in a.items() if not name.startswith("hints/")} == b
        assert all(torch.equal(one, weights(silent)[name]) for name, one in weights(control).items())


def test_guidance_without_a_teacher_or_beyond_the_window_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"teacher = None: .*set teacher: rules, patch"):
        make(COMPOSED % "")
    with pytest.raises(ConfigError, match=r"teacher = 'Rules': is used only by a rollout plan with hints"):
        make("{name: grpo}", "teacher", "rules")
    loop = taught(make)
    loop.policy.config.max_position_embeddings = 10
    with pytest.raises(ConfigError, match=r"the prompt with its hint has \d+ tokens.*does not fit into the 10 positions"):
        [draw_groups(loop, step) for step in range(3)]


def test_a_first_stage_above_the_bound_is_refused(write_recipe: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.group_size = 4.*first stage of Dars, which draws at most 3 in all"):
        load_config(TrainConfig, write_recipe("{name: dars, max_completions: 3}"), [])
