"""SageTrainer against stock TRL: whose q, where and how often, resumed, and over two processes. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

trl = pytest.importorskip("trl")

from datasets import Dataset
from transformers import AutoModelForCausalLM

from sage_rlvr.core import CosineCycles, Key, Signals
from sage_rlvr.core.guides import Branch, Flat, Guide, Placebo
from sage_rlvr.core.guides.random import Random
from sage_rlvr.core.guides.token import Token
from sage_rlvr.training.trl import SageTrainer
from training.trl.spy_common import keep_inputs
from trl_common import LAYOUTS, PROMPTS, arguments, build, forward, on_ranks, same, weights

BRANCH = Branch(ratio=0.3, threshold=1.2)


class Spy(SageTrainer):
    """Computes at generation, from the policy there and by itself, what q must be; checks every loss against it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.wanted: dict[tuple[int, int], Tensor] = {}
        self.seen: list[tuple[tuple[int, ...], float]] = []  # row ids and mean log q of each loss
        self.rollout = -1
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        self.rollout += 1
        with torch.no_grad():
            logps, entropies = forward(self.model, output, self.args.temperature)
        rows = output["sage_row_ids"]
        reference = output.get("sage_ref_logps", output["ref_per_token_logps"])
        mask = (output["completion_mask"] * output.get("tool_mask", 1)).bool()
        signals = Signals(old_logps=logps, ref_logps=reference, mask=mask, row_ids=rows, entropies=entropies)
        log_q = self.anchor.guide(
            signals, step=self.state.global_step, total_steps=self.args.max_steps, key=Key(self.args.seed)
        )
        self.wanted |= {(self.rollout, int(row)): log_q[i] for i, row in enumerate(rows)}
        output["spy_rollout"] = torch.full_like(rows, self.rollout)
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss = super()._compute_loss(model, inputs)
        if self.model.training:
            places = zip(inputs["spy_rollout"].tolist(), inputs["sage_row_ids"].tolist(), strict=True)
            wanted = torch.stack([self.wanted[place] for place in places])
            torch.testing.assert_close(inputs["sage_log_q"], wanted, atol=2e-5, rtol=1e-4)
            shaped = inputs["sage_ref_logps"] + inputs["sage_log_q"]
            assert torch.equal(inputs["ref_per_token_logps"], shaped) and shaped.dtype == torch.float32
            self.seen.append((tuple(inputs["sage_row_ids"].tolist()), float(wanted.abs().mean())))
        return loss


# ---- q: of which policy, where, how often


@pytest.mark.parametrize("layout", LAYOUTS)
def test_q_is_that_of_the_policy_that_generated_the_data(layout: str, tiny_policy: Path, tmp_path: Path):
    trainer = build(tiny_policy, arguments(tmp_path, layout), Spy, guide=BRANCH)
    before = weights(trainer)
    trainer.train()
    accumulate = LAYOUTS[layout][0]
    assert len(trainer.seen) == 3 * accumulate and min(size for _, size in trainer.seen) > 0.01
    moved = max(float((weights(trainer)[name] - before[name]).abs().max()) for name in before)
    assert moved > 0.03  # a policy that moved this far has other entropies: a q of the wrong policy would show


@pytest.mark.parametrize("layout", ["accumulated", "moves: accumulated", "plain"])
@pytest.mark.parametrize("guide", [Branch("p60", ratio=0.5), Placebo(Token())], ids=["percentile", "placebo"])
def test_a_guide_of_the_batch_sees_the_whole_generation_batch(guide: Guide, layout: str, tiny_policy: Path, tmp_path: Path):
    trainer = build(tiny_policy, arguments(tmp_path, layout), Spy, guide=guide)
    trainer.train()
    assert len(trainer.seen) == 3 * LAYOUTS[layout][0] and min(size for _, size in trainer.seen) > 0


def test_accumulation_leaves_the_gradient_of_a_percentile_as_it_is(tiny_policy: Path, tmp_path: Path):
    """Two micro-batches of 6 rows, and one batch of the same 12, from the same rollout: the same weights after a step."""

    def stepped(rows: int, accumulate: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        sizes = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": accumulate}
        args = arguments(tmp_path / str(rows), "accumulated", max_steps=1, optim="sgd", steps_per_generation=accumulate, **sizes)
        trainer = build(tiny_policy, args, guide=Branch("p60", ratio=0.5))
        before = weights(trainer)
        trainer.train()
        return before, weights(trainer)

    (before, one), (_, parts) = stepped(12, 1), stepped(6, 2)
    assert not same(before, one)
    for name, value in one.items():
        torch.testing.assert_close(parts[name], value, atol=1e-6, rtol=1e-5)


def test_noise_is_addressed_by_the_row_and_the_optimizer_step(tiny_policy: Path, tmp_path: Path):
    guide = Random(eps=1.0, sigma=CosineCycles(0.3, 0.1, cycles=2))
    with pytest.warns(UserWarning, match="noise only"):
        trainer = build(tiny_policy, arguments(tmp_path, "two rollouts a step"), Spy, guide=guide)
    trainer.train()
    first, second = trainer.seen[0][0], trainer.seen[1][0]
    assert sorted(first) == [0, 1, 2, 3, 4, 5] and sorted(second) == [6, 7, 8, 9, 10, 11]
    assert sorted(trainer.seen[2][0]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("layout", ["plain", "moves: steps"])
def test_an_adapters_reference_is_not_taken_for_the_policy(layout: str, tiny_policy: Path, tmp_path: Path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False)
    trainer = build(tiny_policy, arguments(tmp_path, layout), Spy, guide=BRANCH, peft_config=config, source="base")
    assert trainer.ref_model is None
    trainer.train()
    assert trainer.state.log_history[0]["kl/to_reference"] > 0.01  # policy and reference differ from the first step on
    assert len(trainer.seen) == 3


def test_tokens_of_a_tool_are_not_shaped(tiny_policy: Path, tmp_path: Path):
    """rollout_func's env_mask becomes TRL's tool_mask; q and the metrics leave those tokens out, as the loss does."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        ids = trainer.processing_class(prompts, add_special_tokens=False)["input_ids"]
        written = [[4 + (i + k) % 9 for k in range(6)] for i in range(len(prompts))]
        masks = [[1, 1, 0, 0, 1, 1] for _ in prompts]
        return {"prompt_ids": ids, "completion_ids": written, "logprobs": None, "env_mask": masks}

    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1), Spy, guide=Branch(0.0, ratio=1.0), rollout_func=rollout)
    caught: list[dict[str, Any]] = []
    keep_inputs(trainer, caught)
    trainer.train()
    assert (caught[0]["sage_log_q"][:, 2:4] == 0).all() and (caught[0]["sage_log_q"][:, [0, 1, 4, 5]] > 0).all()
    assert trainer.state.log_history[0]["guide/active_frac"] == 1.0


def test_with_vllms_correction_q_is_that_of_the_trainers_policy(tiny_policy: Path, tmp_path: Path):
    """The sampler's own log-probs (here: half a nat off) weight the loss; q comes from the forward that TRL adds for them."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        ids = trainer.processing_class(prompts, add_special_tokens=False)["input_ids"]
        written = [[4 + (i + k) % 9 for k in range(6)] for i in range(len(prompts))]
        return {"prompt_ids": ids, "completion_ids": written, "logprobs": [[-2.5] * 6 for _ in prompts]}

    trainer = build(tiny_policy, arguments(tmp_path), Spy, guide=BRANCH, rollout_func=rollout)
    trainer.use_vllm, trainer._last_loaded_step = True, 0
    trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    caught: list[dict[str, Any]] = []
    keep_inputs(trainer, caught)
    trainer.train()
    assert len(trainer.seen) == 3 and all("old_per_token_logps" in inputs for inputs in caught)
    assert caught[0]["importance_sampling_ratio"].std() > 0


def test_flat_leaves_the_references_tensor_alone(tiny_policy: Path, tmp_path: Path):
    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1), guide=Flat())
    caught: list[dict[str, Any]] = []
    keep_inputs(trainer, caught)
    trainer.train()
    assert caught[0]["ref_per_token_logps"] is caught[0]["sage_ref_logps"] and not caught[0]["sage_log_q"].any()


@pytest.mark.parametrize("layout", ["plain", "moves: steps"])
def test_a_percentile_is_that_of_the_whole_rollout(layout: str, tiny_policy: Path, tmp_path: Path):
    guide = Branch(ratio=0.3, threshold="p80")
    trainer = build(tiny_policy, arguments(tmp_path, layout, max_steps=2), Spy, guide=guide)
    trainer.train()
    log_q = torch.cat([row for (rollout, _), row in trainer.wanted.items() if rollout == 0])
    assert 0.1 < float((log_q > 0).float().mean()) <= 0.25


# ---- stock TRL where q = 1


@pytest.mark.parametrize("layout", ["plain", "accumulated", "moves: steps", "moves: iterations"])
def test_flat_gives_the_weights_of_stock_trl(layout: str, tiny_policy: Path, tmp_path: Path):
    stock = build(tiny_policy, arguments(tmp_path, layout), trl.GRPOTrainer)
    start = weights(stock)
    stock.train()
    flat = build(tiny_policy, arguments(tmp_path, layout), guide=Flat())
    flat.train()
    shaped = build(tiny_policy, arguments(tmp_path, layout), guide=BRANCH)
    shaped.train()
    assert same(weights(stock), weights(flat))
    assert not same(start, weights(stock)) and not same(weights(stock), weights(shaped))
    ours = {name for name in flat.state.log_history[0] if name.startswith(("kl/", "guide/"))}
    guided = {f"guide/{name}" for name in ("q_mean", "log_q_sum", "active_frac", "clamped_frac")}
    assert ours == {"kl/to_anchor", "kl/to_reference"} | guided
    for found, wanted in zip(flat.state.log_history[:-1], stock.state.log_history[:-1], strict=True):
        assert {k: found[k] for k in wanted if "time" not in k} == {k: v for k, v in wanted.items() if "time" not in k}


@pytest.mark.parametrize("layout", ["plain", "accumulated", "moves: both", "moves: out of step"])
def test_no_forward_is_added(layout: str, tiny_policy: Path, tmp_path: Path):
    """Every call of the model, those of generation included: with equal weights the completions are equal too."""

    def count(cls: type, **more: Any) -> tuple[int, int]:
        trainer = build(tiny_policy, arguments(tmp_path, layout, learning_rate=0.0), cls, **more)
        calls = [0, 0]
        for place, model in enumerate((trainer.model, trainer.ref_model)):

            def add(*_: Any, place: int = place) -> None:
                calls[place] += 1

            model.register_forward_pre_hook(add)
        trainer.train()
        return calls[0], calls[1]

    plain = count(trl.GRPOTrainer)
    assert count(SageTrainer, guide=BRANCH) == plain and min(plain) > 0


def test_the_logged_kl_is_shaped_and_raw(tiny_policy: Path, tmp_path: Path):
    args = arguments(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=1)
    data = Dataset.from_dict({"prompt": PROMPTS[:2]})
    trainer = build(tiny_policy, args, guide=BRANCH, eval_dataset=data)
    trainer.evaluate()
    at_start = trainer.state.log_history[0]
    trainer.train()
    first = next(line for line in trainer.state.log_history if "kl/to_anchor" in line)
    assert at_start["eval_kl"] == pytest.approx(0, abs=1e-6)  # evaluation reads the reference itself
    assert first["kl/to_reference"] == pytest.approx(0, abs=1e-6)
    assert first["kl/to_anchor"] == pytest.approx(first["kl"], rel=1e-4) and first["kl"] > 1e-3
    assert first["guide/q_mean"] > 1.05 and 0.3 < first["guide/active_frac"] <= 1
    assert not any(name.startswith("eval_anchor") for line in trainer.state.log_history for name in line)


def test_evaluation_between_two_steps_changes_nothing(tiny_policy: Path, tmp_path: Path):
    """Up to the global generator, from which its completions are drawn."""
    guide = Token(alpha=0.3, sigma=0.2)
    trainer = build(
        tiny_policy, arguments(tmp_path), Spy, guide=guide, eval_dataset=Dataset.from_dict({"prompt": PROMPTS})
    )
    trainer.evaluate()
    assert trainer.wanted == {} and trainer._numbered == (-1, 0) and not trainer._losses


# ---- resume


@pytest.mark.parametrize("last", [True, "checkpoint-2"])
def test_a_finished_run_that_is_started_again_trains_no_step(tiny_policy: Path, tmp_path: Path, last: bool | str) -> None:
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    whole = build(tiny_policy, arguments(tmp_path, **options), guide=BRANCH)
    whole.train()
    again = build(tiny_policy, arguments(tmp_path, **options), guide=BRANCH)
    result = again.train(resume_from_checkpoint=last if last is True else str(tmp_path / "out" / last))
    assert (result.global_step, again.state.global_step) == (2, 2) and same(weights(whole), weights(again))
    more = build(tiny_policy, arguments(tmp_path, **options | {"max_steps": 3}), guide=BRANCH)
    assert more.train(resume_from_checkpoint=True).global_step == 3


@pytest.mark.parametrize("layout", ["plain", "two rollouts a step", "moves: steps"])
def test_a_resumed_run_is_the_uninterrupted_run(layout: str, tiny_policy: Path, tmp_path: Path):
    guide = Token(alpha=CosineCycles(0.4, 0.1, cycles=2), sigma=0.2) * BRANCH
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}

    whole = build(tiny_policy, arguments(tmp_path / "whole", layout, **options), guide=guide)
    whole.train()
    again = build(tiny_policy, arguments(tmp_path / "again", layout, **options), guide=guide)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "out" / "checkpoint-2"))
    assert same(weights(whole), weights(again))
    logged = [
        [line["guide/q_mean"] for line in t.state.log_history if "guide/q_mean" in line] for t in (whole, again)
    ]
    assert logged[0] == logged[1] and len(set(logged[0])) == 4


# ---- two processes

RANKS = """
import os, sys
import torch
from datasets import Dataset
from trl import GRPOConfig
from dataclasses import replace
from sage_rlvr import Branch, Token, bnpo, sage
from sage_rlvr.core import FixedBudget
from sage_rlvr.training.trl import SageTrainer, grpo_config

policy, out, layout, world = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
torch.set_num_threads(1)


def rollout(prompts, trainer):
    ids = trainer.processing_class(prompts, add_special_tokens=False)["input_ids"]
    seeds = [sum(row) + 31 * (i % 3) for i, row in enumerate(ids)]  # of the prompt and the place in its group
    written = [[4 + (seed * (k + 3)) % 15 for k in range(3 + seed % 5)] for seed in seeds]
    return {"prompt_ids": ids, "completion_ids": written, "logprobs": None}


class Recorder(SageTrainer):
    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        for row, log_q, mask in zip(inputs["sage_row_ids"].tolist(), inputs["sage_log_q"], inputs["completion_mask"]):
            kept[(self.state.global_step // args.steps_per_generation, row)] = log_q[mask.bool()]
        return loss


kept = {}
guide = Branch(threshold="p80") * Token(alpha=0.3, sigma=0.2)
method = sage(base=replace(bnpo(beta=0.5), reduction=FixedBudget()), guide=guide)
args = GRPOConfig(
    out, **grpo_config(method), max_steps=4, learning_rate=0.1,
    lr_scheduler_type="constant", per_device_train_batch_size=12 // world, num_generations=3, max_completion_length=8,
    steps_per_generation=2 if layout == "moves" else 1, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True,
    bf16=False, gradient_checkpointing=False, disable_tqdm=True, optim="sgd", seed=5,
)
data = Dataset.from_dict({"prompt": [f"{a} {b}={a + b}:" for a in range(1, 7) for b in range(1, 5)]})
trainer = Recorder(
    model=policy, reward_funcs=lambda completions, **_: [float(len(set(text)) % 2) for text in completions],
    args=args, train_dataset=data, method=method, rollout_func=rollout,
)
assert trainer.accelerator.num_processes == world, trainer.accelerator.num_processes
trainer.train()
logged = [{k: v for k, v in line.items() if k.startswith("anchor/")} for line in trainer.state.log_history[:-1]]
weights = {name: value.detach() for name, value in trainer.model.state_dict().items()}
torch.save((kept, logged, weights), f"{out}/rank{os.environ.get('RANK', '0')}.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["rests", "moves"])
def test_q_over_two_ranks_is_that_of_one_process(layout: str, tiny_policy: Path, tmp_path: Path):
    """Noise by global row, the percentile and the Beta of the advantages over both ranks: weights and metrics agree."""

    def run(world: int) -> list[Any]:
        return on_ranks(RANKS, tmp_path, world, str(tiny_policy), "OUT", layout)

    ((whole, logged, one),) = run(1)
    (first, logged_0, zero), (second, logged_1, _) = run(2)
    halves = first | second
    assert first.keys().isdisjoint(second.keys()) and halves.keys() == whole.keys()
    # A rank shuffles the rows of its own two updates: after the first rollout the weights are others than in one process.
    places = [place for place in whole if layout == "rests" or place[0] == 0]
    assert len(places) == {"rests": 48, "moves": 24}[layout]
    for place in places:
        torch.testing.assert_close(halves[place], whole[place], atol=1e-5, rtol=1e-4)
    assert any(float(value.abs().max()) > 0.05 for value in whole.values())
    assert logged_0 == logged_1
    if layout == "rests":
        for ours, theirs in zip(logged, logged_0, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
        assert all(torch.allclose(zero[name], one[name], atol=1e-5) for name in one)
        start = AutoModelForCausalLM.from_pretrained(tiny_policy).state_dict()
        assert max(float((start[name] - one[name]).abs().max()) for name in one) > 1e-3


@pytest.mark.slow
def test_the_example_learns(tmp_path: Path):
    """50 steps of examples/trl_minimal.py on the shipped base policy: more right answers at the end than at the start."""
    example = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "trl_minimal.py"))
    log = [line for line in example["main"](str(tmp_path), steps=50) if "reward" in line]
    rewards = [line["reward"] for line in log]
    assert len(rewards) == 50 and sum(rewards[-20:]) > 1.2 * sum(rewards[:20])
    assert log[0]["kl/to_reference"] == pytest.approx(0, abs=1e-6) and log[-1]["kl/to_reference"] > 0.005
    assert all(0.02 < line["guide/active_frac"] < 0.6 for line in log)
