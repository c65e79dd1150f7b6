"""Samples of the base model in a run: counts from a store, PBA's KL and SFT by hand, and problems without samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from base_store import N, as_eval_samples, base_store
from sage_rlvr.api.evaluate import evaluate
from sage_rlvr.api.train import train
from sage_rlvr.cli.doctor import cost_lines
from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.contrib.methods.pba import Sharpen, pba
from sage_rlvr.core import PlaceboPrompts, PromptGate
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.base_samples import base_of, base_samples_of
from sage_rlvr.evaluation.store import PromptAndGold, SampleStore
from sage_rlvr.methods import grpo
from sage_rlvr.runs import read_metrics
from sage_rlvr.testing import check_extra
from sage_rlvr.training.base_samples import BaseSamples
from sage_rlvr.training.buffer import fill, stored
from sage_rlvr.training.loop import build, train_step
from sage_rlvr.training.loop_state import TrainState
from training.loop.loop_common import make, weights

Recipe = Callable[..., Path]
PBA = "{name: pba, beta: 0.5, k: 8, below: 0.15, above: 0.4%s}"


@pytest.fixture
def problems(write_recipe: Recipe) -> list[tuple[str, str]]:
    """Id and one right completion of each training problem of the small recipe."""
    loop = make(write_recipe())
    return [(str(problem.problem_id), next(iter(loop.task.solutions(problem)))) for problem in loop.problems]


def share_of(number: int) -> int:
    """Right ones of `N` samples of the training problem with that number: 0, 1, 5, 8, 0, ..."""
    return (0, 1, 5, 8)[number % 4]


@pytest.fixture
def own(write_recipe: Recipe) -> dict:
    """The identity of samples of the small recipe's base."""
    return as_eval_samples(load_config(TrainConfig, write_recipe()))


@pytest.fixture
def folder(problems: list[tuple[str, str]], tmp_path: Path, own: dict) -> Path:
    counts = {name: share_of(number) for number, (name, _) in enumerate(problems)}
    return base_store(tmp_path / "base", counts, dict(problems), **own)


def loop_of(recipe: Path, folder: Path, method: str) -> TrainState:
    return build(load_config(TrainConfig, recipe, [("method", method)]), base_samples_of(folder))


def test_counts_come_from_the_store_and_undecided_samples_are_not_right(tmp_path: Path):
    base = base_samples_of(base_store(tmp_path, {"a": 3, "b": 0, "c": N}))
    assert base.counts == {"a": (3, N), "b": (0, N), "c": (N, N)}
    assert base.rows(["b", "c"], 2).tolist() == [[0, N], [0, N], [N, N], [N, N]]
    assert base.above(0.3, ["a", "b", "c"]) == ["c"] and base.above(0.29, ["a", "b", "c"]) == ["a", "c"]
    assert base.answers(["a"]) == [("a", "a right")] * 3
    assert "3 problems with 10 samples each, 1 without a right one" in base.line
    assert base.digest == replace(base, where="elsewhere").digest != replace(base, counts={"a": (3, N)}).digest


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.integers(0, 99))
@example((63, 90), 70)
@example((57, 100), 57)
@example((29, 50), 58)
@example((29, 100), 29)
def test_a_problem_is_sharpened_or_gets_the_policy_gradient_and_never_both(counts: tuple[int, int], percent: int):
    method = pba(sharpen=percent / 100)
    gate, extra = method.advantage.weight, method.extras[0]
    sharpened = BaseSamples("a test", {"a": counts}, lambda names: []).above(extra.base_above, ["a"])
    right, tried = torch.tensor([counts]).double().unbind(1)
    assert bool(sharpened) != bool(gate.weigh(right, tried))
    assert bool(sharpened) == (100 * counts[0] > percent * counts[1])


@pytest.mark.slow
def test_a_problem_without_samples_is_named(tmp_path: Path, folder: Path, write_recipe: Recipe, problems: list[tuple[str, str]]):
    few = base_store(tmp_path / "few", {name: 1 for name, _ in problems[:-1]})
    with pytest.raises(DataError, match=rf"no samples of training problem '{problems[-1][0]}'"):
        loop_of(write_recipe(), few, PBA % "")
    with pytest.raises(ConfigError, match=r"base_samples is null.*--store FOLDER"):
        make(write_recipe(), ("method", PBA % ""))


@pytest.mark.parametrize(("cut", "named"), [({"top_k": 5}, "'top_k': 5"), ({"temperature": 0.3}, r"'temperature': 0\.3.*ture 1 ")])
def test_samples_that_are_not_the_models_own_are_refused(cut: dict, named: str, tmp_path: Path):
    decoding = {"preset": "x", "temperature": 1.0, "max_new_tokens": 8} | cut
    with pytest.raises(ConfigError, match=named):
        base_samples_of(base_store(tmp_path / "cut", {"a": 1}, decoding=decoding))
    with pytest.raises(ConfigError, match="second attempts"):
        base_samples_of(base_store(tmp_path / "again", {"a": 1}, guidance="rules of x"))


def test_samples_of_another_policy_task_or_prompt_are_refused(tmp_path: Path, write_recipe: Recipe, tiny_policy: Path, own: dict):
    """Both sides are named, and the command that draws the right ones: on the loop, on TRL and in a probe alike."""
    config = load_config(TrainConfig, write_recipe(PBA % ", sharpen: null"))
    others = {
        "model": {"revision": as_eval_samples(config, str(tiny_policy))["revision"]},
        "task": {"task": "sums"},
        "prompt template": {"template_hash": "h0"},
        "verifier": {"verifier_hash": "v0"},
    }
    for number, (what, change) in enumerate(others.items()):
        ((field, there),) = change.items()
        folder = base_store(tmp_path / str(number), {"a": 1}, **own | change)
        refused = rf"  {what}: .*{there}.*; needed: .*{own[field]}.*\n.*eval {config.model} .* --problems 60 "
        with pytest.raises(ConfigError, match=refused):
            base_of(replace(config, base_samples=str(folder)))
        for engine in ("loop", "trl"):
            recipe = write_recipe(PBA % ", sharpen: null", more=f"base_samples: {folder}\nengine: {{name: {engine}}}\n")
            with pytest.raises(ConfigError, match=f"  {what}: "):
                train(recipe, run=tmp_path / "run", quiet=True, say=lambda line: None)


def test_samples_of_other_prompts_under_the_same_ids_are_refused(
    folder: Path, write_recipe: Recipe, problems: list[tuple[str, str]]
):
    config = load_config(TrainConfig, write_recipe(PBA % "", more=f"base_samples: {folder}\n"))
    with SampleStore.open(folder) as store:
        store.describe({problems[2][0]: PromptAndGold("another prompt")})
    with pytest.raises(ConfigError, match=rf"problem '{problems[2][0]}': \('another prompt', None\); needed: "):
        base_of(config)


def test_samples_that_eval_draws_of_the_base_are_taken(tmp_path: Path, write_recipe: Recipe):
    recipe = write_recipe(PBA % "", more=f"base_samples: {tmp_path / 'drawn'}\n")
    config = load_config(TrainConfig, recipe)
    drawn = {"split": "train", "problems": 60, "samples": 2, "store": tmp_path / "drawn"}
    evaluate(config.model, task=str(recipe), quiet=True, say=lambda line: None, **drawn)
    assert base_of(config).of(str(config.world.build().problems("train")[59].problem_id))[1] == 2


def test_the_table_of_pba_by_hand(folder: Path):
    """n = 10, k = 8: pass@8 of c = 0 is 0, and of c = 1 is 8 / 10; a share of 0.1 is below 0.15, one of 0.5 is not."""
    base = base_samples_of(folder)
    right, tried = torch.tensor(list(base.counts.values())).double().unbind(1)
    gate = PromptGate(below=0.15, k=8, above=0.4, of="base")
    wanted = {0: 0.0, 1: 1.0, 5: 0.0, 8: 0.0}
    assert gate.weigh(right, tried).tolist() == [wanted[int(c)] for c in right]
    none_and_one = torch.tensor([[0.0, 1.0], [10.0, 10.0]]).double()
    assert gate.pass_at_k(*none_and_one).tolist() == pytest.approx([0, 0.8])


def test_only_boundary_prompts_feel_the_kl_and_sharpened_ones_no_policy_gradient(folder: Path, write_recipe: Recipe):
    loop = loop_of(write_recipe(), folder, PBA % "")
    fill(loop)
    kept = stored(loop)
    assert set(kept.problem.tolist()) == {n for n in range(len(loop.problems)) if share_of(n) == 8}
    assert len(kept) == len(kept.problem.unique())  # the same right answer eight times: once
    metrics = [train_step(loop, step) for step in range(3)]
    assert all(0.0 <= one["kl/prompt_weight"] <= 1.0 for one in metrics)
    assert {one["kl/prompt_weight"] for one in metrics} != {0.0}
    assert any(one["replay/rows"] for one in metrics)


def test_without_boundary_prompts_and_sharpening_it_is_grpo_without_a_kl(tmp_path: Path, problems: list, write_recipe: Recipe):
    folder = base_store(tmp_path / "even", {name: 5 for name, _ in problems})
    after = []
    for method in (PBA % ", sharpen: null", "{name: no_kl}"):
        loop = loop_of(write_recipe(), folder, method)
        for step in range(2):
            train_step(loop, step)
        after.append(weights(loop))
    assert torch.equal(*after)


def test_where_every_prompt_is_at_the_boundary_it_is_grpo_bit_for_bit(tmp_path: Path, problems: list, write_recipe: Recipe):
    folder = base_store(tmp_path / "all", {name: 1 for name, _ in problems})
    after = []
    for method in (PBA % "", "{name: grpo, beta: 0.5}"):
        loop = loop_of(write_recipe(), folder, method)
        for step in range(2):
            train_step(loop, step)
        after.append(weights(loop))
    assert torch.equal(*after)


def test_the_placebo_permutes_the_kl_alone():
    method, placebo = pba(), pba(permuted=True)
    assert placebo.anchor.prompts == PlaceboPrompts(method.anchor.prompts)
    assert replace(placebo, anchor=method.anchor) == method


@pytest.mark.slow
def test_a_run_by_its_recipe_records_the_counts_and_is_refused_with_other_ones(
    folder: Path, tmp_path: Path, write_recipe: Recipe, problems: list[tuple[str, str]], own: dict
):
    recipe, run = write_recipe(PBA % "", more=f"base_samples: {folder}\n"), tmp_path / "run"
    done = train(recipe, run=run, quiet=True, say=lambda line: None)
    assert done.finished and "kl/prompt_weight" in read_metrics(run)[0]
    base_store(tmp_path / "other", {name: 2 for name, _ in problems}, **own)
    with pytest.raises(Exception, match="counts of"):
        folder.rename(tmp_path / "moved")
        (tmp_path / "other").rename(folder)
        train(recipe, run=run, quiet=True, say=lambda line: None, steps=3, fork=False)


def test_the_extra_obeys_the_laws_and_refuses_no_share():
    check_extra(Sharpen())
    with pytest.raises(ConfigError, match=r"base_above = 1\.5"):
        Sharpen(base_above=1.5)


def test_a_probe_reads_the_samples_or_says_that_it_lacks_them(folder: Path, write_recipe: Recipe):
    config = load_config(TrainConfig, write_recipe(PBA % "", more=f"base_samples: {folder}\n"))
    assert base_of(config).counts == base_samples_of(folder).counts
    assert base_of(replace(config, method=grpo())) is None  # which reads none
    (said,) = cost_lines(replace(config, base_samples=None), lambda line: None)
    assert said.startswith("no probe on this machine: method pba reads samples of the base model")


def test_no_more_than_a_mapping_is_needed():
    base = BaseSamples("a test", {"a": (1, 2)}, lambda names: [])
    with pytest.raises(DataError, match="base_samples = a test: no samples of training problem 'b'"):
        base.check(["a", "b"])
