"""sparse_allreduce of NumPy arrays, and of a GPU's arrays."""

from __future__ import annotations

import contextlib

import horovod.torch as hvd
import numpy as np
import pytest
import torch

import hvd_sparse.torch
from hvd_sparse import sparse_allreduce
from hvd_sparse.errors import InvalidArgumentError, NonFiniteGradientError, UnsupportedError
from hvd_sparse.torch import LAGS, GaussianK, GTopK, TopK
from tests.dense_sums import DENSE_SUMS
from tests.device_array import OnADevice, is_emulated
from tests.parallel.torch_ranks import assert_same_on_all_ranks, total


def integers(step, dtype=np.float32):
    return np.random.default_rng(1000 * step + hvd.rank()).integers(-9, 10, (30, 40)).astype(dtype)


def summed(array):
    return total(torch.from_numpy(array.astype(np.float64))).numpy()


PRESETS = [LAGS, GTopK, GaussianK, TopK]
COMPRESSIONS = [preset(adaptive=False, density=0.1) for preset in PRESETS]
COMPRESSIONS += DENSE_SUMS.values()


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=repr)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_nothing_is_lost_over_several_calls(compression, dtype):
    residual = np.zeros(1200, np.float32)
    for step in range(4):
        array = integers(step, dtype)
        copy, before = array.copy(), residual.copy()
        result = sparse_allreduce(array, residual, compression=compression, op=hvd.Sum)
        assert np.array_equal(array, copy)
        assert (result.shape, result.dtype) == (array.shape, array.dtype)
        given = array.astype(np.float64).ravel() + before - residual
        assert np.array_equal(summed(given), result.astype(np.float64).ravel())
        assert_same_on_all_ranks([torch.from_numpy(result)])


@pytest.mark.parametrize("same", [False, True])
def test_a_result_goes_where_the_caller_wants_it(same):
    array, residuals = integers(1), np.zeros((2, 1200), np.float32)
    expected = sparse_allreduce(array, residuals[0], compression=TopK(density=0.1), name="new")
    out = array if same else np.empty_like(array)
    result = sparse_allreduce(
        array, residuals[1], out=out, compression=TopK(density=0.1), name="out"
    )
    assert result is out
    assert np.array_equal(out, expected)
    assert np.array_equal(residuals[0], residuals[1])
    assert same or np.array_equal(array, integers(1))


MEMORY = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("array", "out", "match"),
    [
        (np.zeros(4, np.float32), [0.0], "out must be a NumPy array"),
        (np.zeros(4, np.float32), np.zeros((2, 2), np.float32), r"out must have shape \(4,\)"),
        (np.zeros(4, np.float32), np.zeros(4), "out must have dtype float32"),
        (np.zeros(4, np.float32), np.zeros(8, np.float32)[::2], "out must be contiguous"),
        (np.zeros(4, np.float32), MEMORY[1:5], "out must not share memory with residual"),
        (MEMORY[5:], MEMORY[4:7], "out must be array, or share no memory with it"),
    ],
)
def test_bad_places_for_a_result_are_refused(array, out, match):
    with pytest.raises(InvalidArgumentError, match=match):
        sparse_allreduce(array, MEMORY[: array.size], out=out)


def test_it_is_that_of_torch():
    array, residuals = integers(1), (np.zeros(1200, np.float32), torch.zeros(1200))
    compression = GTopK(density=0.05)
    ours = sparse_allreduce(array, residuals[0], compression=compression)
    theirs = hvd_sparse.torch.sparse_allreduce(
        torch.from_numpy(array), residuals[1], compression=compression
    )
    assert np.array_equal(ours, theirs.numpy())
    assert np.array_equal(residuals[0], residuals[1].numpy())


def test_an_average_is_the_default():
    array = np.full(64, 1.0 + hvd.rank(), np.float32)
    result = sparse_allreduce(array, np.zeros(64, np.float32), compression=TopK(density=1.0))
    np.testing.assert_allclose(result, (1 + hvd.size()) / 2, rtol=1e-6)


def test_a_call_sends_its_density_and_no_warm_ups():
    array = np.random.default_rng(hvd.rank()).standard_normal(1000).astype(np.float32)
    residual = np.zeros(1000, np.float32)
    result = sparse_allreduce(array, residual, compression=LAGS(sparsifier="top_k"))
    assert LAGS().warmup is not None
    assert 1 <= np.count_nonzero(result) <= 10 * hvd.size()


def test_an_empty_array_needs_no_exchange():
    assert sparse_allreduce(np.zeros((0, 3)), np.zeros(0, np.float32)).shape == (0, 3)


def test_nan_on_one_rank_raises_on_all_and_the_residual_keeps_the_rest():
    array, residual = integers(1), np.zeros(1200, np.float32)
    if hvd.rank() == hvd.size() - 1:
        array[3, 4] = np.nan
    with pytest.raises(NonFiniteGradientError, match=f"rank {hvd.size() - 1}"):
        sparse_allreduce(array, residual, compression=TopK(density=0.1), name="bad")
    assert np.array_equal(residual, np.nan_to_num(array).ravel())


def test_a_float64_beyond_float32_raises_on_all_and_is_not_called_nan():
    array, residual = integers(1, np.float64), np.zeros(1200, np.float32)
    if hvd.rank() == hvd.size() - 1:
        array[3, 4] = -1e300
    with pytest.raises(NonFiniteGradientError, match="exceeds float32's range") as caught:
        sparse_allreduce(array, residual, compression=TopK(density=0.1), name="beyond")
    assert "NaN" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "residual", "match"),
    [
        (np.zeros(4), np.zeros(5, np.float32), r"as many elements as array \(4\), got 5"),
        (np.zeros(4), np.zeros(4), "residual must be float32, got float64"),
        (np.zeros(4), np.zeros(8, np.float32)[::2], "residual must be contiguous"),
        ([0.0], np.zeros(1, np.float32), "array must be a NumPy array"),
        (MEMORY[:4], MEMORY[:4], "residual must not share memory with array"),
        (MEMORY[:4], MEMORY[2:6], "residual must not share memory with array"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(array, residual, match):
    with pytest.raises(InvalidArgumentError, match=match):
        sparse_allreduce(array, residual)


def test_ops_without_a_sparse_meaning_are_refused():
    with pytest.raises(UnsupportedError, match="op=Adasum"):
        sparse_allreduce(np.zeros(4), np.zeros(4, np.float32), op=hvd.Adasum)


@pytest.mark.skipif(hvd.size() == 1, reason="one rank agrees with itself")
def test_ranks_that_differ_are_told():
    array = np.zeros(70 + (hvd.rank() == 1))
    with pytest.raises(InvalidArgumentError, match=r"71, .* on rank 1"):
        sparse_allreduce(array, np.zeros(array.size, np.float32))


@pytest.mark.skipif(hvd.size() == 1, reason="one rank agrees with itself")
def test_ranks_whose_number_types_differ_are_told():
    # A sum may overflow only one of the types: some ranks would refuse a step that others accept.
    array = np.zeros(72, np.float16 if hvd.rank() == 1 else np.float32)
    with pytest.raises(InvalidArgumentError, match=r"'float16', .* on rank 1"):
        sparse_allreduce(array, np.zeros(array.size, np.float32))


def on_gpu(array):
    """Returns a copy of the array on the GPU."""
    if is_emulated():
        return OnADevice(array.copy())
    import cupy

    return cupy.asarray(array)


def on_cpu(array):
    """Returns the array's values once its stream has computed them."""
    return array.array if is_emulated() else array.get()


def a_stream():
    """A context for CuPy's arrays in a non-blocking stream."""
    if is_emulated():
        return contextlib.nullcontext()
    import cupy

    cupy.cuda.Device().synchronize()
    return cupy.cuda.Stream(non_blocking=True)


@pytest.mark.parametrize("compression", [GTopK(density=0.05), *DENSE_SUMS.values()], ids=repr)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_arrays_of_a_gpu_give_the_bits_of_numpys(gpu, dtype, compression):
    kept, kept_there = np.zeros(1200, np.float32), on_gpu(np.zeros(1200, np.float32))
    for step in range(3):
        array = integers(step, dtype)
        here = sparse_allreduce(array, kept, compression=compression, name="here")
        with a_stream():
            there = sparse_allreduce(
                on_gpu(array), kept_there, compression=compression, name="there"
            )
            assert np.array_equal(here, on_cpu(there))
            assert np.array_equal(kept, on_cpu(kept_there))


def test_an_array_and_its_residual_lie_together(gpu):
    array, residual = np.ones(80, np.float32), np.zeros(80, np.float32)
    with pytest.raises(InvalidArgumentError, match="residual must be on 'cuda:0', as array is"):
        sparse_allreduce(on_gpu(array), residual)
    with pytest.raises(InvalidArgumentError, match="residual must be on 'cpu', as array is"):
        sparse_allreduce(array, on_gpu(residual))


@pytest.mark.skipif(hvd.size() == 1, reason="one rank agrees with itself")
def test_ranks_whose_arrays_lie_elsewhere_are_told(gpu):
    array, residual = np.ones(81, np.float32), np.zeros(81, np.float32)
    if hvd.rank() == 1:
        array, residual = on_gpu(array), on_gpu(residual)
    with pytest.raises(InvalidArgumentError, match=r"'cuda'\) on rank 1"):
        sparse_allreduce(array, residual)
