"""All features that change gradients, combined: the law holds exactly in every combination."""

from __future__ import annotations

from tests.framework_laws import laws_in, numerics

globals().update(laws_in(numerics))
