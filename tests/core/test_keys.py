"""Counter-based numbers: a published vector, uniformity, independence of layout and history."""

from __future__ import annotations

import pytest
import torch

from sage_rlvr.core import Key
from sage_rlvr.core.keys import _absorb, _absorb_int
from sage_rlvr.errors import ConfigError

ROWS, COLUMNS = torch.arange(200), torch.arange(500)


def test_splitmix64_reference_vector():
    """The first outputs of splitmix64 seeded with 1234567, as its author's C code prints them."""
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [_absorb_int(1234567, i) for i in range(5)] == wanted
    assert [value % 2**64 for value in _absorb(1234567, torch.arange(5)).tolist()] == wanted


def test_uniform_is_uniform():
    draws = Key(1).uniform(0, "a", ROWS, COLUMNS)
    assert draws.shape == (200, 500) and draws.dtype == torch.float32
    assert float(draws.min()) > 0 and float(draws.max()) < 1
    counts = torch.histc(draws, 20, 0, 1)
    chi_square = float(((counts - 5000) ** 2 / 5000).sum())
    assert chi_square < 43.8, "19 degrees of freedom, one in a thousand"


def test_normal_moments():
    draws = Key(2).normal(0, "a", ROWS, COLUMNS).double()
    assert abs(float(draws.mean())) < 0.013
    assert float(draws.std()) == pytest.approx(1, abs=0.01)
    assert float((draws**4).mean()) == pytest.approx(3, abs=0.1)
    assert abs(float((draws**3).mean())) < 0.05


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_a_number_depends_on_its_address_only(kind):
    draw = getattr(Key(7), kind)
    whole = draw(4, "x", ROWS[:20], COLUMNS[:30])
    rows = torch.tensor([13, 2, 19])
    assert torch.equal(draw(4, "x", rows, COLUMNS[5:9]), whole[rows][:, 5:9])
    assert torch.equal(draw(4, "x", rows, 6), whole[rows][:, 6:7])
    assert torch.equal(draw(4, "x", rows, torch.tensor([[1, 2], [5, 6], [0, 1]]))[1], whole[2, 5:7])


def test_seed_step_name_and_fold_all_matter():
    draws = [
        Key(7).uniform(0, "x", ROWS, 0),
        Key(8).uniform(0, "x", ROWS, 0),
        Key(7).uniform(1, "x", ROWS, 0),
        Key(7).uniform(0, "y", ROWS, 0),
        Key(7).fold("part").uniform(0, "x", ROWS, 0),
        Key(7).uniform(0, "x", ROWS + 200, 0),
        Key(7).uniform(0, "x", ROWS, 1),
    ]
    correlations = torch.corrcoef(torch.cat(draws, dim=1).T) - torch.eye(len(draws))
    assert float(correlations.abs().max()) < 0.3


def test_rows_and_columns_are_not_interchangeable():
    square = Key(3).uniform(0, "x", ROWS[:50], COLUMNS[:50])
    assert not torch.equal(square, square.T) and square.unique().numel() > 2400


def test_the_global_generator_is_not_touched():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    Key(0).normal(0, "x", ROWS, COLUMNS)
    Key(0).permutation(0, "x", 10)
    assert torch.equal(before, torch.get_rng_state())


def test_permutation():
    orders = [Key(0).permutation(step, "order", 40) for step in range(30)]
    assert all(torch.equal(order.sort().values, torch.arange(40)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 30
    assert torch.equal(orders[3], Key(0).permutation(3, "order", 40))
    assert Key(0).permutation(0, "order", 0).numel() == 0


@pytest.mark.parametrize("seed", [1.5, "3407", None, True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ConfigError, match="whole number"):
        Key(seed)
