"""The benchmark's results: right sums, times of the slowest rank, an error for wrong sums."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.bench import bench
from hvd_sparse.bench.bench import FORMS, VerificationError, integer_gradient
from hvd_sparse.bench.results import Settings, Timing
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.planning.cluster import Cluster
from hvd_sparse.planning.network import Link
from hvd_sparse.ranks.world import World
from tests.profiles import MACHINE, gigabits


class Gathering:
    """An allgather between threads."""

    def __init__(self, size):
        self._barrier = threading.Barrier(size)
        self._things = [None] * size

    def __call__(self, rank, thing):
        self._things[rank] = thing
        self._barrier.wait(30)
        everything = list(self._things)
        self._barrier.wait(30)
        return everything


class ThreadRanks:
    """Ranks that are threads; `spoil` changes the result of a rank's allreduce."""

    library = "threads"

    def __init__(self, rank, size, gathering, spoil=None):
        self._gather, self._spoil = partial(gathering, rank), spoil
        self.world = World(
            rank, size, allgather=lambda array, _: np.concatenate(self._gather(array))
        )

    def barrier(self):
        self._gather(None)

    def allreduce(self, array):
        array[:] = np.sum(self._gather(array.copy()), axis=0)
        if self._spoil is not None:
            self._spoil(self.world.rank, array)


def results_of(settings, size, spoil=None, local_size=1):
    """Runs the benchmark on thread ranks; returns the results of all ranks."""
    loopback, gathering = _core.LoopbackWorld(size), Gathering(size)
    network = gigabits(1, size, local_size=local_size, local=Link(alpha=1e-6, beta=1e-10))
    cluster = Cluster(network=network, machine=MACHINE)

    def one(rank):
        exchange = Exchange.over_loopback(loopback, rank, local_size=local_size)
        return bench.run(settings, ThreadRanks(rank, size, gathering, spoil), exchange, cluster)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))


@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_hold_a_row_of_every_method_and_wire(size):
    settings = Settings(numels=(1, 500, 3000), density=0.02, repetitions=2)
    everybody = results_of(settings, size)
    assert all(results == everybody[0] for results in everybody)
    for numel in settings.numels:
        rows = everybody[0].at(numel)
        assert rows[0].collective == "dense"
        own, sparse = rows[1:6], rows[6:]
        assert {row.collective for row in own} == {"shard_sum"}
        assert [row.values for row in own] == ["float32", "bfloat16", "int8", "int4", "ternary"]
        assert {row.k for row in own} == {numel}
        assert all(row.total == row.exchange for row in own)  # nothing is selected
        found = {(row.collective, row.wire, row.values) for row in sparse}
        assert found == {(name, *form) for name in _core.collectives() for form in FORMS}
        assert {row.k for row in sparse} == {settings.k(numel)}
        for row in rows:
            assert 0 < row.exchange.median <= row.total.median
            assert row.total.low <= row.total.median <= row.total.high
            assert row.predicted_exchange <= row.predicted_total
            assert row.speedup == pytest.approx(rows[0].total.median / row.total.median)


def test_ranks_that_share_nodes_also_sum_these_first():
    (results, *_) = results_of(
        Settings(numels=(3000,), density=0.02, repetitions=2), 4, local_size=2
    )
    found = {row.collective for row in results.rows if row.nodes_first}
    assert found == set(_core.collectives())
    names = {row.name for row in results.rows}
    assert {"allgather", "allgather, int4", "allgather, nodes first"} < names


@pytest.mark.parametrize("size", [1, 7, 300])
def test_integer_gradients_have_exact_sums(size):
    gradient = integer_gradient(1000, 0, size)
    assert np.array_equal(gradient, np.rint(gradient))
    assert np.abs(gradient).max() * size < 2**24
    assert np.count_nonzero(gradient) > 900


def test_a_wrong_sum_is_an_error_on_all_ranks():
    def one_too_many(rank, array):
        array[array.size // 2] += 1

    with pytest.raises(VerificationError, match="came to a wrong sum"):
        results_of(Settings(numels=(50,), density=1.0, repetitions=2), 2, one_too_many)


def test_ranks_that_hold_other_bits_are_an_error():
    seen = []

    def dense_sums_of_rank_1(rank, array):  # but not those that verify other methods
        if rank == 1:
            seen.append(array)
            array[0] += array is seen[0]

    with pytest.raises(VerificationError, match=r"dense: 50 entries .* differs"):
        results_of(Settings(numels=(50,), density=0.1, repetitions=2), 2, dense_sums_of_rank_1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"numels": ()}, "numel must be given"),
        ({"numels": (5, 0)}, r"numel must lie in \[1, 2147483647\], got 0"),
        ({"density": 0.0}, r"density must lie in \(0, 1\], got 0.0"),
        ({"density": float("nan")}, "density must lie in"),
        ({"repetitions": 1}, "repetitions must be at least 2, got 1"),
    ],
)
def test_settings_have_limits(wrong, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Settings(**wrong)


def test_a_timing_is_median_and_quartiles():
    assert Timing.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Timing(median=3.0, low=2.0, high=4.0)
