"""Residuals spread over ranks: every entry belongs to one rank, and sums are unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.state.spreading import SavedSum, share_of


def shares_of(total: np.ndarray, size: int) -> list[np.ndarray]:
    return [share_of(total, rank=rank, size=size) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("numel", [0, 1, 5, 1000])
def test_shares_of_integers_add_up_and_each_entry_is_one_ranks(size, numel):
    total = np.random.default_rng(numel).integers(-(2**20), 2**20, numel).astype(np.float64)
    shares = shares_of(total, size)
    assert np.array_equal(np.sum(shares, axis=0, dtype=np.float64), total)
    for share in shares:
        assert share.dtype == np.float32
        assert np.count_nonzero(share) <= -(-numel // size)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_what_float32_cannot_hold_goes_to_another_rank(size):
    # The sums are of integers that need up to 40 bits.
    total = np.random.default_rng(size).integers(-(2**40), 2**40, 999) / 2**16
    shares = shares_of(total, size)
    assert np.array_equal(np.sum(shares, axis=0, dtype=np.float64), total)
    assert np.any(shares[0][np.arange(999) % size != 0])


def test_residuals_are_added_exactly_whatever_their_order():
    generator = np.random.default_rng(0)
    layers = {"a": 100, "b": 7}
    residuals = [
        {
            "a": (generator.integers(-99, 99, 100) / 1024).astype(np.float32),
            "b": (generator.integers(-9, 9, 7) * 1024).astype(np.float32),
        }
        for _ in range(5)
    ]
    sums = []
    for order in (residuals, residuals[::-1]):
        total = SavedSum(layers)
        for one in order:
            total.add(layers, one)
        sums.append(total.over_ranks(lambda part, name: part))
    forth, back = sums
    for name, total in forth.items():
        assert total.dtype == np.float64
        assert np.array_equal(total, back[name])


def test_residuals_of_other_layers_are_refused():
    with pytest.raises(CheckpointMismatchError, match=r"saved are \{'a': 3\}, here are \{'a': 4\}"):
        SavedSum({"a": 4}).add({"a": 3}, {})
