"""What a sample is, how its text is stored, and the seed that it is drawn with.

    seed(problem, sample) = the first 63 bits of SHA-256(["sage-rlvr", base seed, task, problem, sample] as ASCII JSON)

Two different (problem, sample) share a seed with probability 2^-63; a top-up from n = 64 to 256 leaves the first 64 as
they are. Token-level columns hold one float32 per completion token, the end token included.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.safe_io import parse_json
from sage_rlvr.tasks.base import NO_ANSWER, Response

CHUNK = 32
LABELS = ("right", "wrong", "undecided")
FINISHES = ("stop", "length", None)
SCORED, GUIDED = "scored under", "guide"  # of a row's versions: what its base_logps and its q were made with
_MARK, _SURROGATE = "\x00escaped:", re.compile("[\ud800-\udfff]")
ESCAPED = ("problem", "text", "answer", "reason")
POLICY = "policy"  # who says a turn of an episode, if not the environment
TOKEN_LEVEL = ("rollout_logps", "base_logps", "entropies", "q")  # one number per token, nats but for q


# ------------------------------------------------------------------------------------------------------------------
# text that UTF-8 cannot hold


def escape(text: str) -> str:
    """Text as valid UTF-8, reversibly: a text with a lone surrogate is marked and spelled in ASCII, others stay."""
    if text.startswith(_MARK) or _SURROGATE.search(text):
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
    """Hexadecimal SHA-256 of a rendered prompt, as lm-evaluation-harness has it in its samples files."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()


def text_hash(text: str) -> int:
    """`sha_63` of a completion, by which samples with the same text are found."""
    return sha_63(text.encode("utf-8", "surrogatepass"))


def sha_63(data: bytes) -> int:
    """The first 63 bits of SHA-256."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 1


def seed_of(base_seed: int, task: str, problem: str, sample: int) -> int:
    """The seed of one sample, in [0, 2^63): a function of its address alone, the same for ever (golden test)."""
    return sha_63(json.dumps(["sage-rlvr", base_seed, task, problem, sample]).encode("ascii"))


@dataclass(frozen=True, order=True)
class Chunk:
    """The unit of work: samples first, ..., first + size - 1 of one problem, committed whole or redone."""

    problem: str
    first: int
    size: int = CHUNK

    @property
    def samples(self) -> range:
        """The numbers of its samples within the problem."""
        return range(self.first, self.first + self.size)

    @property
    def address(self) -> tuple[str, int]:
        """As it is stored."""
        return escape(self.problem), self.first


# ------------------------------------------------------------------------------------------------------------------
# rows


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One completion with its verdict.

    problem, sample    its address: the problem's id, and its number from 0
    seed               what it was drawn with, `seed_of`; None where nobody knows (imported samples)
    prompt_hash        `prompt_hash` of the rendered prompt
    text               the completion, any text: lone surrogates and NULs too; one that was cut has no mark of it, see `judged_text`
    token_ids          (T,) its tokens, end token included; None where nobody knows
    rollout_logps      (T,) their log-probs under the sampler, nats; base_logps: under the base policy
    entropies, q       (T,) of the sampler's distribution in nats, and of the guide; each None where not computed
    finish             "stop", "length" (it met the limit), None where nobody knows
    answer, verdict, reason  what was extracted, "right", "wrong" or "undecided", and why in a few stable words
    latency_s          seconds it took, exempt from every equality; None where not measured
    turns              of an episode: who ("policy" or "environment"), what, in how many of the tokens; text is then all of it, and
                       what the environment said has the log-prob and entropy 0. None for a completion
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
        """What the policy wrote: the text, or its turns."""
        return self.text if self.turns is None else policy_turns(self.turns)


def policy_turns(turns: Sequence[tuple[str, str, int]]) -> tuple[str, ...]:
    """The policy's turns of an episode."""
    return tuple(text for who, text, _ in turns if who == POLICY)


@dataclass(frozen=True)
class PromptAndGold:
    """What every sample of a problem was drawn for. prompt: as it was rendered; gold: the answer in the task's row, None without
    one."""

    prompt: str
    gold: str | None = None


def unmarked(text: str, finish: str | None) -> str:
    """A completion as it is stored and shown: without the mark of a cut one, and without the character in which it was cut."""
    return text.rstrip(NO_ANSWER) if finish == "length" else text


def judged_text(text: str, finish: str | None) -> str:
    """A stored completion as a verifier gets it: a cut one with the mark that no verifier accepts."""
    return text + NO_ANSWER if finish == "length" and not text.endswith(NO_ANSWER) else text


def turns_unmarked(turns: Sequence[tuple[str, str, int]], finish: str | None) -> tuple[tuple[str, str, int], ...]:
    """`unmarked` for the last turn of an episode."""
    *before, (who, text, tokens) = turns
    return (*before, (who, unmarked(text, finish), tokens))


def own_of(turns: Sequence[tuple[str, str, int]]) -> NDArray[np.bool_]:
    """(T,) which tokens of an episode the policy drew."""
    return np.repeat([who == POLICY for who, _, _ in turns], [tokens for _, _, tokens in turns])


def turns_in(text: str) -> tuple[tuple[str, str, int], ...]:
    """Turns as they are stored -> (who, text, tokens) of each."""
    turns = parse_json(text, "turns of a sample", None)
    return tuple((str(who), str(words), int(tokens)) for who, words, tokens in turns)


def is_integer(value: Any, end: int) -> bool:
    """Whether it is a whole number in [0, end); True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(0 <= value < end)
