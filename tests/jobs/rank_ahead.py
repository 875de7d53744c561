"""Rank 0 swaps with rank 1, then with rank 2, and has both messages before it begins."""

from __future__ import annotations

import time

import horovod.torch as hvd

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks.world import World

BYTES = 60_000  # less than a receiver takes that does not read

hvd.init()
rank = hvd.rank()
world = World.from_horovod(hvd, hvd.global_process_set)
exchange = Exchange.between_ranks(world, name="a rank ahead", transport="tcp")
others = [1, 2] if rank == 0 else [0]
for peer in others:
    exchange.swap(peer, 1, 1)  # connects
world.allgather_object(None)
if rank == 0:
    time.sleep(1)  # in which the others' messages arrive
start = time.monotonic()
for peer in others:
    exchange.swap(peer, BYTES, 1)
times = world.allgather_object([start, time.monotonic()])  # one clock: all on this machine
if rank == 0:
    for peer in others:
        print(f"after rank 0 began, rank {peer} got it in seconds {times[peer][1] - times[0][0]}")
