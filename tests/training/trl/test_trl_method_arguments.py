"""Methods as TRL's arguments, worked by hand, and what TRL cannot express. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

trl = pytest.importorskip("trl")

from datasets import Dataset

from sage_rlvr.core import (
    Constant,
    Linear,
    Method,
    Signals,
    TokenWeight,
)
from sage_rlvr.core.guides import Branch
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import bnpo, dapo, dr_grpo, forward_kl, grpo, grpo_token_mean, no_kl, rloo, sage
from sage_rlvr.training.trl import SageTrainer, grpo_config
from training.trl.methods_common import overlong, trained
from trl_common import PROMPTS, arguments, reward


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
class Reads(TokenWeight):
    """A token weight of 1 that reads one signal."""

    needs: frozenset[str] = frozenset()
    equation: ClassVar[str] = "1"

    def token_weights(self, signals: Signals, *more: Any) -> tuple[Tensor, Any]:
        return torch.ones_like(signals.old_logps), more[-1]


OFF = replace(grpo().anchor, beta=0.0)
IMPOSSIBLE = {
    "estimator = k2": grpo(estimator="k2"),
    "estimator = straight_through": grpo(estimator="straight_through"),
    "divergence = js": grpo(estimator="exact", divergence="js"),
    "divergence = reverse": grpo(estimator="exact", divergence="reverse"),
    "divergence = alpha": grpo(estimator="exact", divergence="alpha"),
    "surrogate.dual = 1.1": replace(grpo(), surrogate=Clip(0.2, 0.28, 1.1)),
    "reads ref_entropies": replace(grpo(), extras=(Reads(frozenset({"ref_entropies"})),)),
    "reads a reference without a KL term": replace(no_kl(), anchor=OFF, extras=(Reads(frozenset({"ref_logps"})),)),
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
