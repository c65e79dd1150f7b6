"""`ServerGenerator` against vLLM's OpenAI-compatible server on a CPU: law, log-probs, refusals, a kill and a top-up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_common import free_of, kill
from vllm_exact import LENGTH, PROMPTS, far, fit

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models.folders import EMBEDDED
from sage_rlvr.models.generation import Decoding, Request
from sage_rlvr.models.policy import load_policy
from sage_rlvr.models.vllm import ServerGenerator

PLAIN = Decoding.of("untruncated", vllm=True, max_new_tokens=LENGTH)


@pytest.mark.timeout(3600)
def test_a_server_is_sampled_killed_and_gone_on_with(serve: Callable[..., Any], tmp_path: Path) -> None:
    """One story, as a start takes a minute: the exact law and log-probs; a name that is not served; no log-probs where they are
    not the sampler's; a server that dies; and the rest of the seeds from the one that takes its place."""
    model, tokens = load_policy(EMBEDDED)
    address, process = serve()

    def asking(decoding: Decoding = PLAIN, name: str = "policy", **more: Any) -> ServerGenerator:
        return ServerGenerator(address, name, tokens, decoding, **{"concurrency": 16, "attempts": 2, **more})

    prompt = tuple(tokens.encode_prompt(PROMPTS[0]))
    (rows,) = asking().generate([Request(prompt, tuple(range(2000)))])
    assert far(model, tokens, prompt, rows) < 1e-3 and fit(model, tokens, prompt, rows) > 1e-4
    (cut,) = asking(Decoding.of("untruncated", vllm=True, max_new_tokens=LENGTH, top_k=3)).generate([Request(prompt, (0, 1))])
    assert all(one.logps is None and one.token_ids is not None for one in cut)
    with pytest.raises(ConfigError, match="refused a request: 404"):
        asking(name="nobody").generate([Request(prompt, (0,))])
    kill(process)
    with pytest.raises(DataError, match=r"no answer in 2 attempts.*continues once the server is back"):
        asking(sleep=lambda seconds: None).generate([Request(prompt, tuple(range(2000, 2016)))])
    address, process = serve(free_of(address))
    (more,) = asking().generate([Request(prompt, tuple(range(1900, 2100)))])
    assert np.mean([a.text == b.text for a, b in zip(rows[1900:], more[:100], strict=True)]) > 0.95
    assert far(model, tokens, prompt, more) < 1e-3
