"""Kernels on each device, compared with NumPy on the same numbers: equal in every bit."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

from hvd_sparse import _core, _core_testing
from hvd_sparse.compression.sparsifiers import SPARSIFIERS
from hvd_sparse.errors import InvalidArgumentError
from tests.device_array import CPU, DTYPES, DeviceArray, wait_for_all
from tests.laws import EVERY_SPARSIFIER, buffer_of, integer_gradient

NUMEL, K = 20_000, 200
DELIVERED = -(2**31)  # the sign bit of an index


def draw(numel, seed=1):
    return np.random.default_rng(seed).standard_t(3, numel).astype(np.float32)


def a_block(numel, k, seed):
    """Returns a block as NumPy's arrays, and as the core's block."""
    generator = np.random.default_rng(seed)
    indices = np.sort(generator.choice(numel, k, replace=False))
    values = generator.integers(-9, 10, k).astype(np.float32)  # with ties, and zeros
    return oracle.Block(indices, values), _core.Block(indices.astype(np.int32), values)


def assert_same(block, expected):
    """Compares a block of the core with one of NumPy, ignoring marks of delivered entries."""
    np.testing.assert_array_equal(block.indices() & ~DELIVERED, expected.indices)
    assert block.values().tobytes() == expected.values.tobytes()


class Selecting:
    """A segment's selection, step by step."""

    def __init__(self, device, sparsifier, *, numel, k, options=None):
        chosen = EVERY_SPARSIFIER[sparsifier].options if options is None else options
        self.selector = _core_testing.Selector(sparsifier, chosen, numel=numel, k=k, device=device)
        self.device = device
        self.residual = DeviceArray(device, np.zeros(numel))
        self.state = np.zeros((1, 4), np.float32)

    def step(self, gradient, *, dtype="float32", decay=1.0, scale=1.0):
        """Runs a step; returns the number of non-finite entries. The selection is in the block."""
        array = DeviceArray(self.device, gradient, dtype)
        wait_for_all(self.device)
        return self.selector.select(
            array.buffer,
            decay=decay,
            scale=scale,
            residual=self.residual.buffer,
            state=buffer_of(self.state),
        )

    @property
    def block(self):
        """The entries that the last step took."""
        return self.selector.block


@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
def test_what_is_taken_leaves_the_residual_and_is_as_much_as_promised(sparsifier, device):
    least, most = EVERY_SPARSIFIER[sparsifier].bounds
    selecting = Selecting(device, sparsifier, numel=NUMEL, k=K)
    for seed in range(20):
        gradient = draw(NUMEL, seed)
        accumulated = selecting.residual.numpy() + gradient
        assert selecting.step(gradient) == 0
        block = selecting.block
        assert least * K <= block.count <= most * K
        assert np.array_equal(block.values(), accumulated[block.indices()])
        accumulated[block.indices()] = 0
        assert selecting.residual.numpy().tobytes() == accumulated.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("numel", "k"), [(1, 1), (33, 33), (4096, 1), (4097, 500), (50_000, 300)])
def test_the_exact_top_k_is_numpys(numel, k, dtype, device):
    selecting = Selecting(device, "top_k", numel=numel, k=k)
    accumulated = np.zeros(numel, np.float32)
    for step in range(3):
        gradient = integer_gradient(numel, rank=0, step=step)
        seen = DeviceArray(CPU, gradient, dtype).numpy().astype(np.float32)
        accumulated = np.float32(0.5) * accumulated + np.float32(0.25) * seen
        assert selecting.step(gradient, dtype=dtype, decay=0.5, scale=0.25) == 0
        expected = oracle.top_k(accumulated, k)
        assert_same(selecting.block, expected)
        accumulated = oracle.settle(accumulated, expected.indices)
        assert np.array_equal(selecting.residual.numpy(), accumulated)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_counted_and_does_not_join(dtype, device):
    selecting = Selecting(device, "top_k", numel=5000, k=50)
    gradient = integer_gradient(5000, rank=0, step=0)
    broken = gradient.copy()
    broken[[0, 77, 4999]] = np.inf, np.nan, -np.inf
    gradient[[0, 77, 4999]] = 0
    assert selecting.step(broken, dtype=dtype) == 3
    gradient = DeviceArray(CPU, gradient, dtype).numpy().astype(np.float32)
    expected = oracle.top_k(gradient, 50)
    assert_same(selecting.block, expected)
    rest = oracle.settle(gradient, expected.indices)
    assert np.array_equal(selecting.residual.numpy(), rest)


def test_random_k_draws_the_same_entries_on_every_rank(device):
    draws = []
    for rank in range(3):
        selecting = Selecting(device, "random_k", numel=NUMEL, k=K, options={"seed": 5})
        mine = []
        for step in range(3):
            selecting.step(draw(NUMEL, 10 * rank + step))
            mine.append(selecting.block.indices())
        draws.append(mine)
    for step in zip(*draws, strict=True):
        assert all(np.array_equal(step[0], other) for other in step[1:])
    assert not np.array_equal(draws[0][0], draws[0][1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_is_written_into_a_gradient_and_what_is_rounded_off_stays(dtype, device):
    numel, k = 7000, 900
    ours, block = a_block(numel, k, seed=3)
    values = ours.values * np.float32(301.03)  # not representable in a narrow type
    block = _core.Block(ours.indices.astype(np.int32), values)
    gradient = DeviceArray(device, draw(numel), dtype)
    residual = DeviceArray(device, np.zeros(numel))
    wait_for_all(device)
    _core_testing.scatter(block, 0.5, gradient.buffer, residual.buffer, device=device)
    wait_for_all(device)  # the kernel may run later
    written = gradient.numpy().astype(np.float64)
    assert not np.delete(written, ours.indices).any()
    scaled = 0.5 * values.astype(np.float64)
    bits = {"float64": 24, "float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    error = np.abs(written[ours.indices] - scaled)
    assert (error <= np.abs(scaled) * 2.0**-bits).all()
    assert error.any() == (bits < 24)
    left = residual.numpy()
    np.testing.assert_array_equal(written[ours.indices] + left[ours.indices], scaled)
    assert not np.delete(left, ours.indices).any()


def test_what_was_taken_and_not_delivered_returns(device):
    numel, k = 3000, 200
    ours, selected = a_block(numel, k, seed=4)
    delivered = ours.indices[::3]
    marked = delivered.astype(np.int64) | DELIVERED
    reduced = _core.Block(marked.astype(np.int32), np.ones(len(delivered), np.float32))
    residual = DeviceArray(device, np.zeros(numel))
    _core_testing.settle(selected, reduced, residual.buffer, device=device)
    dense = ours.to_dense(numel)
    assert np.array_equal(residual.numpy(), oracle.settle(dense, delivered))


# ---- Work that is given to a stream, on a GPU only
# ------------------------------------------------


def test_the_cpu_has_no_work_for_streams():
    block = _core.Block([1], [1.0])
    with pytest.raises(InvalidArgumentError, match=r"needs a device cuda:0 or the like, got cpu"):
        _core_testing.merge_work(block, block, k=1, device=CPU)


@pytest.mark.parametrize(("numel", "k"), [(2, 1), (50_000, 300), (100_000, 25_600)])
def test_a_merge_keeps_the_largest_of_both(numel, k, gpu):
    (first, own), (second, theirs) = (a_block(numel, k, seed) for seed in (1, 2))
    work = _core_testing.merge_work(own, theirs, k=k, device=gpu)
    work.enqueue(DeviceArray(gpu, np.zeros(1)).stream)
    assert_same(work.wait(), oracle.top_k_merge(first, second, k))
