"""HVD_SPARSE_CHECK must be set on all ranks, or on none."""

from __future__ import annotations

import pytest

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.ranks import checks


@pytest.mark.parametrize(
    ("value", "wanted"), [(None, False), ("", False), ("0", False), ("1", True)]
)
def test_checks_are_made_where_the_variable_says_1(monkeypatch, value, wanted):
    monkeypatch.delenv(checks.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(checks.VARIABLE, value)
    assert checks.from_environment() is wanted


@pytest.mark.parametrize("value", ["2", "true", "-1"])
def test_other_values_are_refused(monkeypatch, value):
    monkeypatch.setenv(checks.VARIABLE, value)
    with pytest.raises(InvalidArgumentError, match=f"must be 0 or 1, got '{value}'"):
        checks.from_environment()


def test_ranks_that_differ_are_named():
    checks.require_one([True, True])
    checks.require_one([False, False, False])
    with pytest.raises(InvalidArgumentError, match="is 1 on rank 2 and 0 on rank 0"):
        checks.require_one([False, False, True])
