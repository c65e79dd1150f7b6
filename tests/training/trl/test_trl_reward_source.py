"""Rewards that the policy computes, on TRL: by hand, in checkpoints, from the reward functions' reference answers."""


from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from safetensors.torch import load_file

from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.contrib.self_reward.rlpr import StdFilter, rlpr
from sage_rlvr.contrib.self_reward.verifree import verifree
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import compose
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir, read_metrics
from sage_rlvr.training.trl import SageTrainer, grpo_config
from sage_rlvr.training.trl.run import train
from trl_common import arguments, build, same, weights


def target_of(row: dict[str, Any], text: str) -> tuple[str, tuple[int, int] | None]:
    """Every completion is all answer, and the reference is the prompt's own target."""
    return row["prompt"].partition("=")[2].rstrip(":"), (0, len(text))


class Kept(SageTrainer):
    """Keeps what it drew: rows and rewards."""

    def _draw(self, inputs: Any) -> Any:
        prompts = [row["prompt"] for row in inputs]
        output, rewards = super()._draw(inputs)
        self.__dict__.setdefault("drawn", []).append((prompts, output, rewards.clone()))
        return output, rewards


def test_rewards_are_the_policys_and_the_first_weights_are_kept(tiny_policy: Path, tmp_path: Path) -> None:
    """Each row by one plain forward of the policy as it was then; verdicts go to the metrics alone."""
    method = rlpr(std_filter=False, given=0.5)
    args = arguments(tmp_path, **grpo_config(method) | {"max_steps": 2, "learning_rate": 1e-2})
    trainer = build(tiny_policy, args, Kept, method=method, reference_answer=target_of)
    before, snapshots = weights(trainer), []
    plain = trainer._draw
    trainer._draw = lambda rows: snapshots.append(weights(trainer)) or plain(rows)
    trainer.train()
    assert same(before, {n: v for n, v in trainer.initial.state_dict().items()}) and not same(before, weights(trainer))
    tokenizer, model, seen = trainer.processing_class, trainer.model, set()
    for weight, (prompts, output, rewards) in zip(snapshots, trainer.drawn, strict=True):
        for i, prompt in enumerate(prompts):
            ids = output["completion_ids"][i][output["completion_mask"][i].bool()].tolist()
            seen.add(ids[-1] == tokenizer.eos_token_id)
            if ids[-1] != tokenizer.eos_token_id:
                assert float(rewards.flatten()[i]) == 0
                continue
            asked, y = tokenizer(prompt)["input_ids"], tokenizer(target_of({"prompt": prompt}, "")[0])["input_ids"]
            count, found = len(y) // 2, []
            for lead, at in ((ids[:-1][:count], weight), ([], before)):
                model.load_state_dict(at)
                with torch.no_grad():
                    logits = model.eval()(torch.tensor([asked + lead + y[count:]])).logits[0, -1 - len(y[count:]) : -1] / 0.8
                found.append(torch.softmax(logits, -1)[range(len(y[count:])), y[count:]].mean())
            wanted = 0.9 * (found[0] - found[1]).clamp(0, 1) + 0.1
            torch.testing.assert_close(rewards.flatten()[i], wanted, rtol=0, atol=1e-5)
    assert seen == {True, False}
    logged = trainer.state.log_history[0]
    assert {"reward/mean", "self_reward/mean", "verifier/right_frac"} <= logged.keys()
    assert logged["reward/mean"] == pytest.approx(float(trainer.drawn[0][2].mean())) != logged["reward"]


def test_the_filters_mean_is_in_the_checkpoint(tiny_policy: Path, tmp_path: Path) -> None:
    plan = StdFilter(0.9, skip=0, collect=1, max_refills=0)
    source = rlpr(debias="none", given=0.5).reward_source
    method = compose(beta=0.0, extras=(source,), rollout_plan=plan)

    def run(name: str, **more: Any) -> Any:
        options = grpo_config(method) | {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3}
        trainer = build(tiny_policy, arguments(tmp_path / name, **options), method=method, reference_answer=target_of)
        trainer.train(**more)
        return trainer

    whole = run("whole")
    folder = tmp_path / "whole" / "out" / "checkpoint-2"
    kept = load_file(folder / "sage_parts.safetensors")
    assert int(kept["rollout.StdFilter.steps"]) == 2 and float(kept["rollout.StdFilter.std_mean"]) > 0
    again = run("again", resume_from_checkpoint=str(folder))
    assert same(weights(whole), weights(again))
    assert torch.equal(whole.parts["rollout"]["std_mean"], again.parts["rollout"]["std_mean"])
    assert any(row.get("rollout/groups_kept", 9) < 2 for row in whole.state.log_history)  # it dropped some


def test_a_recipe_reads_its_tasks_reference_answers(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    config = load_config(TrainConfig, write_recipe("{name: rlpr, given: 0.5}"), [("engine.name", "trl")])
    with pytest.warns(UserWarning, match="only computed for metrics"), RunDir.open(tmp_path / "run", dump(config)) as run:
        assert train(config, run, tmp_path / "run", Silent()) == 2
    rows = read_metrics(tmp_path / "run")
    assert all(0 < row["self_reward/mean"] < row["reward/mean"] < 1 for row in rows)


def test_what_cannot_be_scored_is_refused(tiny_policy: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    args = arguments(tmp_path, **grpo_config(verifree()))
    with pytest.raises(ConfigError, match="no reward function provides them; pass reference_answer="):
        build(tiny_policy, args, method=verifree())
    lora = peft.LoraConfig(r=4, target_modules=["q_proj"])
    with pytest.raises(ConfigError, match="weights are sharded or an adapter"):
        build(tiny_policy, args, method=verifree(), reference_answer=target_of, peft_config=lora)
