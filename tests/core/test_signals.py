"""Signals detach, upcast and check; positions count counted tokens."""

from __future__ import annotations

import pytest
import torch

from sage_rlvr.core import Signals
from sage_rlvr.core.signals import masked_mean
from sage_rlvr.errors import DataError

MASK = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0]])
LOGPS = -torch.ones(2, 5)
IDS = torch.tensor([4, 9])


def test_detached_float32_and_bool():
    signals = Signals(LOGPS.bfloat16().requires_grad_(True), None, MASK, IDS.int(), entropies=LOGPS.double())
    assert signals.old_logps.dtype == signals.entropies.dtype == torch.float32
    assert not signals.old_logps.requires_grad
    assert signals.mask.dtype == torch.bool and signals.row_ids.dtype == torch.int64


def test_positions_skip_what_is_not_counted():
    positions = Signals(LOGPS, None, MASK, IDS).positions
    assert positions[MASK.bool()].tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"ref_logps": LOGPS[:, :4]}, "ref_logps"),
        ({"entropies": LOGPS[:1]}, "entropies"),
        ({"row_ids": torch.arange(3)}, "row_ids"),
        ({"rewards": torch.zeros(2, 1)}, "rewards"),
        ({"hidden": torch.zeros(2, 4, 3)}, "hidden"),
        ({"row_ids": torch.tensor([1, 1])}, "row_ids repeat"),
    ],
)
def test_shapes_are_checked_by_name(change, name):
    with pytest.raises(DataError, match=name):
        Signals(**({"old_logps": LOGPS, "ref_logps": LOGPS, "mask": MASK, "row_ids": IDS} | change))


def test_a_missing_signal_says_who_wants_it():
    with pytest.raises(DataError, match=r"Branch needs Signals\.entropies"):
        Signals(LOGPS, None, MASK, IDS).require("entropies", "Branch")


def test_a_signal_that_is_none_is_answered_with_its_neighbor():
    known = Signals(torch.zeros(1, 1), None, torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.long))
    with pytest.raises(DataError, match=r"Mine reads Signals\.entropie, which does not exist; did you mean 'entropies'\?"):
        known.require("entropie", "Mine")


def test_masked_mean_ignores_nan_and_empty():
    values = torch.tensor([[1.0, float("nan"), 3.0]])
    assert masked_mean(values, torch.tensor([[True, False, True]])) == 2.0
    assert masked_mean(values, torch.zeros(1, 3, dtype=torch.bool)) == 0.0


def test_rows_are_taken_in_any_order_and_numbered():
    """Every field that is there goes with its row; a row may stand twice; numbers that repeat are refused."""
    whole = Signals(
        torch.arange(6.0).reshape(3, 2), None, torch.tensor([[1, 1], [1, 0], [1, 1]]), torch.tensor([7, 8, 9]),
        rewards=torch.tensor([0.0, 1.0, 0.5]),
    )  # fmt: skip
    taken = whole.take(torch.tensor([2, 0, 2]))
    assert taken.old_logps.tolist() == [[4.0, 5.0], [0.0, 1.0], [4.0, 5.0]] and taken.ref_logps is None
    assert taken.rewards is not None and taken.rewards.tolist() == [0.5, 0.0, 0.5]
    assert taken.row_ids.tolist() == [0, 1, 2] and taken.mask.tolist() == [[True, True]] * 3
    assert whole.take(torch.tensor([1]), torch.tensor([8])).row_ids.tolist() == [8]
    with pytest.raises(DataError, match="repeat"):
        whole.take(torch.tensor([1, 1]), torch.tensor([8, 8]))
