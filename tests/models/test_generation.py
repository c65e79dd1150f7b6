"""Generators: each sample from its own seed, truncation as it is written, and settings that reach every engine."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from conftest import tiny_llama
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models import vllm as models_vllm
from sage_rlvr.models.generation import (
    PRESETS,
    CpuGenerator,
    Decoding,
    Generation,
    Request,
    TransformersGenerator,
    Truncation,
)
from sage_rlvr.models.policy import NO_ANSWER, Tokens, load_policy, load_tokens, weights_hash
from sage_rlvr.models.sampler import draw
from sage_rlvr.models.scoring import score
from sage_rlvr.models.vllm import ServerGenerator, VllmGenerator
from sage_rlvr.tasks.countdown import build_tokenizer

TOKENS = Tokens.of(build_tokenizer())
PROMPTS = [tuple(TOKENS.encode(text)) for text in ("3 4=7:", "2 5 7=14:", "9=")]
LAW = Decoding(max_new_tokens=8)


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
    temperature, cut = Decoding(temperature=0).law()
    chosen, logps, entropies = draw(logits, uniforms, temperature, cut=cut)
    assert (
        set(chosen.tolist()) == {1} and logps.abs().max() == 0 and entropies is not None and entropies.abs().max() == 0
    )


@pytest.mark.parametrize("kind", [CpuGenerator, TransformersGenerator])
def test_weights_that_hold_nan_draw_nothing(kind: type[CpuGenerator | TransformersGenerator]) -> None:
    model, tokenizer = tiny_llama(), build_tokenizer()
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    generator = kind(model, Tokens.of(tokenizer), Decoding(max_new_tokens=4))
    with pytest.raises(DataError, match=r"log-probabilities are NaN or infinite, so its weights hold NaN"):
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
    generator = CpuGenerator(tiny_llama(), TOKENS, law)
    asked = [request(0, 0), request(0, 6), request(1, 0), request(2, 0), request(0, 12)]
    together = generator.generate(asked)
    alone = [generator.generate([one])[0] for one in asked]
    backwards = generator.generate(asked[::-1])[::-1]
    for rows, others, more in zip(together, alone, backwards, strict=True):
        assert all(same(a, b) and same(a, c) for a, b, c in zip(rows, others, more, strict=True))
    assert len({row.text for rows in together for row in rows}) > 5


@pytest.mark.parametrize("law", [LAW, Decoding("paper", 0.3, min_p=0.01, max_new_tokens=8)], ids=["untruncated", "paper"])
def test_requests_drawn_together_are_those_drawn_alone_up_to_rounding_and_themselves_to_the_bit(law: Decoding) -> None:
    generator = CpuGenerator(tiny_llama(), TOKENS, law, together=True)
    asked = [request(0, 0), request(1, 0), request(2, 0)]
    assert len({len(one.prompt) for one in asked}) > 1
    once, again = generator.generate(asked), generator.generate(asked)
    alone = CpuGenerator(tiny_llama(), TOKENS, law).generate(asked)
    for rows, others, single in zip(once, again, alone, strict=True):
        assert all(same(a, b) for a, b in zip(rows, others, strict=True))
        assert [row.text for row in rows] == [row.text for row in single]
        assert all(np.allclose(a.logps, b.logps, atol=1e-5) for a, b in zip(rows, single, strict=True))


def test_log_probs_are_those_of_the_model_and_a_cut_completion_is_marked() -> None:
    model = tiny_llama()
    rows = CpuGenerator(model, TOKENS, LAW).generate([request(1, 0, 40)])[0]
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
    rows = CpuGenerator(model, TOKENS, law).generate([Request(PROMPTS[0], tuple(range(n)))])[0]
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
    found = [CpuGenerator(model, TOKENS, LAW).generate(asked) for model in (tiny_llama(), plain)]
    assert [tokens_of(rows) for rows in found[0]] == [tokens_of(rows) for rows in found[1]]


def test_a_prompt_without_tokens_is_refused() -> None:
    for kind in (CpuGenerator, TransformersGenerator):
        with pytest.raises(DataError, match="no tokens"):
            kind(tiny_llama(), TOKENS, LAW).generate([Request((), (1,))])


# ---- transformers


@pytest.mark.parametrize("name", ["untruncated", "paper", "released_code"])
def test_transformers_draws_the_same_samples_whatever_the_model_declares(name: Any) -> None:
    law = Decoding.of(name, max_new_tokens=8)
    asked = [request(0, 0), request(1, 0, 9), request(2, 3)]
    model = tiny_llama()
    model.generation_config = GenerationConfig(do_sample=True, top_k=1, repetition_penalty=9.0, temperature=0.01)
    theirs = TransformersGenerator(model, TOKENS, law, rows=7).generate(asked)
    ours = CpuGenerator(tiny_llama(), TOKENS, law).generate(asked)
    for rows, others in zip(theirs, ours, strict=True):
        assert tokens_of(rows) == tokens_of(others)
        assert [(r.text, r.finish) for r in rows] == [(r.text, r.finish) for r in others]
        for a, b in zip(rows, others, strict=True):
            assert np.allclose(a.logps, b.logps, atol=1e-4) and np.allclose(a.entropies, b.entropies, atol=1e-4)


# ---- vLLM


class FakeLlm:
    """Answers each request with its seed's last digits as tokens, and remembers what it was asked."""

    made: Callable[..., FakeLlm]

    def __init__(self, **settings: Any) -> None:
        if "logprobs_mode" not in settings:
            raise AssertionError("log-probs of an unknown distribution")
        self.settings = settings
        FakeLlm.last = self  # type: ignore[attr-defined]

    def generate(self, prompts: Any, params: Any, use_tqdm: bool, lora_request: Any) -> list[Any]:
        self.asked, self.lora = list(zip(prompts, params, strict=True)), lora_request
        return [SimpleNamespace(outputs=[self._answer(p)]) for p in params]

    def _answer(self, params: Any) -> Any:
        long = params.seed % 2
        ids = [4 + params.seed % 10] * 2 + ([] if long else [TOKENS.eos_id])
        said = [{i: SimpleNamespace(logprob=-0.5)} for i in ids]
        return SimpleNamespace(token_ids=ids, logprobs=said, finish_reason="length" if long else "stop")


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module, lora, request_ = ModuleType("vllm"), ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
    module.LLM, module.SamplingParams, module.__version__ = FakeLlm, SimpleNamespace, "0"  # type: ignore[attr-defined]
    request_.LoRARequest = lambda *words: words  # type: ignore[attr-defined]
    for name, part in (("vllm", module), ("vllm.lora", lora), ("vllm.lora.request", request_)):
        monkeypatch.setitem(sys.modules, name, part)


def test_vllm_gets_every_seed_and_every_setting(vllm: None, tiny_policy: Path) -> None:
    generator = VllmGenerator(str(tiny_policy), TOKENS, Decoding.of("paper", max_new_tokens=8))
    found = generator.generate([Request((5, 6), (20, 21)), Request((7,), (32,))])
    fake = FakeLlm.last  # type: ignore[attr-defined]
    assert (
        fake.settings["model"] == str(tiny_policy)
        and fake.settings["generation_config"] == "vllm"
        and fake.lora is None
    )
    assert [(p["prompt_token_ids"], s.seed, s.n) for p, s in fake.asked] == [
        ([5, 6], 20, 1),
        ([5, 6], 21, 1),
        ([7], 32, 1),
    ]
    params = fake.asked[0][1]
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.max_tokens) == (0.3, 1, -1, 0.01, 8)
    assert params.stop_token_ids == [TOKENS.eos_id]
    assert [len(rows) for rows in found] == [2, 1]
    assert found[0][0].finish == "stop" and not found[0][0].text.endswith(NO_ANSWER)
    assert found[0][1].finish == "length" and found[0][1].text.endswith(NO_ANSWER)
    assert np.allclose(found[1][0].logps, -0.5) and found[1][0].entropies is None


def test_vllm_gets_an_adapter_as_an_adapter(vllm: None, tiny_policy: Path, tmp_path: Path) -> None:
    facts = {"base_model_name_or_path": str(tiny_policy), "r": 12}
    (tmp_path / "adapter_config.json").write_text(json.dumps(facts))
    VllmGenerator(str(tmp_path), TOKENS, LAW).generate([Request((5,), (2,))])
    fake = FakeLlm.last  # type: ignore[attr-defined]
    assert fake.settings["model"] == str(tiny_policy) and fake.settings["max_lora_rank"] == 16
    assert fake.lora == ("policy", 1, str(tmp_path))
    assert load_tokens(str(tmp_path)).eos_ids == load_policy(str(tiny_policy))[1].eos_ids


def test_without_vllm_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match="not installed"):
        VllmGenerator("embedded", TOKENS, LAW)


# ---- a server


DRIPPING = b"{"  # and a space every now and then, without end


@contextmanager
def serving(answer: Callable[[dict[str, Any], int], tuple[int, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server whose answers are `answer(body, number of the request)`; yields its address and what it was asked."""
    asked: list[dict[str, Any]] = []
    lock, stopped = threading.Lock(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                asked.append(body | {"path": self.path})
                number = len(asked)
            code, said = answer(body, number)
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(10**6 if data == DRIPPING else len(data)))
            self.end_headers()
            self.wfile.write(data)
            while data == DRIPPING and not stopped.wait(0.05):
                try:
                    self.wfile.write(b" ")
                except OSError:
                    return

        def log_message(self, *words: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()


def completion(body: dict[str, Any], number: int) -> tuple[int, Any]:
    ids = [4 + body["seed"] % 10, TOKENS.eos_id]
    choice = {"text": "?", "finish_reason": "stop", "token_ids": ids, "logprobs": {"token_logprobs": [-1.0, -2.0]}}
    return 200, {"choices": [choice]}


@pytest.mark.slow
def test_a_server_gets_one_request_a_seed_and_answers_come_in_order() -> None:
    with serving(completion) as (url, asked):
        generator = ServerGenerator(url + "/v1/", "policy", TOKENS, LAW, concurrency=4)
        found = generator.generate([Request((5, 6), tuple(range(20, 29))), Request((7,), (31,))])
    assert [row.token_ids[0] - 4 for rows in found for row in rows] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 1]  # type: ignore[index]
    assert sorted(body["seed"] for body in asked) == [*range(20, 29), 31]
    body = asked[0]
    assert body["path"] == "/v1/completions" and body["n"] == 1 and body["model"] == "policy"
    said = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
    assert [body[name] for name in said] == [1.0, 1.0, -1, 0.0, 1.0, 8]
    assert np.allclose(found[0][0].logps, [-1, -2])


@pytest.mark.slow
def test_log_probs_of_a_server_are_kept_only_where_they_are_the_samplers() -> None:
    with serving(completion) as (url, _):
        cold = ServerGenerator(url, "policy", TOKENS, Decoding.of("paper", max_new_tokens=8))
        assert cold.generate([Request((5,), (1,))])[0][0].logps is None


@pytest.mark.slow
def test_a_server_that_tells_no_tokens_gives_text() -> None:
    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        return 200, {"choices": [{"text": "3+4", "finish_reason": "length" if body["seed"] else "stop"}]}

    with serving(answer) as (url, _):
        rows = ServerGenerator(url, "policy", TOKENS, LAW).generate([Request((5,), (0, 1))])[0]
    assert [row.text for row in rows] == ["3+4", "3+4" + NO_ANSWER] and rows[0].token_ids is None


@pytest.mark.slow
def test_a_server_is_asked_again_a_few_times_and_no_more() -> None:
    slept: list[float] = []
    with serving(lambda body, n: (503, {}) if n < 4 else completion(body, n)) as (url, asked):
        patient = ServerGenerator(url, "policy", TOKENS, LAW, sleep=slept.append)
        assert patient.generate([Request((5,), (3,))])[0][0].finish == "stop"
    assert slept == [1.0, 2.0, 4.0] and len({body["seed"] for body in asked}) == 1
    with serving(lambda body, n: (500, {"error": "lost"})) as (url, asked):
        with pytest.raises(DataError, match=r"3 attempts.*500.*lost"):
            ServerGenerator(url, "policy", TOKENS, LAW, attempts=3, sleep=slept.append).generate([Request((5,), (3,))])
        assert len(asked) == 3
    with pytest.raises(DataError, match="2 attempts"):  # nobody listens there any more
        ServerGenerator(url, "policy", TOKENS, LAW, attempts=2, sleep=slept.append).generate([Request((5,), (3,))])


@pytest.mark.slow
def test_an_answer_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_vllm, "LONGEST_ANSWER", 1000)
    long = {"choices": [{"text": "x" * 2000, "finish_reason": "stop"}]}
    with serving(lambda body, n: (200, long)) as (url, asked):
        with pytest.raises(DataError, match="more than 1,000 bytes"):
            ServerGenerator(url, "policy", TOKENS, LAW).generate([Request((5,), (3,))])
        assert len(asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "said, message",
    [
        (DRIPPING, r"no whole answer within 0.3 s, [\d,]+ bytes of one"),
        (b"\xff\xfe{}", "2 attempts, last an answer that is no JSON"),
        (b"[" * 100_000, "2 attempts, last an answer that is no JSON"),
        (b"", "2 attempts, last an answer that is no JSON"),
        (b"[1]", "no completion"),
        (b'{"choices": 3}', "no completion"),
        (b'{"choices": [{"text": 1, "finish_reason": "stop", "token_ids": ["a"]}]}', "no completion"),
        (b'{"choices": [{"text": "", "finish_reason": "stop", "token_ids": [1e400]}]}', "no completion"),
        (b'{"choices": [{"text": "", "finish_reason": "stop", "token_ids": [99999999999999999999]}]}', "no completion"),
    ],
)
def test_an_answer_that_is_none_ends_in_a_sentence(said: bytes, message: str) -> None:
    with serving(lambda body, n: (200, said)) as (url, _):
        generator = ServerGenerator(url, "policy", TOKENS, LAW, attempts=2, seconds=0.3, sleep=lambda s: None)
        with pytest.raises(DataError, match=message):
            generator.generate([Request((5,), (3,))])


@pytest.mark.slow
def test_a_server_that_refuses_is_quoted_at_once() -> None:
    with serving(lambda body, n: (400, {"error": "top_k is unknown here"})) as (url, asked):
        with pytest.raises(ConfigError, match="top_k is unknown here"):
            ServerGenerator(url, "policy", TOKENS, LAW).generate([Request((5,), (3,))])
        assert len(asked) == 1
    aborted = {"choices": [{"text": "", "finish_reason": "abort"}]}
    for said, word in (({"choices": []}, "no completion"), (aborted, "abort")):
        with serving(lambda body, n, said=said: (200, said)) as (url, _), pytest.raises(DataError, match=word):  # type: ignore[misc]
            ServerGenerator(url, "policy", TOKENS, LAW).generate([Request((5,), (3,))])
    with pytest.raises(ConfigError, match="http"):
        ServerGenerator("localhost:8000", "policy", TOKENS, LAW)


# ---- adapters


def test_an_adapter_folder_says_what_it_lacks(
    tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "adapter_config.json"
    config.write_text("{")
    with pytest.raises(ConfigError, match="JSON"):
        load_policy(str(tmp_path))
    config.write_text("{}")
    with pytest.raises(ConfigError, match="base_model_name_or_path"):
        load_policy(str(tmp_path))
    config.write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    with pytest.raises(ConfigError, match="adapter itself"):
        load_policy(str(tmp_path))
    config.write_text(json.dumps({"base_model_name_or_path": str(tiny_policy)}))
    (tmp_path / "adapter_model.bin").write_bytes(b"a pickle")
    with pytest.raises(ConfigError, match="is a pickle"):
        load_policy(str(tmp_path))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"torn")
    assert weights_hash(str(tmp_path)).endswith(weights_hash(str(tiny_policy)))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match="peft"):
        load_policy(str(tmp_path))
