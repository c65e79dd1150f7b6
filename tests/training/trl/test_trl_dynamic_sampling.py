"""Dynamic sampling on TRL: dropped groups, refills by seed and step, draws merged, checkpoints between them. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

trl = pytest.importorskip("trl")

from packaging.version import Version

from sage_rlvr.core import (
    Key,
    Linear,
    Method,
)
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.rollout_plans import DynamicSampling
from sage_rlvr.core.state import tensors_of
from sage_rlvr.errors import CheckpointError
from sage_rlvr.methods import dapo, grpo, sage
from sage_rlvr.training.trl import dynamic_sampling, grpo_config
from stateful import stateful
from training.trl.methods_common import BOTH, BRANCH, Recorder, overlong, trained
from trl_common import LAYOUTS, PROMPTS, arguments, build, reward, same, weights


def lively(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """All right where the first number of the prompt is even, so that half of the groups are dead."""
    found = reward(completions)
    return [1.0 if int(prompt[0]) % 2 == 0 else r for prompt, r in zip(prompts, found, strict=True)]


def test_what_stays_dropped_is_out_of_the_loss(tiny_policy: Path, tmp_path: Path):
    """Without refills: masks, the normalizer, and the loop's metrics, by hand."""
    method = dapo(beta=0.3, max_refills=0)
    trainer = trained(method, tiny_policy, tmp_path, "accumulated", reward_funcs=lively, max_steps=6)
    shares = []
    for batch, drawn, line in zip(trainer.batches, trainer.rollouts, trainer.state.log_history[:-1], strict=True):
        assert len(drawn) == 12
        texts = trainer.processing_class.batch_decode([c for _, c in drawn], skip_special_tokens=True)
        prompts = trainer.processing_class.batch_decode([p for p, _ in drawn])
        rewards = torch.tensor(lively(prompts, texts)).reshape(4, 3)
        kept = (rewards != rewards[:, :1]).any(dim=1)
        rows = kept.repeat_interleave(3)
        mask = batch["completion_mask"] * batch.get("tool_mask", 1)
        assert torch.equal(mask.bool().any(dim=1), rows) and batch["completion_mask"].any(dim=1).all()
        assert int(batch["num_items_in_batch"]) == max(
            1, sum(len(c) for (_, c), r in zip(drawn, rows, strict=True) if r)
        )
        assert (batch["advantages"][~rows] == 0).all() and (batch["advantages"][rows] != 0).all()
        wanted = {
            "reward/mean": rewards.mean(),
            "reward/zero_variance_frac": 1 - kept.float().mean(),
            "rollout/groups_kept": kept.sum(),
            "rollout/missing_groups_frac": 1 - kept.float().mean(),
            "rollout/refills": 0,
            "rollout/completions": 12,
            "rollout/tokens": sum(len(c) for _, c in drawn),
        }
        assert {name: line[name] for name in wanted} == pytest.approx({k: float(v) for k, v in wanted.items()})
        assert line.get("reward/kept_mean") == (pytest.approx(float(rewards[kept].mean())) if kept.any() else None)
        shares.append(float(kept.float().mean()))
    assert 0 < sum(shares) < len(shares)


def with_kept_groups(method: Method, layout: str) -> Method:
    """`method`; where a release has no token mean for a rollout that serves several updates, with GRPO's reduction."""
    split = LAYOUTS[layout][0] != LAYOUTS[layout][1]
    return replace(method, reduction=SequenceMean()) if split and Version(trl.__version__) < Version("1.10") else method


@pytest.mark.parametrize("layout", ["plain", "two rollouts a step", "moves: both", "moves: accumulated"])
def test_dead_groups_are_drawn_anew(layout: str, tiny_policy: Path, tmp_path: Path):
    """From prompts that the rollout does not hold; its mean reward is that of all draws, TRL's that of the first."""
    method = with_kept_groups(sage(dapo(beta=0.3), BRANCH), layout)
    trainer = trained(method, tiny_policy, tmp_path, layout, reward_funcs=lively, learning_rate=1e-3)
    refilled = 0
    for batch, drawn in zip(trainer.batches, trainer.rollouts, strict=True):
        prompts = [prompt for prompt, _ in drawn[::3]]
        assert len({tuple(prompt) for prompt in prompts}) == min(len(prompts), len(PROMPTS))
        names = trainer.processing_class.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
        mask = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()
        assert all(int(name.strip()[0]) % 2 for name, row in zip(names, mask, strict=True) if row.any())
        assert int(batch["num_items_in_batch"]) == int(mask.sum()) > 0 and mask.any(dim=1).all()
        assert len(set(batch["sage_row_ids"].tolist())) == len(mask)
        refilled += len(drawn) > len(mask)
    assert refilled
    if layout == "plain":
        for line, drawn in zip(trainer.state.log_history, trainer.rollouts, strict=False):
            assert line["rollout/completions"] == len(drawn)
            assert line["completions/max_length"] == max(len(c) for _, c in drawn[:6])
            prompts, texts = (
                trainer.processing_class.batch_decode([row[part] for row in drawn], skip_special_tokens=True)
                for part in (0, 1)
            )
            rewards = lively(prompts, texts)
            assert line["reward/mean"] == pytest.approx(sum(rewards) / len(rewards)) and "kl/to_anchor" in line
            assert line["reward"] == pytest.approx(sum(rewards[:6]) / 6) and 0 < line["reward/kept_mean"] < 1
            assert line["num_tokens"] >= sum(len(p) + len(c) for p, c in drawn)


def test_refills_are_a_function_of_seed_and_step(tiny_policy: Path, tmp_path: Path):
    """Another state of the global generator draws other completions, and the same prompts in the same order."""

    def prompts(seed: int, noise: int) -> list[list[int]]:
        folder = tmp_path / f"{seed}-{noise}"
        args = arguments(folder, max_steps=1, **grpo_config(dapo()), seed=seed, data_seed=3)
        dead = lambda completions, **_: [0.0] * len(completions)  # noqa: E731
        trainer = build(tiny_policy, args, Recorder, method=dapo(), reward_funcs=dead)
        plain = trainer._draw
        trainer._draw = lambda rows: torch.manual_seed(noise) and plain(rows)
        trainer.train()
        return [prompt for prompt, _ in trainer.rollouts[0][::3]]

    first, again, other = prompts(5, 1), prompts(5, 2), prompts(6, 1)
    assert len(first) == 2 * 10 and first == again and first[2:] != other[2:]


def test_a_step_without_a_kept_group_moves_nothing(tiny_policy: Path, tmp_path: Path):
    """AdamW with moments and weight decay: where every group is dead its step is left out, as in the loop."""
    seen: list[dict[str, Tensor]] = []
    calls = [0]

    def dead_second(completions: list[str], **_: object) -> list[float]:
        calls[0] += 1
        return [float(i % 2) for i in range(len(completions))] if calls[0] in (1, 4) else [0.0] * len(completions)

    method = sage(grpo(beta=0.3), BRANCH)
    method = replace(method, rollout=DynamicSampling(1))
    args = arguments(tmp_path, max_steps=3, **grpo_config(method), weight_decay=0.1)
    trainer = build(tiny_policy, args, method=method, reward_funcs=dead_second)

    class Watch(trl.trainer.grpo_trainer.TrainerCallback):  # type: ignore[name-defined,misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen.append(weights(trainer))

    trainer.add_callback(Watch())
    trainer.train()
    assert calls[0] == 4 and trainer.state.log_history[1]["rollout/groups_kept"] == 0
    assert same(seen[0], seen[1]) and not same(seen[1], seen[2])
    assert "kl/to_anchor" not in trainer.state.log_history[1] and "kl/to_anchor" in trainer.state.log_history[2]


@pytest.mark.parametrize("layout", ["plain", "two rollouts a step", "moves: steps"])
def test_a_running_state_is_in_the_checkpoint(layout: str, tiny_policy: Path, tmp_path: Path):
    method, folder = stateful(0.5), tmp_path / "whole" / "out" / "checkpoint-2"

    def run(name: str, method: Method, **more: Any) -> Any:
        options = grpo_config(method) | {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3}
        trainer = build(tiny_policy, arguments(tmp_path / name, layout, **options), method=method, reward_funcs=lively)
        trainer.objective_may_change = True
        trainer.train(**more)
        return trainer

    whole = run("whole", method)
    again = run("again", method, resume_from_checkpoint=str(folder))
    assert same(weights(whole), weights(again))
    kept, found = (tensors_of(method.parts, trainer.parts) for trainer in (whole, again))
    assert same(kept, found) and kept["advantage.Remembered.mean"] > 0
    rollouts = {"plain": 4, "two rollouts a step": 8, "moves: steps": 2}[layout]
    assert kept["advantage.Remembered.steps"] == rollouts
    logged = [line["advantage/mean"] for line in whole.state.log_history if "advantage/mean" in line]
    assert len(set(logged)) > 1
    with pytest.raises(CheckpointError, match=r"state of advantage Remembered .* this method needs that of extra/tiring Tiring"):
        run("other", replace(method, advantage=grpo().advantage), resume_from_checkpoint=str(folder))
    (folder / "sage_parts.safetensors").unlink()
    with pytest.raises(CheckpointError, match="running state of no part"):
        run("none", method, resume_from_checkpoint=str(folder))


@pytest.mark.parametrize("layout", ["plain", "moves: steps"])
def test_a_resumed_run_is_the_uninterrupted_run(layout: str, tiny_policy: Path, tmp_path: Path):
    method = with_kept_groups(sage(overlong(beta=Linear(0.5, 0.1)), BOTH), layout)
    options = grpo_config(method) | {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3}

    def run(name: str, **more: Any) -> Any:
        args = arguments(tmp_path / name, layout, **options)
        trainer = build(tiny_policy, args, Recorder, method=method, reward_funcs=lively)
        trainer.train(**more)
        return trainer

    whole = run("whole")
    again = run("again", resume_from_checkpoint=str(tmp_path / "whole" / "out" / "checkpoint-2"))
    assert same(weights(whole), weights(again))
    half = len(again.rollouts)
    assert again.rollouts == whole.rollouts[-half:]
    rollouts = again.rollouts if layout == "plain" else whole.rollouts
    assert any(len(drawn) > len(whole.batches[0]["completion_ids"]) for drawn in rollouts)


def test_slots_by_hand():
    kept = torch.tensor([True, False, True, False, False, False, True, True])
    assert dynamic_sampling.filled_slots(kept, 5).tolist() == [0, 6, 2, 7, 4]
    assert dynamic_sampling.filled_slots(kept, 3).tolist() == [0, 6, 2]  # a surplus: the first ones in drawing order
    assert dynamic_sampling.filled_slots(torch.tensor([True, True]), 2).tolist() == [0, 1]


def test_refill_prompts_come_from_all_data_before_any_comes_twice():
    rows = [{"prompt": str(i)} for i in range(6)]
    own = {repr(rows[1]), repr(rows[4])}
    drawn = [row["prompt"] for row in islice(dynamic_sampling.refill_prompts(rows, own, Key(3), 7, "0"), 12)]
    assert set(drawn[:4]) == {"0", "2", "3", "5"} and set(drawn[4:6]) == {"1", "4"} and drawn[6:] == drawn[:6]
    others = [
        [row["prompt"] for row in islice(dynamic_sampling.refill_prompts(rows, set(), Key(seed), step, name), 6)]
        for seed, step, name in ((3, 7, "0"), (4, 7, "0"), (3, 8, "0"), (3, 7, "12"))
    ]
    assert len({tuple(order) for order in others}) > 2 and all(sorted(order) == list("012345") for order in others)


def test_refills_split_evenly_over_the_ranks():
    """One group of three missing, two ranks: two groups are drawn, one per rank; of groups of four one is enough."""
    for size, rows in ((3, [["0"] * 3, ["1"] * 3]), (4, [["0"] * 2, ["0"] * 2])):
        for rank in (0, 1):
            accelerator = SimpleNamespace(num_processes=2, process_index=rank)
            trainer = SimpleNamespace(num_generations=size, accelerator=accelerator)
            share = dynamic_sampling._share(trainer, iter([{"prompt": str(i)} for i in range(9)]), 1)
            assert [row["prompt"] for row in share] == rows[rank]
            assert len({id(row) for row in share}) == len(share)  # TRL writes into them


def test_draws_are_merged_with_their_padding():
    """Prompts on the left, everything else on the right; a tool's mask is 1 where nothing stands."""
    tokenizer = SimpleNamespace(pad_token_id=9)
    parts = [
        {"prompt_ids": torch.tensor([[1, 2]]), "prompt_mask": torch.tensor([[1, 1]]), "completion_ids": torch.tensor([[3]]),
         "tool_mask": torch.tensor([[0]]), "old_per_token_logps": torch.tensor([[-1.0]]), "advantages": torch.tensor([2.0]),
         "num_items_in_batch": torch.tensor(5)},
        {"prompt_ids": torch.tensor([[4]]), "prompt_mask": torch.tensor([[1]]), "completion_ids": torch.tensor([[5, 6]]),
         "tool_mask": torch.tensor([[1, 0]]), "old_per_token_logps": torch.tensor([[-2.0, -3.0]]),
         "advantages": torch.tensor([4.0]), "num_items_in_batch": torch.tensor(7)},
    ]  # fmt: skip
    merged = {name: value.tolist() for name, value in dynamic_sampling.together(parts, tokenizer).items()}
    assert merged == {
        "prompt_ids": [[1, 2], [9, 4]],
        "prompt_mask": [[1, 1], [0, 1]],
        "completion_ids": [[3, 9], [5, 6]],
        "tool_mask": [[0, 1], [1, 0]],
        "old_per_token_logps": [[-1.0, 0.0], [-2.0, -3.0]],
        "advantages": [2.0, 4.0],
        "num_items_in_batch": 5,
    }
