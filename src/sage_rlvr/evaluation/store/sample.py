"""Samples: their fields, the storage of their text, and their seed.

    seed(problem, sample) = the first 63 bits of SHA-256(["sage-rlvr", base seed, task, problem, sample] as ASCII JSON)

Two different (problem, sample) share a seed with probability 2^-63; a top-up from n = 64 to 256 leaves the first 64 as
they are. Token-level columns hold one float32 per completion token, the end token included.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.safe_io import parse_json
from sage_rlvr.tasks.base import NO_ANSWER, Response

CHUNK = 32
LABELS = ("right", "wrong", "undecided")
FINISHES = ("stop", "length", None)
SCORED, GUIDED = "scored under", "guide"  # in a row's versions: the models of its base_logps and its q
_MARK, _SURROGATE = "\x00escaped:", re.compile("[\ud800-\udfff]")
POLICY = "policy"  # the speaker of a turn of an episode, if not the environment
TOKEN_LEVEL = ("rollout_logps", "base_logps", "entropies", "q")  # one number per token, nats except for q
NESTED = {"token_ids": np.dtype("<i4"), **dict.fromkeys(TOKEN_LEVEL, np.dtype("<f4"))}
TURNS = "turns"  # JSON: [[who, text, tokens], ...]
JUDGED = ("verifier", "verdict", "reason", "answer")  # of the newest verdict
ASKED = ("prompt", "gold")  # columns of a table that belong to the problem
ESCAPED = ("problem", "text", "answer", "reason", *ASKED)
COLUMNS = (
    "problem", "sample", "seed", "prompt_hash", "text", "text_hash", "token_ids", *TOKEN_LEVEL,
    "finish", "answer", "verdict", "reason", "verifier", "latency_s", "versions",
)  # fmt: skip
"""Columns of a table of completions; one of episodes also has `TURNS`."""


# ------------------------------------------------------------------------------------------------------------------
# text that UTF-8 cannot encode


def escape(text: str) -> str:
    """Text as valid UTF-8, reversibly: a text with a lone surrogate is marked and written in ASCII; other text is unchanged."""
    if text.startswith(_MARK) or (not text.isascii() and _SURROGATE.search(text)):
        return _MARK + text.encode("unicode_escape").decode("ascii")
    return text


def unescape(text: str) -> str:
    """Inverse of `escape`."""
    if not text.startswith(_MARK):
        return text
    return text.removeprefix(_MARK).encode("ascii", "replace").decode("unicode_escape", "replace")


def natural(name: str) -> tuple[tuple[tuple[int, int | str], ...], str]:
    """Order of ids in which "aime-2" comes before "aime-10"."""
    pieces = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(piece)) if "0" <= piece[0] <= "9" else (1, piece) for piece in pieces), name


def prompt_hash(prompt: str) -> str:
    """Hexadecimal SHA-256 of a rendered prompt, as in the sample files of lm-evaluation-harness."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()


def sha_63(data: bytes) -> int:
    """The first 63 bits of SHA-256."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 1


def seed_of(base_seed: int, task: str, problem: str, sample: int) -> int:
    """The seed of one sample, in [0, 2^63): a function of its address only, never to change (golden test)."""
    return sha_63(json.dumps(["sage-rlvr", base_seed, task, problem, sample]).encode("ascii"))


@dataclass(frozen=True, order=True)
class Chunk:
    """The unit of work: samples first, ..., first + size - 1 of one problem, committed as a unit or redone."""

    problem: str
    first: int
    size: int = CHUNK

    @property
    def samples(self) -> range:
        """The numbers of its samples within the problem."""
        return range(self.first, self.first + self.size)


def in_order(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Chunks by problem and first sample."""
    return sorted(chunks, key=lambda chunk: (natural(chunk.problem), chunk.first))


# ------------------------------------------------------------------------------------------------------------------
# rows


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One completion with its verdict.

    problem, sample    its address: the problem's id, and its number from 0
    seed               its sampling seed, `seed_of`; None if unknown (imported samples)
    prompt_hash        `prompt_hash` of the rendered prompt
    text               the completion, any text: lone surrogates and NULs too; a truncated one has no mark, see `judged_text`
    token_ids          (T,) its tokens, end token included; None if unknown
    rollout_logps      (T,) their log-probs under the sampler, nats; base_logps: under the base policy
    entropies, q       (T,) of the sampler's distribution in nats, and of the guide; each None if not computed
    finish             "stop", "length" (it met the limit), None if unknown
    answer, verdict, reason  the extracted answer, "right", "wrong" or "undecided", and why in a few stable words
    latency_s          seconds it took, exempt from every equality; None if not measured
    turns              for an episode: (speaker, "policy" or "environment"; text; number of tokens) each; text is all of it, and
                       tokens of the environment have log-prob and entropy 0. None for a completion
    """

    problem: str
    sample: int
    text: str
    verdict: Literal["right", "wrong", "undecided"]
    reason: str
    prompt_hash: str
    seed: int | None = None
    token_ids: ArrayLike | None = None
    rollout_logps: ArrayLike | None = None
    base_logps: ArrayLike | None = None
    entropies: ArrayLike | None = None
    q: ArrayLike | None = None
    finish: Literal["stop", "length"] | None = None
    answer: str | None = None
    latency_s: float | None = None
    turns: tuple[tuple[str, str, int], ...] | None = None

    @property
    def response(self) -> Response:
        """The policy's part: the text, or its turns."""
        return self.text if self.turns is None else policy_turns(self.turns)


def policy_turns(turns: Sequence[tuple[str, str, int]]) -> tuple[str, ...]:
    """The policy's turns of an episode."""
    return tuple(text for who, text, _ in turns if who == POLICY)


@dataclass(frozen=True)
class PromptAndGold:
    """The problem of a sample. prompt: as rendered; gold: the answer in the task's row, None without one."""

    prompt: str
    gold: str | None = None


def unmarked(text: str, finish: str | None) -> str:
    """A completion as it is stored and printed: without the mark of a truncated one, and without an incomplete last character."""
    return text.rstrip(NO_ANSWER) if finish == "length" else text


def judged_text(text: str, finish: str | None) -> str:
    """A stored completion as a verifier gets it: a truncated one with the mark that no verifier accepts."""
    return text + NO_ANSWER if finish == "length" and not text.endswith(NO_ANSWER) else text


def turns_unmarked(turns: Sequence[tuple[str, str, int]], finish: str | None) -> tuple[tuple[str, str, int], ...]:
    """`unmarked` for the last turn of an episode."""
    *before, (who, text, tokens) = turns
    return (*before, (who, unmarked(text, finish), tokens))


def own_of(turns: Sequence[tuple[str, str, int]]) -> NDArray[np.bool_]:
    """(T,) mask of the tokens of an episode that the policy sampled."""
    return np.repeat([who == POLICY for who, _, _ in turns], [tokens for _, _, tokens in turns])


def turns_in(text: str) -> tuple[tuple[str, str, int], ...]:
    """Stored turns -> (speaker, text, tokens) of each."""
    turns = parse_json(text, "turns of a sample", None)
    return tuple((str(who), str(words), int(tokens)) for who, words, tokens in turns)


def is_integer(value: Any, end: int) -> bool:
    """Whether it is an integer in [0, end); True and False are not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(0 <= value < end)
