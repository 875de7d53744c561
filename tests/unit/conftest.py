"""Hypothesis profiles for the property tests.

Every run tests the same few examples, unless HVD_SPARSE_EXAMPLES=N requests N new ones for each
property.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow]

settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "search",
    deadline=None,
    max_examples=int(os.environ.get("HVD_SPARSE_EXAMPLES") or 1),
    suppress_health_check=_SLOW,
)
settings.load_profile("search" if os.environ.get("HVD_SPARSE_EXAMPLES") else "repeatable")
