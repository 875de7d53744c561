"""Fixtures that run the laws in every place: eagerly and in a graph, on the CPU and on a GPU."""

from __future__ import annotations

import pytest

from tests.parallel_tensorflow.ranks import devices


@pytest.fixture(params=devices())
def device(request):
    """The device of a test's variables: the CPU, and a GPU if there is one."""
    return request.param


@pytest.fixture(params=["eager", "graph"])
def mode(request):
    """The mode in which steps run."""
    return request.param
