"""examples/sage_in_one_file.py trains the same weights as the training loop, and other weights if any of its steps is changed."""

from __future__ import annotations

import copy
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from sage_rlvr.config import TrainConfig
from sage_rlvr.config.parts import OptimizerConfig, RolloutConfig, UpdateConfig, WorldConfig
from sage_rlvr.core.guides import Branch
from sage_rlvr.methods.grpo import grpo
from sage_rlvr.methods.sage import sage
from sage_rlvr.models.folders import embedded_policy
from sage_rlvr.tasks.countdown import WORLDS
from sage_rlvr.training.loop import build, train_step

FILE = Path(__file__).parents[1] / "examples" / "sage_in_one_file.py"
SOURCE = FILE.read_text()

# Distance between two sets of weights, relative to how far training moved them (L2 norms). The file and the loop compute the
# same update in different layouts (padded rows and stock modules; shared prompts and fused layers), so they agree up to float32
# rounding: 3e-5 to 1.2e-4 after the steps below. A bound per weight could not be tight: Adam divides a gradient by its own size,
# which makes a whole step of rounding errors in the few weights whose gradient is nothing else. The smallest change below, a
# learning rate 1 % larger, has a distance of 1e-2.
TOLERANCE = 5e-4


def module(source: str = SOURCE) -> ModuleType:
    """The file as a module, without running `main`."""
    loaded = ModuleType("sage_in_one_file")
    sys.modules[loaded.__name__] = loaded  # dataclasses look up annotations there
    exec(compile(source, str(FILE), "exec"), loaded.__dict__)
    return loaded


Settings = module().Settings
SMALL = Settings(steps=2, prompts=4, group=8)
# Every step of the method acts: second updates that clip ratios, gradient norms on both sides of their bound, q at q_max, right
# expressions that were cut off before their end token, a second pass over the problems.
BUSY = replace(
    SMALL,
    epochs=2,
    clip=0.02,
    beta=0.2,
    ratio=1.0,
    threshold=0.6,
    max_grad_norm=0.3,
    max_new_tokens=9,
    train_problems=6,
    seed=2,
)
LOWERED = replace(BUSY, ratio=-1.0)  # q below 1, and at q_min


def flat(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


@cache
def by_loop(s: Settings, guided: bool) -> tuple[Tensor, Tensor]:
    """Weights before and after training with the library."""
    base = grpo(beta=s.beta, clip_low=s.clip, clip_high=s.clip)
    guide = Branch(ratio=s.ratio, threshold=s.threshold, q_min=s.q_min, q_max=s.q_max)
    config = TrainConfig(
        seed=s.seed,
        steps=s.steps,
        method=sage(base=base, guide=guide) if guided else base,
        world=replace(WorldConfig.of(WORLDS["demo"]), train_problems=s.train_problems),
        rollout=RolloutConfig(prompts_per_step=s.prompts, group_size=s.group, max_new_tokens=s.max_new_tokens),
        updates=UpdateConfig(epochs=s.epochs),
        optimizer=OptimizerConfig(lr=s.lr, max_grad_norm=s.max_grad_norm),
    )
    loop = build(config)
    before = flat(loop.policy)
    for step in range(s.steps):
        train_step(loop, step)
    return before, flat(loop.policy)


@cache
def shipped() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = embedded_policy()
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def by_file(s: Settings, guided: bool, source: str = SOURCE) -> Tensor:
    """Weights after training with the file."""
    policy, tokenizer = copy.deepcopy(shipped())
    module(source).train(policy, tokenizer, s, guided)
    return flat(policy)


def distance(weights: Tensor, before: Tensor, after: Tensor) -> float:
    return float((weights - after).norm() / (after - before).norm())


@pytest.mark.parametrize("s", [SMALL, BUSY], ids=["defaults", "every step acts"])
@pytest.mark.parametrize("guided", [False, True], ids=["grpo", "sage"])
def test_the_file_trains_the_same_weights_as_the_loop(s: Settings, guided: bool):
    apart = distance(by_file(s, guided), *by_loop(s, guided))
    print(f"{apart:.1e}")
    assert apart < TOLERANCE


K3 = "k3_BT = log_r_BT.expm1() - log_r_BT"
ROW_MEAN = "(loss_BT.sum(1) / mask_BT.sum(1)).mean()"
CHANGES = {
    "other prompts": ('"prompts", len', '"prompt", len'),
    "other random numbers": ('"sample", torch.arange', '"samples", torch.arange'),
    "1 - u for u": ("(uniform_B * cumulative_BV[:, -1])", "((1 - uniform_B) * cumulative_BV[:, -1])"),
    "sampler attends to padding": (
        "policy(ids_BL, real_BL.long(), position",
        "policy(ids_BL, real_BL.long() * 0 + 1, position",
    ),
    "scorer attends to padding": ("tokens_BT], 1), real_BL.long()", "tokens_BT], 1), real_BL.long() * 0 + 1"),
    "wrong positions in the sampler": ("[:, -ids_BL.shape[1] :]", "[:, -ids_BL.shape[1] :] * 2"),
    "wrong positions in the scorer": (
        "(real_BL.cumsum(1) - 1).clamp(min=0)\n    logits",
        "real_BL.cumsum(1) * 2\n    logits",
    ),
    "end token not counted": ("masks.append(~done_B)", "masks.append(~done_B & (token_B != eos_id))"),
    "tokens after the end counted": ("masks.append(~done_B)", "masks.append(~done_B | True)"),
    "unfinished completions rewarded": ("float(ended and verify", "float(verify"),
    "logits shifted by one": ("prompt_BS.shape[1] - 1 : -1]", "prompt_BS.shape[1] :]"),
    "entropy with the wrong sign": ("entropy_BT = -(", "entropy_BT = ("),
    "mean over all groups": ("reward_PG - reward_PG.mean(1, keepdim=True)", "reward_PG - reward_PG.mean()"),
    "std with G in the denominator": ("reward_PG.std(1, keepdim=True)", "reward_PG.std(1, keepdim=True, correction=0)"),
    "no division by std": ("(centered_PG / (reward_PG.std(1, keepdim=True) + 1e-4))", "centered_PG"),
    "1e-2 added to std": ("keepdim=True) + 1e-4)", "keepdim=True) + 1e-2)"),
    "no threshold": ("entropy_BT - s.threshold", "entropy_BT"),
    "no ReLU": (".relu()", ".abs()"),
    "ratio with the wrong sign": ("1 + s.ratio", "1 - s.ratio"),
    "no q_max": ("clamp(s.q_min, s.q_max)", "clamp(min=s.q_min)"),
    "q instead of log q": ("q_BT.log()", "q_BT"),
    "q - 1 instead of log q": ("q_BT.log()", "(q_BT - 1)"),
    "reference divided by q": ("ref_BT + log_q_BT", "ref_BT - log_q_BT"),
    "reference without q": ("ref_BT + log_q_BT", "ref_BT"),
    "GRPO instead of SAGE": ("if guided else", "if not guided else"),
    "no clip": ("ratio_BT.clamp(1 - s.clip, 1 + s.clip)", "ratio_BT"),
    "no lower clip": ("clamp(1 - s.clip, 1 + s.clip)", "clamp(max=1 + s.clip)"),
    "no upper clip": ("clamp(1 - s.clip, 1 + s.clip)", "clamp(min=1 - s.clip)"),
    "maximum instead of minimum": ("torch.minimum", "torch.maximum"),
    "old policy moves": ("objective(logp_BT, old_BT", "objective(logp_BT, logp_BT.detach()"),
    "k1": (K3, "k3_BT = -log_r_BT"),
    "k2": (K3, "k3_BT = 0.5 * log_r_BT.square()"),
    "k3 with the ratio in the graph": (K3, "k3_BT = ratio_BT * (log_r_BT.expm1() - log_r_BT)"),
    "k3 with the ratio detached": (K3, "k3_BT = ratio_BT.detach() * (log_r_BT.expm1() - log_r_BT)"),
    "k3 detached": (K3, "k3_BT = (log_r_BT.expm1() - log_r_BT).detach()"),
    "reference moves": ("copy.deepcopy(policy).requires_grad_(False)", "policy"),
    "beta 5 % larger": ("s.beta * k3_BT", "1.05 * s.beta * k3_BT"),
    "mean over all tokens": (ROW_MEAN, "loss_BT.sum() / mask_BT.sum()"),
    "sum over completions": (ROW_MEAN, "(loss_BT.sum(1) / mask_BT.sum(1)).sum()"),
    "no gradient clipping": ("torch.nn.utils.clip_grad_norm_(policy.parameters(), s.max_grad_norm)", "pass"),
    "gradients accumulate": ("optimizer.zero_grad()", "pass"),
    "weight decay": ("weight_decay=0.0", "weight_decay=0.1"),
    "another optimizer": ("torch.optim.AdamW", "torch.optim.NAdam"),
    "learning rate 1 % larger": ("lr=s.lr", "lr=1.01 * s.lr"),
    "one epoch": ("range(s.epochs)", "range(1)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_step_trains_other_weights(name: str):
    old, new = CHANGES[name]
    assert SOURCE.count(old) == 1, f"{old!r} must be in the file exactly once; update CHANGES"
    moved = distance(by_file(BUSY, True, SOURCE.replace(old, new)), *by_loop(BUSY, True))
    print(f"{moved:.1e} {name}")
    assert moved > 10 * TOLERANCE


@pytest.mark.slow
def test_q_is_held_above_q_min():
    """With the paper's ratio q is at least 1; only a negative ratio reaches q_min."""
    before, after = by_loop(LOWERED, True)
    changed = SOURCE.replace("clamp(s.q_min, s.q_max)", "clamp(max=s.q_max)")
    assert distance(by_file(LOWERED, True), before, after) < TOLERANCE
    assert distance(by_file(LOWERED, True, changed), before, after) > 10 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    "q",
    ["branch(now_BT.detach(), mask_BT, s)", "branch(now_BT, mask_BT, s)"],
    ids=["computed in each epoch", "in the graph"],
)
def test_q_of_the_current_policy_trains_other_weights(q: str):
    changed = SOURCE.replace("logp_BT, _ = score(policy", "logp_BT, now_BT = score(policy")
    changed = changed.replace("ref_BT, log_q_BT, advantage_B, mask_BT, s)", f"ref_BT, {q}, advantage_B, mask_BT, s)")
    assert distance(by_file(BUSY, True, changed), *by_loop(BUSY, True)) > 10 * TOLERANCE


@pytest.mark.slow
def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", [str(FILE), "--steps", "1", "--seed", "4"])
    module().main()
    step, before, after = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"step   1  reward 0\.\d{3}  KL 0\.00000  tokens with q != 1 [\d.]+%", step)
    assert re.fullmatch(r"before training: pass@1 0\.1\d\d  pass@8 0\.\d{3}", before)
    assert re.fullmatch(r"after 1 steps:  pass@1 0\.[12]\d\d  pass@8 0\.\d{3}", after)
