"""The samples of a page as data for its script: strict JSON that no text in it can break out of."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from sage_rlvr.report.parts import Browser, visible
from sage_rlvr.report.study import SampleSet, Shown
from sage_rlvr.report.style import colour

VERDICTS = ("right", "wrong", "undecided")


def part(sets: Sequence[SampleSet]) -> Browser:
    """Every shown sample. Tokens are places in one list of spellings; entropies (nats) and q are rounded to three digits."""
    spellings: dict[str, int] = {}
    reasons: dict[str, int] = {}
    rows = [_row(i, s, spellings, reasons) for i, one in enumerate(sets) for s in one.shown]
    data: dict[str, Any] = {
        "sets": [_set(name, one) for name, one in zip(_names(sets), sets, strict=True)],
        "problems": list(dict.fromkeys(visible(s.problem) for one in sets for s in one.shown)),
        "spellings": list(spellings),
        "reasons": list(reasons),
        "rows": rows,
    }
    place = {name: i for i, name in enumerate(data["problems"])}
    for row in rows:
        row["p"] = place[row["p"]]
    return Browser(data=data, count=len(rows))


def _names(sets: Sequence[SampleSet]) -> list[str]:
    """A title of each store: arm and seed, task and temperature where these differ, the place where even so two are alike."""
    tasks, laws = len({one.task for one in sets}) > 1, len({one.temperature for one in sets}) > 1
    names = []
    for one in sets:
        parts = [one.arm, *([] if one.seed is None else [f"seed {one.seed}"]), *([one.task] if tasks else [])]
        if laws and one.temperature is not None and " at T = " not in one.arm:
            parts.append(f"T = {one.temperature:g}")
        names.append(", ".join(parts))
    return [f"{name} (store {i})" if names.count(name) > 1 else name for i, name in enumerate(names, start=1)]


def _set(name: str, one: SampleSet) -> dict[str, Any]:
    return {"name": visible(name), "colour": colour(one.arm), "guide": visible(one.guide or "")}


def _row(number: int, s: Shown, spellings: dict[str, int], reasons: dict[str, int]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "s": number, "p": visible(s.problem), "n": s.sample, "v": VERDICTS.index(s.verdict),
        "r": reasons.setdefault(visible(s.reason), len(reasons)), "t": visible(s.text),
    }  # fmt: skip
    if s.left_out:
        out["x"] = s.left_out
    if s.answer is not None and s.answer != s.text:
        out["a"] = visible(s.answer)[:200]
    if s.finish == "length":
        out["l"] = 1
    if s.tokens is not None:
        out["k"] = [spellings.setdefault(visible(token), len(spellings)) for token in s.tokens]
    for name, values in (("e", s.entropies), ("q", s.q)):
        if values is not None:
            out[name] = [_number(value) for value in values]
    if s.perplexity is not None:
        out["b"] = _number(min(float(s.perplexity), 1e9))
    return out


def _number(value: float) -> float | None:
    """Three digits; None for what JSON has no number for."""
    return round(float(value), 3) if math.isfinite(value) else None


def as_script(data: Any) -> str:
    """JSON in ASCII that may stand in a script element: no "<", ">" or "&" is left, so nothing closes the element."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
