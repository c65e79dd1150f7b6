"""The samples of a page as data for its script: strict JSON that no text in it can break out of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sage_rlvr.report.markup import visible
from sage_rlvr.report.samples import SampleSet, Shown
from sage_rlvr.report.style import Looks

VERDICTS = ("right", "wrong", "undecided")


def data_of(sets: Sequence[SampleSet], looks: Looks) -> dict[str, Any]:
    """Every shown sample. Tokens are places in one list of spellings; entropies (nats) and q are rounded to three digits."""
    spellings: dict[str, int] = {}
    reasons: dict[str, int] = {}
    problems: dict[str, int] = {}
    rows = [_row(i, s, spellings, reasons, problems) for i, one in enumerate(sets) for s in one.shown]
    named = [
        {"name": visible(name), "color": looks[one.arm].color, "guide": visible(one.guide or "")}
        for name, one in zip(_names(sets), sets, strict=True)
    ]
    return {
        "sets": named,
        "problems": list(problems),
        "spellings": list(spellings),
        "reasons": list(reasons),
        "rows": rows,
    }


def _names(sets: Sequence[SampleSet]) -> list[str]:
    """A title of each store: arm and seed, task and temperature where these differ, the place where even so two are alike."""
    tasks, laws = len({one.task for one in sets}) > 1, len({one.temperature for one in sets}) > 1
    names = []
    for one in sets:
        parts = [one.arm, *([] if one.seed is None else [f"seed {one.seed}"]), *([one.task] if tasks else [])]
        if laws and one.arm == one.policy:
            parts.append(f"T = {one.temperature:g}")
        names.append(", ".join(parts))
    return [f"{name} (store {i})" if names.count(name) > 1 else name for i, name in enumerate(names, start=1)]


def _row(
    number: int, s: Shown, spellings: dict[str, int], reasons: dict[str, int], problems: dict[str, int]
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "s": number, "p": problems.setdefault(visible(s.problem), len(problems)), "n": s.sample,
        "v": VERDICTS.index(s.verdict), "r": reasons.setdefault(visible(s.reason), len(reasons)), "t": visible(s.text),
    }  # fmt: skip
    optional: Mapping[str, Any] = {
        "x": s.left_out or None,
        "a": visible(s.answer)[:200] if s.answer not in (None, s.text) else None,
        "l": 1 if s.finish == "length" else None,
        "k": None if s.tokens is None else [spellings.setdefault(visible(t), len(spellings)) for t in s.tokens],
        "e": None if s.entropies is None else [_number(value) for value in s.entropies],
        "q": None if s.q is None else [_number(value) for value in s.q],
        "b": None if s.perplexity is None else _number(min(float(s.perplexity), 1e9)),
    }
    return out | {key: value for key, value in optional.items() if value is not None}


def _number(value: float) -> float | None:
    """Three digits; None for what JSON has no number for."""
    return round(float(value), 3) if math.isfinite(value) else None


def as_script(data: Any) -> str:
    """JSON in ASCII that may stand in a script element: no "<", ">" or "&" is left, so nothing closes the element."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
