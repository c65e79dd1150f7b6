"""Classes of right answers, against sums worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.samples.structure import (
    class_masses,
    classes_of_answers,
    effective_classes,
    reachable_classes,
)
from sage_rlvr.verdicts.stats.support import reachable, success_probability

LOGPS = [np.log([0.2, 0.1, 0.1]), np.log([0.05])]
LABELS = [["+", "*", "+"], ["*"]]


def test_masses_shares_and_support_by_hand():
    masses = class_masses(LOGPS, LABELS)
    assert list(masses) == ["*", "+"]
    assert masses["+"] == pytest.approx([0.3, 0.0]) and masses["*"] == pytest.approx([0.1, 0.05])
    base = [np.log([0.001, 0.1, 0.1]), np.log([0.05])]
    found = classes_of_answers(LOGPS, LABELS, base=base, eps=0.06)
    plus, times = found["+"], found["*"]
    assert plus.share.value == pytest.approx(0.3 / 0.45) and times.share.value == pytest.approx(0.15 / 0.45)
    assert (plus.completions, plus.supported, plus.kept, plus.gained, plus.lost) == (2, 2, 1, 1, 0)
    assert (times.completions, times.supported, times.kept, times.gained, times.lost) == (2, 1, 1, 0, 0)
    assert classes_of_answers(LOGPS, LABELS)["+"].kept is None


def test_effective_and_reachable_by_hand():
    spread = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert effective_classes(LOGPS, LABELS) == pytest.approx([spread, 1.0])
    assert reachable_classes(LOGPS, LABELS, 2) == pytest.approx([1 - 0.7**2 + 1 - 0.9**2, 1 - 0.95**2])
    silent = effective_classes([np.array([-np.inf]), np.log([0.5])], [["+"], ["+"]])
    assert math.isnan(silent[0]) and silent[1] == pytest.approx(1.0)


@given(st.lists(st.floats(0.001, 0.1), min_size=1, max_size=8), st.integers(1, 64))
def test_classes_lie_between_one_class_and_one_each(p, k):
    """All in one class: 1 - (1 - p)^k. Each its own class: the distinct completions. Merging classes never gives more."""
    logps = [np.log(p)]
    alone = reachable_classes(logps, [[str(i) for i in range(len(p))]], k)
    one = reachable_classes(logps, [["all"] * len(p)], k)
    assert alone == pytest.approx(reachable(logps, k))
    assert one == pytest.approx(1 - (1 - success_probability(logps)) ** k)
    assert one <= alone + 1e-12
    assert effective_classes(logps, [["all"] * len(p)]) == pytest.approx(1.0)


def test_refusals():
    with pytest.raises(DataError, match="different numbers of completions"):
        class_masses(LOGPS, [["+"], ["*"]])
    with pytest.raises(DataError, match="any probability"):
        classes_of_answers([np.array([-np.inf])], [["+"]])
