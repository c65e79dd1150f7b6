"""The golden batch: TRL's loss and gradient are those of core.objective. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")


from sage_rlvr.core import Method
from sage_rlvr.core.guides import Branch, Guide
from sage_rlvr.core.guides.token import Token
from sage_rlvr.methods import bnpo, dapo, dr_grpo, grpo, grpo_token_mean, sage
from sage_rlvr.training.trl import grpo_config
from sage_rlvr.training.trl.batch import scale_of
from training.trl.spy_common import gradients, keep_inputs, ours
from trl_common import PROMPTS, arguments, build, forward

BRANCH = Branch(ratio=0.3, threshold=1.2)


ON_TRL: dict[str, Callable[..., Method]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "grpo_token_mean": grpo_token_mean,
    "dapo": lambda **more: dapo(dynamic_sampling=False, **more),
    "bnpo": bnpo,
}


def golden_inputs(trainer: Any) -> dict[str, Any]:
    """Six ragged rows, an old policy off by up to half a nat (both clips act), a reference off by up to one."""
    tokenizer = trainer.processing_class
    prompts = tokenizer(PROMPTS[:6], padding=True, padding_side="left", return_tensors="pt", add_special_tokens=False)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([8, 3, 5, 1, 8, 6])
    mask = (torch.arange(8)[None, :] < lengths[:, None]).long()
    inputs = {
        "prompt_ids": prompts["input_ids"],
        "prompt_mask": prompts["attention_mask"],
        "completion_ids": torch.randint(4, 20, (6, 8), generator=generator) * mask,
        "completion_mask": mask,
        "advantages": torch.tensor([1.2, -0.7, -0.5, 0.0, 2.0, -2.0]),
        "num_items_in_batch": mask.sum(),
        "sage_row_ids": torch.arange(6),
        "sage_signal": torch.ones(6, dtype=torch.bool),
    }
    with torch.no_grad():
        logps, _ = forward(trainer.model, inputs, trainer.args.temperature)
    noise = torch.rand((2, 6, 8), generator=generator) * 2 - 1
    return inputs | {"old_per_token_logps": logps + 0.5 * noise[0], "ref_per_token_logps": logps + noise[1]}


@pytest.mark.parametrize("guide", [None, BRANCH, Token(alpha=0.3, sigma=0.2)], ids=["no guide", "branch", "token"])
@pytest.mark.parametrize("name", ON_TRL)
def test_loss_and_gradient_are_those_of_the_objective(
    name: str, guide: Guide | None, tiny_policy: Path, tmp_path: Path
):
    method = ON_TRL[name](beta=0.3)
    method = method if guide is None else sage(base=method, guide=guide)
    trainer = build(tiny_policy, arguments(tmp_path, **grpo_config(method)), method=method)
    trainer.state.max_steps, trainer.current_gradient_accumulation_steps = 10, 1
    trainer.model.train()
    inputs = golden_inputs(trainer)
    wanted, wanted_gradients = ours(method, trainer, inputs)
    trainer.model.zero_grad()
    scale = scale_of(method, trainer.max_completion_length)  # what `with_advantages` puts into a rollout
    inputs |= {"advantages": scale * inputs["advantages"], "sage_scale": torch.tensor(scale)}
    loss = trainer._compute_loss(trainer.model, dict(inputs))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    scale = max(float(value.abs().max()) for value in wanted_gradients.values())
    for part, value in gradients(trainer).items():
        torch.testing.assert_close(value, wanted_gradients[part], rtol=1e-4, atol=1e-5 * scale, msg=part)


def test_the_importance_weighted_estimator_is_the_bias_correction(tiny_policy: Path, tmp_path: Path):
    method = sage(base=grpo(beta=0.3, estimator="k3_is"), guide=Token(alpha=0.3, sigma=0.2))
    trainer = build(tiny_policy, arguments(tmp_path, **grpo_config(method)), method=method)
    trainer.state.max_steps, trainer.current_gradient_accumulation_steps = 10, 1
    trainer.model.train()
    inputs = golden_inputs(trainer)
    wanted, _ = ours(method, trainer, inputs)
    assert float(trainer._compute_loss(trainer.model, dict(inputs)).detach()) == pytest.approx(wanted, rel=1e-5)
    assert wanted != pytest.approx(ours(sage(base=grpo(beta=0.3), guide=Token()), trainer, inputs)[0], rel=1e-3)


LOSS_TYPES = {"grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"}


def test_these_are_all_loss_types_of_trl():
    """Those that its loss compares with, and those that the help of GRPOConfig names."""
    known: set[str] = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(trl.GRPOTrainer._compute_loss)))):
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == "self.loss_type":
            known |= {part.value for part in ast.walk(node.comparators[0]) if isinstance(part, ast.Constant)}
    (field,) = (field for field in dataclasses.fields(trl.GRPOConfig) if field.name == "loss_type")
    helped = field.metadata["help"].split("Supported values are ")[1].split(".")[0]
    assert known == LOSS_TYPES >= set(re.findall(r"'(\w+)'", helped)) >= {"grpo", "dapo"}  # the help of 1.0 lags behind


@pytest.mark.parametrize("corrected", [False, True])
def test_every_loss_type_is_stock_on_the_shaped_reference(corrected: bool, tiny_policy: Path, tmp_path: Path):
    """Bit for bit: SageTrainer's loss is GRPOTrainer's on a batch that holds log(q pi_ref) from the start."""
    settings = {"use_bias_correction_kl": corrected}
    trainer = build(tiny_policy, arguments(tmp_path, **settings), guide=Token(alpha=0.3, sigma=0.2) * BRANCH)
    trainer.state.max_steps, trainer.current_gradient_accumulation_steps = 10, 1
    trainer.model.train()
    raw = golden_inputs(trainer)
    for loss_type in LOSS_TYPES:
        trainer.loss_type, shaped = loss_type, dict(raw)
        ours = float(trainer._compute_loss(trainer.model, shaped).detach())
        ready = raw | {"ref_per_token_logps": shaped["ref_per_token_logps"]}
        stock = [float(trl.GRPOTrainer._compute_loss(trainer, trainer.model, dict(x)).detach()) for x in (ready, raw)]
        assert ours == stock[0] != stock[1], loss_type


def test_a_bfloat16_policy_has_its_reference_shaped_in_float32(tiny_policy: Path, tmp_path: Path):
    args = arguments(tmp_path, max_steps=1, model_init_kwargs={"dtype": "bfloat16"})
    trainer = build(tiny_policy, args, guide=Branch(ratio=0.001, threshold=0.0))
    caught: list[dict[str, Any]] = []
    keep_inputs(trainer, caught)
    trainer.train()
    assert trainer.model.dtype == torch.bfloat16
    moved = caught[0]["ref_per_token_logps"] - caught[0]["sage_ref_logps"].float()
    mask = caught[0]["completion_mask"].bool()
    assert caught[0]["ref_per_token_logps"].dtype == torch.float32
    torch.testing.assert_close(moved, caught[0]["sage_log_q"], atol=1e-6, rtol=0)
    assert float(moved[mask].max()) < 0.004  # bfloat16 could not tell these apart at -2
