"""The sampler's decoders: work that is not done, prompts run once, and the plain and the bare one alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import (
    PreTrainedModel,
)

from models.sampler_common import MODELS, PAD, PROMPTS, build, gpt2, gqa, llama, owners, qwen2, run, same, sliding
from sage_rlvr.errors import DataError
from sage_rlvr.models import sampler
from sage_rlvr.models.llama import decoder as llama_step
from sage_rlvr.models.sampler import draw, packed, prefill
from sage_rlvr.models.scoring import score
from sage_rlvr.models.shared_prefix import supports_shared_prefix


def leaning() -> PreTrainedModel:
    """As `biased`, but for the MLP, so that the bare decoder takes it."""
    return llama(attention_bias=True, tie_word_embeddings=True, head_dim=6)


# ---- work that is not done


@pytest.mark.parametrize("make", [llama, gpt2, sliding])
def test_the_prefill_computes_the_logits_that_are_drawn_from(make: Callable[[], PreTrainedModel]) -> None:
    model, made = build(make), []
    model.get_output_embeddings().register_forward_hook(lambda module, args, out: made.append(out.shape[1]))
    run(model, [[2, 3, 4, 5, 6], [6, 5, 4, 3, 2]], max_new_tokens=1)
    assert made == [1]


def test_the_bare_step_is_for_small_float32_models(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(llama)
    assert llama_step.supports(model)
    monkeypatch.setattr(llama_step, "LARGEST", sum(p.numel() for p in model.parameters()))
    assert not llama_step.supports(model)
    monkeypatch.undo()
    assert not llama_step.supports(model.bfloat16())  # folded norms would be rounded anew


@pytest.mark.slow
@pytest.mark.parametrize("make", [llama, gqa, leaning, qwen2])
def test_long_completions_of_the_bare_decoder(
    make: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room that grows, prompts of unequal length, rows that end from the first token on, memory that held NaN before."""
    model = build(make)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(0.3)  # no token is certain, the end neither
    rooms: list[int] = []
    lay_out = llama_step.LlamaDecoder._lay_out
    monkeypatch.setattr(llama_step.LlamaDecoder, "_lay_out", lambda self: rooms.append(self.room) or lay_out(self))
    torch.use_deterministic_algorithms(True)  # fills what `empty` gives with NaN
    try:
        rollout = run(model, group_size=12, max_new_tokens=41)
        alone = run(model, [PROMPTS[2]], group_size=12, max_new_tokens=41, row_ids=torch.arange(24, 36))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(rooms) > 20 and {0, 16, 24, 32} <= set(rooms) and len(set(rollout.lengths.tolist())) > 9
    same(rollout, alone, slice(24, 36), tolerance=2e-5)
    monkeypatch.setattr(sampler, "supports_shared_prefix", lambda model: False)
    same(rollout, run(model, group_size=12, max_new_tokens=41), tolerance=2e-5)


def test_the_coordinates_that_turn_together_lie_side_by_side() -> None:
    assert llama_step.paired(6, torch.device("cpu")).tolist() == [0, 3, 1, 4, 2, 5]


def test_room_grows_by_an_eighth_or_more() -> None:
    model, rooms = build(llama), []
    with torch.no_grad():
        ready = prefill(model, [[2, 3]])
        layers = [(layer.keys, layer.values) for layer in ready.cache.layers]
        decoder = llama_step.LlamaDecoder(ready.weights, layers, ready.lengths, 1, 130)  # type: ignore[arg-type]
        for _ in range(130):
            decoder.advance(torch.tensor([4]))
            rooms.append(decoder.room)
    assert sorted(set(rooms)) == [16, 24, 32, 40, 48, 56, 64, 72, 88, 104, 120, 130]  # 72 + 9 and 88 + 11, by eights
    assert all(room > t for t, room in enumerate(rooms))


def test_packed_weights_serve_many_prompts_and_are_those_of_the_moment() -> None:
    model = build(gqa)
    weights = packed(model)
    for prompt in PROMPTS:
        same(run(model, [prompt]), run(model, [prompt], ready=prefill(model, [prompt], weights)))
    before = run(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    after = run(model)
    scores = score(model, PROMPTS, after.tokens, after.mask, owners(PROMPTS, 6))
    assert torch.allclose(scores.logps[after.mask], after.logps[after.mask], atol=2e-5)
    assert before.tokens.shape != after.tokens.shape or not torch.equal(before.tokens, after.tokens)
    assert packed(build(gpt2)) is None and packed(build(sliding)) is None


@pytest.mark.parametrize("make", [llama, gpt2, sliding])
def test_prompts_run_once_and_ended_rows_leave_the_batch(
    make: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(make)
    prompts: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: prompts.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    drawn: list[int] = []
    monkeypatch.setattr(sampler, "draw", lambda logits, *rest: drawn.append(len(logits)) or draw(logits, *rest))
    asked = PROMPTS if supports_shared_prefix(model) else [p[:2] * 2 for p in PROMPTS]  # the plain decoder: one length
    rollout = run(model, asked, group_size=8)
    assert prompts[0] == (3, max(map(len, asked))) and all(width == 1 for _, width in prompts[1:])
    assert drawn == [int((rollout.lengths > t).sum()) for t in range(int(rollout.lengths.max()))]
    assert drawn[0] == 24 and drawn[-1] < 24


# ---- the plain decoder


def test_who_takes_the_plain_decoder() -> None:
    assert not supports_shared_prefix(build(sliding))
    assert supports_shared_prefix(build(lambda: qwen2(sliding_window=4)))  # named, but switched off
    assert not supports_shared_prefix(
        build(lambda: qwen2(sliding_window=4, use_sliding_window=True, max_window_layers=0))
    )
    closed = build(llama)
    closed._supports_attention_backend = False
    assert not supports_shared_prefix(closed)


@pytest.mark.parametrize("make", MODELS)
def test_both_decoders_give_the_same_tokens(
    make: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(make)
    fast = run(model)
    monkeypatch.setattr(sampler, "supports_shared_prefix", lambda model: False)
    same(fast, run(model), tolerance=2e-5)


def test_a_sliding_window_is_sampled_as_its_forward_pass_says() -> None:
    model = build(sliding)
    equal = [[2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]
    rollout = run(model, equal)
    scores = score(model, equal, rollout.tokens, rollout.mask, owners(equal, 6), entropies=True)
    assert torch.allclose(scores.logps[rollout.mask], rollout.logps[rollout.mask], atol=2e-5)


def test_a_sliding_window_with_prompts_of_unequal_length() -> None:
    """Right-padded prompts in one cache would push real tokens out of the window: each row must still be its own."""
    model, prompts = build(sliding), [*PROMPTS, [18, 19]]
    together = run(model, prompts, row_ids=torch.arange(100, 124))
    assert 0 < together.finished.sum() < 24
    scores = score(model, prompts, together.tokens, together.mask, owners(prompts, 6), entropies=True)
    assert torch.allclose(scores.logps[together.mask], together.logps[together.mask], atol=2e-5)
    assert scores.entropies is not None
    assert torch.allclose(scores.entropies[together.mask], together.entropies[together.mask], atol=2e-5)
    for p, prompt in enumerate(prompts):
        rows = slice(6 * p, 6 * p + 6)
        same(together, run(model, [prompt], row_ids=torch.arange(100, 124)[rows]), rows, tolerance=2e-5)
    off = ~together.mask
    assert (together.tokens[off] == PAD).all() and not together.logps[off].any() and not together.entropies[off].any()
    assert together.tokens.shape[1] == int(together.lengths.max())


def test_the_model_is_left_as_it_was() -> None:
    model = build(llama).train()
    implementation = model.config._attn_implementation
    run(model)
    assert model.training and model.config._attn_implementation == implementation
    with pytest.raises(DataError):
        run(model, [[2], []])
    assert model.training and model.config._attn_implementation == implementation


def test_dropout_is_off_while_sampling() -> None:
    model = build(lambda: gpt2(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)).train()
    same(run(model), run(model.eval()))
