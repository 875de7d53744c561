"""The number of threads of a pass, which affects only its time."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse import _core, _core_testing
from hvd_sparse.errors import InvalidArgumentError, UnavailableError
from hvd_sparse.exchange.threads import kernel_threads
from tests.laws import EVERY_SPARSIFIER, buffer_of


@pytest.mark.parametrize(
    ("environment", "cpus", "local_size", "threads"),
    [
        ({}, 2, 1, 2),
        ({}, 64, 1, 8),
        ({}, 64, 16, 4),
        ({}, 2, 4, 1),
        ({"OMP_NUM_THREADS": "3"}, 64, 1, 3),
        ({"OMP_NUM_THREADS": "4,2"}, 64, 1, 4),
        ({"OMP_NUM_THREADS": "many"}, 4, 1, 4),
        ({"OMP_NUM_THREADS": "3", "HVD_SPARSE_NUM_THREADS": "5"}, 64, 1, 5),
        ({"HVD_SPARSE_NUM_THREADS": "16"}, 2, 4, 16),
    ],
)
def test_the_default_is_the_users_word_or_a_share_of_the_machine(
    environment, cpus, local_size, threads
):
    chosen = kernel_threads(local_size=local_size, openmp=True, environment=environment, cpus=cpus)
    assert chosen == threads


def test_a_build_without_openmp_has_one_thread_and_says_so():
    assert kernel_threads(local_size=1, openmp=False, environment={}, cpus=64) == 1
    one = {"HVD_SPARSE_NUM_THREADS": "1"}
    assert kernel_threads(local_size=1, openmp=False, environment=one, cpus=64) == 1
    with pytest.raises(UnavailableError, match=r"NUM_THREADS is 2, but .* without OpenMP"):
        kernel_threads(local_size=1, openmp=False, environment={"HVD_SPARSE_NUM_THREADS": "2"})


@pytest.mark.parametrize("wanted", ["0", "-1", "two", "1.5", "1025"])
def test_a_number_of_threads_that_makes_no_sense_is_refused(wanted):
    with pytest.raises(InvalidArgumentError, match=rf"HVD_SPARSE_NUM_THREADS .*'{wanted}'"):
        kernel_threads(local_size=1, openmp=True, environment={"HVD_SPARSE_NUM_THREADS": wanted})


@pytest.fixture
def with_threads():
    before = _core.threads()
    yield _core.set_threads
    _core.set_threads(before)


@pytest.mark.parametrize("name", EVERY_SPARSIFIER)
def test_the_number_of_threads_changes_no_bit(name, with_threads):
    numel, k = 300_000, 3000
    results = []
    for threads in (1, 2, 3):
        with_threads(threads)
        sparsifier = EVERY_SPARSIFIER[name]
        selector = _core_testing.Selector(name, sparsifier.options, numel=numel, k=k)
        residual, state = np.zeros(numel, np.float32), np.zeros((1, 4), np.float32)
        random = np.random.default_rng(2)
        trace = []
        for _ in range(4):
            gradient = random.standard_t(3, numel).astype(np.float32)
            selector.select(
                buffer_of(gradient), decay=1.0, scale=1.0, residual=buffer_of(residual),
                state=buffer_of(state),
            )  # fmt: skip
            _core_testing.scatter(selector.block, 0.5, buffer_of(gradient), buffer_of(residual))
            block = selector.block
            trace += [block.indices(), block.values(), gradient, residual.copy(), state.copy()]
        results.append([array.tobytes() for array in trace])
    assert results[0] == results[1] == results[2]
