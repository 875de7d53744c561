"""The device of an array: NumPy's memory, or a device's by __cuda_array_interface__."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.arrays import arrays
from hvd_sparse.arrays.arrays import placed
from hvd_sparse.arrays.functions import sparse_allreduce
from hvd_sparse.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from hvd_sparse.places import gpus
from tests.device_array import OnADevice


@pytest.fixture
def built_with_cuda(monkeypatch):
    """Pretends that this build has CUDA, and that all memory lies on device 3."""
    monkeypatch.setattr(gpus, "problem_of_gpus", lambda: None)
    monkeypatch.setattr(arrays._core, "cuda_device_of", lambda address: 3)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_an_array_of_numpy_is_where_it_says(dtype):
    array = np.zeros((3, 4), dtype)
    assert placed("array", array) == ((array.ctypes.data, 12, dtype), "cpu", 0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("stream", "ours"), [(None, 1), (1, 1), (2, 2), (0x5000, 0x5000)])
def test_an_array_of_a_device_is_where_it_says(built_with_cuda, dtype, stream, ours):
    array = np.zeros((3, 4), dtype)
    expected = ((array.ctypes.data, 12, dtype), "cuda:3", ours)
    assert placed("array", OnADevice(array, stream=stream)) == expected


def test_strides_of_c_order_are_as_good_as_none(built_with_cuda):
    array = np.zeros((3, 1, 4), np.float32)
    for strides in (None, (16, 16, 4), (16, 999, 4)):
        assert placed("array", OnADevice(array, strides=strides)).buffer.numel == 12


@pytest.mark.parametrize(
    "changes", [{"strides": (4, 12)}, {"data": (64, True)}, {"mask": object()}]
)
def test_memory_that_cannot_be_written_in_order_is_refused(built_with_cuda, changes):
    with pytest.raises(InvalidArgumentError, match="residual must be contiguous in C order, and w"):
        placed("residual", OnADevice(np.zeros((3, 4), np.float32), **changes))


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.zeros((4, 4), np.float32).T[::2], "contiguous"),
        (np.broadcast_to(np.float32(1), (4,)), "contiguous in C order, and writable"),
        ([1.0], "must be a NumPy array, or have __cuda_array_interface__, got list"),
    ],
)
def test_no_array_of_contiguous_memory_is_refused(array, match):
    with pytest.raises(InvalidArgumentError, match=match):
        placed("array", array)


@pytest.mark.parametrize("array", [np.zeros(4, np.int32), OnADevice(np.zeros(4, np.int32))])
def test_number_types_that_are_no_gradients_are_refused(array):
    with pytest.raises(UnsupportedError, match="array is int32; a sparse exchange takes bfloat16"):
        placed("array", array)


@pytest.mark.parametrize("make", [np.asarray, OnADevice])
def test_too_many_elements_are_refused(make):
    array = make(np.broadcast_to(np.float32(0), (2**31,)))
    with pytest.raises(UnsupportedError, match=r"fewer than 2\^31 elements, got 2147483648"):
        placed("array", array)


@pytest.mark.skipif(_core.with_cuda, reason="this build has CUDA")
def test_a_build_without_cuda_refuses_arrays_of_a_device():
    with pytest.raises(UnsupportedError, match=r"array is on a GPU.*HVD_SPARSE_WITH_CUDA=1"):
        placed("array", OnADevice(np.zeros(4, np.float32)))
    with pytest.raises(UnavailableError, match="no CUDA"):
        _core.cuda_device_of(64)


def test_without_a_world_there_is_nothing_to_reduce_over():
    program = (
        "import numpy, hvd_sparse\n"
        "try: hvd_sparse.sparse_allreduce(numpy.zeros(4), numpy.zeros(4, 'f4'))\n"
        "except hvd_sparse.UnavailableError as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "call hvd.init() of horovod.torch or horovod.tensorflow first" in told.stdout, told


def test_the_package_offers_it():
    import hvd_sparse

    assert hvd_sparse.sparse_allreduce is sparse_allreduce
    with pytest.raises(AttributeError, match="no attribute 'sparse_reduce'"):
        hvd_sparse.sparse_reduce  # noqa: B018
