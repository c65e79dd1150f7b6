"""Identity of a sample store: task, policy, prompt, decoding, verifier and base seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sage_rlvr.errors import ConfigError, DataError, short
from sage_rlvr.evaluation.store.sample import CHUNK, seed_of, sha_63

_NUMBERS: dict[str, tuple[Callable[[float], float], float | None, Callable[[float], bool]]] = {
    # spelling, the value that means "off" (None: required), range
    "temperature": (float, None, lambda x: x >= 0),
    "top_p": (float, 1.0, lambda x: 0 < x <= 1),
    "top_k": (lambda x: max(int(x), 0), 0, lambda x: True),  # vLLM writes "off" as -1
    "min_p": (float, 0.0, lambda x: 0 <= x < 1),
    "max_new_tokens": (int, None, lambda x: x >= 1),
}


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The settings that determine the samples of a store, in addition to the address of a sample.

    task, task_hash   the problems: their name and a hash of their contents
    model, revision   the policy: its name or path, and the revision or a hash of its weights
    prompt, template_hash  name of the prompt format, and a hash of its renderer
    decoding          preset (a name), temperature, top_p (1: off), top_k (0: off), min_p (0: off), max_new_tokens, and
                      other arguments of the sampler
    verifier_hash     `Task.verifier_hash`: the verifier's version and its limits
    seed              the base seed of `seed_of`
    versions          of the libraries; a difference is recorded, in all other fields it is an error
    chunk_size        samples per unit of work: by default 32, and 1 for greedy decoding (temperature 0), which has no second sample
    turns             the most turns of the policy in an episode; 1: a completion is one text
    guidance          of attempts after failed ones: the teacher and the digest of those attempts; "" of all others
    together          number of problems sampled in one call, by their order in the task: the last bits of a sample depend on it
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
        size = (1 if self.greedy else CHUNK) if self.chunk_size is None else self.chunk_size
        object.__setattr__(self, "chunk_size", size)
        for name in ("task", "task_hash", "model", "revision", "prompt", "template_hash", "verifier_hash"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigError(f"Identity.{name} = {getattr(self, name)!r}: must be a non-empty text")
        if type(self.seed) is not int:
            raise ConfigError(f"Identity.seed = {self.seed!r}: the base seed is a whole number")
        for name in ("chunk_size", "together", "turns"):
            if not is_count(getattr(self, name)):
                raise ConfigError(f"Identity.{name} = {getattr(self, name)!r}: must be a whole number >= 1")
        if self.greedy and size > 1:
            raise ConfigError(f"Identity.chunk_size = {size} at temperature 0: greedy decoding has one sample, so it must be 1")

    @property
    def greedy(self) -> bool:
        """Whether every sample of a problem is the same by construction."""
        return bool(self.decoding["temperature"] == 0)

    @property
    def truncated_sampling(self) -> bool:
        """Whether top_p, top_k or min_p truncate the sampler's distribution."""
        return bool(self.decoding["top_p"] < 1 or self.decoding["top_k"] > 0 or self.decoding["min_p"] > 0)

    def seed_of(self, problem: str, sample: int) -> int:
        """`seed_of` with this base seed and task; for second attempts another one, the same for every teacher."""
        return seed_of(self.seed, f"{self.task}, again" if self.guidance else self.task, problem, sample)

    def tree(self) -> dict[str, Any]:
        """Return a plain tree of JSON values."""
        return dict(json.loads(json.dumps(asdict(self))))

    @property
    def key(self) -> str:
        """A hash of the fields that all samples of a store share: every field but the versions and the verifier."""
        tree = {name: value for name, value in self.tree().items() if name not in ("versions", "verifier_hash")}
        return f"{sha_63(json.dumps(tree, sort_keys=True).encode()):016x}"

    @classmethod
    def of(cls, tree: Any, where: str = "the identity") -> Identity:
        """Inverse of `tree`. Raises DataError, beginning with `where`, when a field is missing, unknown or invalid."""
        wanted = {f.name for f in fields(cls)}
        if not isinstance(tree, dict) or set(tree) != wanted:
            raise DataError(f"{where}: {short(tree)} does not have the fields of an identity: {', '.join(sorted(wanted))}")
        try:
            return cls(**tree)
        except (ConfigError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{where}: not the identity of a sample store: {error}") from error


def is_count(value: Any) -> bool:
    """Whether it is an integer from 1 on; True is not."""
    return type(value) is int and value >= 1


def requested(tree: Any, where: str) -> dict[str, int]:
    """The requested size of an evaluation, problems and n, as `SampleStore.want` records it; {} without a record. Raises
    DataError, beginning with `where`, for any other tree."""
    known = isinstance(tree, dict) and set(tree) <= {"problems", "n"}
    if not known or not all(type(count) is int and 0 <= count < 2**63 for count in tree.values()):
        raise DataError(
            f"{where}: wanted = {short(tree)}: must be an object with whole numbers problems and n, or {{}}; restore it from a copy"
        )
    return dict(tree)


def _decoding(given: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding settings in canonical form, so that 1 and 1.0, or top_k -1 and 0, do not differ."""
    settings = dict(given)
    if not isinstance(settings.get("preset"), str):
        raise ConfigError("decoding.preset is missing: set the decoding settings, for example preset='paper'")
    for name, (spelled, off, in_range) in _NUMBERS.items():
        value = off if settings.get(name) is None else settings[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not in_range(value):
            raise ConfigError(f"decoding.{name} = {value!r}: must be a finite number in its range")
        settings[name] = spelled(value)
    try:
        return dict(json.loads(json.dumps(settings, allow_nan=False, sort_keys=True)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"decoding: {error}; settings are finite numbers, text, lists and mappings") from error
