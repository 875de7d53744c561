"""All features that change gradients, combined: the law holds exactly in every combination."""

from __future__ import annotations

import pytest

from tests.framework_laws import laws_in, numerics

globals().update(laws_in(numerics))


@pytest.fixture
def mode(request):
    """Eager or graph mode, so that each meets each choice of all other options."""
    options = request.node.callspec.params
    return "graph" if (options["clips"] + (options["momentum"] > 0)) % 2 else "eager"
