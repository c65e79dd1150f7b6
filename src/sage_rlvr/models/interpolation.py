"""Policies between two policies: a mixture of their weights, made in memory when it is loaded.

    weights = (1 - share) * base + share * policy,   share 0: the base, 1: the policy

Both are read and mixed in float32; only then is the mixture rounded to the requested dtype. With layers = "upper" only
the upper half of the decoder's layers is mixed, and everything else (the lower layers, the embeddings, the last norm and
the head) is the policy's: late-layer interpolation with an earlier checkpoint, after arXiv 2608.29188, whose choice of layers may
differ.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.folders import cached_folder
from sage_rlvr.models.policy import Tokens, load_policy, revision_of

Layers = Literal["all", "upper"]
FORWARD = (
    "model_type", "hidden_act", "activation_function", "num_attention_heads", "num_key_value_heads", "rope_theta",
    "rope_parameters", "rope_scaling", "rms_norm_eps", "sliding_window", "tie_word_embeddings",
)  # fmt: skip
"""Settings of a configuration that change what equal weights compute."""


@dataclass(frozen=True)
class Interpolated:
    """The policy with the weights (1 - share) * base + share * policy.

    `sage_rlvr.evaluate` makes it; an evaluation by samples loads it.

    policy, base: folders, Hub ids or names of `NAMED`. share: in [0, 1]. layers: which are mixed.
    """

    policy: str
    base: str
    share: float
    layers: Layers = "all"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share {self.share:g} of {self.policy}: from 0, which is {self.base}, to 1, the policy itself")

    def load(self, dtype: str = "float32") -> tuple[PreTrainedModel, Tokens]:
        """Return the mixture and the policy's tokens. Raise ConfigError, with the tensor, for two policies of different shapes."""
        model, tokens = load_policy(self.policy, dtype)
        mine = model if dtype == "float32" else load_policy(self.policy)[0]
        theirs, others = load_policy(self.base)
        check_alike(mine, theirs, self)
        if others.tokenizer.get_vocab() != tokens.tokenizer.get_vocab():
            raise ConfigError(
                f"{self.policy} and {self.base}: the tokenizers have different vocabularies, so rows of model.embed_tokens mean "
                "different tokens; pass the model that the policy was trained from"
            )
        mix_into(model, mine, theirs, self.share, self.layers)
        return model, tokens

    @property
    def facts(self) -> dict[str, Any]:
        """Return what was mixed, as a sample store keeps it: share, layers, and the revisions of both policies."""
        return {"share": self.share, "layers": self.layers, "policy": located(self.policy), "base": located(self.base)}

    @property
    def revision(self) -> str:
        """Return the hash of both weights, the share and the layers, the identity in a sample store."""
        parts = (located(self.policy), located(self.base), repr(float(self.share)), self.layers)
        return hashlib.sha256(" ".join(("interpolated", *parts)).encode()).hexdigest()


def located(model: str) -> str:
    """Return `revision_of`; for a Hub id with the commit in the local cache, since a model there may move."""
    weights, folder = revision_of(model), cached_folder(model)
    return weights if folder is None or not weights.startswith("hub:") else f"{weights}@{folder.name}"


def check_alike(policy: PreTrainedModel, base: PreTrainedModel, of: Interpolated) -> None:
    """Raise ConfigError, with the first difference, unless both have the same tensors, shapes and settings of the forward."""
    mine, theirs = (dict(model.named_parameters()) for model in (policy, base))
    next_step = "pass the model that the policy was trained from"
    for name in sorted(mine.keys() ^ theirs.keys()):
        has, lacks = (of.policy, of.base) if name in mine else (of.base, of.policy)
        raise ConfigError(f"{of.policy} and {of.base}: {has} has a tensor {name} and {lacks} has none; {next_step}")
    for name, parameter in mine.items():
        shapes = tuple(parameter.shape), tuple(theirs[name].shape)
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"{of.policy} and {of.base}: {name} has the shapes {shapes[0]} and {shapes[1]}, which cannot be mixed; {next_step}"
            )
    for name in FORWARD:
        values = [getattr(model.config, name, None) for model in (policy, base)]
        if values[0] != values[1]:
            raise ConfigError(
                f"{of.policy} and {of.base}: config.json has {name} = {values[0]!r} and {values[1]!r}, so equal weights compute "
                f"different distributions; {next_step}"
            )


@torch.no_grad()
def mix_into(
    model: PreTrainedModel, policy: PreTrainedModel, base: PreTrainedModel, share: float, layers: Layers = "all"
) -> None:
    """Write (1 - share) * base + share * policy into the parameters of `model`, which may be `policy`."""
    prefixes = ("",) if layers == "all" else upper_half(policy)
    mine, theirs = dict(policy.named_parameters()), dict(base.named_parameters())
    for name, parameter in model.named_parameters():
        if name.startswith(prefixes):
            parameter.copy_(mixed(mine[name], theirs[name], share))


def mixed(policy: Tensor, base: Tensor, share: float) -> Tensor:
    """Return (1 - share) * base + share * policy.

    At 0 and 1 it is one of the two, even if the other contains values that are not finite.
    """
    if share in (0.0, 1.0):
        return policy if share else base
    return (1 - share) * base + share * policy


def upper_half(model: PreTrainedModel) -> tuple[str, ...]:
    """Return prefixes of the names of the parameters in the upper half of the decoder's layers.

    For an odd number of layers it is the smaller half.
    """
    count = int(model.config.get_text_config().num_hidden_layers)
    lists: Any = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(lists) != 1 or count < 2:
        raise ConfigError(
            f"--layers upper: {type(model).__name__} has {len(lists)} lists of its {count} layers, and one list of two layers or "
            "more is needed; use --layers all"
        )
    return tuple(f"{lists[0][0]}.{number}." for number in range(-(-count // 2), count))


__all__ = ["Interpolated", "Layers", "check_alike", "mix_into", "mixed", "upper_half"]
