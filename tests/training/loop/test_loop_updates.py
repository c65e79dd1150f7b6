"""Several updates of one rollout, mini-batches and micro-batches, and guides that do nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sage_rlvr.core.extras import EntropyBonus
from sage_rlvr.core.method import has_signal
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import METHODS
from sage_rlvr.recipes import locate
from sage_rlvr.training import loop as engine
from sage_rlvr.training import scores
from sage_rlvr.training.loop import train_step
from sage_rlvr.training.samplers import PlainSampler
from training.loop.loop_common import make, run_of, weights

Recipe = Callable[..., Path]


# ---- several updates, mini-batches, micro-batches


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["{name: grpo, beta: 0.05}", "{name: dr_grpo, beta: 0.05}", "{name: rloo, beta: 0.05}"]
)
def test_micro_batches_give_the_same_weights(write_recipe: Recipe, method: str) -> None:
    recipe = write_recipe(method, steps=2, more="updates: {epochs: 2, minibatches: 2}\n")
    soft = ("optimizer.eps", "0.01")  # AdamW divides by the size of a gradient: rounding would decide about tiny ones
    whole, parts = make(recipe, soft), make(recipe, soft, ("updates.micro_batch", "1"))
    start = weights(whole)
    for step in range(2):
        a, b = train_step(whole, step), train_step(parts, step)
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-6)
        assert (
            a["surrogate/ratio_mean"] == pytest.approx(b["surrogate/ratio_mean"], abs=1e-5)
            and a["surrogate/ratio_mean"] != 1
        )
    assert (weights(whole) - start).abs().max() > 1e-4
    assert torch.allclose(weights(whole), weights(parts), rtol=0, atol=1e-6)


def test_a_micro_batch_alone_changes_nothing(write_recipe: Recipe) -> None:
    soft = ("optimizer.eps", "0.01")
    whole, parts = make(write_recipe(), soft), make(write_recipe(), soft, ("updates.micro_batch", "3"))
    train_step(whole, 0)
    train_step(parts, 0)
    assert torch.allclose(weights(whole), weights(parts), rtol=0, atol=1e-6)


def test_each_update_has_its_number(write_recipe: Recipe) -> None:
    """Two epochs of two mini-batches over three steps: the learning rate sees updates 0 to 11, each once."""
    recipe = write_recipe(steps=3, more="updates: {epochs: 2, minibatches: 2}\n")
    loop = make(recipe, ("optimizer.schedule", "linear"))
    numbers: list[int] = []
    inner = loop.optimizer.step
    loop.optimizer.step = lambda number: numbers.append(number) or inner(number)  # type: ignore[method-assign,func-returns-value]
    last = [train_step(loop, step)["optimizer/lr"] for step in range(3)]
    assert numbers == list(range(12)) and loop.optimizer.total_steps == 12
    assert last == pytest.approx([1e-3 * (1 - (4 * s + 1.5) / 12) for s in range(3)])


def test_a_mini_batch_pass_uses_every_row_once(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make(write_recipe(more="updates: {epochs: 2, minibatches: 2, micro_batch: 1}\n"))
    seen: list[int] = []
    inner = engine.select
    monkeypatch.setattr(
        engine, "select", lambda whole, rows, logps: seen.extend(rows.tolist()) or inner(whole, rows, logps)
    )
    train_step(loop, 0)
    assert len(seen) == 32 and sorted(seen[:16]) == sorted(seen[16:]) == list(range(16))
    assert all(row // 4 == group[0] // 4 for i in range(0, 32, 4) for group in [seen[i : i + 4]] for row in group)


def test_no_forward_is_wider_than_a_micro_batch(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of the old policy and the reference; entropies come once, from the old policy."""
    calls: list[tuple[bool, int, bool, bool]] = []
    inner = scores.score

    def score(model: Any, prompts: Any, tokens: Tensor, *rest: Any, entropies: bool, **more: Any) -> Any:
        calls.append((model is loop.policy, len(tokens), entropies, torch.is_grad_enabled()))
        return inner(model, prompts, tokens, *rest, entropies=entropies, **more)

    monkeypatch.setattr(scores, "score", score)
    loop = make(write_recipe(more="updates: {epochs: 2, minibatches: 2, micro_batch: 1}\n"))
    train_step(loop, 0)
    assert calls == [(True, 4, True, False)] * 4 + [(False, 4, False, False)] * 4 + [(True, 4, False, True)] * 8
    calls.clear()
    loop = make(write_recipe())
    train_step(loop, 0)
    assert calls == [(True, 16, True, True), (False, 16, False, False)]


def test_only_a_step_of_several_updates_keeps_a_copy_of_the_weights(
    write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    inner = engine.undone_if_diverged
    monkeypatch.setattr(engine, "undone_if_diverged", lambda loop: copies.append(1) or inner(loop))
    for updates, wanted in (("{micro_batch: 1}", 0), ("{minibatches: 2}", 1), ("{epochs: 2}", 1)):
        copies.clear()
        train_step(make(write_recipe(more=f"updates: {updates}\n")), 0)
        assert len(copies) == wanted


# ---- a guide that does nothing


def test_a_threshold_above_the_vocabulary_stops_a_run_before_its_first_step(write_recipe: Recipe, tmp_path: Path) -> None:
    recipe = write_recipe("{name: sage, guide: {name: branch, threshold: 10}}")
    with pytest.raises(ConfigError, match=r"threshold = 10 nats is never exceeded: the policy has 21 logits.*'p80'"):
        run_of(recipe, tmp_path / "run")
    with pytest.raises(ConfigError, match="is never exceeded"):  # as typed for a recipe of the demo
        make(locate("sage_branch"), ("method.guide.threshold", "10"))


@pytest.mark.slow
def test_a_guide_that_sleeps_for_ten_steps_is_said_once(write_recipe: Recipe, tmp_path: Path) -> None:
    """Just below ln 21 a threshold is possible and never met; one far below 0 clamps q at 1.4 everywhere."""
    few = "rollout: {prompts_per_step: 1, group_size: 2, max_new_tokens: 4}"
    for threshold, said in (("3.04", "Branch does nothing: q = 1"), ("-99", "Branch is clamped everywhere")):
        recipe = write_recipe(f"{{name: sage, guide: {{name: branch, threshold: {threshold}}}}}", steps=12)
        recipe.write_text(re.sub("rollout:.*", few, recipe.read_text()))
        with pytest.warns(UserWarning, match=rf"^{said}.* in the 10 steps up to step 9 ") as caught:
            run_of(recipe, tmp_path / threshold)
        assert len([each for each in caught if "Branch" in str(each.message)]) == 1


# ---- updates without a signal

BRANCH = "{name: sage, base: {name: grpo, beta: 0.05}, guide: {name: branch, threshold: 0.1}}"


def unpaid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every completion earns 0."""
    inner = PlainSampler.draw

    def drawn(*args: Any) -> Any:
        found = inner(*args)
        for part in found.groups:
            part.rewards.zero_()
        return found

    monkeypatch.setattr(PlainSampler, "draw", drawn)


@pytest.mark.parametrize("more", ["", "updates: {epochs: 2, minibatches: 2}\n"])
def test_an_update_without_a_signal_moves_a_guided_policy_unless_it_is_skipped(
    write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    unpaid(monkeypatch)
    plain = make(write_recipe(BRANCH, more=more))
    skipped = make(write_recipe(BRANCH, more=more), ("updates.skip_without_signal", "always"))
    start, norms, step = weights(plain), [], plain.optimizer.step
    monkeypatch.setattr(plain.optimizer, "step", lambda number: norms.append(step(number)["optimizer/grad_norm"]) or {})
    found, left = train_step(plain, 0), train_step(skipped, 0)
    assert found["advantage/no_signal_frac"] == left["advantage/no_signal_frac"] == 1
    # AdamW's first step is the learning rate, 1e-3, at nearly every weight, however small the gradient is. Later updates are of
    # a policy that has moved.
    assert norms[0] < 0.1 and (weights(plain) - start).abs().median() > 5e-4
    assert torch.equal(weights(skipped), start) and not skipped.optimizer.adam.state
    assert left["optimizer/lr"] == 0 and "optimizer/grad_norm" not in left


@pytest.mark.parametrize("more", ["", "micro_batch: 1, ", "epochs: 2, minibatches: 2, "])
def test_a_skipped_update_computes_nothing(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    """Neither a forward of the policy nor a backward; its metrics are those of the rollout's own scores."""
    unpaid(monkeypatch)
    forwards, backwards, score_rows, backward = [], [], engine.score_rows, torch.Tensor.backward
    monkeypatch.setattr(engine, "score_rows", lambda *args, **read: forwards.append(1) or score_rows(*args, **read))
    monkeypatch.setattr(torch.Tensor, "backward", lambda self: backwards.append(1) or backward(self))
    rows = {}
    for skip in ("never", "always"):
        forwards.clear()
        backwards.clear()
        loop = make(write_recipe(BRANCH, more=f"updates: {{{more}skip_without_signal: {skip}}}\n"))
        rows[skip] = train_step(loop, 0)
        assert (skip == "never") == bool(backwards) and (skip == "never" and bool(more)) == bool(forwards)
    if "epochs" not in more:  # later updates are of a policy that has moved
        names = set(rows["always"]) - {"optimizer/lr"}
        assert names == set(rows["never"]) - {"optimizer/lr", "optimizer/grad_norm"}
        assert {name: rows["always"][name] for name in names} == pytest.approx({name: rows["never"][name] for name in names})


def test_without_a_kl_nothing_moves_where_nothing_is_earned(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    unpaid(monkeypatch)
    loop = make(write_recipe("{name: grpo, beta: 0.0}"))
    start = weights(loop)
    assert train_step(loop, 0)["optimizer/grad_norm"] == 0 and torch.equal(weights(loop), start)


def test_an_update_with_a_signal_is_the_same_with_the_option(write_recipe: Recipe) -> None:
    a, b = make(write_recipe(BRANCH)), make(write_recipe(BRANCH), ("updates.skip_without_signal", "always"))
    assert train_step(a, 0)["advantage/no_signal_frac"] == 0
    train_step(b, 0)
    assert torch.equal(weights(a), weights(b))


def test_a_mini_batch_is_skipped_alone(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """One group of four has two rewards: one of four updates is made."""
    inner = PlainSampler.draw

    def drawn(*args: Any) -> Any:
        found = inner(*args)
        for part in found.groups:
            part.rewards.zero_()
            part.rewards[0, 0] = 1.0
        return found

    monkeypatch.setattr(PlainSampler, "draw", drawn)
    loop = make(write_recipe(BRANCH, more="updates: {minibatches: 4, skip_without_signal: always}\n"))
    row = train_step(loop, 0)
    assert row["advantage/no_signal_frac"] == 0.75 and row["optimizer/grad_norm"] > 0
    assert {float(state["step"]) for state in loop.optimizer.adam.state.values()} == {1.0}


def test_at_start_skips_until_the_first_signal(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 0 and 2 earn nothing, step 1 does: the KL's pull after it is needed, and stays."""
    inner = PlainSampler.draw

    def drawn(sampler: Any, loop: Any, step: int) -> Any:
        found = inner(sampler, loop, step)
        for part in found.groups:
            part.rewards.zero_()
            part.rewards[:, 0] = float(step == 1)
        return found

    monkeypatch.setattr(PlainSampler, "draw", drawn)
    loop = make(write_recipe(BRANCH, steps=3, more="updates: {skip_without_signal: at_start}\n"))
    rows = [train_step(loop, step) for step in range(3)]
    assert [row["advantage/no_signal_frac"] for row in rows] == [1, 0, 1]
    assert [row["optimizer/lr"] for row in rows] == [0, 1e-3, 1e-3]


def test_a_label_of_0_and_a_loss_term_are_signals() -> None:
    """PACS learns from wrong completions, whose label is 0; an entropy bonus needs no advantage; a KL in the reward is none."""
    mask, zero = torch.tensor([[True, True], [False, False]]), torch.zeros(2)
    for name, wanted in (("pacs", True), ("grpo", False), ("rloo", False)):
        assert has_signal(METHODS[name](), zero, mask).tolist() == [wanted, False], name
    bonus = replace(METHODS["dapo"](), extras=(EntropyBonus(0.01),))
    assert has_signal(bonus, zero, mask).tolist() == [True, False]
    assert has_signal(None, torch.tensor([[0.5], [0.5]]), mask).tolist() == [True, False]
