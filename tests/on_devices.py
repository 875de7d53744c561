"""Fixtures for the device on which a test runs; imported by conftest.py files."""

from __future__ import annotations

import pytest

from tests.device_array import CPU, GPU, problem_of_gpu

_WHY_NOT = problem_of_gpu()
_ON_A_GPU = pytest.param(
    GPU, marks=[pytest.mark.gpu, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)]
)


@pytest.fixture(params=[CPU, _ON_A_GPU])
def device(request):
    """The device of a test's gradients and residuals: the CPU, and a GPU if there is one."""
    return request.param


@pytest.fixture(params=[_ON_A_GPU])
def gpu(request):
    """A GPU, for tests that have no CPU variant."""
    return request.param
