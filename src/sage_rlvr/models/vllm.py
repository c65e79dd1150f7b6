"""vLLM as a generator: in this process, or behind an OpenAI-compatible server's completions endpoint.

Every sample is a request of its own with its own seed: vLLM V1 seeds what comes without one with 0, and five unseeded
repeats are then one. Prompts go as token ids, so that no server's template or start token gets in between, and all
settings are said, so that no default of the model's files acts. vLLM's kernels depend on the batch: equal seeds give equal
samples only as far as its rounding does. Log-probs are kept where they are known to be the sampler's.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
from tenacity import RetryCallState, RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from sage_rlvr.errors import ConfigError, DataError, SageError
from sage_rlvr.models.folders import adapter_base, prepared, source_of
from sage_rlvr.models.generation import GENERATORS, Decoding, Generation, GeneratorSource, Request, Single, one_by_one
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.weights import ADAPTER
from sage_rlvr.safe_io import read_json

KEY_VARIABLE = "OPENAI_API_KEY"  # sent as a bearer token where it is set; vLLM's own servers need none
PLAIN: dict[str, Any] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
PLAIN |= {"add_special_tokens": False, "return_token_ids": True}  # sent to servers alone
LONGEST_ANSWER = 64 << 20  # bytes; a completion of 100,000 tokens with its log-probs has about ten


@GENERATORS.register
class VllmGenerator:
    """vLLM offline: a model folder, a Hub id, or a LoRA adapter folder (given to vLLM as an adapter on its base).

    vLLM starts a process that imports the script again, so a script makes a generator below `if __name__ == "__main__":`.
    """
    name, local = "vllm", False

    @classmethod
    def of(cls, source: GeneratorSource) -> VllmGenerator:
        """As `Generator.of`."""
        return cls(source.policy, source.tokens, source.decoding, dtype=source.dtype)

    def __init__(self, model: str, tokens: Tokens, decoding: Decoding, at_once: int = 64, **engine: Any) -> None:
        """engine: further arguments of `vllm.LLM`, such as gpu_memory_utilization or tensor_parallel_size."""
        try:
            import vllm  # an extra, and slow to load
            from vllm.platforms import current_platform
        except ModuleNotFoundError as error:
            raise ConfigError("generator 'vllm': vLLM is not installed; install it, or use transformers") from error
        self.tokens, self.decoding, self.at_once = tokens, decoding, at_once
        folder = prepared(model)
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
        """For each request one generation a seed, in order; logps (T,) in nats of the distribution that was sampled from.

        DataError if vLLM gives another number of completions, or ends one otherwise than by "stop" or "length".
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
    """What vLLM is told of one sample, in this process and behind a server alike."""
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
    """A generation of token ids, its text by this side's tokenizer, or of text where ids are not told; finish as vLLM says it."""
    if finish not in ("stop", "length"):
        raise DataError(
            f"a completion ended with {finish!r}; only 'stop' and 'length' are valid samples: was the request aborted?"
        )
    if ids is None:
        return Generation(tokens.marked(str(text), finish == "stop"), None, None, None, finish)
    known = logps is not None and len(logps) == len(ids) and None not in logps
    known_logps = np.asarray(logps, np.float32) if known else None
    return Generation(tokens.decode([list(ids)], [finish == "stop"])[0], np.asarray(ids, np.int32), known_logps, None, finish)


class _Again(Exception):
    """Why a request was not answered, where it may be asked again."""


@GENERATORS.register
class ServerGenerator:
    """`POST {url}/v1/completions` of vLLM's server or a compatible one; one request per sample, `concurrency` at a time.

    A request is tried again after a broken connection, 429 and 5xx, at most `attempts` times, waiting 1, 2, 4, ...
    seconds up to 30; any other refusal ends the evaluation with the server's words. `model` is the name of the served
    model. A server of vLLM on a CPU needs --no-enable-chunked-prefill, for the reason in `VllmGenerator`.
    """
    name, local = "server", False

    @classmethod
    def of(cls, source: GeneratorSource) -> ServerGenerator:
        """As `Generator.of`."""
        assert source.server is not None
        return cls(source.server, source.served_as or source.policy, source.tokens, source.decoding)

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
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"server {url!r}: the address must start with http:// or https://, such as http://localhost:8000"
            )
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self.model, self.tokens, self.decoding = model, tokens, decoding
        self.concurrency, self.at_once, self._attempts = concurrency, max(1, concurrency // 16), attempts
        self._seconds = seconds
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
        """A warning at the first request that is asked again: what is waited for, and how long at most."""
        if not self._reported:
            self._reported = True
            error = state.outcome and state.outcome.exception()
            warnings.warn(
                f"{self.url}: {error or type(error).__name__}; retrying up to {self._attempts} times, each for at most "
                f"{self._seconds:g} s. Check that the server is running and its model is loaded; Ctrl-C keeps "
                "committed samples"
            )

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        """For each request one generation a seed, in order; token_ids and logps (T,) in nats where the server tells them and
        its log-probs are the sampler's (temperature 1, nothing cut), else None.

        ConfigError with the server's words where it refuses a request; DataError if it gives no answer in `attempts`
        tries, or none that is a completion. Nothing of the call is kept then.
        """
        return one_by_one(requests, self._drawn)

    def _drawn(self, rows: list[Single]) -> list[Generation]:
        with ThreadPoolExecutor(self.concurrency) as threads:
            futures = [threads.submit(self._one, *row) for row in rows]
            try:
                return [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()  # those that an error left waiting

    def _one(self, prompt: Sequence[int], seed: int) -> Generation:
        body = sampling_params(self.decoding, self.tokens, seed) | {"model": self.model, "prompt": list(prompt), **PLAIN}
        answer = self._post(body)
        try:
            (choice,) = answer["choices"]
            text, finish = choice["text"], choice["finish_reason"]
            ids = choice.get("token_ids")
            # A server's log-probs are by default the model's own, which are the sampler's where nothing is scaled or cut.
            logps = (choice.get("logprobs") or {}).get("token_logprobs") if self.decoding.plain else None
            return made(self.tokens, text, ids, logps, finish)
        except SageError:
            raise
        except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{self.url}: no completion in {str(answer)[:200]!r}") from error

    def _post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._asking.copy()(self._ask, body)
        except RetryError as error:
            last = error.last_attempt.exception()
            raise DataError(
                f"{self.url}: no answer in {self._attempts} attempts, last {last or type(last).__name__}; committed "
                "samples are kept, and the same command continues once the server is back"
            ) from last

    def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
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
            raise ConfigError(f"{self.url} refused a request: {words}")
        try:
            answer = json.loads(received)
        except (ValueError, RecursionError) as error:  # cut off, not UTF-8, nested without end
            raise _Again(f"a response that is not JSON ({error})") from error
        if not isinstance(answer, dict):
            raise DataError(f"{self.url}: answered {str(answer)[:100]!r}, no completion")
        return answer
