"""Extras on the loop: problems that an extra chooses, and GRPODropout as a plugin of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from command import call
from extras_common import DROPOUT, Again, Pull, dropout_plugin, registries_restored
from loop_recorded import draw_groups
from sage_rlvr.core import Extra
from sage_rlvr.errors import ConfigError
from sage_rlvr.training.loop import train_step
from sage_rlvr.training.problems import files_of
from training.loop.loop_common import make, own_problems, weights

Recipe = Callable[..., Path]


def test_unsolved_problems_come_back(write_recipe: Recipe) -> None:
    loop = make(write_recipe("{name: grpo, beta: 0.05}", steps=3))
    loop = replace(loop, method=replace(loop.method, extras=(Again(),)), parts=replace(loop.method, extras=(Again(),)).start())
    usual = make(write_recipe("{name: grpo, beta: 0.05}", steps=3))
    assert own_problems(loop, 0) == own_problems(usual, 0)
    groups = draw_groups(loop, 0).groups[0]
    unsolved = [p for p, right in zip(groups.problems, groups.rewards.amax(dim=1) > 0, strict=True) if not right]
    assert 0 < len(unsolved) < 4
    metrics = train_step(loop, 0)
    assert metrics["extra/again/steps"] == 1
    found = own_problems(loop, 1)
    assert len(found) == 4 and {p.problem_id for p in found[: len(unsolved)]} == {p.problem_id for p in unsolved}
    assert all(p in own_problems(usual, 1) for p in found[len(unsolved) :])


@dataclass(frozen=True)
class Listed(Extra):
    """Asks for the problems at places that a file lists."""

    table: str
    equation: ClassVar[str] = "problems of a list"

    @property
    def files(self) -> tuple[str, ...]:
        return (self.table,)

    def before_rollout(self, selected: Tensor, problems: Tensor, step: int, key: Any, state: Any) -> Tensor:
        return torch.tensor(json.loads(Path(self.table).read_text()))


def test_an_extra_asks_for_as_many_problems_as_a_step_has_and_for_known_ones(tmp_path: Path, write_recipe: Recipe) -> None:
    loop, table = make(write_recipe("{name: grpo, beta: 0.05}")), tmp_path / "places.json"
    loop = replace(loop, method=replace(loop.method, extras=(Listed(str(table)),)))
    table.write_text("[3, 1, 0, 2]")
    assert own_problems(loop, 0) == [loop.problems[i] for i in (3, 1, 0, 2)]
    for places in ("[3, 1, 0]", "[3, 1, 0, -1]", f"[3, 1, 0, {len(loop.problems)}]"):
        table.write_text(places)
        with pytest.raises(ConfigError, match=r"Listed\.before_rollout must return 4 places among the \d+ problems, got \[3, 1, 0"):
            own_problems(loop, 0)


def test_the_files_of_an_extra_are_recorded_and_must_be_there(tmp_path: Path, write_recipe: Recipe) -> None:
    config, table = make(write_recipe("{name: grpo, beta: 0.05}")).config, tmp_path / "places.json"
    reading = replace(config, method=replace(config.method, extras=(Listed(str(table)),)))
    with pytest.raises(ConfigError, match=r"Listed: file = '.*places\.json': no such file"):
        files_of(reading)
    table.write_text("[]")
    assert files_of(reading) == files_of(config) | {str(table): sha256(b"[]").hexdigest()}


def test_a_term_of_an_extra_moves_the_policy(write_recipe: Recipe) -> None:
    for updates in ((), (("updates.epochs", "2"), ("updates.minibatches", "2"))):
        plain, pulled = (make(write_recipe("{name: grpo, beta: 0.05}"), *updates) for _ in range(2))
        pulled = replace(pulled, method=replace(pulled.method, extras=(Pull(),)))
        assert "extra/pull/loss" in train_step(pulled, 0) and "extra/pull/loss" not in train_step(plain, 0)
        assert not torch.equal(weights(plain), weights(pulled))


def test_dropout_changes_only_the_advantages(write_recipe: Recipe) -> None:
    with dropout_plugin() as names:
        plain = make(write_recipe("{name: grpo_token_mean, beta: 0.0}"))
        dropping = replace(plain, method=names["grpo_dropout"]())
        twin = make(write_recipe("{name: grpo_token_mean, beta: 0.0}"))
        a, b = train_step(twin, 0), train_step(dropping, 0)
    assert a["reward/mean"] == b["reward/mean"] and a["rollout/tokens"] == b["rollout/tokens"]
    assert b["advantage/zero_frac"] > a["advantage/zero_frac"] and not torch.equal(weights(twin), weights(dropping))


@pytest.mark.slow  # tests/cli/test_plugins.py has a method of a plugin; the laws of this one are above
def test_the_plugin_trains_by_name(tmp_path: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--steps", "1", "--rollout.prompts_per_step", "2", "--rollout.group_size", "4", "--model", str(warm_policy)]
    with registries_restored():
        words = ["train", "grpo_dropout", "--plugin", str(DROPOUT), "--task", "countdown"]
        assert call(*words, "--run", str(tmp_path / "run"), *small, "--quiet") == 0
        facts = json.loads((tmp_path / "run" / "run.json").read_text())
        assert facts["config"]["method"]["name"] == "grpo_dropout" and facts["config"]["method"]["rescale"] is True
        capsys.readouterr()
        assert call("show", "grpo_dropout", "--plugin", str(DROPOUT)) == 0
        assert "RolloutDropout: A' = (A - sum_kept w A) / std_kept A" in capsys.readouterr().out
