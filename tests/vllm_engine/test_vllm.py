"""`VllmGenerator` on vLLM itself, on a CPU, in process: the samples' law, their log-probs, cuts, top-ups and a LoRA adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm_common import SMALL
from vllm_exact import LENGTH, PROMPTS, far, fit

from sage_rlvr.models.folders import EMBEDDED, embedded_policy
from sage_rlvr.models.generation import Decoding, Request
from sage_rlvr.models.policy import load_policy
from sage_rlvr.models.vllm import VllmGenerator

PLAIN = Decoding.of("untruncated", vllm=True, max_new_tokens=LENGTH)


@pytest.fixture(scope="module")
def policy() -> tuple[Any, Any]:
    return load_policy(EMBEDDED)


@pytest.fixture(scope="module")
def engine(policy: tuple[Any, Any]) -> Iterator[VllmGenerator]:
    made = VllmGenerator(EMBEDDED, policy[1], PLAIN, **SMALL)
    yield made
    del made._llm


def asked(policy: tuple[Any, Any], seeds: range, prompt: int = 0) -> Request:
    return Request(tuple(policy[1].encode_prompt(PROMPTS[prompt])), tuple(seeds))


@pytest.mark.timeout(1800)
def test_samples_follow_the_exact_law_and_tell_their_log_probs(policy: tuple[Any, Any], engine: VllmGenerator) -> None:
    """Chi-square over whole completions, log-probs to 1e-3, one sample a seed; another temperature is found out."""
    requests = [asked(policy, range(3000), prompt) for prompt in range(2)]
    drawn = engine.generate(requests)
    for request, rows in zip(requests, drawn, strict=True):
        assert {row.finish for row in rows} <= {"stop", "length"} and len({row.text for row in rows}) > 20
        assert far(*policy, request.prompt, rows) < 1e-3
        assert fit(*policy, request.prompt, rows) > 1e-4
    engine.decoding = Decoding.of("untruncated", vllm=True, max_new_tokens=LENGTH, temperature=1.6)
    try:
        (hot,) = engine.generate(requests[:1])
    finally:
        engine.decoding = PLAIN
    assert fit(*policy, requests[0].prompt, hot) < 1e-6


@pytest.mark.timeout(600)
def test_prompts_of_a_real_length_are_more_than_a_step_holds(policy: tuple[Any, Any], engine: VllmGenerator) -> None:
    """4 prompts of about 40 tokens x 64 samples: 10,000 tokens of prompts in flight. A step of the engine has room for fewer."""
    once = policy[1].encode_prompt(PROMPTS[0])
    prompts = [tuple(int(i) for i in (once * 5)[: 40 - n]) for n in range(4)]
    room = engine._llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    assert sum(64 * len(prompt) for prompt in prompts) > 2 * room and all(room % len(prompt) for prompt in prompts)
    drawn = engine.generate([Request(prompt, tuple(range(100 * n, 100 * n + 64))) for n, prompt in enumerate(prompts)])
    for prompt, rows in zip(prompts, drawn, strict=True):
        assert len(rows) == 64 and far(*policy, prompt, rows) < 1e-3


@pytest.mark.timeout(600)
def test_a_top_up_draws_what_one_call_would_have_drawn(policy: tuple[Any, Any], engine: VllmGenerator) -> None:
    """Seeds alone name samples; neighbors move the rounding, so nearly all are the same."""
    whole = engine.generate([asked(policy, range(200))])[0]
    parts = [row for seeds in (range(60), range(60, 200)) for row in engine.generate([asked(policy, seeds)])[0]]
    same = [a.text == b.text for a, b in zip(whole, parts, strict=True)]
    assert np.mean(same) > 0.95
    assert np.mean([a.text == b.text for a, b in zip(whole[:60], whole[60:120], strict=True)]) < 0.5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("changes", [{"top_k": 3}, {"min_p": 0.2}, {"top_p": 0.6}, {"temperature": 0.5}])
def test_a_cut_law_tells_the_log_probs_of_what_is_left(
    policy: tuple[Any, Any], engine: VllmGenerator, changes: dict[str, Any]
) -> None:
    """Against our own cut of the exact distribution, token by token."""
    model, _ = policy
    law = Decoding.of("untruncated", vllm=True, max_new_tokens=LENGTH, **changes)
    request = asked(policy, range(100))
    engine.decoding = law
    try:
        (rows,) = engine.generate([request])
    finally:
        engine.decoding = PLAIN
    gaps = []
    for row in rows[:30]:
        ids = torch.tensor([*request.prompt, *row.token_ids.tolist()])  # type: ignore[union-attr]
        with torch.no_grad():
            laws = torch.log_softmax(model(ids[None]).logits[0, len(request.prompt) - 1 : -1] / law.temperature, -1)
        left = (laws if law.cut.off else law.cut(laws)).gather(1, ids[len(request.prompt) :, None]).squeeze(1)
        gaps.append(float((left - torch.tensor(row.logps)).abs().max()))
    assert max(gaps) < 1e-3


@pytest.mark.timeout(1800)
def test_a_lora_adapter_is_run_as_an_adapter(policy: tuple[Any, Any], tmp_path: Path, engine: VllmGenerator) -> None:
    """An adapter folder: its samples have the log-probs of the merged model, which are not those of the base."""
    from peft import LoraConfig, get_peft_model

    base, tokens = load_policy(EMBEDDED)
    torch.manual_seed(0)
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    adapted.peft_config["default"].base_model_name_or_path = str(embedded_policy())
    adapted.save_pretrained(str(tmp_path / "adapter"))
    merged, tokens = load_policy(str(tmp_path / "adapter"))
    request = asked(policy, range(200))
    made = VllmGenerator(str(tmp_path / "adapter"), tokens, PLAIN, **SMALL)
    (rows,) = made.generate([request])
    assert far(merged, tokens, request.prompt, rows) < 1e-3
    assert far(policy[0], tokens, request.prompt, rows) > 0.05
