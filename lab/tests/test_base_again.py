"""The endpoints of fresh samples of the base: read from complete files only, and judged by the protocol's rules."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lab.base_again import HALF, SAMPLES, K, _below, _within, found_in, fresh_counts
from lab.primaries import BASE
from lab.study import FAILED, HELD, OPEN, rooms_of
from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.passk import pass_at_k


def test_strata_come_from_32_fresh_samples_and_the_base_from_the_others(tmp_path: Path):
    room = rooms_of()["much room"]
    stored, file = room.counts[BASE, None, 1.0], tmp_path / "much_room.jsonl"
    drawn = np.random.default_rng(0).binomial(SAMPLES, stored.c / 64)
    rows = [
        {"arm": "base", "task": "countdown_chat", "id": name, "n": SAMPLES, "c": int(c)}
        for name, c in zip(stored.problems, drawn, strict=True)
    ]
    file.write_text("\n".join(map(json.dumps, rows[::-1])))
    fresh = fresh_counts(file, room)
    assert fresh.problems == stored.problems and fresh.c.tolist() == drawn.tolist()
    for _, one in found_in(room, fresh):
        assert (one.half, one.k) == (HALF, K) and one.strata[0].high == 0
    weight = np.array([float(1 - pass_at_k(SAMPLES, c, HALF)) for c in drawn])  # none of 32 is right
    assert one.strata[0].share == pytest.approx(weight.mean())
    rest = np.array([float(pass_at_k(SAMPLES - HALF, c, K)) if c <= SAMPLES - HALF else 1.0 for c in drawn])
    assert one.strata[0].again == pytest.approx((weight * rest).sum() / weight.sum())
    file.write_text("\n".join(map(json.dumps, rows[1:])))
    with pytest.raises(DataError, match="other policies or problems"):
        fresh_counts(file, room)
    file.write_text("\n".join(json.dumps({**row, "n": 191, "c": 0}) for row in rows))
    with pytest.raises(DataError, match="192 samples"):
        fresh_counts(file, room)
    with pytest.raises(DataError, match="nothing is read before"):
        fresh_counts(tmp_path / "little_room.jsonl", room)


def test_predictions_are_judged_by_their_intervals():
    def gap(low: float, high: float) -> SimpleNamespace:
        return SimpleNamespace(low=low, high=high)

    assert [_below(gap(*ends)) for ends in ((-0.2, -0.1), (-0.2, 0.1), (0.1, 0.2))] == [HELD, OPEN, FAILED]
    assert [_within(gap(*ends)) for ends in ((-0.04, 0.04), (-0.1, 0.04), (0.06, 0.2))] == [HELD, OPEN, FAILED]
