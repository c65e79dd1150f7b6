"""Effective rank: worked values, invariances, bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.samples.spectrum import effective_rank, rank_dynamics, rank_path

matrices = arrays(float, st.tuples(st.integers(1, 7), st.integers(1, 5)), elements=st.integers(-9, 9).map(float))


def test_worked_values():
    assert effective_rank(np.diag([3.0, 1.0]), center=False) == pytest.approx(1.754765, abs=1e-6)
    assert effective_rank(np.eye(4), center=False) == pytest.approx(4.0)
    assert effective_rank(np.outer([1, 2, 3], [4, 5]), center=False) == pytest.approx(1.0)
    # centered, the two rows of diag(3, 1) are opposite: one direction
    assert effective_rank(np.diag([3.0, 1.0])) == pytest.approx(1.0)
    assert effective_rank(np.ones((5, 3)) * 0.1) == 0.0 and effective_rank([[1.0, 2.0]]) == 0.0
    assert effective_rank(np.zeros((2, 2)), center=False) == 0.0


@pytest.mark.slow
@given(matrices, st.integers(0, 2**32 - 1))
def test_scale_rotation_order_and_bounds(z, seed):
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(z.shape[1], z.shape[1])))[0]
    value = effective_rank(z)
    assert value == 0.0 or 1 - 1e-9 <= value <= min(z.shape) + 1e-9
    assert effective_rank(7e3 * rng.permutation(z) @ rotation) == pytest.approx(value, abs=1e-6)
    assert effective_rank(z + rng.integers(-5, 5, z.shape[1])) == pytest.approx(value, abs=1e-6)  # centring


def test_agrees_with_the_smaller_gram_matrix():
    z = np.random.default_rng(0).normal(size=(40, 6))
    centered = z - z.mean(axis=0)
    sigma = np.sqrt(np.linalg.eigvalsh(centered.T @ centered))
    shares = sigma / sigma.sum()
    assert effective_rank(z) == pytest.approx(np.exp(-np.sum(shares * np.log(shares))))


def test_velocity_and_acceleration_by_hand():
    velocity, acceleration = rank_dynamics([1.0, 1.5, 1.8, 2.0, 1.9])
    assert velocity == pytest.approx(0.485417, abs=1e-6)
    assert acceleration == pytest.approx(-0.058333, abs=1e-6)
    assert rank_dynamics([2.0] * 6) == (0.0, 0.0)
    assert rank_dynamics([]) == (0.0, 0.0) and rank_dynamics([3.0]) == (0.0, 0.0)
    assert rank_dynamics([1.0, 3.0]) == (2.0, 0.0)


def test_the_path_is_that_of_growing_prefixes():
    z = np.random.default_rng(1).normal(size=(23, 4))
    found = rank_path(z, stride=5)
    assert found.path == pytest.approx([effective_rank(z[:t]) for t in (5, 10, 15, 20)])
    assert found.rank == pytest.approx(effective_rank(z))
    assert (found.velocity, found.acceleration) == rank_dynamics(found.path)
    cut = rank_path(z, stride=5, last=12)
    assert cut.path == pytest.approx([effective_rank(z[11:16]), effective_rank(z[11:21])])
    assert rank_path(z, stride=5, last=100).path == pytest.approx(found.path)
    assert rank_path(z).path.size == 0


def test_refusals():
    for states in (np.zeros(3), np.zeros((0, 3)), [[np.nan, 1.0]]):
        with pytest.raises(DataError, match="hidden states of shape"):
            effective_rank(states)
    with pytest.raises(DataError, match="stride = 1"):
        rank_path(np.eye(3), stride=1)
    with pytest.raises(DataError, match="last = 0"):
        rank_path(np.eye(3), last=0)
