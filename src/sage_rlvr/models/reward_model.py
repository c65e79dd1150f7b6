"""A reward model: a linear head on a policy's last hidden state at the end of a completion, s(x, y) in R.

It is transformers' class for that (`AutoModelForSequenceClassification` with one label), initialized with a policy's weights and a
head of zeros, so that every score is 0 before its first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.folders import folder_of
from sage_rlvr.models.hashes import check_hashes
from sage_rlvr.models.policy import Tokens, load_tokens
from sage_rlvr.models.weights import check_files
from sage_rlvr.models.weights import whole as load_whole

HEAD = "score.weight"


def from_policy(policy: PreTrainedModel, tokens: Tokens, seed: int = 0) -> PreTrainedModel:
    """Return a reward model with the policy's weights and a head of zeros. Raise ConfigError for an architecture that has none."""
    config: Any = policy.config.__class__.from_dict(policy.config.to_dict() | {"num_labels": 1, "pad_token_id": tokens.pad_id})
    torch.manual_seed(seed)
    try:
        model: Any = AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        raise ConfigError(f"{type(policy).__name__} has no reward model in transformers ({error}); use another policy") from error
    base = model.base_model_prefix
    getattr(model, base).load_state_dict(getattr(policy, base).state_dict())
    torch.nn.init.zeros_(model.score.weight)
    ranker: PreTrainedModel = model.to(policy.dtype)
    return ranker


def load_reward_model(folder: str) -> tuple[PreTrainedModel, Tokens]:
    """Load a reward model that `sage-rlvr offline` with loss: reward has saved. Raise ConfigError for any other folder."""
    where = folder_of(folder)
    if not (where / "config.json").is_file():
        raise ConfigError(f"reward model {folder}: no config.json found; pass the policy/ folder of a run with loss: reward")
    check_files(where)
    check_hashes(where)
    model = load_whole(AutoModelForSequenceClassification.from_pretrained, str(where), dtype=torch.float32)
    if getattr(model.config, "num_labels", 0) != 1:
        raise ConfigError(
            f"reward model {folder}: returns {model.config.num_labels} labels instead of a score; pass a run with "
            "loss: reward"
        )
    return model.eval(), load_tokens(folder)


def scores_of(model: PreTrainedModel, texts: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Return the (N,) scores of texts, prompt and completion together, in the graph if gradients are on.

    The state that is read is that of a text's own last token; padding follows it, which causal attention never looks at.
    """
    ids = pad_sequence([torch.tensor(list(text)) for text in texts], batch_first=True, padding_value=pad_id).to(model.device)
    core: Any = getattr(model, model.base_model_prefix)
    states = core(input_ids=ids, use_cache=False).last_hidden_state
    last = torch.tensor([len(text) - 1 for text in texts], device=model.device)
    scores: Tensor = model.score(states[torch.arange(len(texts)), last]).float().squeeze(1)
    return scores


__all__ = ["HEAD", "from_policy", "load_reward_model", "scores_of"]
