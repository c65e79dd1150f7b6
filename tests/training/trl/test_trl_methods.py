"""Methods on TRL: whole runs replayed by the core, and on two ranks. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

trl = pytest.importorskip("trl")

from transformers import AutoModelForCausalLM

from sage_rlvr.core import (
    Batch,
    Key,
    Method,
    Signals,
    advantages_of,
    objective,
    shape,
)
from sage_rlvr.core.reductions import FixedBudget
from training.trl.methods_common import REPLAYED, Recorder, trained
from trl_common import forward, on_ranks, reward, weights


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
        assert len(drawn) > 4 and any(line["rollout/missing_groups_frac"] > 0 for line in logged)
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
