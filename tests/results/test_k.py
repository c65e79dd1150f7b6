"""pass@k at the k that was asked for, or a refusal: never another k's number under this name."""

from __future__ import annotations

from math import comb
from pathlib import Path

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.results.read import read_results
from sage_rlvr.verdicts.scores import ProblemScores

STORED = Path(__file__).resolve().parents[2] / "lab" / "experiments" / "2026-11-24_countdown_easy_k3_is"


@pytest.mark.parametrize("k", [1, 65, 99])
def test_an_odd_k_is_computed_exactly(k: int) -> None:
    p, right = np.array([[0.001, 0.02, 0.7]]), np.array([[0, 1, 30]])
    named = {"arm": "A", "task": "", "temperature": 1.0, "seeds": (0,), "problems": ("a", "b", "c")}
    assert ProblemScores(**named, values=p).passes([k])[0, :, 0] == pytest.approx(1 - (1 - p[0]) ** k, rel=1e-12)
    brute = [1 - comb(100 - int(c), k) / comb(100, k) for c in right[0]]
    assert ProblemScores(**named, values=right, n=100).passes([k])[0, :, 0] == pytest.approx(brute, rel=1e-12)


@pytest.mark.parametrize("k", [8, 65, 300])
def test_a_stored_summary_is_read_at_its_own_k_alone(k: int) -> None:
    """It keeps scores and curves at some k and no samples: another k is refused with those that are kept."""
    with pytest.raises(DataError, match=rf"k = {k}: .*summary\.json has only scores at k = 1, 8, 64, 256 and"):
        read_results(STORED, k=k)
    assert read_results(STORED, k=256).k == read_results(STORED).k == 256
