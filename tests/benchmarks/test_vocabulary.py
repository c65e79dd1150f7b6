"""benchmarks/vocabulary.py: it names the line that keeps a (tokens x words) tensor, and none where rows are taken in parts."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from sage_rlvr.core.divergences import forward_kl

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WORDS = 4_096


@pytest.fixture
def vocabulary(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("vocabulary")


def test_tensors_are_counted_while_they_are_alive(vocabulary: Any) -> None:
    with vocabulary.Wide(WORDS) as watch:
        first = torch.zeros(10, WORDS)
        (first + 1).sum()  # dead at once, but alive beside the first for a moment
        torch.zeros(vocabulary.HIDDEN, WORDS), torch.zeros(WORDS), torch.zeros(10, 10)  # a weight, one row, no words
        del first
        torch.zeros(4, WORDS // 128, 128)
    assert (watch.peak, watch.rows) == (2 * 10 * WORDS * 4, 10)


def test_the_line_of_this_package_is_named(vocabulary: Any) -> None:
    laws = torch.log_softmax(torch.randn(512, WORDS), -1)
    with vocabulary.Wide(WORDS) as watch:
        forward_kl(laws, laws)
    assert watch.rows == 512
    assert all(place.startswith("core/divergences.py:") for place in watch.at_peak)


@pytest.mark.slow
def test_a_step_of_grpo_keeps_no_logits(vocabulary: Any) -> None:
    """At 65,536 words the head's budget holds 64 of the 512 counted tokens, and a draw has 32 rows."""
    found = vocabulary.measured("grpo", 65_536)
    assert 0 < found["rows"] <= 64 and found["wide"] > 0
