"""Robust averages take the place of the mean."""

from __future__ import annotations

from tests.framework_laws import laws_in, robust

globals().update(laws_in(robust))
