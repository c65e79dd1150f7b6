"""What a sample is, what every sample of a store shares, and the seed that it is drawn with.

    seed(problem, sample) = the first 63 bits of SHA-256(["sage-rlvr", base seed, task, problem, sample] as ASCII JSON)

Two different (problem, sample) share a seed with probability 2^-63; a top-up from n = 64 to 256 leaves the first 64 as
they are. Token-level columns hold one float32 per completion token, the end token included.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import ConfigError, DataError, short
from sage_rlvr.tasks.base import NO_ANSWER, Said

CHUNK = 32
LABELS = ("right", "wrong", "undecided")
FINISHES = ("stop", "length", None)
SCORED, GUIDED = "scored under", "guide"  # of a row's versions: what its base_logps and its q were made with
_MARK, _SURROGATE = "\x00escaped:", re.compile("[\ud800-\udfff]")
ESCAPED = ("problem", "text", "answer", "reason")
_NUMBERS: dict[str, tuple[Callable[[float], float], float | None, Callable[[float], bool]]] = {
    # spelling, the value that means "off" (None: there is none, it must be given), range
    "temperature": (float, None, lambda x: x >= 0),
    "top_p": (float, 1.0, lambda x: 0 < x <= 1),
    "top_k": (lambda x: max(int(x), 0), 0, lambda x: True),  # vLLM says "off" as -1
    "min_p": (float, 0.0, lambda x: 0 <= x < 1),
    "max_new_tokens": (int, None, lambda x: x >= 1),
}
POLICY = "policy"  # who says a turn of an episode, if not the environment
LATER = {"together": 1, "guidance": "", "turns": 1}  # fields of an identity that stores of before lack, with what they mean there
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


# ------------------------------------------------------------------------------------------------------------------
# what all samples of a store share


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The settings that determine the samples of a store, in addition to the address of a sample.

    task, task_hash   the problems: their name and a hash of their contents
    model, revision   the policy: its name or path, and the revision or a hash of its weights
    prompt, template_hash  name of the prompt format, and a hash of what renders it
    decoding          preset (a name), temperature, top_p (1: off), top_k (0: off), min_p (0: off), max_new_tokens, and
                      whatever else the sampler was given
    verifier_hash     `Task.verifier_hash`: the verifier's version and its limits
    seed              the base seed of `seed_of`
    versions          of the libraries; a difference is noted, in all other fields it is refused
    chunk_size        samples per unit of work: by default 32, and 1 for greedy decoding (temperature 0), which has no second sample
    turns             the most turns of the policy in an episode; 1: a completion is one text
    guidance          of attempts after failed ones: the teacher and the digest of those attempts; "" of all others
    together          problems that are drawn in one call, by their order in the task: the last bits of a sample depend on it
    """

    task: str
    task_hash: str
    model: str
    revision: str
    prompt: str
    template_hash: str
    decoding: Mapping[str, Any]
    verifier_hash: str
    seed: int
    versions: Mapping[str, str] = field(default_factory=dict)
    chunk_size: int | None = None
    together: int = 1
    guidance: str = ""
    turns: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "decoding", _decoding(self.decoding))
        object.__setattr__(self, "versions", dict(sorted(self.versions.items())))
        size = self.chunk_size if self.chunk_size is not None else 1 if self.greedy else CHUNK
        object.__setattr__(self, "chunk_size", size)
        for name in ("task", "task_hash", "model", "revision", "prompt", "template_hash", "verifier_hash"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigError(f"Identity.{name} = {getattr(self, name)!r}: must be a non-empty text")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"Identity.seed = {self.seed!r}: the base seed is a whole number")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1 or (self.greedy and size > 1):
            raise ConfigError(
                f"Identity.chunk_size = {size!r} at temperature {self.decoding['temperature']}: must be a whole number >= 1, "
                "and 1 for greedy decoding, whose samples are all identical"
            )
        if isinstance(self.together, bool) or not isinstance(self.together, int) or self.together < 1:
            raise ConfigError(f"Identity.together = {self.together!r}: problems per call, a whole number >= 1")
        if isinstance(self.turns, bool) or not isinstance(self.turns, int) or self.turns < 1:
            raise ConfigError(f"Identity.turns = {self.turns!r}: turns of an episode, a whole number >= 1")

    @property
    def greedy(self) -> bool:
        """Whether every sample of a problem is the same by construction."""
        return bool(self.decoding["temperature"] == 0)

    @property
    def truncated_sampling(self) -> bool:
        """Whether top_p, top_k or min_p cut the sampler's distribution."""
        return bool(self.decoding["top_p"] < 1 or self.decoding["top_k"] > 0 or self.decoding["min_p"] > 0)

    def seed_of(self, problem: str, sample: int) -> int:
        """`seed_of` with this base seed and task; of second attempts another one, the same whoever guides them."""
        return seed_of(self.seed, f"{self.task}, again" if self.guidance else self.task, problem, sample)

    def tree(self) -> dict[str, Any]:
        """As a plain tree of JSON values; a field of `LATER` only where it is not its default, as stores of before have none."""
        tree = dict(json.loads(json.dumps(asdict(self))))
        return {name: value for name, value in tree.items() if name not in LATER or value != LATER[name]}

    @classmethod
    def of(cls, tree: Any, where: str = "the identity") -> Identity:
        """Inverse of `tree`. DataError, beginning with `where`, when a field is missing, unknown or invalid."""
        wanted = {f.name for f in fields(cls)}
        if not isinstance(tree, dict) or set(tree) | set(LATER) != wanted:
            raise DataError(f"{where}: {short(tree)} does not have the fields of an identity: {', '.join(sorted(wanted))}")
        try:
            return cls(**tree)
        except (ConfigError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{where}: not the identity of a sample store: {error}") from error


def requested(tree: Any, where: str) -> dict[str, int]:
    """The requested size of an evaluation, problems and n, as `SampleStore.want` records it; {} without a record. DataError,
    beginning with `where`, for any other tree."""
    known = isinstance(tree, dict) and set(tree) <= {"problems", "n"}
    if not known or not all(_is_whole(many, 2**63) for many in tree.values()):
        raise DataError(
            f"{where}: wanted = {short(tree)}: must be an object with whole numbers problems and n, or {{}}; restore it from a copy"
        )
    return dict(tree)


def _decoding(given: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding settings with one spelling for each value, so that 1 and 1.0, or top_k -1 and 0, are no difference."""
    settings = dict(given)
    if not isinstance(settings.get("preset"), str):
        raise ConfigError("decoding.preset is missing: set the decoding settings, for example preset='paper'")
    for name, (spelled, off, fine) in _NUMBERS.items():
        value = off if settings.get(name) is None else settings[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not fine(value):
            raise ConfigError(f"decoding.{name} = {value!r}: must be a finite number in its range")
        settings[name] = spelled(value)
    try:
        return dict(json.loads(json.dumps(settings, allow_nan=False, sort_keys=True)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"decoding: {error}; settings are finite numbers, text, lists and mappings") from error


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
    def said(self) -> Said:
        """What the policy wrote: the text, or its turns."""
        return self.text if self.turns is None else said_of(self.turns)


def said_of(turns: Sequence[tuple[str, str, int]]) -> tuple[str, ...]:
    """The policy's turns of an episode."""
    return tuple(text for who, text, _ in turns if who == POLICY)


@dataclass(frozen=True)
class AskedProblem:
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


def checked(samples: Sequence[Sample], size: int, turns: int = 1) -> tuple[list[Sample], list[Chunk]]:
    """The samples by (problem, sample), and the whole chunks that they are. DataError names the first that cannot be used."""
    for row in samples:
        _check(row, turns)
    rows = sorted(samples, key=lambda s: (s.problem, s.sample))
    seen: dict[int | None, Sample] = {}
    for row in rows:
        other = seen.setdefault(row.seed, row)
        if row.seed is not None and (other.problem, other.sample) != (row.problem, row.sample):
            raise DataError(
                f"problem {row.problem!r}, sample {row.sample} has the seed {row.seed} of problem {other.problem!r}, "
                f"sample {other.sample}: repeats with one seed are one sample; take each from Identity.seed_of"
            )
    chunks = []
    for problem, group in groupby(rows, key=lambda row: row.problem):
        numbers = [int(row.sample) for row in group]
        firsts = sorted({number - number % size for number in numbers})
        wanted = [first + i for first in firsts for i in range(size)]
        if numbers != wanted:
            odd = sorted(set(wanted) ^ set(numbers)) or [n for n in numbers if numbers.count(n) > 1]
            raise DataError(
                f"problem {problem!r}: samples {_short(numbers)} are no whole chunks of {size} "
                f"(look at {_short(odd)}); commit each chunk whole, with every sample once"
            )
        chunks += [Chunk(problem, first, size) for first in firsts]
    return rows, chunks


def _short(numbers: Sequence[int]) -> str:
    return str(list(numbers)) if len(numbers) < 9 else f"[{numbers[0]}, {numbers[1]}, ..., {numbers[-1]}]"


def _is_whole(value: Any, end: int) -> bool:
    """Whether it is a whole number in [0, end)."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value < end


def _check(row: Sample, turns: int) -> None:
    ids = np.asarray([] if row.token_ids is None else row.token_ids)
    tokens = ids.ndim == 1 and (not ids.size or (ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() < 2**31))
    wanted = [
        (isinstance(row.problem, str) and row.problem != "", "the problem's id is a text that is not empty"),
        (_is_whole(row.sample, 2**31), "samples are numbered from 0"),
        (row.verdict in LABELS, f"verdict {row.verdict!r}; it is one of {', '.join(LABELS)}"),
        (row.finish in FINISHES, f'finish {row.finish!r}; it is "stop", "length" or None'),
        (row.seed is None or _is_whole(row.seed, 2**63), f"seed {row.seed!r} is not in [0, 2^63); take it from Identity.seed_of"),
        (_in_turns(row, turns), f"turns do not fit a store of episodes of at most {turns} turns, or the sample's tokens"),
        (tokens, f"token_ids must be a list of whole numbers from 0 on; shape {ids.shape}, {ids.dtype}"),
    ]
    for name in ("text", "reason", "prompt_hash", "answer"):
        value = getattr(row, name)
        if not isinstance(value, str) and (name, value) != ("answer", None):
            wanted.append((False, f"{name} = {short(value)}: must be a text"))
    if isinstance(row.latency_s, bool) or not isinstance(row.latency_s, (int, float, np.integer, np.floating, type(None))):
        wanted.append((False, f"latency_s = {short(row.latency_s)}: must be a number of seconds, or None"))
    for name in (name for name in TOKEN_LEVEL if getattr(row, name) is not None):
        values = np.asarray(getattr(row, name))
        fits = row.token_ids is None or values.shape == ids.shape
        wanted.append((fits, f"{name} has the shape {values.shape}, its {ids.size} tokens need ({ids.size},)"))
        if values.dtype.kind not in "fiu":
            wanted.append((False, f"{name} = {short(values.tolist())}: must be a list of numbers"))
    for fine, trouble in wanted:
        if not fine:
            raise DataError(f"problem {row.problem!r}, sample {row.sample!r}: {trouble}")


def _in_turns(row: Sample, turns: int) -> bool:
    if row.turns is None or turns == 1:
        return row.turns is None and turns == 1
    many = sum(tokens for _, _, tokens in row.turns)
    return 1 <= len(said_of(row.turns)) <= turns and (row.token_ids is None or many == len(np.asarray(row.token_ids)))
