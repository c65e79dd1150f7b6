"""Methods on TRL: whole runs replayed by the core, dynamic sampling, advantages, and what TRL cannot express."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

trl = pytest.importorskip("trl")

from datasets import Dataset
from packaging.version import Version
from transformers import AutoModelForCausalLM

from sage_rlvr.core import (
    Batch,
    Constant,
    CosineCycles,
    Key,
    Linear,
    Method,
    Signals,
    advantages_of,
    objective,
    shape,
)
from sage_rlvr.core.advantages import GroupNormalized, LeaveOneOut
from sage_rlvr.core.guides import Branch, Token
from sage_rlvr.core.reductions import FixedBudget, SequenceMean
from sage_rlvr.core.rollout_plans import DynamicSampling
from sage_rlvr.core.state import tensors_of
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import CheckpointError, ConfigError, DataError
from sage_rlvr.methods import bnpo, dapo, dr_grpo, forward_kl, grpo, grpo_token_mean, no_kl, rloo, sage, verl
from sage_rlvr.training.trl import SageTrainer, dynamic_sampling, grpo_config
from sage_rlvr.training.trl.batch import group_advantages, predicting, scale_of, seen_states, total_rewards
from stateful import stateful
from trl_common import LAYOUTS, PROMPTS, arguments, build, forward, on_ranks, reward, same, weights

BRANCH = Branch(ratio=0.3, threshold=1.2)
BOTH = Token(alpha=CosineCycles(0.4, 0.1, cycles=1), sigma=0.2) * BRANCH
PLAIN_SGD = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 0.05}


@dataclass(frozen=True)
class Uncertain:
    """A token weight: 1 + H, and 1.5 more where the policy is far from the reference."""

    needs: ClassVar[frozenset[str]] = frozenset({"entropies", "ref_logps"})

    def __call__(self, signals: Signals) -> Tensor:
        away = (signals.old_logps - signals.require("ref_logps", "Uncertain")).abs() > 0.05
        return 1.0 + signals.require("entropies", "Uncertain") + 1.5 * away


@dataclass(frozen=True)
class Ranks:
    """An advantage that no release of TRL has: the sign of r - mean."""

    equation: ClassVar[str] = "sign(r - mean_group r)"

    def __call__(self, rewards: Tensor) -> Tensor:
        return (rewards - rewards.mean(dim=1, keepdim=True)).sign()


def k1(base: Any, **more: Any) -> Method:
    return base(beta=0.3, estimator="k1", placement="reward", **more)


def overlong(**more: Any) -> Method:
    return dapo(overlong_buffer=6, max_tokens=8, **more)


ONCE = {"dynamic_sampling": False}
REPLAYED: dict[str, Method] = {
    "grpo": sage(grpo(beta=0.3), BOTH),
    "dr_grpo": sage(dr_grpo(beta=0.3), BOTH),
    "grpo_token_mean": sage(grpo_token_mean(beta=0.3), BOTH),
    "no_kl": no_kl(),
    "rloo": rloo(beta=0.0),
    "bnpo": bnpo(),
    "bnpo, KL": bnpo(beta=0.3),
    "bnpo, branch": sage(bnpo(beta=0.3), BRANCH),
    "dapo": dapo(),
    "dapo, KL": dapo(beta=0.3),
    "dapo, branch": sage(dapo(beta=0.3), BRANCH),
    "dapo, token": sage(dapo(beta=0.3), BOTH),
    "dapo, once": sage(dapo(beta=0.3, **ONCE), BOTH),
    "dapo, overlong": overlong(**ONCE),
    "dapo, everything": sage(overlong(beta=0.3), BOTH),
    "rloo, KL in the reward": rloo(beta=0.3),
    "rloo, branch": sage(rloo(beta=0.3), BRANCH),
    "rloo, token": sage(rloo(beta=0.3), BOTH),
    "dr_grpo, KL in the reward": k1(dr_grpo),
    "dr_grpo, branch in the reward": sage(k1(dr_grpo), BRANCH),
    "dapo, branch in the reward": sage(k1(overlong), BRANCH),
    "beta falls": sage(grpo(beta=Linear(0.6, 0.1)), BRANCH),
    "beta rises": rloo(beta=Linear(0.0, 0.6)),
    "token weight": replace(sage(grpo(beta=0.3), BRANCH), token_weight=Uncertain()),
    "grpo, kept groups": replace(sage(grpo(beta=0.3), BOTH), rollout=DynamicSampling(1)),
    "dr_grpo, kept groups": replace(dr_grpo(beta=0.3), rollout=DynamicSampling(0)),
    "bnpo, kept groups": replace(bnpo(beta=0.3), rollout=DynamicSampling(0)),
    "another advantage": replace(grpo(beta=0.3), advantage=Ranks()),
    "another eps": replace(grpo(beta=0.3), advantage=GroupNormalized(0.5)),
    "another length": replace(dr_grpo(beta=0.3), reduction=FixedBudget(7)),
}


# ---- a whole run, replayed: TRL's completions, everything else by the core


class Recorder(SageTrainer):
    """Keeps every draw as lists of tokens, and the row numbers of every loss."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.rollouts: list[list[tuple[list[int], list[int]]]] = []  # of each, (prompt, completion) in drawing order
        self.losses: list[tuple[int, ...]] = []
        self.batches: list[dict[str, Any]] = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        if self.model.training:
            self.rollouts.append([])
        found = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.batches.append(found)
        return found

    def _draw(self, inputs: Any) -> Any:
        output, rewards = super()._draw(inputs)
        for row in range(len(output["completion_ids"])):
            pair = ("prompt", "completion")
            tokens = [output[f"{part}_ids"][row][output[f"{part}_mask"][row].bool()].tolist() for part in pair]
            self.rollouts[-1].append((tokens[0], tokens[1]))
        return output, rewards

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        self.losses.append(tuple(inputs["sage_row_ids"].tolist()))
        return super()._compute_loss(model, inputs)


def padded(rows: list[tuple[list[int], list[int]]], pad_id: int) -> dict[str, Tensor]:
    """Prompts to the left, completions to the right, as tensors with masks."""
    wide = [max(len(row[part]) for row in rows) for part in (0, 1)]
    prompts = torch.tensor([[pad_id] * (wide[0] - len(p)) + p for p, _ in rows])
    completions = torch.tensor([c + [pad_id] * (wide[1] - len(c)) for _, c in rows])
    masks = (
        torch.tensor([[0] * (wide[0] - len(p)) + [1] * len(p) for p, _ in rows]),
        torch.tensor([[1] * len(c) + [0] * (wide[1] - len(c)) for _, c in rows]),
    )
    names = ("prompt_ids", "completion_ids", "prompt_mask", "completion_mask")
    return dict(zip(names, (prompts, completions, *masks), strict=True))


class Replay:
    """What a run should have done with its completions: the core on a model of its own, plain gradient descent."""

    def __init__(self, method: Method, policy: Path, trainer: Any) -> None:
        self.method, self.args, self.tokenizer = method, trainer.args, trainer.processing_class
        self.model, self.reference = (AutoModelForCausalLM.from_pretrained(policy).eval() for _ in range(2))

    def scored(self, model: Any, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return forward(model, rows, self.args.temperature)

    def rollout(self, drawn: list[tuple[list[int], list[int]]], step: int) -> None:
        """The kept groups with all that is fixed for the rollout; rewards scored anew from the texts."""
        size, method = self.args.num_generations, self.method
        texts = self.tokenizer.batch_decode([c for _, c in drawn], skip_special_tokens=True)
        rewards = torch.tensor(reward(texts)).reshape(-1, size)
        ids = torch.arange(len(drawn)).reshape(-1, size)
        if method.rollout is not None:
            kept = method.rollout.keeps(rewards).nonzero().flatten()[: self.args.generation_batch_size // size]
            rewards, ids = rewards[kept], ids[kept]
        self.ids = ids.flatten().tolist()
        if not self.ids:
            return
        self.rows = padded([drawn[i] for i in self.ids], self.tokenizer.pad_token_id)
        with torch.no_grad():
            old, entropies = self.scored(self.model, self.rows)
            ref, _ = self.scored(self.reference, self.rows)
        mask = self.rows["completion_mask"].bool()
        signals = Signals(old, ref, mask, ids.flatten(), entropies)
        log_q = shape(method, signals, step, self.args.max_steps, Key(self.args.seed))
        advantages = advantages_of(method, rewards, signals, log_q, step, self.args.max_steps)
        self.batch = Batch(old, old, ref, mask, advantages, log_q=log_q, max_tokens=self.args.max_completion_length)

    def update(self, row_ids: list[int], step: int) -> None:
        places = torch.tensor([self.ids.index(row) for row in row_ids if row in self.ids])
        if not len(places):
            return
        logps, _ = self.scored(self.model, {name: value[places] for name, value in self.rows.items()})
        taken = {
            name: getattr(self.batch, name)[places]
            for name in ("old_logps", "ref_logps", "mask", "advantages", "log_q")
        }
        batch = Batch(logps=logps, max_tokens=self.batch.max_tokens, **taken)
        objective(self.method, batch, step, self.args.max_steps)[0].backward()
        with torch.no_grad():
            for weight in self.model.parameters():
                weight -= self.args.learning_rate * weight.grad
                weight.grad = None


def replay(method: Method, policy: Path, trainer: Recorder) -> dict[str, Tensor]:
    """The weights after the updates of a run, each of whose rollouts is one step, or several updates of it."""
    run, accumulate = Replay(method, policy, trainer), trainer.args.gradient_accumulation_steps
    every = trainer.args.steps_per_generation * trainer.args.num_iterations
    for step in range(trainer.args.max_steps):
        first = step * accumulate
        if first % every == 0:
            run.rollout(trainer.rollouts[first // every], step)
        run.update([row for loss in trainer.losses[first : first + accumulate] for row in loss], step)
    return {name: value.detach() for name, value in run.model.state_dict().items()}


def trained(method: Method, policy: Path, folder: Path, layout: str = "plain", **changes: Any) -> Recorder:
    more = {name: changes.pop(name) for name in ("reward_funcs", "rollout_func") if name in changes}
    options = grpo_config(method) | PLAIN_SGD | changes
    trainer = build(policy, arguments(folder, layout, **options), Recorder, method=method, **more)
    trainer.train()
    return trainer


def agree(trainer: Recorder, method: Method, policy: Path) -> None:
    found, wanted = weights(trainer), replay(method, policy, trainer)
    start = AutoModelForCausalLM.from_pretrained(policy).state_dict()
    assert max(float((found[part] - start[part]).abs().max()) for part in found) > 1e-3
    for part, value in found.items():
        torch.testing.assert_close(value, wanted[part], atol=1e-5, rtol=1e-4, msg=part)


SLOW = {
    "dr_grpo", "grpo_token_mean", "no_kl", "rloo", "bnpo, KL", "dapo", "dapo, KL", "dapo, once", "rloo, KL in the reward",
    "rloo, token", "dr_grpo, KL in the reward", "dr_grpo, kept groups", "another advantage", "another eps",
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in REPLAYED])
def test_a_run_on_trl_is_the_run_of_the_core_on_its_completions(name: str, tiny_policy: Path, tmp_path: Path):
    """Weights after three updates of two micro-batches; a mean over tokens or kept groups is that of the update."""
    method = REPLAYED[name]
    trainer = trained(method, tiny_policy, tmp_path, "accumulated")
    agree(trainer, method, tiny_policy)
    if method.rollout is not None:
        assert any(len(drawn) > 12 for drawn in trainer.rollouts) or method.rollout.max_refills == 0


@pytest.mark.parametrize(
    "name", ["rloo, token", "dr_grpo, branch in the reward", "token weight", "beta falls", "bnpo, KL"]
)
@pytest.mark.parametrize(
    "layout",
    [
        "moves: both",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("moves: accumulated", "iterated within a step")),
    ],
)
def test_replayed_where_a_rollout_serves_several_updates(layout: str, name: str, tiny_policy: Path, tmp_path: Path):
    """pi_old, pi_ref, q, K_t and the token weights are those of the rollout, whatever the policy has become since."""
    method = REPLAYED[name]
    if name in ("token weight", "beta falls") and layout == "moves: accumulated":
        layout = "moves: steps"
    rate = 0.005 if method.reduction == FixedBudget(1) else 0.05  # a sum over tokens
    trainer = trained(method, tiny_policy, tmp_path, layout, max_steps=4, learning_rate=rate)
    agree(trainer, method, tiny_policy)


# ---- dynamic sampling


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
            "reward/zero_variance_share": 1 - kept.float().mean(),
            "rollout/groups_kept": kept.sum(),
            "rollout/short_share": 1 - kept.float().mean(),
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
            assert line["reward/mean"] == pytest.approx(sum(rewards) / len(rewards)) and "anchor/kl" in line
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
    assert "anchor/kl" not in trainer.state.log_history[1] and "anchor/kl" in trainer.state.log_history[2]


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
    with pytest.raises(CheckpointError, match=r"state of advantage Remembered .* this method needs that of token_weight Tiring"):
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


# ---- advantages, and completions without a reward

NAN = float("nan")


def test_a_group_that_lacks_a_reward_is_a_smaller_group():
    """By hand: leave-one-out over two is (r - mean) * 2; one completion alone says nothing."""
    rewards = torch.tensor([[NAN, 1.0, 0.0], [1.0, 0.0, 0.0], [NAN, NAN, 1.0]])
    found = group_advantages(rloo(beta=0.0), rewards, None, None, 0, 1).advantages
    torch.testing.assert_close(found.reshape(3, 3), torch.tensor([[0, 1, -1], [1, -0.5, -0.5], [0, 0, 0.0]]))
    kept = dynamic_sampling.kept_groups(DynamicSampling(), torch.tensor([[NAN, 1.0, 1.0], [NAN, 1.0, 0.0], [NAN, NAN, 1.0]]), {})
    assert kept.tolist() == [False, True, False]
    with pytest.raises(DataError, match="has no reward"):
        group_advantages(bnpo(), rewards, None, None, 0, 1)
    with pytest.raises(DataError, match=r"stateful: .* has no reward"):
        group_advantages(stateful(), rewards, None, None, 0, 1)
    dropped = torch.tensor([[NAN, NAN], [1.0, 0.0]])  # a whole group that is not there is none of the density's
    torch.testing.assert_close(
        group_advantages(bnpo(), dropped, None, None, 0, 1).advantages[2:], advantages_of(bnpo(), dropped[1:])
    )


def test_weighted_rewards_add_up_and_none_of_all_stays_none():
    by_function = torch.tensor([[1.0, NAN], [NAN, NAN], [0.5, 2.0]])
    found = total_rewards(by_function, torch.tensor([1.0, 0.25]))
    torch.testing.assert_close(found, torch.tensor([1.0, NAN, 1.0]), equal_nan=True)


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=4, max_size=4), min_size=1, max_size=5),
    st.sampled_from(["rloo", "dr_grpo, KL in the reward", "rloo, token", "token weight", "dapo, overlong", "grpo"]),
)
def test_a_completion_without_a_reward_leaves_the_others_as_if_it_were_not_there(rewards: list[list[float]], name: str):
    method, table = REPLAYED[name], torch.tensor(rewards)
    generator = torch.Generator().manual_seed(1)
    rows, width = table.numel(), 8
    mask = torch.arange(width)[None, :] < torch.randint(1, width + 1, (rows,), generator=generator)[:, None]
    old, ref, entropies, log_q = (torch.rand((rows, width), generator=generator) for _ in range(4))
    signals = Signals(old, ref, mask, torch.arange(rows), entropies)
    found = group_advantages(method, table, signals, log_q, 1, 4).advantages
    for group, values in enumerate(table):
        scored = (~values.isnan()).nonzero().flatten()
        mine = found.reshape(len(table), 4, *found.shape[1:])[group]
        assert not mine[values.isnan()].any()
        if len(scored) > 1:
            alone = signals.take(group * 4 + scored)
            wanted = advantages_of(method, values[scored][None], alone, log_q[group * 4 + scored], 1, 4)
            torch.testing.assert_close(mine[scored], wanted)


@pytest.mark.parametrize("method", [no_kl(), bnpo(), rloo(beta=0.0), grpo(beta=0.1)], ids=lambda method: method.name)
def test_advantages_are_those_of_the_method(method: Method, tiny_policy: Path, tmp_path: Path):
    trainer = trained(method, tiny_policy, tmp_path, max_steps=1)
    texts = trainer.processing_class.batch_decode([c for _, c in trainer.rollouts[0]], skip_special_tokens=True)
    wanted = method.advantage(torch.tensor(reward(texts)).reshape(-1, 3)).reshape(-1)
    torch.testing.assert_close(trainer.batches[0]["advantages"], wanted * scale_of(method, 8), atol=1e-5, rtol=1e-5)
    assert len(set(wanted.tolist())) > 1


def unscored(completions: list[str], **_: object) -> list[float | None]:
    return [None, *reward(completions)[1:]]


@pytest.mark.parametrize("method", [grpo(beta=0.1), rloo(beta=0.1), dapo()], ids=lambda method: method.name)
def test_an_unscored_completion_does_not_count_as_wrong(method: Method, tiny_policy: Path, tmp_path: Path):
    trainer = trained(method, tiny_policy, tmp_path, max_steps=1, reward_funcs=unscored, learning_rate=0.0)
    texts = trainer.processing_class.batch_decode([c for _, c in trainer.rollouts[0][:3]], skip_special_tokens=True)
    first = trainer.batches[0]["advantages"][:3]
    scored = torch.tensor(reward(texts)[1:])
    if method.rollout is None or scored[0] != scored[1]:  # else it was drawn anew
        if method.advantage == LeaveOneOut():
            first = first[:, 0]
            assert float(first[0]) == 0 and float(first[1] + first[2]) == pytest.approx(0, abs=1e-4)
        wanted = method.advantage(scored[None])[0]
        torch.testing.assert_close(first[1:], wanted, atol=1e-4, rtol=1e-4)
        assert not first[0].any()


def test_an_unscored_completion_is_named_where_an_advantage_needs_it(tiny_policy: Path, tmp_path: Path):
    with pytest.raises(DataError, match="has no reward"):
        trained(bnpo(), tiny_policy, tmp_path, reward_funcs=unscored)


def test_the_scale_by_hand():
    assert scale_of(grpo(), 256) == 1.0 and scale_of(dapo(), 256, 0.5) == 1.0  # a token mean counts what is there
    assert scale_of(replace(grpo(), rollout=DynamicSampling()), 256, 0.5) == 2.0
    assert scale_of(dr_grpo(), 256) == 1.0 and scale_of(bnpo(), 256) == 256.0
    assert scale_of(replace(dr_grpo(), reduction=FixedBudget(128)), 256, 0.25) == 8.0


# ---- what the loss is given: no KL of its own, a beta of its own


def test_the_loss_has_no_kl_where_it_is_in_the_reward(tiny_policy: Path, tmp_path: Path):
    """TRL computes the reference, logs no kl of the loss, and its beta is back after every loss; ours are logged."""
    trainer = trained(REPLAYED["rloo, branch"], tiny_policy, tmp_path)
    line = trainer.state.log_history[0]
    assert "kl" not in line and line["anchor/kl_raw"] == pytest.approx(0, abs=1e-6) and line["anchor/q_mean"] > 1.05
    assert trainer.beta == trainer.args.beta == 0.3
    assert trainer.batches[0]["advantages"].shape == trainer.batches[0]["completion_ids"].shape
    assert not any(name in trainer.batches[0] for name in ("sage_logps", "sage_entropies"))


@pytest.mark.parametrize("method", [REPLAYED["rloo, branch"], verl(stride=2, beta=0.3)], ids=lambda method: method.name)
@pytest.mark.parametrize("layout", ["plain", "moves: both"])
def test_a_scored_rollout_adds_one_forward_where_trl_has_none(layout: str, method: Method, tiny_policy: Path, tmp_path: Path):
    """For the KL in the reward; and for hidden states, which are those of that forward."""

    def forwards(cls: type, **more: Any) -> int:
        args = arguments(tmp_path, layout, **grpo_config(method) | {"learning_rate": 0.0})
        trainer, calls = build(tiny_policy, args, cls, **more), []
        trainer.model.register_forward_pre_hook(lambda *_: calls.append(1))
        trainer.train()
        ranks.extend(line["token_weight/rank"] for line in trainer.state.log_history if "token_weight/rank" in line)
        return len(calls)

    rollouts, ranks = {"plain": 3, "moves: both": 0}[layout], list[float]()
    assert forwards(SageTrainer, method=method) == forwards(trl.GRPOTrainer) + rollouts
    assert all(rank > 0.3 for rank in ranks) and bool(ranks) == (method.name == "verl")


def test_hidden_states_are_those_that_predict_each_token(tiny_policy: Path, tmp_path: Path):
    """With and without an adapter, against the states that the model itself gives out; in chunks of rows."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    for adapted in (False, True):
        model = AutoModelForCausalLM.from_pretrained(tiny_policy)
        model = peft.get_peft_model(model, config) if adapted else model
        ids = torch.randint(3, 12, (4, 9))
        with torch.no_grad():
            wanted = model(input_ids=ids, output_hidden_states=True).hidden_states[-1]
            with seen_states(model) as states:
                for chunk in ids.split(3):
                    model(input_ids=chunk)
            model(input_ids=ids)
        assert torch.equal(predicting(states, 5), wanted[:, 3:8]) and len(states) == 2
    assert predicting([], 5) is None
    parts = [{"sage_hidden": torch.ones(2, width, 4)} for width in (3, 5)]  # of a rollout and its refill
    merged = dynamic_sampling.together(parts, None)["sage_hidden"]
    assert merged.shape == (4, 5, 4) and not merged[:2, 3:].any() and bool(merged[2:].all()) and bool(merged[:2, :3].all())


def test_an_adapters_advantages_are_those_of_policy_and_base(tiny_policy: Path, tmp_path: Path):
    """PEFT: pi_old with the adapter, pi_ref without, both by this test's own forward."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False)
    method = rloo(beta=0.3)
    args = arguments(tmp_path, **grpo_config(method) | {"learning_rate": 0.0, "max_steps": 1})
    trainer = build(tiny_policy, args, Recorder, method=method, peft_config=config)
    trainer.train()
    batch = trainer.batches[0]
    with torch.no_grad():
        old, _ = forward(trainer.model, batch, args.temperature)
        with trainer.model.disable_adapter():
            ref, _ = forward(trainer.model, batch, args.temperature)
    texts = trainer.processing_class.batch_decode([c for _, c in trainer.rollouts[0]], skip_special_tokens=True)
    signals = Signals(old, ref, batch["completion_mask"].bool(), torch.arange(6))
    wanted = advantages_of(method, torch.tensor(reward(texts)).reshape(-1, 3), signals, None, 0, 1)
    torch.testing.assert_close(batch["advantages"], wanted, atol=1e-4, rtol=1e-4)
    assert float((old - ref).abs().max()) > 0.1


@pytest.mark.parametrize("error", [False, True])
def test_beta_is_that_of_the_step_and_restored(error: bool, tiny_policy: Path, tmp_path: Path):
    method, seen = grpo(beta=Linear(0.6, 0.2)), []
    trainer = build(tiny_policy, arguments(tmp_path, **grpo_config(method)), method=method)
    plain = trainer._get_per_token_logps_and_entropies

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append(trainer.beta)
        if error and trainer.beta == 0.4:
            raise KeyError("stop")
        return plain(*args, **kwargs)

    trainer._get_per_token_logps_and_entropies = spy
    if error:
        with pytest.raises(KeyError):
            trainer.train()
    else:
        trainer.train()
        assert [round(beta, 6) for beta in seen] == [0.6, 0.6, 0.6, 0.4, 0.6, 0.2]  # the reference's, the loss's
    assert trainer.beta == 0.6


def test_evaluation_is_stock(tiny_policy: Path, tmp_path: Path):
    """Between two steps of dynamic sampling and a KL in the reward: TRL's KL, no refills, no advantages of ours."""
    method = REPLAYED["dapo, branch in the reward"]
    args = arguments(tmp_path, **grpo_config(method))
    data = Dataset.from_dict({"prompt": PROMPTS[:2]})
    trainer = build(tiny_policy, args, method=method, eval_dataset=data)
    trainer.evaluate()
    found = trainer.state.log_history[0]
    assert found["eval_kl"] == pytest.approx(0, abs=1e-6) and trainer._numbered == (-1, 0)
    assert not any("rollout" in name or "anchor" in name for name in found)


# ---- arguments and refusals


def test_the_arguments_of_the_methods_by_hand():
    assert grpo_config(sage()) == {
        "beta": 0.05,
        "use_bias_correction_kl": False,
        "sync_ref_model": False,
        "loss_type": "grpo",
        "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
        "epsilon": 0.2,
        "epsilon_high": 0.2,
        "delta": None,
        "importance_sampling_level": "token",
    }
    assert grpo_config(no_kl())["beta"] == 0.0
    assert grpo_config(dr_grpo())["loss_type"] == "dr_grpo" and grpo_config(dr_grpo())["scale_rewards"] == "none"
    clip = grpo_config(overlong())
    assert (clip["loss_type"], clip["epsilon_high"], clip["delta"]) == ("dapo", 0.28, 10.0)
    assert grpo_config(grpo_token_mean())["loss_type"] == "dapo" and grpo_config(bnpo())["loss_type"] == "dr_grpo"
    assert grpo_config(grpo(estimator="k3_is"))["use_bias_correction_kl"] is True
    assert grpo_config(grpo(beta=Constant(0.02)))["beta"] == 0.02
    assert grpo_config(grpo(beta=Linear(0.0, 0.3)))["beta"] == 0.3
    in_reward = grpo_config(rloo(beta=Linear(0.2, 0.1)))
    assert in_reward["beta"] == 0.2 and in_reward["use_bias_correction_kl"] is False
    refreshed = grpo_config(grpo(refresh_every=7))
    assert [refreshed[f"{name}"] for name in ("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha")] == [
        True,
        7,
        1.0,
    ]
    with pytest.warns(UserWarning, match="stock GRPO"):
        assert grpo_config(forward_kl()) == grpo_config(grpo())


@dataclass(frozen=True)
class Reads:
    """A token weight of 1 that reads one signal."""

    needs: frozenset[str]

    def __call__(self, signals: Signals) -> Tensor:
        return torch.ones_like(signals.old_logps)


OFF = replace(grpo().anchor, beta=0.0)
IMPOSSIBLE = {
    "estimator k2": grpo(estimator="k2"),
    "estimator straight_through": grpo(estimator="straight_through"),
    "exact of js": grpo(estimator="exact", divergence="js"),
    "exact of reverse": grpo(estimator="exact", divergence="reverse"),
    "exact of alpha": grpo(estimator="exact", divergence="alpha"),
    "dual clip": replace(grpo(), surrogate=Clip(0.2, 0.28, 1.1)),
    "reads ref_entropies": replace(grpo(), token_weight=Reads(frozenset({"ref_entropies"}))),
    "reads a reference": replace(no_kl(), anchor=OFF, token_weight=Reads(frozenset({"ref_logps"}))),
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_what_trl_cannot_express_is_said_with_the_engine_that_can(words: str):
    with pytest.raises(ConfigError, match=f"(?s){words}.*loop engine"):
        grpo_config(IMPOSSIBLE[words])


def test_set_ups_that_would_train_something_else_are_refused(tmp_path: Path):
    """Before anything is loaded: the model does not exist."""

    def refused(words: str, method: Method, data: Any = None, **changes: Any) -> None:
        args = arguments(tmp_path, **grpo_config(method) | changes)
        with pytest.raises(ConfigError, match=words):
            SageTrainer(model="/no/such/model", reward_funcs=reward, args=args, train_dataset=data, method=method)

    refused("max_tokens = 8 .*args.max_completion_length = 9", overlong(), max_completion_length=9)
    data = Dataset.from_dict({"prompt": PROMPTS})
    refused("is a stream", dapo(), data.to_iterable_dataset())
    refused("train_dataset has images", dapo(), data.add_column("images", [None] * len(PROMPTS)))


def test_a_percentile_sees_the_rollout_where_the_policy_scores_it(tiny_policy: Path, tmp_path: Path):
    """A KL in the reward scores the rollout at generation, so that micro-batches are no obstacle to Branch("p80")."""
    method = sage(rloo(beta=0.3), Branch(ratio=0.3, threshold="p80"))
    trainer = trained(method, tiny_policy, tmp_path, "accumulated", max_steps=1)
    mask = trainer.batches[0]["completion_mask"].bool()
    assert 0.1 < float((trainer.batches[0]["sage_log_q"][mask] > 0).float().mean()) <= 0.25


# ---- two processes

RANKS = """
import os, sys
import torch
from datasets import Dataset
from trl import GRPOConfig
from dataclasses import replace
from sage_rlvr import Branch, Token, dapo, rloo, sage
from sage_rlvr.core import Linear
from sage_rlvr.training.trl import SageTrainer, grpo_config

policy, out, name, world = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
rank = int(os.environ.get("RANK", "0"))
torch.set_num_threads(1)
GROUP = 4


def rollout(prompts, trainer):
    ids = trainer.processing_class(prompts, add_special_tokens=False)["input_ids"]
    first = rank * len(prompts)  # a group may begin on one rank and end on the next
    seeds = [sum(row) + 31 * ((first + i) % GROUP) for i, row in enumerate(ids)]
    written = [[4 + (seed * (k + 3)) % 15 for k in range(2 + seed % 7)] for seed in seeds]
    return {"prompt_ids": ids, "completion_ids": written, "logprobs": None}


def verify(prompts, completions, **_):
    return [1.0 if int(p[0]) % 2 else float(len(set(c)) % 2) for p, c in zip(prompts, completions)]


class Recorder(SageTrainer):
    def _draw(self, inputs):
        drawn.append(len(inputs))
        return super()._draw(inputs)

    def _compute_loss(self, model, inputs):
        for row, a, mask in zip(inputs["sage_row_ids"].tolist(), inputs["advantages"], inputs["completion_mask"]):
            kept[(self.state.global_step, row)] = a[mask.bool()] if a.dim() else a
        return super()._compute_loss(model, inputs)


kept, drawn = {}, []
guide = Branch(ratio=0.3, threshold="p60") * Token(alpha=0.3, sigma=0.2)
method = {
    "dapo": sage(dapo(beta=0.5, max_refills=3, overlong_buffer=6, max_tokens=8), guide),
    "rloo": sage(rloo(beta=Linear(0.5, 0.2)), guide),
    "in the reward": sage(
        dapo(beta=0.5, max_refills=3, overlong_buffer=6, max_tokens=8, estimator="k1", placement="reward"), guide
    ),
}[name]
args = GRPOConfig(
    out, **grpo_config(method), max_steps=4, learning_rate=0.05, max_grad_norm=0.0,
    lr_scheduler_type="constant", per_device_train_batch_size=12 // world, num_generations=GROUP,
    max_completion_length=8, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True,
    bf16=False, gradient_checkpointing=False, disable_tqdm=True, optim="sgd", seed=5,
)
data = Dataset.from_dict({"prompt": [f"{a} {b}={a + b}:" for a in range(1, 7) for b in range(1, 5)]})
trainer = Recorder(
    model=policy, reward_funcs=verify, args=args, train_dataset=data, method=method, rollout_func=rollout
)
assert trainer.accelerator.num_processes == world, trainer.accelerator.num_processes
trainer.train()
ours = ("anchor/", "reward/", "rollout/")
logged = [{k: v for k, v in line.items() if k.startswith(ours)} for line in trainer.state.log_history[:-1]]
weights = {name: value.detach() for name, value in trainer.model.state_dict().items()}
torch.save((kept, logged, weights, drawn), f"{out}/rank{rank}.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dapo", "rloo", "in the reward"])
def test_two_ranks_train_what_one_process_trains(name: str, tiny_policy: Path, tmp_path: Path):
    """Three groups of four over two ranks: one lies across them. Refills, advantages, metrics and weights agree."""

    def run(world: int) -> list[Any]:
        return on_ranks(RANKS, tmp_path, world, str(tiny_policy), "OUT", name)

    ((whole, logged, one, drawn),) = run(1)
    (first, logged_0, zero, drawn_0), (second, logged_1, _, drawn_1) = run(2)
    assert drawn_0 == drawn_1 and [2 * count for count in drawn_0] == drawn
    if name != "rloo":
        assert len(drawn) > 4 and any(line["rollout/short_share"] > 0 for line in logged)
        assert any(line["rollout/refills"] > 0 for line in logged)
    halves = first | second
    assert first.keys().isdisjoint(second.keys()) and halves.keys() == whole.keys() and len(whole) == 48
    for place, values in whole.items():
        torch.testing.assert_close(halves[place], values, atol=1e-4, rtol=1e-3)
    assert logged_0 == logged_1
    for ours, theirs in zip(logged, logged_0, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    for part, value in one.items():
        torch.testing.assert_close(zero[part], value, atol=1e-5, rtol=1e-4)
    start = AutoModelForCausalLM.from_pretrained(tiny_policy).state_dict()
    assert max(float((start[part] - one[part]).abs().max()) for part in one) > 1e-3
