"""Facts about TRL on which sage_rlvr.training.trl leans, each shown on stock GRPOTrainer; a failure names what has changed."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")

from datasets import Dataset
from packaging.version import Version

from trl_common import QUIET

VERSION = Version(trl.__version__)
PROMPTS = [f"{a} {b}={a + b}:" for a in range(1, 6) for b in range(1, 6)]
SCORER = "_get_per_token_logps_and_entropies"


def reward(completions: list[str], **_: object) -> list[float]:
    return [float(len(set(text)) % 2) for text in completions]


def args(folder: Path, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "beta": 0.5,
        "use_bias_correction_kl": False,
        "loss_type": "grpo",
        "max_steps": 2,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 6,
        "per_device_eval_batch_size": 6,
        "num_generations": 3,
        "max_completion_length": 8,
        "logging_steps": 1,
    }
    return trl.GRPOConfig(str(folder / "out"), **QUIET | settings | changes)


class Watched(trl.GRPOTrainer):
    """Stock TRL with a diary: (event, value) in the order in which things happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.diary: list[tuple[str, Any]] = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.diary.append(("generate", self.model.training))
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            output["mine"] = torch.arange(len(output["completion_ids"]))
            output["copy"] = output["completion_ids"].clone()
        self.diary.append(("generated", output))
        return output

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        self.diary.append(("policy" if model is not self.ref_model else "reference", found))
        return found

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self.diary.append(("loss", (inputs, self.state.global_step, self.state.max_steps)))
        return super()._compute_loss(model, inputs)

    def all(self, event: str) -> list[Any]:
        return [value for name, value in self.diary if name == event]


def trained(policy: Path, arguments: Any, run: bool = True, **more: Any) -> Watched:
    data = Dataset.from_dict({"prompt": PROMPTS})
    trainer = Watched(model=str(policy), reward_funcs=reward, args=arguments, train_dataset=data, **more)
    if run:
        trainer.train()
    return trainer


def test_the_three_methods_exist_with_these_parameters():
    """GRPOTrainer has the methods that SageTrainer overrides, and keeps the rewards of all ranks in a method of its own."""
    for name, parameters in {
        "_generate_and_score_completions": ["self", "inputs"],
        "_compute_loss": ["self", "model", "inputs"],
    }.items():
        found = inspect.signature(inspect.unwrap(getattr(trl.GRPOTrainer, name)))
        assert [*found.parameters] == parameters
    scorer = inspect.signature(inspect.unwrap(getattr(trl.GRPOTrainer, SCORER)))
    assert [*scorer.parameters][:2] == ["self", "model"]
    assert callable(trl.GRPOTrainer._calculate_rewards)


def test_the_defaults_leave_no_kl_and_correct_it():
    """beta is 0 by default; from 1.10 on use_bias_correction_kl is True by default, so that k3 becomes a reverse KL."""
    config = trl.GRPOConfig("unused", use_cpu=True, bf16=False)
    assert config.beta == 0.0
    assert config.use_bias_correction_kl is (Version("1.10") <= VERSION)


@pytest.mark.parametrize(
    ("accumulate", "steps", "iterations"), [(1, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 1), (1, 1, 2), (2, 3, 1)]
)
def test_the_policy_is_scored_at_generation_exactly_where_it_moves(
    accumulate: int, steps: int, iterations: int, tiny_policy: Path, tmp_path: Path
):
    """old_per_token_logps is in the rollout unless gradient_accumulation_steps % (steps_per_generation * num_iterations)
    is 0; it *is* the tensor that a forward of the policy returned."""
    layout = {"gradient_accumulation_steps": accumulate, "steps_per_generation": steps, "num_iterations": iterations}
    trainer = trained(tiny_policy, args(tmp_path, **layout))
    moves = accumulate % (steps * iterations) != 0
    for output in trainer.all("generated"):
        assert ("old_per_token_logps" in output) == moves
        assert not moves or any(output["old_per_token_logps"] is found[0] for found in trainer.all("policy"))
        assert any(output["ref_per_token_logps"] is found[0] for found in trainer.all("reference"))


def test_where_the_policy_rests_no_step_lies_between_rollout_and_loss(tiny_policy: Path, tmp_path: Path):
    """state.global_step is the same from generation to the last loss on its rows, across the end of an epoch too."""
    layout = {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "max_steps": 5}
    trainer = trained(tiny_policy, args(tmp_path, **layout))  # 25 prompts, 4 a rollout: 6 rollouts an epoch
    steps: list[int] = []
    for event, value in trainer.diary:
        if event == "generate":
            assert len(set(steps)) <= 1
            steps = []
        elif event == "loss":
            steps.append(value[1])
    assert trainer.state.epoch > 1


def test_the_loss_gets_the_buffered_dictionary(tiny_policy: Path, tmp_path: Path):
    """_compute_loss is handed the very dictionary that is kept for the next iteration: what is written there stays."""
    trainer = trained(tiny_policy, args(tmp_path, num_iterations=2))
    first, second = (value[0] for value in trainer.all("loss"))
    assert first is second


def test_what_is_added_to_a_rollout_is_shuffled_and_split_with_it(tiny_policy: Path, tmp_path: Path):
    """Every tensor of the dictionary that _generate_and_score_completions returns goes with its rows."""
    trainer = trained(tiny_policy, args(tmp_path, steps_per_generation=2))
    inputs = [value[0] for value in trainer.all("loss")]
    assert sorted(torch.cat([part["mine"] for part in inputs]).tolist()) == list(range(12))
    assert all(torch.equal(part["copy"], part["completion_ids"]) for part in inputs)
    assert torch.cat([part["mine"] for part in inputs]).tolist() != list(range(12))


def test_the_loss_reads_the_reference_after_the_forward(tiny_policy: Path, tmp_path: Path):
    """A reference that is replaced during the policy's forward is the one that the KL is taken to."""
    trainer = trained(tiny_policy, args(tmp_path, max_steps=1))
    inputs = dict(trainer.all("loss")[0][0])
    plain = getattr(trainer, SCORER)

    def replacing(*args: Any, **kwargs: Any) -> Any:
        inputs["ref_per_token_logps"] = inputs["ref_per_token_logps"] + 1.0
        return plain(*args, **kwargs)

    trainer.model.train()
    trainer._metrics["train"]["kl"].clear()
    trainer._compute_loss(trainer.model, dict(inputs))
    setattr(trainer, SCORER, replacing)
    trainer._compute_loss(trainer.model, inputs)
    before, after = trainer._metrics["train"]["kl"]
    assert after > before + 0.1


def test_the_scorers_first_two_are_log_probs_and_entropies_at_the_temperature(tiny_policy: Path, tmp_path: Path):
    """(logps, entropies, ...) (B, T), of logits divided by the temperature, the entropy over the whole vocabulary in nats."""
    trainer = trained(tiny_policy, args(tmp_path, temperature=0.7), run=False)
    ids = torch.randint(4, 20, (3, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logps, entropies = getattr(trainer, SCORER)(trainer.model, ids, torch.ones_like(ids), 5, compute_entropy=True)[
            :2
        ]
        law = torch.log_softmax(trainer.model(ids).logits[:, 3:-1] / 0.7, dim=-1)
    torch.testing.assert_close(logps, law.gather(2, ids[:, 4:, None])[:, :, 0])
    torch.testing.assert_close(entropies, -(law.exp() * law).sum(-1))


@pytest.mark.skipif(Version("1.15") > VERSION, reason="the fused head came with 1.15")
def test_a_separate_reference_has_no_entropies(tiny_policy: Path, tmp_path: Path):
    """Only the policy may be asked: the reference's fused head computes log-probs alone."""
    trainer = trained(tiny_policy, args(tmp_path), run=False)
    ids = torch.full((2, 6), 5)
    with torch.no_grad(), pytest.raises(TypeError):
        getattr(trainer, SCORER)(trainer.ref_model, ids, torch.ones_like(ids), 3, compute_entropy=True)


def test_evaluation_generates_with_the_model_in_eval_mode(tiny_policy: Path, tmp_path: Path):
    """self.model.training tells a rollout of training from one of evaluation, at generation and in the loss."""
    trainer = trained(tiny_policy, args(tmp_path, max_steps=1), eval_dataset=Dataset.from_dict({"prompt": PROMPTS[:2]}))
    assert trainer.all("generate") == [True]
    trainer.evaluate()
    assert trainer.all("generate") == [True, False]


def test_the_step_and_its_total_are_known_at_the_first_loss(tiny_policy: Path, tmp_path: Path):
    """state.global_step counts optimizer steps from 0, and state.max_steps is set before the first."""
    trainer = trained(tiny_policy, args(tmp_path, gradient_accumulation_steps=2))
    assert [value[1:] for value in trainer.all("loss")] == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_a_resume_restores_the_step_and_not_the_micro_step(tiny_policy: Path, tmp_path: Path):
    """After a resume state.global_step goes on and TRL's own micro-step counter starts from 0: only the first addresses."""
    options = {"save_strategy": "steps", "save_steps": 1}
    trained(tiny_policy, args(tmp_path, **options))
    again = trained(tiny_policy, args(tmp_path, **options | {"max_steps": 3}), run=False)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert [value[1] for value in again.all("loss")] == [2] and again._step == 1


def test_the_rewards_come_by_row_and_function(tiny_policy: Path, tmp_path: Path):
    """_calculate_rewards returns (rows of all ranks, reward functions), unweighted, rows in the order of the prompts."""
    kept: list[Any] = []
    trainer = trained(tiny_policy, args(tmp_path, max_steps=1, reward_weights=[0.5]), run=False)
    plain = trainer._calculate_rewards
    trainer._calculate_rewards = lambda *a, **k: kept.append(plain(*a, **k)) or kept[-1]
    trainer.train()
    output = trainer.all("generated")[0]
    texts = trainer.processing_class.batch_decode(output["completion_ids"], skip_special_tokens=True)
    assert kept[0].shape == (6, 1) and kept[0][:, 0].tolist() == reward(texts)
