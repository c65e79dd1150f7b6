"""A verdict with its answer, and the mathematics verifier on completions that were sampled elsewhere. No torch is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sage_rlvr.verifiers.pool import shared
from sage_rlvr.verifiers.rewards import answered


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and the answer that it is about, in one spelling; None where there is no answer."""

    label: str
    reason: str
    answer: str | None = None


def judged_by(items: Sequence[tuple[str, str]], reading: Mapping[str, Any]) -> list[Judged]:
    """The mathematics verifier on (completion, gold) pairs, answers read at one place."""
    said = shared().verify(list(items), **reading)
    return [Judged(v.label, v.reason, answered(text, reading)) for v, (text, _) in zip(said, items, strict=True)]
