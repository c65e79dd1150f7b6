"""What the tests of generators share."""

from __future__ import annotations

from sage_rlvr.models.generation import (
    Decoding,
)
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks.countdown import build_tokenizer

TOKENS = Tokens.of(build_tokenizer())
LAW = Decoding(max_new_tokens=8)
