"""Scoring: the ragged and the padded layout agree in values and gradients, and both are one plain forward a row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from sage_rlvr.errors import DataError
from sage_rlvr.models import head, sampler, scoring, shared_prefix
from sage_rlvr.models.llama import forward as llama_forward
from sage_rlvr.models.scoring import _padded_logits, _ragged_logits, completion_logits, score

COMMON = {"vocab_size": 21, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.3}
WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GQA = COMMON | WIDTHS | {"num_key_value_heads": 2}
MAKERS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**(COMMON | WIDTHS))),
    "gqa": lambda: LlamaForCausalLM(LlamaConfig(**GQA)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GQA)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**COMMON, n_embd=32, n_inner=48, n_layer=2, n_head=4, n_positions=64)),
}


def build(name: str, attention: str = "sdpa") -> PreTrainedModel:
    torch.manual_seed(0)
    model = MAKERS[name]().eval()
    model.set_attn_implementation(attention)
    return model


def batch(
    lengths: list[list[int]], prompt_lengths: list[int], seed: int = 0
) -> tuple[list[list[int]], Tensor, Tensor, Tensor]:
    """prompts, tokens (B, T), mask (B, T), owners (B,) of random ids; lengths[p] are those of prompt p's completions."""
    draw = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(2, 21, (n,), generator=draw).tolist() for n in prompt_lengths]
    flat = torch.tensor([n for group in lengths for n in group])
    tokens = torch.randint(1, 21, (len(flat), max(1, int(flat.max()))), generator=draw)
    mask = torch.arange(tokens.shape[1])[None, :] < flat[:, None]
    owners = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor([len(group) for group in lengths]))
    return prompts, tokens, mask, owners


EXAMPLE = batch([[3, 7, 1], [5], [2, 2, 8, 4]], [4, 9, 1])


def plain(model: PreTrainedModel, prompts: list[list[int]], tokens: Tensor, mask: Tensor, owners: Tensor) -> Tensor:
    """The definition: one unpadded forward pass a row."""
    rows = []
    for row, owner in enumerate(owners.tolist()):
        n = int(mask[row].sum())
        ids = torch.tensor([[*prompts[owner], *tokens[row, :n].tolist()]])
        rows.append(model(ids).logits[0, len(prompts[owner]) - 1 : ids.shape[1] - 1])
    return torch.cat(rows)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", list(MAKERS))
def test_ragged_and_padded_are_the_plain_forward(name: str, attention: str) -> None:
    model = build(name, attention)
    with torch.no_grad():
        wanted = plain(model, *EXAMPLE)
        ragged, padded = _ragged_logits(model, *EXAMPLE), _padded_logits(model, *EXAMPLE)
    assert ragged.shape == padded.shape == (int(EXAMPLE[2].sum()), 21)
    assert torch.allclose(ragged, wanted, atol=3e-5) and torch.allclose(padded, wanted, atol=3e-5)


@pytest.mark.parametrize("name", ["gqa", "gpt2"])
def test_their_gradients_agree(name: str) -> None:
    model = build(name)
    found = []
    for layout in (_ragged_logits, _padded_logits):
        model.zero_grad()
        layout(model, *EXAMPLE).square().mean().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(*found, atol=1e-5) and found[0].abs().max() > 1e-3


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.lists(st.integers(1, 6), min_size=0, max_size=4)), min_size=1, max_size=4
    ).filter(lambda groups: any(lengths for _, lengths in groups)),
    st.integers(0, 1000),
)
def test_layouts_agree_for_any_shape(groups: list[tuple[int, list[int]]], seed: int) -> None:
    """Also where a prompt has no completions at all, or only one-token ones."""
    example = batch([lengths for _, lengths in groups], [n for n, _ in groups], seed)
    with torch.no_grad():
        ragged, padded = _ragged_logits(_MODEL, *example), _padded_logits(_MODEL, *example)
    assert torch.allclose(ragged, padded, atol=3e-5)


_MODEL = build("gqa")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["gqa", "qwen2"]),
    st.lists(
        st.tuples(st.integers(1, 5), st.lists(st.integers(1, 6), min_size=0, max_size=5)), min_size=1, max_size=3
    ).filter(lambda groups: any(lengths for _, lengths in groups)),
    st.sampled_from([1, 40, 1 << 22]),
    st.sampled_from([1, 5, 4096]),
    st.booleans(),
)
def test_what_score_saves_changes_neither_values_nor_gradients(
    name: str, groups: list[tuple[int, list[int]]], budget: int, rows: int, half: bool
) -> None:
    """Completions of two words, one of them the padding token, whose embedding has no gradient, begin alike: each beginning
    runs once; few tokens and few logits at a time, or all."""
    model, (prompts, tokens, mask, owners) = build(name), batch([g for _, g in groups], [n for n, _ in groups])
    tokens, temperature = tokens % 2, 0.5 if half else 1.0
    weights = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1))
    law = torch.distributions.Categorical(logits=plain(model, prompts, tokens, mask, owners) / temperature)
    (law.log_prob(tokens[mask]) * weights[mask]).sum().backward()
    wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "BUDGET", budget)
        patch.setattr(llama_forward, "ROWS", rows)
        scores = score(model, prompts, tokens, mask, owners, temperature=temperature, entropies=True)
        (scores.logps * weights).sum().backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert scores.entropies is not None and torch.allclose(scores.entropies[mask], law.entropy(), atol=1e-4)
    assert torch.allclose(scores.logps[mask], law.log_prob(tokens[mask]), atol=1e-4)
    scale = max(float(part.abs().max()) for part in wanted)
    assert len(found) == len(wanted) > 0
    assert all(torch.allclose(a, b, atol=1e-4 * scale + 1e-6) for a, b in zip(found, wanted, strict=True))


def test_a_beginning_that_rows_share_runs_once_and_no_logits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    tokens = torch.tensor([[3, 4, 5, 6], [3, 4, 5, 7], [3, 4, 8, 9], [3, 4, 5, 6]])
    mask, owners = torch.ones_like(tokens, dtype=torch.bool), torch.tensor([0, 0, 0, 1])
    layout = scoring.Ragged.of([[2, 2], [7]], tokens, mask, owners, distinct=True)
    assert sorted(layout.ids.tolist()) == sorted([2, 2, 7, 3, 4, 5, 8, 3, 4, 5])
    for budget, whole in ((40, 0), (1 << 22, 1)):
        monkeypatch.setattr(head, "BUDGET", budget)
        shapes: list[torch.Size] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, to=shapes: (to.append(x.shape), x)[1], lambda x: x):
            score(model, [[2, 2], [7]], tokens, mask, owners, entropies=True)
        assert sum(shape == (16, 21) for shape in shapes) == whole


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_model_that_the_short_forward_does_not_take(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In half precision, say, or above a size: its own forward, and the same way from there on."""
    model, found = build(name), []
    for short in (True, False):
        monkeypatch.setattr(scoring, "takes", lambda model, short=short: short)
        model.zero_grad()
        scores = score(model, *EXAMPLE)
        scores.logps.sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found.append((scores.logps.detach(), gradient / gradient.abs().max()))
    assert all(torch.allclose(a, b, atol=3e-5) for a, b in zip(*found, strict=True))
    assert not torch.equal(found[0][0], found[1][0])
    assert not llama_forward.takes(build(name).bfloat16()) and llama_forward.takes(build(name))


def test_who_takes_which_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(scoring, "_ragged_logits", lambda *a: taken.append("ragged"))
    monkeypatch.setattr(scoring, "_padded_logits", lambda *a: taken.append("padded"))
    completion_logits(build("llama"), *EXAMPLE)
    torch.manual_seed(0)
    completion_logits(MistralForCausalLM(MistralConfig(**GQA, sliding_window=4)), *EXAMPLE)
    recomputing = build("llama").train()  # checkpointed layers run again in backward, when the attention is put back
    recomputing.gradient_checkpointing_enable()
    completion_logits(recomputing, *EXAMPLE)
    assert taken == ["ragged", "padded", "padded"]


def test_gradient_checkpointing_changes_nothing() -> None:
    model, found = build("gqa").train(), []
    for recomputes in (False, True):
        if recomputes:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        score(model, *EXAMPLE).logps.sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(*found, atol=float(3e-5 * found[0].abs().max()))


def test_score_gives_log_probs_and_entropies_on_the_mask() -> None:
    model, (prompts, tokens, mask, owners) = build("llama"), EXAMPLE
    for temperature in (1.0, 0.5):
        logits = plain(model, *EXAMPLE)
        scores = score(model, prompts, tokens, mask, owners, temperature=temperature, entropies=True)
        law = torch.distributions.Categorical(logits=logits / temperature)
        assert torch.allclose(scores.logps[mask], law.log_prob(tokens[mask]), atol=3e-5)
        assert scores.entropies is not None and not scores.entropies.requires_grad and scores.logps.requires_grad
        assert torch.allclose(scores.entropies[mask], law.entropy(), atol=3e-5)
        assert not scores.logps[~mask].any() and not scores.entropies[~mask].any()
        whole = model(torch.tensor([[*prompts[0], *tokens[0][mask[0]].tolist()]]), output_hidden_states=True)
        for more in ({}, {"log_probs": True}):
            hidden = score(model, prompts, tokens, mask, owners, hidden=True, **more).hidden
            wanted = whole.hidden_states[-1][0, len(prompts[0]) - 1 : -1]
            assert torch.allclose(hidden[0][mask[0]], wanted, atol=3e-5) and not hidden[~mask].any()
        live = score(model, prompts, tokens, mask, owners, temperature=temperature, entropies=True, gradient=True).entropies
        found, wanted = (torch.autograd.grad(one.sum(), list(model.parameters())) for one in (live, law.entropy()))
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(found, wanted, strict=True))
        assert any(one.abs().max() > 1e-2 for one in found)
    with torch.no_grad():
        assert not score(model, prompts, tokens, mask, owners).logps.requires_grad
    assert score(model, prompts, tokens, mask, owners).entropies is None


def test_score_gives_the_log_probs_of_every_next_token() -> None:
    model, (prompts, tokens, mask, owners) = build("llama"), EXAMPLE
    law = torch.log_softmax(plain(model, *EXAMPLE) / 0.5, -1)
    scores = score(model, prompts, tokens, mask, owners, temperature=0.5, log_probs=True)
    assert scores.log_probs is not None and scores.log_probs.shape == (*mask.shape, 21)
    assert torch.allclose(scores.log_probs[mask], law, atol=3e-5) and not scores.log_probs[~mask].any()
    assert torch.equal(scores.log_probs.gather(2, tokens[..., None])[..., 0][mask], scores.logps[mask])
    weights = torch.randn(law.shape, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad((scores.log_probs[mask] * weights).sum(), list(model.parameters()))
    wanted = torch.autograd.grad((law * weights).sum(), list(model.parameters()))
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(found, wanted, strict=True))
    assert score(model, prompts, tokens, mask, owners).log_probs is None
    with torch.no_grad():
        frozen = score(model, prompts, tokens, mask, owners, log_probs=True).log_probs
    assert frozen is not None and not frozen.requires_grad


def test_what_stands_off_the_mask_does_not_matter() -> None:
    model, (prompts, tokens, mask, owners) = build("gqa"), EXAMPLE
    with torch.no_grad():
        first = score(model, prompts, tokens, mask, owners).logps
        wide = torch.nn.functional.pad(tokens.masked_fill(~mask, 5), (0, 7), value=9)
        second = score(model, prompts, wide, torch.nn.functional.pad(mask, (0, 7)), owners).logps
    assert torch.equal(first, second[:, : first.shape[1]]) and not second[:, first.shape[1] :].any()


# ---- what is not computed, and what is refused


@pytest.mark.parametrize("layout", [_ragged_logits, _padded_logits])
@pytest.mark.parametrize("name", ["gqa", "gpt2"])
def test_logits_are_computed_only_where_they_are_read(name: str, layout: Callable[..., Tensor]) -> None:
    model, made = build(name), []
    model.get_output_embeddings().register_forward_hook(lambda module, args, out: made.append(out.shape[1]))
    with torch.no_grad():
        layout(model, *EXAMPLE)
    _, _, mask, owners = EXAMPLE
    fed = int((mask.sum(1) - 1).sum())
    columns = {len(EXAMPLE[0][o]) + t - 1 for row, o in enumerate(owners.tolist()) for t in range(int(mask[row].sum()))}
    assert made == [3 + fed if layout is _ragged_logits else len(columns)]  # one of each prompt, though 3 rows share it


def test_a_forward_that_computes_all_logits_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gqa")
    with torch.no_grad():
        kept = [layout(model, *EXAMPLE) for layout in (_ragged_logits, _padded_logits)]
        monkeypatch.setattr(sampler, "_keeps_logits", lambda kind: False)
        whole = [layout(model, *EXAMPLE) for layout in (_ragged_logits, _padded_logits)]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(kept, whole, strict=True))


def test_rows_out_of_order_and_masks_with_gaps_are_refused() -> None:
    model, (prompts, tokens, mask, owners) = build("llama"), EXAMPLE
    with pytest.raises(DataError, match="owners must ascend from 0 to at most 2"):
        score(model, prompts, tokens.flip(0), mask.flip(0), owners.flip(0))
    for wrong in (owners + 1, owners - 1):
        with pytest.raises(DataError, match="owners must ascend"):
            completion_logits(model, prompts, tokens, mask, wrong)
    gap = mask.clone()
    gap[1, 2] = False
    with pytest.raises(DataError, match="mask: row 1 has a gap"):
        score(model, prompts, tokens, gap, owners)
    with pytest.raises(DataError, match="mask: row 0 has a gap"):
        score(model, prompts, tokens.flip(1), mask.flip(1), owners)  # padded on the left
    with pytest.raises(DataError, match=r"torch\.bool"):
        score(model, prompts, tokens, mask.long(), owners)
    with pytest.raises(DataError, match="owners \\(2,\\)"):
        score(model, prompts, tokens, mask, owners[:2])
    with pytest.raises(DataError, match="a prompt has no tokens"):
        score(model, [*prompts[:2], []], tokens, mask, owners)


@pytest.mark.parametrize("term", ["softcap", "s_aux", "sinks"])
def test_a_term_that_the_layouts_do_not_compute_is_refused(term: str) -> None:
    """Gemma 2 passes softcap, gpt-oss s_aux: left out, the numbers would be those of another model."""
    module, x = torch.nn.Module(), torch.zeros(1, 1, 1, 2)
    for attend, own in ((scoring._attend_ragged, "ragged"), (shared_prefix._attend, "shared_prefix")):
        with pytest.raises(DataError, match=f"passes {term} to its attention"):
            attend(module, x, x, x, None, **{own: object(), term: 30.0})
    shared_prefix.refuse_unknown_terms(module, {term: None, "position_bias": 1})
