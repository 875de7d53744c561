"""The floor of a collective moves each byte from its sender to its receiver."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import byte_floor
import numpy as np
import pytest
from byte_floor import schedule

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer

pytestmark = pytest.mark.long  # it looks at benchmarks alone


def transfers(size, collective, k=300, numel=4000):
    """Returns names and bytes, sent and received, of each rank's transfers in a real exchange."""
    world = _core.LoopbackWorld(size)

    def run(rank):
        exchange = Exchange.over_loopback(world, rank)
        bucket = exchange.add_bucket(
            "bucket",
            numels=[numel],
            segments=[numel],
            max_ks=[k],
            sparsifier=as_sparsifier("top_k"),
            collective=collective,
        )
        gradient = np.random.default_rng(rank).standard_normal(numel, dtype=np.float32)
        residual, states = np.zeros(numel, np.float32), np.zeros((1, 4), np.float32)
        buffers = [
            Buffer(array.ctypes.data, array.size, "float32")
            for array in (gradient, residual, states)
        ]
        steps = ArraySteps(exchange, bucket)
        stats = steps.run(buffers[:1], residual=buffers[1], states=buffers[2])
        return [(one.name, one.bytes_sent, one.bytes_received) for one in stats.rounds]

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("collective", _core.collectives())
def test_a_schedule_moves_the_bytes_of_the_collective_and_ranks_expect_what_is_sent(
    collective, size
):
    moved = transfers(size, collective)
    sent = [[(name, out) for name, out, _ in rounds] for rounds in moved]
    steps = [schedule(rank, sent) for rank in range(size)]
    for rank in range(size):
        assert len(steps[rank]) == len(moved[rank]) > 0
        for i, step in enumerate(steps[rank]):
            for peer, count in step.out.items():
                assert steps[peer][i].into[rank] == count
            _, out, into = moved[rank][i]
            # Bytes sent to several peers are divided evenly: that rounds down, and averages.
            assert 0 <= out - sum(step.out.values()) < size
            if len(step.into) == 1:
                assert sum(step.into.values()) == into


def test_an_unknown_pattern_is_refused():
    with pytest.raises(ValueError, match="tree, upwards"):
        schedule(0, [[("tree, upwards", 8)], [("tree, upwards", 8)]])


def test_bytes_arrive_from_all_peers_at_once():
    near, far = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    for one in (*near, *far):
        one.setblocking(False)
    sizes = (3_000_001, 70_000)  # more than a socket takes at once, and less
    out = [np.full(size, 1 + i, np.uint8) for i, size in enumerate(sizes)]
    into = [np.zeros(size, np.uint8) for size in sizes]

    def views(arrays):
        return {i: memoryview(array) for i, array in enumerate(arrays)}

    with ThreadPoolExecutor(2) as pool:
        sending = pool.submit(byte_floor.move, dict(enumerate(near)), views(out), {})
        pool.submit(byte_floor.move, dict(enumerate(far)), {}, views(into)).result(timeout=30)
        sending.result(timeout=30)
    for i, array in enumerate(into):
        assert (array == 1 + i).all()
    for one in (*near, *far):
        one.close()


def test_a_peer_that_leaves_is_noticed():
    near, far = socket.socketpair()
    far.close()
    with pytest.raises(ConnectionError):
        byte_floor.move({0: near}, {}, {0: memoryview(bytearray(8))})
    near.close()
