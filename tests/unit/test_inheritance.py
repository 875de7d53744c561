"""The residuals that ranks inherit when others have joined or left."""

from __future__ import annotations

import pytest

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.state.inheritance import Holding, checked_policy, contributors, lost, unchanged


def test_every_rank_in_its_place_keeps_its_own():
    assert unchanged([Holding(0, 3, 7), Holding(1, 3, 7), Holding(2, 3, 7)])


@pytest.mark.parametrize(
    "holdings",
    [
        [Holding(0, 3, 7), Holding(2, 3, 7)],  # one has left
        [Holding(0, 2, 7), Holding(1, 2, 7), None],  # one has joined
        [Holding(1, 2, 7), Holding(0, 2, 7)],  # they are renumbered
        [Holding(0, 2, 7), Holding(1, 2, 6)],  # they are from different steps
        [Holding(0, 2, 7, whole=True), Holding(1, 2, 7, whole=True)],
    ],
)
def test_otherwise_they_do_not(holdings):
    assert not unchanged(holdings)


@pytest.mark.parametrize(
    ("holdings", "contributing", "gone"),
    [
        ([None, None], [], 0),  # the first world
        ([Holding(0, 3, 7), Holding(2, 3, 7)], [0, 1], 1),
        ([Holding(0, 2, 7), None, Holding(1, 2, 7)], [0, 2], 0),
        ([Holding(1, 2, 7), None], [0], 1),
        # Rank 1 had not finished the step that rank 0's model includes.
        ([Holding(0, 2, 8), Holding(1, 2, 7), None], [0], 1),
        # All hold the same sum of three, which counts once.
        ([Holding(0, 3, 7, whole=True), Holding(1, 3, 7, whole=True)], [0], 0),
        ([Holding(0, 3, 7), Holding(1, 3, 7, whole=True)], [1], 0),
        ([Holding(0, 3, 8), Holding(1, 3, 7, whole=True)], [0], 2),
    ],
)
def test_what_fits_rank_0s_model_is_given_once(holdings, contributing, gone):
    assert contributors(holdings) == contributing
    assert lost(holdings) == gone


def test_a_policy_is_chosen_by_name():
    assert checked_policy("reset") == "reset"
    with pytest.raises(InvalidArgumentError, match="spread, reset, got 'own'"):
        checked_policy("own")
