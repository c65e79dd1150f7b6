"""vLLM as a generator: in this process, or behind an OpenAI-compatible server's completions endpoint.

Every sample is a separate request with its own seed: vLLM V1 seeds requests without one with 0, and five unseeded
repeats would then be equal. Prompts go as token ids, so that no server's template or start token is added, and all
settings are sent, so that no default of the model's files acts. vLLM's kernels depend on the batch: equal seeds give equal
samples only up to its rounding. Log-probs are kept if they are known to be the sampler's.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import httpx2
import numpy as np
from tenacity import RetryCallState, RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models.folders import adapter_base, prepared, source_of, vocabulary_of
from sage_rlvr.models.generation import GENERATORS as GENERATORS  # with the generators of this module
from sage_rlvr.models.generation import Decoding, Generation, GeneratorSource, Request, Single, one_by_one
from sage_rlvr.models.hashes import check_hashes
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.served import chat_completion_of, completion_of
from sage_rlvr.models.weights import ADAPTER
from sage_rlvr.safe_io import object_of, read_json

KEY_VARIABLE = "OPENAI_API_KEY"  # sent as a bearer token where it is set; vLLM's own servers need none
PLAIN: dict[str, Any] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
PLAIN |= {"add_special_tokens": False, "return_token_ids": True}  # sent to servers alone
_BEYOND_CHAT = ("unknown field", "top_k", "min_p", "skip_special_tokens", "stop_token_ids", "prompt_token_ids", *PLAIN)
LONGEST_ANSWER = 64 << 20  # bytes; a completion of 100,000 tokens with its log-probs has about ten


@GENERATORS.register
class VllmGenerator:
    """vLLM offline: a model folder, a Hub id, or a LoRA adapter folder (given to vLLM as an adapter on its base).

    vLLM starts a process that imports the script again, so a script makes a generator below `if __name__ == "__main__":`.
    """
    name, local = "vllm", False

    @classmethod
    def of(cls, source: GeneratorSource) -> VllmGenerator:
        return cls(source.policy, source.tokens, source.decoding, dtype=source.dtype)

    def __init__(self, model: str, tokens: Tokens, decoding: Decoding, at_once: int = 64, **engine: Any) -> None:
        """Load the model. engine: further arguments of `vllm.LLM`, such as gpu_memory_utilization or tensor_parallel_size."""
        try:
            import vllm  # an extra, and slow to load
            from vllm.platforms import current_platform
        except ModuleNotFoundError as error:
            raise ConfigError("generator 'vllm': vLLM is not installed; install it, or use transformers") from error
        self.tokens, self.decoding, self.at_once = tokens, decoding, at_once
        folder = prepared(model)
        check_hashes(folder)
        base = adapter_base(folder)
        settings: dict[str, Any] = {"model": str(folder) if folder.exists() else model, "seed": 0}
        settings |= {"generation_config": "vllm", "logprobs_mode": "processed_logprobs", "enable_prefix_caching": True}
        # vLLM rewinds the generator of a seeded request whose prompt it splits over two steps, and a CPU's generator cannot be
        # rewound: the engine would die. Without chunked prefill a prompt that has no room in a step waits for the next one.
        settings |= {"enable_chunked_prefill": False} if current_platform.is_cpu() else {}
        self._lora: Any = None
        if base is not None:
            from vllm.lora.request import LoRARequest  # an extra, and slow to load

            rank = read_json(folder / ADAPTER, error=ConfigError, strict=False).get("r", 16)
            settings |= {"model": source_of(base), "enable_lora": True}
            settings["max_lora_rank"] = next((r for r in (8, 16, 32, 64, 128, 256, 320, 512) if r >= rank), rank)
            self._lora = LoRARequest("policy", 1, str(folder))
        try:
            self._llm = vllm.LLM(**(settings | engine))
        except TypeError as error:
            raise ConfigError(
                f"vLLM {vllm.__version__} rejected an argument ({error}); version 0.10.2 or later is needed"
            ) from error
        self._vllm = vllm

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        """Return for each request one generation per seed, in order; logps (T,) in nats of the distribution that was sampled from.

        Raise DataError if vLLM returns another number of completions, or ends one otherwise than by "stop" or "length".
        """
        return one_by_one(requests, self._drawn)

    def _drawn(self, rows: list[Single]) -> list[Generation]:
        prompts = [{"prompt_token_ids": list(prompt)} for prompt, _ in rows]
        settings = [self._vllm.SamplingParams(**sampling_params(self.decoding, self.tokens, seed)) for _, seed in rows]
        outputs = self._llm.generate(prompts, settings, use_tqdm=False, lora_request=self._lora)
        if len(outputs) != len(prompts):
            raise DataError(f"vLLM returned {len(outputs)} completions for {len(prompts)} requests")
        return [self._generation(output.outputs[0]) for output in outputs]

    def _generation(self, output: Any) -> Generation:
        ids = list(output.token_ids)
        steps = output.logprobs
        logps = None if not steps else [step[token].logprob for token, step in zip(ids, steps, strict=True)]
        return made(self.tokens, None, ids, logps, output.finish_reason)


def sampling_params(law: Decoding, tokens: Tokens, seed: int) -> dict[str, Any]:
    """Return vLLM's settings for one sample, the same in this process and behind a server."""
    return {
        "n": 1,
        "seed": seed,
        "temperature": law.temperature,
        "top_p": law.top_p,
        "top_k": law.top_k or -1,
        "min_p": law.min_p,
        "max_tokens": law.max_new_tokens,
        "stop_token_ids": list(tokens.eos_ids),
        "skip_special_tokens": False,
        "logprobs": 0,  # of the drawn token alone
    }


def made(
    tokens: Tokens, text: str | None, ids: Sequence[int] | None, logps: Sequence[float | None] | None, finish: Any
) -> Generation:
    """Return a generation from token ids, its text decoded by this tokenizer, or from text without ids.

    finish: as vLLM returns it.
    """
    if finish not in ("stop", "length"):
        raise DataError(
            f"a completion ended with {finish!r}; only 'stop' and 'length' are valid samples: was the request aborted?"
        )
    if ids is None:
        return Generation(tokens.marked(str(text), finish == "stop"), None, None, None, finish)
    known = logps is not None and len(logps) == len(ids) and None not in logps
    known_logps = np.asarray(logps, np.float32) if known else None
    if known_logps is not None and not np.isfinite(known_logps).all():
        raise DataError(
            "vLLM's log-probabilities are NaN or infinite, so the weights contain NaN or infinity, or overflow in this precision; "
            "use other weights, or float32"
        )
    return Generation(tokens.decode([list(ids)], [finish == "stop"])[0], np.asarray(ids, np.int32), known_logps, None, finish)


class _Again(Exception):
    """Reason that a request failed, if it may be repeated."""


@GENERATORS.register
class ServerGenerator:
    """`POST {url}/v1/completions` of vLLM's server or a compatible one; one request per sample, `concurrency` at a time.

    A request is repeated after a broken connection, 429 and 5xx, at most `attempts` times, waiting 1, 2, 4, ...
    seconds up to 30; any other error ends the evaluation with the server's message. `model` is the name of the served
    model. A server of vLLM on a CPU needs --no-enable-chunked-prefill, for the reason in `VllmGenerator`.
    """
    name, local = "server", False
    endpoint: ClassVar[str] = "/v1/completions"
    chat_may_help: ClassVar[bool] = True

    @classmethod
    def of(cls, source: GeneratorSource) -> ServerGenerator:
        assert source.server is not None
        vocabulary = vocabulary_of(source.policy)
        return cls(source.server, source.served_as or source.policy, source.tokens, source.decoding, vocabulary=vocabulary)

    def __init__(
        self,
        url: str,
        model: str,
        tokens: Tokens,
        decoding: Decoding,
        *,
        concurrency: int = 64,
        attempts: int = 6,
        seconds: float = 600.0,
        sleep: Callable[[float], None] = time.sleep,
        vocabulary: int | None = None,
    ) -> None:
        """Store the settings.

        vocabulary: logits of the policy, possibly more than the tokenizer's tokens; None if that is not known.
        """
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"server {url!r}: the address must start with http:// or https://, such as http://localhost:8000"
            )
        self.url = url.rstrip("/").removesuffix("/v1") + self.endpoint
        self.model, self.tokens, self.decoding = model, tokens, decoding
        self.concurrency, self.at_once, self._attempts = concurrency, max(1, concurrency // 16), attempts
        self._seconds = seconds
        self._vocabulary = max(vocabulary or 0, 1 + max(tokens.known, default=0))
        key = os.environ.get(KEY_VARIABLE)
        self._client = httpx2.Client(
            timeout=seconds,
            limits=httpx2.Limits(max_connections=concurrency),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        self._asking = Retrying(
            stop=stop_after_attempt(attempts),
            wait=wait_exponential(max=30),
            retry=retry_if_exception_type((_Again, httpx2.TransportError)),
            sleep=sleep,
            before_sleep=self._report,
        )
        self._reported = False

    def _report(self, state: RetryCallState) -> None:
        """Warn at the first repeated request: what is waited for, and how long at most."""
        if not self._reported:
            self._reported = True
            error = state.outcome and state.outcome.exception()
            warnings.warn(
                f"{self.url}: {error or type(error).__name__}; retrying up to {self._attempts} times, each for at most "
                f"{self._seconds:g} s. Check that the server is running and its model is loaded; Ctrl-C keeps "
                "committed samples"
            )

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        """Return for each request one generation per seed, in order.

        token_ids and logps (T,) in nats are set if the server sends them and its log-probs are the sampler's (temperature 1,
        nothing cut), else None.

        Raises:
            ConfigError: with the server's message, if it rejects a request or answers with a page.
            DataError: if there is no answer in `attempts` tries, or one that `served.completion_of` rejects. Nothing of the call is
                kept.
        """
        return one_by_one(requests, self._drawn)

    def _drawn(self, rows: Sequence[tuple[Any, int]]) -> list[Generation]:
        with ThreadPoolExecutor(self.concurrency) as threads:
            futures = [threads.submit(self._one, *row) for row in rows]
            try:
                return [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()  # those that an error left waiting

    def _one(self, prompt: Sequence[int], seed: int) -> Generation:
        body = sampling_params(self.decoding, self.tokens, seed) | {"model": self.model, "prompt": list(prompt), **PLAIN}
        request = f"{self.url}, request with seed {seed}"
        limit, vocabulary = self.decoding.max_new_tokens, self._vocabulary
        text, ids, logps, finish = completion_of(
            self._post(body), request, limit=limit, vocabulary=vocabulary, decode=self._spellings
        )
        # A server's log-probs are by default the model's own, which are the sampler's where nothing is scaled or cut.
        return made(self.tokens, text, ids, logps if self.decoding.plain else None, finish)

    def _spellings(self, ids: Sequence[int]) -> tuple[str, str]:
        """Return the text of a completion, and the same with its end token, which some servers leave in it."""
        text = self.tokens.decode([list(ids)], [True])[0]
        return text, text + (self.tokens.pieces(ids[-1:])[0] if ids and ids[-1] in self.tokens.eos_ids else "")

    def _post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._asking.copy()(self._ask, body, set())
        except RetryError as error:
            last = error.last_attempt.exception()
            raise DataError(
                f"{self.url}: no answer in {self._attempts} attempts, last {last or type(last).__name__}; committed "
                "samples are kept, and the same command continues once the server is back"
            ) from last

    def _ask(self, body: Mapping[str, Any], unread: set[bytes]) -> dict[str, Any]:
        """Make one attempt.

        unread: the responses to this request so far that are not JSON; the same one again is not requested again.
        """
        received, due = bytearray(), time.monotonic() + self._seconds
        with self._client.stream("POST", self.url, json=body) as response:
            for piece in response.iter_bytes():
                received += piece
                if len(received) > LONGEST_ANSWER:
                    raise DataError(f"{self.url}: answered with more than {LONGEST_ANSWER:,} bytes, no completion")
                if time.monotonic() > due:  # each piece came in time, the whole did not
                    raise DataError(
                        f"{self.url}: no whole answer within {self._seconds:g} s, {len(received):,} bytes of one; "
                        "committed samples are kept, and the same command continues once the server responds"
                    )
        words = f"{response.status_code}: {received[:500].decode('utf-8', 'replace')}"
        if response.status_code == 429 or response.status_code >= 500:
            raise _Again(words)
        if not response.is_success:
            raise ConfigError(f"{self.url} refused a request: {words}{self._way_out(response.status_code, words)}")
        if received.lstrip().startswith(b"<"):  # a web server, or a proxy's page
            raise ConfigError(f"{self.url}: answered with a page instead of JSON ({words[:80]!r}); is this the address of an API?")
        try:
            answer = json.loads(received, object_pairs_hook=object_of)
        except (ValueError, RecursionError) as error:  # cut off, not UTF-8, nested without end, a key twice
            if bytes(received) in unread:
                raise DataError(
                    f"{self.url}: answered twice with the same response that is not JSON ({error}); fix or update the server, then "
                    "run the same command again, which keeps the committed samples"
                ) from error
            unread.add(bytes(received))
            raise _Again(f"a response that is not JSON ({error})") from error
        if not isinstance(answer, dict):
            raise DataError(f"{self.url}: answered {str(answer)[:100]!r}, no completion")
        return answer

    def _way_out(self, status: int, words: str) -> str:
        """Return the next step after an error: chat completions, if they do not need the field that it names, or the page does not
        exist.
        """
        named = any(field in words for field in _BEYOND_CHAT) or (status in (404, 405, 501) and self.model not in words)
        if not (self.chat_may_help and named):
            return ""
        return "; a server that knows only the standard fields of chat completions is asked with --generator chat"


@GENERATORS.register
class ChatGenerator(ServerGenerator):
    """`POST {url}/v1/chat/completions`: for servers without another endpoint, or that accept only the standard fields.

    The server renders the messages by its own template. Only `model`, `messages`, `max_tokens`, `temperature`, `top_p` and `seed`
    are sent, so nothing else can be set; token ids and log-probs are not known.
    """

    name = "chat"
    endpoint = "/v1/chat/completions"
    chat_may_help = False

    def __init__(self, url: str, model: str, tokens: Tokens, decoding: Decoding, **more: Any) -> None:
        """Store the settings, as `ServerGenerator`. Raise ConfigError for a decoding that chat completions do not support."""
        if decoding.top_k or decoding.min_p:
            raise ConfigError(
                f"--generator chat: chat completions have no top_k and min_p (here {decoding.top_k} and {decoding.min_p:g}); use "
                "--preset untruncated, or --generator server"
            )
        super().__init__(url, model, tokens, decoding, **more)

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        """Return for each request one generation per seed, in order, without token_ids and logps.

        Errors are those of `ServerGenerator`.
        """
        if not all(request.messages for request in requests):
            raise ConfigError("--generator chat: an episode of several turns is asked for by tokens; use --generator server")
        drawn = iter(self._drawn([(request.messages, seed) for request in requests for seed in request.seeds]))
        return [[next(drawn) for _ in request.seeds] for request in requests]

    def _one(self, prompt: Any, seed: int) -> Generation:
        """prompt: messages."""
        law = self.decoding
        body = {"model": self.model, "messages": list(prompt), "max_tokens": law.max_new_tokens, "seed": seed}
        body |= {"temperature": law.temperature, "top_p": law.top_p}
        answer, request = self._post(body), f"{self.url}, request with seed {seed}"
        text, finish = chat_completion_of(answer, request, limit=law.max_new_tokens)
        return made(self.tokens, text, None, None, finish)
