"""What the tests of methods on TRL share. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

trl = pytest.importorskip("trl")


from sage_rlvr.core import (
    Advantage,
    CosineCycles,
    Linear,
    Method,
    Signals,
    TokenWeight,
)
from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.guides import Branch
from sage_rlvr.core.guides.token import Token
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.rollout_plans import DynamicSampling
from sage_rlvr.methods import bnpo, dapo, dr_grpo, grpo, grpo_token_mean, no_kl, rloo, sage
from sage_rlvr.training.trl import SageTrainer, grpo_config
from trl_common import arguments, build

BRANCH = Branch(ratio=0.3, threshold=1.2)
BOTH = Token(alpha=CosineCycles(0.4, 0.1, cycles=1), sigma=0.2) * BRANCH
PLAIN_SGD = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 0.05}


@dataclass(frozen=True)
class Uncertain(TokenWeight):
    """A token weight: 1 + H, and 1.5 more where the policy is far from the reference."""

    needs: ClassVar[frozenset[str]] = frozenset({"entropies", "ref_logps"})
    equation: ClassVar[str] = "1 + H + 1.5 [|log pi_old - log pi_ref| > 0.05]"

    def token_weights(self, signals: Signals, *more: Any) -> tuple[Tensor, Any]:
        away = (signals.old_logps - signals.require("ref_logps", "Uncertain")).abs() > 0.05
        return 1.0 + signals.require("entropies", "Uncertain") + 1.5 * away, more[-1]


@dataclass(frozen=True)
class Ranks(Advantage):
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
    "token weight": replace(sage(grpo(beta=0.3), BRANCH), extras=(Uncertain(),)),
    "grpo, kept groups": replace(sage(grpo(beta=0.3), BOTH), rollout=DynamicSampling(1)),
    "dr_grpo, kept groups": replace(dr_grpo(beta=0.3), rollout=DynamicSampling(0)),
    "bnpo, kept groups": replace(bnpo(beta=0.3), rollout=DynamicSampling(0)),
    "another advantage": replace(grpo(beta=0.3), advantage=Ranks()),
    "another eps": replace(grpo(beta=0.3), advantage=GroupNormalized(0.5)),
    "another length": replace(dr_grpo(beta=0.3), reduction=FixedBudget(7)),
}


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


def trained(method: Method, policy: Path, folder: Path, layout: str = "plain", **changes: Any) -> Recorder:
    more = {name: changes.pop(name) for name in ("reward_funcs", "rollout_func") if name in changes}
    options = grpo_config(method) | PLAIN_SGD | changes
    trainer = build(policy, arguments(folder, layout, **options), Recorder, method=method, **more)
    trainer.train()
    return trainer
