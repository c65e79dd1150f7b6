"""Updates without a signal on TRL: counted, skipped where wanted, and told apart from rounding. Needs TRL."""



from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from sage_rlvr.config import UpdateConfig
from sage_rlvr.core.guides import Branch
from sage_rlvr.methods import dr_grpo, grpo, rloo, sage
from sage_rlvr.training.trl import SageTrainer, grpo_config
from trl_common import arguments, build, same, weights

FRACTION = "advantage/no_signal_frac"
GUIDED = sage(grpo(beta=0.3), Branch(threshold=0.1))


class Skipping(SageTrainer):
    updates = UpdateConfig(skip_without_signal="always")


class AtStart(SageTrainer):
    updates = UpdateConfig(skip_without_signal="at_start")


def equal(completions: list[str], **_: object) -> list[float]:
    """Seven tenths for all: TRL's normalized advantages of a group of eight are 6e-4 then, not 0."""
    return [0.7] * len(completions)


def rare(completions: list[str], **_: object) -> list[float]:
    """One completion of a micro-batch is paid."""
    return [1.0] + [0.0] * (len(completions) - 1)


def run(kind: type, policy: Path, folder: Path, method: Any = GUIDED, layout: str = "plain", **more: Any) -> Any:
    options = {"per_device_train_batch_size": 8, "num_generations": 8, "max_steps": 2, **grpo_config(method)}
    return build(policy, arguments(folder, layout, **options), kind, method=method, **more)


def last(completions: list[str], **_: object) -> list[float]:
    """Only the last completion of a group is paid: all rows but one equal the group's first row."""
    return [0.0] * (len(completions) - 1) + [1.0]


def test_rows_that_equal_the_first_of_their_group_have_a_signal(tiny_policy: Path, tmp_path: Path) -> None:
    method = dr_grpo(beta=0.0)
    split = {"per_device_train_batch_size": 2, "num_generations": 8, "steps_per_generation": 4, "max_steps": 4}
    options = {**grpo_config(method), **split}
    trainer = build(tiny_policy, arguments(tmp_path, **options), Skipping, method=method, reward_funcs=last)
    trainer.train()
    assert [line[FRACTION] for line in trainer.state.log_history[:-1]] == [0.0] * 4


@pytest.mark.parametrize("layout", ["plain", "accumulated", "moves: both"])
@pytest.mark.parametrize("method", [GUIDED, sage(rloo(beta=0.3), Branch(threshold=0.1)), dr_grpo(beta=0.3)])
def test_an_update_without_a_signal_is_counted_and_skipped(tiny_policy: Path, tmp_path: Path, method: Any, layout: str) -> None:
    trainer = run(Skipping, tiny_policy, tmp_path, method, layout, reward_funcs=equal)
    before = weights(trainer)
    trainer.train()
    assert same(weights(trainer), before) and not trainer.optimizer.optimizer.state
    assert [line[FRACTION] for line in trainer.state.log_history[:-1]] == [1.0, 1.0]


def test_without_the_option_the_guide_moves_it(tiny_policy: Path, tmp_path: Path) -> None:
    trainer = run(SageTrainer, tiny_policy, tmp_path, reward_funcs=equal)
    before = weights(trainer)
    trainer.train()
    assert not same(weights(trainer), before) and trainer.state.log_history[0][FRACTION] == 1


def test_with_a_signal_the_option_changes_nothing(tiny_policy: Path, tmp_path: Path) -> None:
    found = []
    for kind in (SageTrainer, Skipping):  # each is trained at once: it draws from the generator that it has seeded
        trainer = run(kind, tiny_policy, tmp_path, reward_funcs=rare)
        trainer.train()
        found.append((weights(trainer), trainer.state.log_history[0][FRACTION]))
    assert same(found[0][0], found[1][0]) and [fraction for _, fraction in found] == [0, 0]


def test_at_start_skips_until_the_first_signal(tiny_policy: Path, tmp_path: Path) -> None:
    calls: list[int] = []

    def second(completions: list[str], **_: object) -> list[float]:
        calls.append(1)
        return rare(completions) if len(calls) == 2 else equal(completions)

    trainer = run(AtStart, tiny_policy, tmp_path, reward_funcs=second)
    trainer.args.max_steps = 3
    trainer.train()
    assert [line[FRACTION] for line in trainer.state.log_history[:-1]] == [1, 0, 1]
    assert {float(one["step"]) for one in trainer.optimizer.state.values()} == {2.0}
