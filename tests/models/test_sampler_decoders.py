"""The sampler's decoders: work that is not done, prompts run once, and all of them alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from models.sampler_common import (
    COMMON,
    PAD,
    PROMPTS,
    WIDTHS,
    build,
    gpt2,
    gqa,
    llama,
    owners,
    qwen2,
    run,
    same,
    sliding,
)
from sage_rlvr.errors import DataError
from sage_rlvr.models import sampler
from sage_rlvr.models.llama import decoder as llama_step
from sage_rlvr.models.llama.decoder import Decoder, Folded, Plain, weights_of
from sage_rlvr.models.llama.forward import recorded_states
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Net, supports
from sage_rlvr.models.lm_head import chosen_logps
from sage_rlvr.models.sampler import decode_weights, draw, prefill
from sage_rlvr.models.scoring import score


def qwen3() -> PreTrainedModel:
    widths = {"num_key_value_heads": 2, "head_dim": 12}
    return Qwen3ForCausalLM(Qwen3Config(**(COMMON | WIDTHS | widths)))


def leaning() -> PreTrainedModel:
    """As `biased`, but for the MLP, so that the engine takes it."""
    return llama(attention_bias=True, tie_word_embeddings=True, head_dim=6)


# ---- work that is not done


@pytest.mark.parametrize("make", [gpt2, sliding])
def test_the_prefill_computes_the_logits_that_are_drawn_from(make: Callable[[], PreTrainedModel]) -> None:
    model, made = build(make), []
    model.get_output_embeddings().register_forward_hook(lambda module, args, out: made.append(out.shape[1]))
    run(model, [[2, 3, 4, 5, 6], [6, 5, 4, 3, 2]], max_new_tokens=1)
    assert made == [1]


def test_weights_are_folded_for_small_float32_models(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(llama)
    assert isinstance(weights_of(model), Folded)
    assert isinstance(weights_of(build(qwen3)), Plain)  # what is normed behind the projection cannot be folded into it
    monkeypatch.setattr(llama_step, "FOLDED", sum(p.numel() for p in model.parameters()))
    assert isinstance(weights_of(model), Plain)
    monkeypatch.undo()
    assert isinstance(weights_of(model.bfloat16()), Plain)  # folded norms would be rounded anew


@pytest.mark.slow
@pytest.mark.parametrize("make", [llama, gqa, leaning, qwen2, qwen3])
def test_long_completions_of_the_decoder(
    make: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room that grows, prompts of unequal length, rows that end from the first token on, memory that held NaN before."""
    model = build(make)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(0.3)  # no token is certain, the end neither
    rooms: list[int] = []
    lay_out = Decoder._lay_out
    monkeypatch.setattr(Decoder, "_lay_out", lambda self: rooms.append(self.room) or lay_out(self))
    torch.use_deterministic_algorithms(True)  # fills what `empty` gives with NaN
    try:
        rollout = run(model, group_size=12, max_new_tokens=41)
        alone = run(model, [PROMPTS[2]], group_size=12, max_new_tokens=41, row_ids=torch.arange(24, 36))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(rooms) > 20 and {0, 16, 24, 32} <= set(rooms) and len(set(rollout.lengths.tolist())) > 9
    same(rollout, alone, slice(24, 36), tolerance=2e-5)
    monkeypatch.setattr(sampler, "supports", lambda model: False)
    same(rollout, run(model, group_size=12, max_new_tokens=41), tolerance=2e-5)


def test_the_coordinates_that_turn_together_lie_side_by_side() -> None:
    assert llama_step.paired(6, torch.device("cpu")).tolist() == [0, 3, 1, 4, 2, 5]


def test_room_grows_by_an_eighth_or_more() -> None:
    model, rooms = build(llama), []
    with torch.no_grad():
        ready = prefill(model, [[2, 3]])
        decoder = Decoder(ready.weights, ready.keys_values, ready.layout, ready.lengths, 1, 130)
        for _ in range(130):
            decoder.advance(torch.tensor([4]))
            rooms.append(decoder.room)
    assert sorted(set(rooms)) == [16, 24, 32, 40, 48, 56, 64, 72, 88, 104, 120, 130]  # 72 + 9 and 88 + 11, by eights
    assert all(room > t for t, room in enumerate(rooms))


def test_packed_weights_serve_many_prompts_and_are_those_of_the_moment() -> None:
    model = build(gqa)
    weights = decode_weights(model)
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
    assert decode_weights(build(gpt2)) is None and decode_weights(build(sliding)) is None


@pytest.mark.parametrize("make", [llama, gpt2, sliding])
def test_prompts_run_once_and_ended_rows_leave_the_batch(
    make: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(make)
    widths: list[int] = []
    forward = model.forward  # replaced, not hooked: the engine leaves models with hooks to the stock path
    monkeypatch.setattr(model, "forward", lambda **inputs: widths.append(inputs["input_ids"].shape[1]) or forward(**inputs))
    drawn: list[int] = []
    monkeypatch.setattr(sampler, "draw", lambda logits, *rest: drawn.append(len(logits)) or draw(logits, *rest))
    asked = PROMPTS if supports(model) else [p[:2] * 2 for p in PROMPTS]  # the stock path: one length
    rollout = run(model, asked, group_size=8)
    assert widths[1:] == [1] * len(widths[1:]) and widths[:1] == ([] if supports(model) else [4])
    assert drawn == [int((rollout.lengths > t).sum()) for t in range(int(rollout.lengths.max()))]
    assert drawn[0] == 24 and (drawn[-1] < 24) is bool((rollout.lengths < rollout.lengths.max()).any())


# ---- activations that the update reads


@pytest.mark.parametrize("asked", [PROMPTS, [PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[0][:3]]])
@pytest.mark.parametrize("make", [llama, gqa, leaning, qwen2, qwen3])
def test_the_trace_of_a_rollout_has_the_gradient_of_a_forward(
    make: Callable[[], PreTrainedModel], asked: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where two prompts are one text, and where the logits are too many to keep."""
    model = build(make)
    for kept in (1 << 20, 10):
        monkeypatch.setattr(sampler, "KEPT_LOGITS", kept)
        rollout = run(model, asked, temperature=0.7, trace=True)
        plain, rows = run(model, asked, temperature=0.7), owners(asked, 6)
        assert rollout.trace is not None and torch.equal(plain.tokens, rollout.tokens) and plain.trace is None
        weights = torch.randn(rollout.tokens.shape, generator=torch.Generator().manual_seed(0))
        (score(model, asked, rollout.tokens, rollout.mask, rows, temperature=0.7).logps * weights).sum().backward()
        wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        net, layout = Net(model), Layout.of(asked, rollout.tokens, rollout.mask, rows, distinct=False)
        states, targets = recorded_states(net, layout, rollout.trace), rollout.tokens[rollout.mask]
        more = {"state_of_target": layout.of_token, "logits": rollout.trace.logits}
        logps, entropies = chosen_logps(states, net.lm_head, targets, 0.7, True, **more)
        assert torch.allclose(logps, rollout.logps[rollout.mask], atol=1e-5)
        assert torch.allclose(entropies, rollout.entropies[rollout.mask], atol=1e-5)
        (logps * weights[rollout.mask]).sum().backward()
        for name, parameter in model.named_parameters():
            cosine = torch.cosine_similarity(parameter.grad.flatten().double(), wanted[name].flatten().double(), dim=0)
            assert cosine > 1 - 1e-6 and abs(parameter.grad.norm() / wanted[name].norm() - 1) < 1e-4
        model.zero_grad()


def test_a_model_of_the_stock_path_leaves_no_trace() -> None:
    assert run(build(gpt2), trace=True).trace is None


def test_a_trace_is_of_its_own_tokens_and_serves_one_update() -> None:
    model, asked = build(gqa), [PROMPTS[0], PROMPTS[2]]
    rollout = run(model, asked, trace=True)
    assert rollout.trace is not None
    net, rows = Net(model), owners(asked, 6)

    def layout(prompts: list[list[int]], tokens: torch.Tensor) -> Layout:
        return Layout.of(prompts, tokens, rollout.mask, rows, distinct=False)

    others, long = rollout.tokens.clone(), int(rollout.lengths.argmax())  # the last token of a completion has no row
    others[long, 0] = 2 if others[long, 0] != 2 else 3
    shorter, longer = PROMPTS[0][:-1], [*PROMPTS[2], 18]  # as many rows as before, at other positions
    for wrong in (layout(asked, others), layout([shorter, longer], rollout.tokens)):
        assert len(wrong.ids) == len(rollout.trace.ids)
        with pytest.raises(RuntimeError, match="of other weights or completions"):
            recorded_states(net, wrong, rollout.trace)
    right = layout(asked, rollout.tokens)
    with torch.no_grad():
        recorded_states(net, right, rollout.trace)  # without a graph it uses nothing up
    states = recorded_states(net, right, rollout.trace)
    with pytest.raises(RuntimeError, match="used before; run a forward instead"):
        recorded_states(net, right, rollout.trace)
    states.sum().backward()


# ---- prompts that were run before


@pytest.mark.parametrize("make", [llama, qwen3, gpt2, sliding])
def test_prompts_of_old_weights_are_refused(make: Callable[[], PreTrainedModel]) -> None:
    model = build(make)
    weights, ready = decode_weights(model), prefill(model, PROMPTS)
    same(run(model), run(model, ready=ready), tolerance=2e-5)
    with pytest.raises(DataError, match=r"ready is of 3 prompts, and prompts are 1"):
        run(model, PROMPTS[:1], ready=ready)
    last = next(reversed(list(model.parameters())))
    with torch.no_grad():
        last.mul_(1.1)
    with pytest.raises(DataError, match=r"weights changed after `prefill`.*call prefill\(model, prompts\) again"):
        run(model, ready=ready)
    if weights is not None:
        with pytest.raises(DataError, match=r"call decode_weights\(model\) again"):
            prefill(model, PROMPTS, weights)
    ready = prefill(model, PROMPTS)
    last.data = last.data + 1.0
    with pytest.raises(DataError, match="weights changed after `prefill`"):
        run(model, ready=ready)


def test_prompts_of_several_lengths_run_once_on_the_stock_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model, widths = build(sliding), []
    wanted = run(model)
    ready = prefill(model, PROMPTS)
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda **inputs: widths.append(inputs["input_ids"].shape[1]) or forward(**inputs))
    for _ in range(2):  # `ready` stays as it is
        same(wanted, run(model, ready=ready))
    assert set(widths) == {1}
    for one in (ready, prefill(build(llama), PROMPTS)):
        with pytest.raises(DataError, match="cannot start from `ready`"):
            run(model if one is ready else build(llama), ready=one, trace=True)


# ---- the stock path


@pytest.mark.parametrize("make", [llama, gqa, leaning, qwen2, qwen3])
def test_all_decoders_give_the_same_tokens(
    make: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(make)
    folded = run(model)
    monkeypatch.setattr(llama_step, "FOLDED", 0)
    same(folded, run(model), tolerance=2e-5)
    monkeypatch.setattr(sampler, "supports", lambda model: False)
    same(folded, run(model), tolerance=2e-5)


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
    model.lm_head.eval()  # a part that stays out of training
    run(model)
    assert model.training and model.model.training and not model.lm_head.training
    with pytest.raises(DataError):
        run(model, [[2], []])
    assert model.training


def test_dropout_is_off_while_sampling() -> None:
    model = build(lambda: gpt2(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)).train()
    same(run(model), run(model.eval()))
