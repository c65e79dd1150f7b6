"""Policies between two: the two ends bit for bit, the middle by hand, the upper half alone, and what cannot be mixed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from conftest import save, tiny_llama
from models.sampler_common import build, gpt2, llama
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.interpolation import Interpolated, mix_into, mixed, upper_half
from sage_rlvr.models.policy import load_policy

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("share", "end"), [(0.0, "base"), (1.0, "policy")])
def test_the_ends_are_the_two_policies_bit_for_bit(
    tiny_policy: Path, warm_policy: Path, dtype: str, share: float, end: str
) -> None:
    ends = {"policy": str(tiny_policy), "base": str(warm_policy)}
    model, _ = Interpolated(**ends, share=share).load(dtype)
    alone, _ = load_policy(ends[end], dtype)
    assert model.dtype == getattr(torch, dtype)
    assert torch.equal(model(IDS).logits.log_softmax(-1), alone(IDS).logits.log_softmax(-1))


def test_the_middle_is_mixed_in_float32_and_rounded_once(tiny_policy: Path, warm_policy: Path) -> None:
    policy, base = (weights(load_policy(str(one))[0]) for one in (tiny_policy, warm_policy))
    wanted = {name: 0.75 * base[name] + 0.25 * policy[name] for name in policy}
    for dtype in (torch.float32, torch.bfloat16):
        model, _ = Interpolated(str(tiny_policy), str(warm_policy), 0.25).load(str(dtype).removeprefix("torch."))
        found = weights(model)
        assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name].to(dtype)) for name in wanted)


@given(st.floats(-9, 9), st.floats(-9, 9), st.floats(0, 1))
def test_a_weight_lies_between_the_two(policy: float, base: float, share: float) -> None:
    value = float(mixed(torch.tensor(policy), torch.tensor(base), share))
    assert min(policy, base) - 1e-5 <= value <= max(policy, base) + 1e-5
    assert value == pytest.approx(base + share * (policy - base), abs=1e-5)


def test_by_hand() -> None:
    assert mixed(torch.tensor([2.0, -4.0]), torch.tensor([6.0, 0.0]), 0.25).tolist() == [5.0, -1.0]


@pytest.mark.parametrize(
    ("make", "upper"),
    [
        (lambda: llama(num_hidden_layers=5), ("model.layers.3.", "model.layers.4.")),
        (gpt2, ("transformer.h.1.",)),
    ],
)
def test_upper_mixes_the_upper_half_of_the_layers_and_keeps_the_rest_of_the_policy(
    make: Callable[[], PreTrainedModel], upper: tuple[str, ...]
) -> None:
    policy, base = build(make), build(make)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.add_(1.0)
    before = weights(policy)
    assert upper_half(policy) == upper
    mix_into(policy, policy, base, 0.5, "upper")
    for name, parameter in policy.named_parameters():
        moved = 0.5 if name.startswith(upper) else 0.0
        assert torch.allclose(parameter, before[name] + moved, atol=1e-6), name


def test_the_upper_half_of_one_layer_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--layers upper"):
        upper_half(llama(num_hidden_layers=1))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"intermediate_size": 48}, r"model\.layers\.0\.mlp\.gate_proj\.weight has the shapes \(64, 32\) and \(48, 32\)"),
        ({"num_hidden_layers": 3}, r"has a tensor model\.layers\.2\."),
        ({"tie_word_embeddings": False}, r"has a tensor lm_head\.weight"),
        ({"vocab_size": 40}, r"model\.embed_tokens\.weight has the shapes"),
        ({"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8}, "num_attention_heads = 2 and 4"),
    ],
)
def test_two_shapes_are_an_error_that_names_the_tensor(
    tiny_policy: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    other = save(tiny_llama(**changes), tmp_path / "other")
    with pytest.raises(ConfigError, match=named):
        Interpolated(str(tiny_policy), str(other), 0.5).load()


def test_a_store_tells_mixtures_apart(tiny_policy: Path, warm_policy: Path) -> None:
    ends = (str(tiny_policy), str(warm_policy))
    made = [Interpolated(*ends, 0.5), Interpolated(*ends, 0.25), Interpolated(*ends, 0.5, "upper"), Interpolated(*ends[::-1], 0.5)]
    assert len({one.revision for one in made}) == 4 and made[0].revision == Interpolated(*ends, 0.5).revision


def test_a_share_beyond_the_two_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"share 1\.5"):
        Interpolated("a", "b", 1.5)
