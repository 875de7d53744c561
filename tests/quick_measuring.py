"""Measures the machine in milliseconds, for tests of ranks that ignore the results.

Ranks that share cores measure concurrently, which took most of the time to construct an adaptive
optimizer. tests/unit/test_measure.py measures like users do, and so do jobs.
"""

from __future__ import annotations

import pytest

from hvd_sparse.tuning import measure


@pytest.fixture(autouse=True)
def quick_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduces the size and number of test pieces in every test of a conftest with this fixture."""
    monkeypatch.setattr(measure, "_NUMEL", 1 << 15)
    monkeypatch.setattr(measure, "_K", 1 << 10)
    monkeypatch.setattr(measure, "_REPETITIONS", 2)
