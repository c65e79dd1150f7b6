"""The reports of `compare --fail-on`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sage_rlvr.errors import ConfigError
from sage_rlvr.verdicts.stats.paired import signed
from sage_rlvr.verdicts.text.verdicts import ranges_text
from sage_rlvr.verdicts.text.words import ends_text
from sage_rlvr.verdicts.units import units_of
from sage_rlvr.verdicts.verdict import CurveVerdict


def failures(verdicts: Sequence[CurveVerdict], rules: Sequence[str]) -> list[str]:
    """A sentence for each rule that a verdict breaks. rules: "loss" (lower at any k), "no-gain" (higher at no k), "pass@K" (lower
    at this k, by the interval at this k only)."""
    out = []
    for rule in rules:
        match = re.fullmatch(r"pass@(\d+)", rule)
        if match is None and rule not in ("loss", "no-gain"):
            raise ConfigError(f"--fail-on {rule!r}: choose loss, no-gain or pass@K, for example pass@8")
        for one in verdicts:
            if match is not None:
                out += _fell(one, int(match[1]))
            elif rule == "loss" and one.crossing.loss:
                out.append(f"{one.a.arm} is lower than {one.b.arm} at {ranges_text(one.curve, one.crossing.loss)}")
            elif rule == "no-gain" and not one.crossing.gain:
                out.append(f"{one.a.arm} is higher than {one.b.arm} at no k")
    return out


def _fell(one: CurveVerdict, k: int) -> list[str]:
    if k < 1 or k > (one.a.n or 0):
        raise ConfigError(
            f"--fail-on pass@{k}: {one.a.arm} has {one.a.n} samples per problem; choose a k from 1 to {one.a.n}"
        )
    gap = units_of(one.a, one.b, fixed=one.fixed).gap(k)
    if gap.outcome != "worse":
        return []
    size = f"{signed(gap.difference.value)} ({ends_text(gap.difference)})"
    alone = ", by the interval at this k alone; the verdict's band over all k is wider" if (one.a.n or 0) > 1 else ""
    return [f"pass@{k} of {one.a.arm} fell: {size} against {one.b.arm}{alone}"]
