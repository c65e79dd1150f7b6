"""Generators in this process: each sample from its own seed, truncation as it is written, presets."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from conftest import tiny_llama
from models.generation_common import LAW, TOKENS
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models import generation
from sage_rlvr.models.generation import (
    PRESETS,
    Decoding,
    Generation,
    Request,
    SamplerGenerator,
    TransformersGenerator,
    Truncation,
)
from sage_rlvr.models.policy import NO_ANSWER, Tokens
from sage_rlvr.models.sampler import draw, sample
from sage_rlvr.models.scoring import score
from sage_rlvr.tasks.countdown import build_tokenizer

PROMPTS = [tuple(TOKENS.encode(text)) for text in ("3 4=7:", "2 5 7=14:", "9=")]


def request(prompt: int, first: int, n: int = 6) -> Request:
    return Request(PROMPTS[prompt], tuple(10**15 + 1000 * prompt + i for i in range(first, first + n)))


def tokens_of(rows: list[Generation]) -> list[list[int]]:
    return [row.token_ids.tolist() for row in rows]  # type: ignore[union-attr]


def same(a: Generation, b: Generation) -> bool:
    pairs = ((a.token_ids, b.token_ids), (a.logps, b.logps), (a.entropies, b.entropies))
    return all(np.array_equal(x, y) for x, y in pairs) and (a.text, a.finish) == (b.text, b.finish)


# ---- truncation


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        (Truncation(), [0.5, 0.3, 0.15, 0.05]),
        (Truncation(top_k=2), [0.625, 0.375, 0, 0]),
        (Truncation(top_k=9), [0.5, 0.3, 0.15, 0.05]),
        (Truncation(top_p=0.6), [0.625, 0.375, 0, 0]),  # the token that crosses p is in
        (Truncation(top_p=0.1), [1, 0, 0, 0]),
        (Truncation(min_p=0.2), [10 / 19, 6 / 19, 3 / 19, 0]),  # at least a fifth of 0.5
        (Truncation(top_k=3, top_p=0.8), [0.625, 0.375, 0, 0]),  # of the three, 0.8 / 0.95 is reached by two
        (Truncation(top_k=3, top_p=0.99, min_p=0.5), [0.625, 0.375, 0, 0]),
    ],
)
def test_what_is_left_is_what_is_written(cut: Truncation, left: list[float]) -> None:
    order = torch.tensor([2, 0, 3, 1])  # the tokens do not come sorted
    law = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()[order][None]
    assert cut(law).exp()[0].tolist() == pytest.approx([left[i] for i in order.tolist()], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-6, 6), min_size=3, max_size=12, unique_by=lambda x: round(x, 2)),
    st.integers(0, 14),
    st.sampled_from([1.0, 0.95, 0.7, 0.31]),
    st.sampled_from([0.0, 0.013, 0.21]),
)
def test_it_cuts_as_transformers_does(logits: list[float], top_k: int, top_p: float, min_p: float) -> None:
    theirs = torch.tensor([logits])
    for warper, on in (
        (lambda: TopKLogitsWarper(top_k), top_k > 0),
        (lambda: TopPLogitsWarper(top_p), top_p < 1),
        (lambda: MinPLogitsWarper(min_p), min_p > 0),
    ):
        theirs = warper()(None, theirs) if on else theirs  # type: ignore[arg-type]
    ours = Truncation(top_k, top_p, min_p)(torch.log_softmax(torch.tensor([logits]), -1))
    assert torch.allclose(ours.exp(), torch.softmax(theirs, -1), atol=1e-5)


def test_a_token_that_is_out_is_never_drawn_and_greedy_takes_the_first_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0, -9.0]]).expand(64, -1)
    uniforms = torch.tensor([1e-16, 1 - 1e-16, *np.linspace(0.01, 0.99, 62)], dtype=torch.float64)
    chosen, logps, _ = draw(logits, uniforms, 1.0, cut=Truncation(top_k=2))
    assert set(chosen.tolist()) == {1, 3} and torch.allclose(logps.exp(), torch.tensor(0.5))
    temperature, cut = Decoding(temperature=0).temperature_and_cut()
    chosen, logps, entropies = draw(logits, uniforms, temperature, cut=cut)
    assert (
        set(chosen.tolist()) == {1} and logps.abs().max() == 0 and entropies is not None and entropies.abs().max() == 0
    )


@pytest.mark.parametrize("kind", [SamplerGenerator, TransformersGenerator])
def test_weights_that_hold_nan_draw_nothing(kind: type[SamplerGenerator | TransformersGenerator]) -> None:
    model, tokenizer = tiny_llama(), build_tokenizer()
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    generator = kind(model, Tokens.of(tokenizer), Decoding(max_new_tokens=4))
    with pytest.raises(DataError, match=r"log-probabilities are NaN or infinite, so its weights contain NaN"):
        generator.generate([request(1, 0)])


# ---- presets


def test_presets_are_these() -> None:
    laws = {name: (d.temperature, d.top_p, d.top_k, d.min_p) for name, d in PRESETS.items()}
    assert laws == {"untruncated": (1, 1, 0, 0), "paper": (0.3, 1, 0, 0.01), "released_code": (0.3, 0.95, 50, 0)}
    assert all(name == decoding.preset for name, decoding in PRESETS.items())
    assert Decoding.of("released_code", vllm=True).top_k == 0
    assert Decoding.of("paper", max_new_tokens=7).max_new_tokens == 7
    assert [Decoding.of(name).plain for name in PRESETS] == [True, False, False]


@pytest.mark.parametrize(
    "bad",
    [{"temperature": -1}, {"temperature": math.nan}, {"top_p": 0}, {"top_k": -1}, {"min_p": 1}, {"max_new_tokens": 0}],
)
def test_settings_without_meaning_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Decoding(**bad)
    with pytest.raises(ConfigError, match="preset"):
        Decoding.of("greedy")  # type: ignore[arg-type]


# ---- the house's sampler


@pytest.mark.parametrize("law", [LAW, Decoding("paper", 0.3, min_p=0.01, max_new_tokens=8)], ids=["untruncated", "paper"])
def test_a_request_is_computed_alike_whatever_comes_with_it(law: Decoding) -> None:
    generator = SamplerGenerator(tiny_llama(), TOKENS, law, together=False)
    asked = [request(0, 0), request(0, 6), request(1, 0), request(2, 0), request(0, 12)]
    together = generator.generate(asked)
    alone = [generator.generate([one])[0] for one in asked]
    backwards = generator.generate(asked[::-1])[::-1]
    for rows, others, more in zip(together, alone, backwards, strict=True):
        assert all(same(a, b) and same(a, c) for a, b, c in zip(rows, others, more, strict=True))
    assert len({row.text for rows in together for row in rows}) > 5


@pytest.mark.parametrize("law", [LAW, Decoding("paper", 0.3, min_p=0.01, max_new_tokens=8)], ids=["untruncated", "paper"])
def test_requests_drawn_together_are_those_drawn_alone_up_to_rounding_and_themselves_to_the_bit(law: Decoding) -> None:
    generator = SamplerGenerator(tiny_llama(), TOKENS, law, together=True)
    asked = [request(0, 0), request(1, 0), request(2, 0)]
    assert len({len(one.prompt) for one in asked}) > 1
    once, again = generator.generate(asked), generator.generate(asked)
    alone = SamplerGenerator(tiny_llama(), TOKENS, law, together=False).generate(asked)
    for rows, others, single in zip(once, again, alone, strict=True):
        assert all(same(a, b) for a, b in zip(rows, others, strict=True))
        assert [row.text for row in rows] == [row.text for row in single]
        assert all(np.allclose(a.logps, b.logps, atol=1e-5) for a, b in zip(rows, single, strict=True))


def test_a_call_is_few_passes_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight prompts with a sample each are one pass, not eight; other numbers of seeds, and more than memory holds, start another.
    In order, and each as it is alone."""
    passes: list[int] = []
    monkeypatch.setattr(generation, "sample", lambda *args, **more: passes.append(len(args[1])) or sample(*args, **more))
    generator = SamplerGenerator(tiny_llama(), TOKENS, LAW)
    each = [Request(PROMPTS[n % 3], (n,)) for n in range(8)]
    generator.generate(each)
    assert passes == [8]
    mixed = [*each[:3], request(0, 20), request(1, 40), each[4]]
    passes.clear()
    found = generator.generate(mixed)
    assert passes == [3, 2, 1] and [len(rows) for rows in found] == [len(one.seeds) for one in mixed]
    alone = SamplerGenerator(tiny_llama(), TOKENS, LAW, together=False).generate(mixed)
    assert [tokens_of(rows) for rows in found] == [tokens_of(rows) for rows in alone]
    monkeypatch.setattr(generation, "PASS_ROWS", 3)
    passes.clear()
    generator.generate(each)
    assert passes == [3, 3, 2]


def test_a_pass_is_as_wide_as_memory_holds() -> None:
    """Keys, values and logits of each completion at its longest: a large model's passes are narrow."""
    small, row = tiny_llama(), generation.cache_bytes(tiny_llama())
    assert generation.rows_of_a_pass(small, LAW) == generation.PASS_ROWS
    long = Decoding(max_new_tokens=1 << 20)
    logits = generation.LOGIT_BYTES * small.config.vocab_size
    assert generation.rows_of_a_pass(small, long) == generation.PASS_BYTES // ((1 << 20) * row + logits) < 100


def test_log_probs_are_those_of_the_model_and_a_cut_completion_is_marked() -> None:
    model = tiny_llama()
    rows = SamplerGenerator(model, TOKENS, LAW).generate([request(1, 0, 40)])[0]
    for row in rows:
        ids = torch.tensor(row.token_ids)[None].long()
        found = score(model, [list(PROMPTS[1])], ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros(1).long())
        assert np.allclose(found.logps[0].detach().numpy(), row.logps, atol=1e-4)
    assert {row.finish for row in rows} == {"stop", "length"}
    for row in rows:
        assert (row.token_ids[-1] == TOKENS.eos_id) == (row.finish == "stop")  # type: ignore[index]
        assert row.text.endswith(NO_ANSWER) == (row.finish == "length")


def test_truncated_sampling_follows_its_law() -> None:
    """First tokens of 6,000 seeds against the truncated distribution: no token beyond it, shares within five sigmas."""
    model, n = tiny_llama(initializer_range=0.6), 6000
    law = Decoding("paper", temperature=1.5, top_k=9, top_p=0.9, min_p=0.05, max_new_tokens=1)
    rows = SamplerGenerator(model, TOKENS, law).generate([Request(PROMPTS[0], tuple(range(n)))])[0]
    logits = model(torch.tensor([PROMPTS[0]])).logits[:, -1].detach() / 1.5
    wanted = Truncation(9, 0.9, 0.05)(torch.log_softmax(logits, -1)).exp()[0].tolist()
    drawn = Counter(ids[0] for ids in tokens_of(rows))
    assert 2 < sum(p > 0 for p in wanted) <= 9
    for token, p in enumerate(wanted):
        assert abs(drawn[token] - n * p) <= 5 * math.sqrt(n * p * (1 - p))
    for row in rows[:50]:
        assert math.exp(float(row.logps[0])) == pytest.approx(wanted[int(row.token_ids[0])], abs=1e-5)  # type: ignore[index]


def test_models_without_a_shared_prefix_give_the_same_samples() -> None:
    plain = tiny_llama()
    plain._supports_attention_backend = False
    asked = [request(0, 0), request(0, 6), request(1, 0)]
    found = [SamplerGenerator(model, TOKENS, LAW).generate(asked) for model in (tiny_llama(), plain)]
    assert [tokens_of(rows) for rows in found[0]] == [tokens_of(rows) for rows in found[1]]


def test_a_prompt_without_tokens_is_refused() -> None:
    for kind in (SamplerGenerator, TransformersGenerator):
        with pytest.raises(DataError, match="no tokens"):
            kind(tiny_llama(), TOKENS, LAW).generate([Request((), (1,))])


# ---- transformers


@pytest.mark.parametrize("name", ["untruncated", "paper", "released_code"])
def test_transformers_draws_the_same_samples_whatever_the_model_declares(name: Any) -> None:
    law = Decoding.of(name, max_new_tokens=8)
    asked = [request(0, 0), request(1, 0, 9), request(2, 3)]
    model = tiny_llama().train()
    model.lm_head.eval()
    declared = GenerationConfig(do_sample=True, top_k=1, repetition_penalty=9.0, temperature=0.01)
    model.generation_config = declared
    theirs = TransformersGenerator(model, TOKENS, law, rows=7).generate(asked)
    ours = SamplerGenerator(model, TOKENS, law).generate(asked)
    assert model.generation_config is declared and model.training and not model.lm_head.training  # as it was
    for rows, others in zip(theirs, ours, strict=True):
        assert tokens_of(rows) == tokens_of(others)
        assert [(r.text, r.finish) for r in rows] == [(r.text, r.finish) for r in others]
        for a, b in zip(rows, others, strict=True):
            assert np.allclose(a.logps, b.logps, atol=1e-4) and np.allclose(a.entropies, b.entropies, atol=1e-4)
