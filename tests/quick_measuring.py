"""The machine is measured in milliseconds, for tests of ranks: none looks at what comes out.

Ranks that share cores measure all at once, which took most of what an adaptive optimizer's
construction takes. tests/unit/test_measure.py measures as users do, and so do jobs.
"""

from __future__ import annotations

import pytest

from hvd_sparse.tuning import measure


@pytest.fixture(autouse=True)
def quick_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small test pieces, and few of them; in every test of the conftest that has this."""
    monkeypatch.setattr(measure, "_NUMEL", 1 << 15)
    monkeypatch.setattr(measure, "_K", 1 << 10)
    monkeypatch.setattr(measure, "_REPETITIONS", 2)
