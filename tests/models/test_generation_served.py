"""Generators beyond this process: vLLM, a server and its faults, adapters."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from command import call, refused
from models.generation_common import LAW, TOKENS
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.models import vllm as models_vllm
from sage_rlvr.models.generation import (
    Decoding,
    Request,
)
from sage_rlvr.models.policy import NO_ANSWER, load_policy, load_tokens, weights_hash
from sage_rlvr.models.vllm import ChatGenerator, ServerGenerator, VllmGenerator

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
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
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


def test_on_a_cpu_vllm_splits_no_prompt_over_two_steps(
    vllm: None, tiny_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would rewind the generator of the seed, which a CPU's cannot do. On a GPU, and where the caller sets it, vLLM decides."""

    def settings(**engine: Any) -> Any:
        VllmGenerator(str(tiny_policy), TOKENS, LAW, **engine)
        return FakeLlm.last.settings  # type: ignore[attr-defined]

    assert settings()["enable_chunked_prefill"] is False
    assert settings(enable_chunked_prefill=True)["enable_chunked_prefill"] is True
    monkeypatch.setattr(sys.modules["vllm.platforms"].current_platform, "is_cpu", lambda: False)
    assert "enable_chunked_prefill" not in settings()


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
    choice = {"text": TOKENS.decode([ids], [True])[0], "finish_reason": "stop", "token_ids": ids}
    choice |= {"logprobs": {"token_logprobs": [-1.0, -2.0]}}
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


def test_a_server_that_does_not_answer_is_reported_once() -> None:
    with serving(lambda body, n: (503, {"error": "loading"}) if n < 4 else completion(body, n)) as (url, _):
        patient = ServerGenerator(url, "policy", TOKENS, LAW, sleep=lambda s: None)
        with pytest.warns(UserWarning, match=r"503.*retrying up to 6 times, each for at most 600 s") as caught:
            patient.generate([Request((5,), (3,))])
    assert len(caught) == 1


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
        (b"\xff\xfe{}", "answered twice with the same response that is not JSON"),
        (b"[" * 100_000, "answered twice with the same response that is not JSON"),
        (b"", "answered twice with the same response that is not JSON"),
        (b'{"choices": [{"text": "3", "text": "4", "finish_reason": "stop"}]}', "the key 'text' occurs 2 times"),
        (b'{"choices": [{"text": "\\ud800", "finish_reason": "stop"}]}', "lone surrogate"),
        (b"[1]", "no completion"),
        (b'{"choices": [{"text": "3", "fini', "answered twice with the same response that is not JSON"),
        (b'{"choices": 3}', r"request with seed 3: choices = 3:"),
        (b'{"choices": [{"text": "", "finish_reason": "stop", "token_ids": [1e400]}]}', r"choices\[0\].token_ids\[0\] = inf"),
    ],
)
def test_an_answer_that_is_none_ends_in_a_sentence(said: bytes, message: str) -> None:
    with serving(lambda body, n: (200, said)) as (url, _):
        generator = ServerGenerator(url, "policy", TOKENS, LAW, seconds=0.3, sleep=lambda s: None)
        with pytest.raises(DataError, match=message):
            generator.generate([Request((5,), (3,))])


def test_a_page_instead_of_json_is_refused_at_once() -> None:
    page = b"\n<!DOCTYPE html><html><body>Welcome to nginx!</body></html>"
    with serving(lambda body, n: (200, page)) as (url, asked):
        with pytest.raises(ConfigError, match="a page instead of JSON"):
            ServerGenerator(url, "policy", TOKENS, LAW).generate([Request((5,), (3,))])
        assert len(asked) == 1


@pytest.mark.slow
def test_one_bad_answer_of_a_call_stores_nothing(
    tiny_policy: Path, write_recipe: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        code, said = completion(body, number)
        said["choices"][0]["logprobs"]["token_logprobs"][1] = math.nan if number == 5 else -1.0
        return code, said

    store = tmp_path / "store"
    words = ("eval", tiny_policy, "--world", write_recipe(), "--problems", 2, "--samples", 4, "--store", store, "--quiet")
    with serving(answer) as (url, _):
        assert "token_logprobs[1] = nan" in refused(capsys, *words, "--generator", "server", "--server", url)
        with SampleStore.open(store) as opened:
            assert opened.samples() == []
        assert call(*words, "--generator", "server", "--server", url) == 0
    with SampleStore.open(store) as opened:
        assert len(opened.samples()) == 8


@pytest.mark.slow
def test_a_server_that_refuses_is_quoted_at_once() -> None:
    with serving(lambda body, n: (400, {"error": "top_k is unknown here"})) as (url, asked):
        with pytest.raises(ConfigError, match="top_k is unknown here"):
            ServerGenerator(url, "policy", TOKENS, LAW).generate([Request((5,), (3,))])
        assert len(asked) == 1
    aborted = {"choices": [{"text": "", "finish_reason": "abort"}]}
    for said, word in (({"choices": []}, "one completion"), (aborted, "abort")):
        with serving(lambda body, n, said=said: (200, said)) as (url, _), pytest.raises(DataError, match=word):  # type: ignore[misc]
            ServerGenerator(url, "policy", TOKENS, LAW).generate([Request((5,), (3,))])
    with pytest.raises(ConfigError, match="http"):
        ServerGenerator("localhost:8000", "policy", TOKENS, LAW)


@pytest.mark.parametrize(
    ("status", "words", "helps"),
    [
        (400, "top_k is unknown here", True),
        (404, "Not Found", True),
        (404, "The model policy does not exist", False),
        (401, "invalid API key", False),
        (413, "the prompt is too long", False),
    ],
)
def test_a_refusal_names_another_generator_only_if_that_may_help(status: int, words: str, helps: bool) -> None:
    with serving(lambda body, n: (status, {"error": words})) as (url, _), pytest.raises(ConfigError, match=words) as error:
        ServerGenerator(url, "policy", TOKENS, LAW).generate([Request((5,), (3,))])
    assert ("--generator chat" in str(error.value)) is helps


def test_a_text_that_is_not_that_of_its_tokens_is_refused() -> None:
    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        code, said = completion(body, number)
        said["choices"][0]["text"] += "" if body["seed"] else "x"
        return code, said

    with serving(answer) as (url, _):
        generator = ServerGenerator(url, "policy", TOKENS, LAW)
        assert generator.generate([Request((5,), (1,))])[0][0].finish == "stop"
        with pytest.raises(DataError, match=r"choices\[0\].text = .*x.*the text of its token ids by the policy's tokenizer"):
            generator.generate([Request((5,), (0,))])


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
    with pytest.raises(ConfigError, match="is an adapter too"):
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


# ---- a server of chat completions

STANDARD = {"model", "messages", "max_tokens", "temperature", "top_p", "seed"}
HELLO = ({"role": "user", "content": "3 and 4"},)


def chat(body: dict[str, Any], number: int) -> tuple[int, Any]:
    """A strict server: any other field is refused, as hosted APIs do."""
    if set(body) != STANDARD:
        return 400, {"error": f"unknown fields {sorted(set(body) - STANDARD)}"}
    ends = ("stop", "length", "eos_token", "max_tokens")
    message = {"role": "assistant", "content": f"{body['messages'][-1]['content']}: {body['seed']}"}
    usage = {"completion_tokens": body["max_tokens"] if body["seed"] % 2 else 3}
    return 200, {"choices": [{"message": message, "finish_reason": ends[body["seed"] % 4]}], "usage": usage}


def test_a_strict_server_is_asked_by_chat_completions_and_its_ends_are_read() -> None:
    with serving(chat) as (url, asked):
        generator = ChatGenerator(url, "policy", TOKENS, LAW)
        rows = generator.generate([Request((5,), (0, 1, 2, 3), messages=HELLO)])[0]
        with pytest.raises(ConfigError, match=r"unknown fields.*--generator chat"):
            ServerGenerator(url, "policy", TOKENS, LAW).generate([Request((5,), (0,))])
    assert [row.finish for row in rows] == ["stop", "length", "stop", "length"]
    assert [row.text.removesuffix(NO_ANSWER) for row in rows] == [f"3 and 4: {seed}" for seed in range(4)]
    assert [row.text.endswith(NO_ANSWER) for row in rows] == [False, True, False, True]
    assert all(row.token_ids is None and row.logps is None for row in rows) and asked[0]["messages"] == list(HELLO)
    assert {body["path"] for body in asked} == {"/v1/chat/completions", "/v1/completions"}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "4", "reasoning_content": "so"}, "<think>so</think>4"),
        ({"content": None, "reasoning": "so"}, "<think>so"),
        ({"content": None}, r"choices\[0\].message.content = None"),
        ({"content": ["4"]}, r"choices\[0\].message.content = \['4'\]"),
        ({}, r"choices\[0\].message.content = None"),
    ],
)
def test_a_message_is_a_text_or_refused(message: dict[str, Any], text: str) -> None:
    with serving(lambda body, n: (200, {"choices": [{"message": message, "finish_reason": "stop"}]})) as (url, _):
        generator = ChatGenerator(url, "policy", TOKENS, LAW)
        if text.startswith("<"):
            assert generator.generate([Request((5,), (1,), messages=HELLO)])[0][0].text == text
        else:
            with pytest.raises(DataError, match=text):
                generator.generate([Request((5,), (1,), messages=HELLO)])


def test_what_chat_completions_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="top_k and min_p"):
        ChatGenerator("http://localhost:1", "policy", TOKENS, Decoding.of("paper", max_new_tokens=8))
    with pytest.raises(ConfigError, match="episode"):
        ChatGenerator("http://localhost:1", "policy", TOKENS, LAW).generate([Request((5,), (1,))])


@pytest.mark.parametrize(
    "more", [("--chat-template", "format"), ("--chat-template-kwargs", "{enable_thinking: false}")], ids=lambda more: more[0]
)
def test_a_template_that_the_server_is_not_told_is_refused(
    more: tuple[str, str], tiny_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--world", "demo", "--samples", 2, "--generator", "chat", "--server", "http://localhost:1", *more)
    assert call("eval", tiny_policy, *words) == 2
    assert more[0] in capsys.readouterr().err


def test_an_evaluation_through_chat_completions(tiny_policy: Path, tmp_path: Path) -> None:
    words = ("--world", "demo", "--problems", 2, "--samples", 2, "--generator", "chat", "--quiet", "--store", tmp_path / "s")
    with serving(chat) as (url, asked):
        assert call("eval", tiny_policy, *words, "--server", url, "--server-model", "served") == 0
    with SampleStore.open(tmp_path / "s") as store:
        assert store.identity.decoding["generator"] == "chat" and len(list(store.samples())) == 4
    assert {body["model"] for body in asked} == {"served"}
