"""Scoring: the engine and the stock path agree in values and gradients, and both are one plain forward a row."""

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
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sage_rlvr.core import laws
from sage_rlvr.core.divergences import forward_kl
from sage_rlvr.core.laws import Laws, per_token
from sage_rlvr.errors import DataError
from sage_rlvr.models import lm_head, sampler, scoring
from sage_rlvr.models.llama import layout as layouts
from sage_rlvr.models.llama import pieces
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Net, adjacent, stacked, supports, unsupported_reason
from sage_rlvr.models.lm_head import FloatHead
from sage_rlvr.models.scoring import completion_logits, score
from sage_rlvr.training.scores import drift_of

COMMON = {"vocab_size": 21, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.3}
WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GQA = COMMON | WIDTHS | {"num_key_value_heads": 2}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16, "rope_theta": 5000.0}
SHAPED = ["llama", "gqa", "qwen2", "qwen3", "smollm", "llama3"]
MAKERS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**(COMMON | WIDTHS))),
    "gqa": lambda: LlamaForCausalLM(LlamaConfig(**GQA)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GQA)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**GQA, head_dim=12)),
    "smollm": lambda: LlamaForCausalLM(LlamaConfig(**GQA, tie_word_embeddings=True)),
    "llama3": lambda: LlamaForCausalLM(LlamaConfig(**GQA, attention_bias=True, head_dim=6, rope_parameters=LLAMA3)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**COMMON, n_embd=32, n_inner=48, n_layer=2, n_head=4, n_positions=64)),
}


def build(name: str, attention: str = "sdpa") -> PreTrainedModel:
    torch.manual_seed(0)
    model = MAKERS[name]().eval()
    model.set_attn_implementation(attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # these begin at 0 and 1, where leaving them out would not show
                parameter.add_(0.3 * torch.randn_like(parameter))
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


def stock(model: PreTrainedModel, *example: Tensor) -> Tensor:
    return scoring._padded(model, *example)[0]


def prefixes() -> tuple[list[list[int]], Tensor, Tensor, Tensor]:
    """Prompts that begin alike, one that is the beginning of another, one that comes twice; completions that begin alike."""
    _, tokens, mask, owners = batch([[3, 7, 1], [5], [2, 2, 8, 4], [3, 3]], [1, 1, 1, 1])
    tokens[1], tokens[9] = tokens[0], tokens[8]
    return [[5, 6, 7, 8], [5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 3], [5, 6, 7, 8]], tokens, mask, owners


LONG = batch([[200, 5, 1], [150]], [30, 4])
EXAMPLES = {"ragged": EXAMPLE, "prefixes": prefixes(), "one": batch([[1]], [3]), "single": batch([[4]], [1]), "long": LONG}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", list(MAKERS))
def test_both_paths_are_the_plain_forward(name: str, attention: str) -> None:
    model = build(name, attention)
    with torch.no_grad():
        wanted = plain(model, *EXAMPLE)
        found = completion_logits(model, *EXAMPLE), stock(model, *EXAMPLE)
    assert all(one.shape == (int(EXAMPLE[2].sum()), 21) and torch.allclose(one, wanted, atol=3e-5) for one in found)


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("case", list(EXAMPLES))
def test_the_engine_is_transformers(name: str, case: str) -> None:
    """Log-probs to 1e-4; gradients of each parameter to a cosine of 1 - 1e-6, on ragged lengths, groups of 1, shared beginnings."""
    model, (prompts, tokens, mask, owners) = build(name), EXAMPLES[case]
    weights = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1))
    wanted = torch.log_softmax(plain(model, prompts, tokens, mask, owners), -1).gather(1, tokens[mask][:, None]).squeeze(1)
    (wanted * weights[mask]).sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    for laid in (model, adjacent(model)):
        model.zero_grad()
        found = score(laid, prompts, tokens, mask, owners).logps
        (found * weights).sum().backward()
        assert torch.allclose(found[mask], wanted, atol=1e-4) and not found[~mask].any()
        for n, parameter in model.named_parameters():
            if gradients[n].abs().max() < 1e-7:  # of one token, what softmax makes of its only key
                assert parameter.grad.abs().max() < 1e-6
                continue
            cosine = torch.cosine_similarity(parameter.grad.flatten().double(), gradients[n].flatten().double(), dim=0)
            assert cosine > 1 - 1e-6, n


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.lists(st.integers(1, 6), min_size=0, max_size=4)), min_size=1, max_size=4
    ).filter(lambda groups: any(lengths for _, lengths in groups)),
    st.integers(0, 1000),
    st.integers(2, 20),
)
def test_paths_agree_for_any_shape(groups: list[tuple[int, list[int]]], seed: int, words: int) -> None:
    """Also where a prompt has no completions at all, or only one-token ones; few words make texts that begin alike."""
    prompts, tokens, mask, owners = batch([lengths for _, lengths in groups], [n for n, _ in groups], seed)
    example = [[i % words for i in p] for p in prompts], tokens % words, mask, owners
    with torch.no_grad():
        assert torch.allclose(completion_logits(_MODEL, *example), stock(_MODEL, *example), atol=3e-5)


_MODEL = build("gqa")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["gqa", "qwen2", "qwen3"]),
    st.lists(
        st.tuples(st.integers(1, 5), st.lists(st.integers(1, 6), min_size=0, max_size=5)), min_size=1, max_size=3
    ).filter(lambda groups: any(lengths for _, lengths in groups)),
    st.sampled_from([1, 40, 1 << 22]),
    st.sampled_from([1, 200, 1 << 20]),
    st.sampled_from([1, 3, 128]),
    st.booleans(),
)
def test_sizes_of_parts_change_neither_values_nor_gradients(
    name: str, groups: list[tuple[int, list[int]]], kept: int, numbers: int, queries: int, half: bool
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
        patch.setattr(lm_head, "KEPT_LOGITS", kept)
        patch.setattr(lm_head, "NUMBERS", numbers)
        patch.setattr(pieces, "BYTES", 4 * numbers)
        patch.setattr(layouts, "QUERIES", queries)
        patch.setattr(layouts, "TILE_WEIGHTS", numbers)
        scores = score(model, prompts, tokens, mask, owners, temperature=temperature, entropies=True)
        (scores.logps * weights).sum().backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert scores.entropies is not None and torch.allclose(scores.entropies[mask], law.entropy(), atol=1e-4)
    assert torch.allclose(scores.logps[mask], law.log_prob(tokens[mask]), atol=1e-4)
    scale = max(float(part.abs().max()) for part in wanted)
    assert len(found) == len(wanted) > 0
    assert all(torch.allclose(a, b, atol=1e-4 * scale + 1e-6) for a, b in zip(found, wanted, strict=True))


# ---- nodes


def queries_of(layout: Layout) -> list[int]:
    """The nodes of all queries of all tiles."""
    return torch.cat([tile.query_nodes.flatten()[tile.places] for tile in layout.tiles]).tolist()


def test_a_beginning_that_texts_share_is_computed_once() -> None:
    tokens = torch.tensor([[3, 4, 5, 6], [3, 4, 5, 7], [3, 4, 8, 9], [3, 4, 5, 6]])
    mask, owners = torch.ones_like(tokens, dtype=torch.bool), torch.tensor([0, 0, 0, 1])
    found = Layout.of([[2, 2], [2, 7]], tokens, mask, owners)
    assert sorted(found.ids.tolist()) == sorted([2, 2, 7, 3, 4, 5, 8, 3, 4, 5])
    assert len(found.outputs) == 9  # every node but the first
    assert sorted(queries_of(found)) == list(range(10))  # each node is a query once
    assert found.tiles[0].query_nodes.shape == (1, 1)  # what both prompts begin with


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(2, 4), min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 99),
    st.booleans(),
)
def test_a_layout_has_the_nodes_of_a_tree(prompts: list[list[int]], group: int, seed: int, distinct: bool) -> None:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, 4, (len(prompts) * group, 4), generator=draw)
    lengths = torch.randint(1, 5, (len(tokens),), generator=draw)
    mask, owners = torch.arange(4)[None, :] < lengths[:, None], torch.arange(len(prompts)).repeat_interleave(group)
    found = Layout.of(prompts, tokens, mask, owners, distinct)
    assert sorted(queries_of(found)) == list(range(len(found.ids)))
    if distinct:  # a text below two prompts of which one is the beginning of the other counts for both
        nodes = {tuple(p[: i + 1]) for p in prompts for i in range(len(p))}
        own = {(o, *tokens[i, :t].tolist()) for i, o in enumerate(owners.tolist()) for t in range(1, int(lengths[i]))}
        assert len(found.ids) == len(nodes) + len(own)
    else:  # all first tokens, then all second ones: the order in which a sampler computes them
        behind = len({tuple(p[: i + 1]) for p in prompts for i in range(len(p))})
        fed = [(t, i) for t in range(3) for i in range(len(tokens)) if t < int(lengths[i]) - 1]
        assert found.ids[behind:].tolist() == [int(tokens[i, t]) for t, i in fed]


def test_no_more_logits_are_kept_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (prompts, tokens, mask, owners) = build("llama"), EXAMPLE
    states = len(Layout.of(*EXAMPLE).outputs)
    for kept, whole in ((40, 0), (1 << 22, 1)):
        monkeypatch.setattr(lm_head, "KEPT_LOGITS", kept)
        shapes: list[torch.Size] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, to=shapes: (to.append(x.shape), x)[1], lambda x: x):
            score(model, prompts, tokens, mask, owners, entropies=True)
        assert sum(shape == (states, 21) for shape in shapes) == whole


# ---- who takes which path


def test_who_takes_which_path(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(scoring, "_padded", lambda model, *a: asked.append(type(model).__name__) or (torch.zeros(25, 21), None))
    for name in SHAPED:
        completion_logits(build(name), *EXAMPLE)
        completion_logits(build(name).bfloat16(), *EXAMPLE)
    assert asked == []
    completion_logits(build("gpt2"), *EXAMPLE)
    torch.manual_seed(0)
    completion_logits(MistralForCausalLM(MistralConfig(**GQA, sliding_window=4)), *EXAMPLE)
    recomputing = build("llama").train()  # checkpointed layers run again in backward
    recomputing.gradient_checkpointing_enable()
    completion_logits(recomputing, *EXAMPLE)
    assert asked == ["GPT2LMHeadModel", "MistralForCausalLM", "LlamaForCausalLM"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "of type 'dynamic'"),
    ],
)
def test_another_shape_is_named(changes: dict[str, object], words: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**(GQA | changes)))
    assert words in str(unsupported_reason(model)) and not supports(model)
    assert "GPT2LMHeadModel is not one of" in str(unsupported_reason(build("gpt2")))
    window = Qwen2ForCausalLM(Qwen2Config(**GQA, sliding_window=4, use_sliding_window=True, max_window_layers=0))
    assert "attend to a window" in str(unsupported_reason(window))
    assert supports(Qwen2ForCausalLM(Qwen2Config(**GQA, sliding_window=4))), "named, but switched off"
    assert "torch.float16" in str(unsupported_reason(build("llama").half()))
    half = build("llama").bfloat16()
    half.set_output_embeddings(FloatHead(32, 21, bias=False))
    assert unsupported_reason(half) == "its parameters have several dtypes: torch.bfloat16, torch.float32"
    assert score(half, *EXAMPLE).logps.isfinite().all()


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_a_model_with_hooks_takes_the_stock_path(kind: str) -> None:
    model, calls = build("llama"), []
    layer = model.model.layers[1].mlp
    for part in (layer,) if "backward" in kind else (model, layer):  # torch runs no backward hook behind a ModelOutput
        hook = getattr(part, f"register_{kind}")(lambda *_: calls.append(1))
        assert unsupported_reason(model) == "it or one of its layers has hooks, which the engine would not call"
        score(model, *EXAMPLE).logps.sum().backward()
        assert calls
        hook.remove()
        assert supports(model)
        calls.clear()


def test_autocast_takes_the_stock_path() -> None:
    model = build("gqa")
    with torch.autocast("cpu", torch.bfloat16):
        assert unsupported_reason(model) == "torch.autocast is on"
        score(model, *EXAMPLE).logps.sum().backward()
    assert supports(model) and all(p.grad.isfinite().all() for p in model.parameters())


def test_projections_of_one_input_are_one_product_without_a_copy() -> None:
    model = build("gqa")
    layer = Net(model).layers[0]
    copied = stacked(layer.qkv)
    wanted = [p.clone() for p in layer.qkv]
    adjacent(model)
    whole = stacked(Net(model).layers[0].qkv)
    assert torch.equal(copied, whole) and whole.data_ptr() == model.model.layers[0].self_attn.q_proj.weight.data_ptr()
    assert copied.data_ptr() != whole.data_ptr()
    assert all(torch.equal(a, b) for a, b in zip(wanted, Net(model).layers[0].qkv, strict=True))
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(2.0)  # an update in place
    assert torch.equal(stacked(Net(model).layers[0].qkv)[32:48], 2 * wanted[1])
    twin = adjacent(build("gpt2"))  # another shape stays as it is
    assert isinstance(twin, GPT2LMHeadModel)


def test_a_backward_of_other_weights_or_a_second_one_is_refused() -> None:
    model, (prompts, tokens, mask, owners) = build("gqa"), EXAMPLE
    loss = score(model, prompts, tokens, mask, owners).logps.sum()
    with torch.no_grad():
        model.model.norm.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="the weights changed between forward and backward"):
        loss.backward()
    loss = score(model, prompts, tokens, mask, owners).logps.sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"run the forward again|inplace operation"):
        loss.backward()


def test_gradient_checkpointing_changes_nothing() -> None:
    model, found = build("gqa").train(), []
    for recomputes in (False, True):
        if recomputes:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        score(model, *EXAMPLE).logps.sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(*found, atol=float(3e-5 * found[0].abs().max()))


@pytest.mark.parametrize("name", SHAPED)
def test_bfloat16_is_as_near_float32_as_transformers_is(name: str) -> None:
    """Log-probs and the direction of the gradient, against the same weights in float32."""
    model, half = build(name), build(name).bfloat16()
    model.load_state_dict(half.state_dict())
    prompts, tokens, mask, owners = LONG
    weights = torch.randn(int(mask.sum()), generator=torch.Generator().manual_seed(1))

    def measure(model: PreTrainedModel, logps: Tensor) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        (logps * weights).sum().backward()
        return logps.detach(), torch.cat([p.grad.flatten().double() for p in model.parameters()])

    def transformers_logps(model: PreTrainedModel) -> Tensor:
        return torch.log_softmax(plain(model, *LONG).float(), -1).gather(1, tokens[mask][:, None]).squeeze(1)

    wanted, theirs = (measure(one, transformers_logps(one)) for one in (model, half))
    ours = measure(half, score(half, prompts, tokens, mask, owners).logps[mask])
    far = [(wanted[0] - one[0]).abs().mean() for one in (ours, theirs)]
    turned = [1 - torch.cosine_similarity(wanted[1], one[1], dim=0) for one in (ours, theirs)]
    assert far[0] < 1.2 * far[1] + 1e-3 and turned[0] < 1.5 * turned[1] + 1e-4


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
        live = score(model, prompts, tokens, mask, owners, temperature=temperature, entropies=True, entropy_grad=True).entropies
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


@pytest.mark.parametrize("name", ["gqa", "qwen3"])
def test_laws_of_a_large_vocabulary_are_computed_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A divergence, its gradient and a drift of distributions that are never kept equal those of (B, T, V) tensors."""
    model, other, (prompts, tokens, mask, owners) = build(name), build("llama"), EXAMPLE
    smaller = mask & (torch.arange(mask.shape[1]) != 1)  # of an episode, whose environment's tokens are not counted
    found = []
    for most in (1 << 24, 50):
        monkeypatch.setattr(laws, "NUMBERS", most)
        model.zero_grad()
        ours = score(model, prompts, tokens, mask, owners, temperature=0.7, entropies=True, log_probs=True)
        with torch.no_grad():
            theirs = score(other, prompts, tokens, mask, owners, temperature=0.7, log_probs=True).log_probs
        kept = [isinstance(one, Tensor) for one in (ours.log_probs, theirs)]
        assert kept == [most > 50] * 2
        value = per_token(lambda part, p, f: forward_kl(p, f), smaller, ours.log_probs, theirs)
        (value.sum() + ours.logps.sum()).backward()
        drift = drift_of(ours.log_probs, mask)
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        found.append((value.detach(), gradient, ours.logps.detach(), ours.entropies, drift))
    assert len(value) == int(smaller.sum()) and value.abs().max() > 1e-2
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(*found, strict=True))
    halves = [score(model, prompts, tokens[r], mask[r], owners[r], log_probs=True).log_probs for r in ([0, 1], [2, 3, 4])]
    joined, whole = Laws.cat(halves), score(model, prompts, tokens[:5], mask[:5], owners[:5], log_probs=True).log_probs
    assert torch.allclose(joined.at(slice(0, 99)), whole.at(slice(0, 99)), atol=1e-5)


def test_what_stands_off_the_mask_does_not_matter() -> None:
    model, (prompts, tokens, mask, owners) = build("gqa"), EXAMPLE
    with torch.no_grad():
        first = score(model, prompts, tokens, mask, owners).logps
        wide = torch.nn.functional.pad(tokens.masked_fill(~mask, 5), (0, 7), value=9)
        second = score(model, prompts, wide, torch.nn.functional.pad(mask, (0, 7)), owners).logps
    assert torch.equal(first, second[:, : first.shape[1]]) and not second[:, first.shape[1] :].any()


# ---- what is not computed, and what is refused


def test_the_stock_path_computes_logits_only_where_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = build("gpt2"), []
    model.get_output_embeddings().register_forward_hook(lambda module, args, out: made.append(out.shape[1]))
    with torch.no_grad():
        kept = completion_logits(model, *EXAMPLE)
    _, _, mask, owners = EXAMPLE
    columns = {len(EXAMPLE[0][o]) + t - 1 for row, o in enumerate(owners.tolist()) for t in range(int(mask[row].sum()))}
    assert made == [len(columns)]
    monkeypatch.setattr(sampler, "_keeps_logits", lambda kind: False)  # a forward that computes all logits will do
    with torch.no_grad():
        assert torch.allclose(completion_logits(model, *EXAMPLE), kept, atol=1e-5)


def test_hidden_states_of_the_stock_path_are_those_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gqa")
    found = score(model, *EXAMPLE, hidden=True).hidden
    monkeypatch.setattr(scoring, "engine_scores", lambda model: False)
    assert torch.allclose(score(model, *EXAMPLE, hidden=True).hidden, found, atol=3e-5)
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_hidden_states_of_a_model_with_adapters() -> None:
    peft = pytest.importorskip("peft")
    model = build("gqa")
    wanted = score(model, *EXAMPLE, hidden=True)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=True))  # B = 0
    found = score(adapted, *EXAMPLE, hidden=True)
    assert torch.allclose(found.hidden, wanted.hidden, atol=3e-5) and torch.allclose(found.logps, wanted.logps, atol=3e-5)


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


def test_masks_grow_with_the_length_and_not_with_its_square() -> None:
    """Of completions of 512 and of 1,024 tokens behind prompts of different lengths; as the kept scores do."""

    def numbers(width: int) -> int:
        tokens = torch.randint(2, 21, (3, width), generator=torch.Generator().manual_seed(0))
        layout = Layout.of([[2] * 9, [3] * 30], tokens, torch.ones_like(tokens, dtype=torch.bool), torch.tensor([0, 0, 1]))
        return sum(tile.masked.numel() for tile in layout.tiles)

    assert numbers(1024) < 2.1 * numbers(512)
