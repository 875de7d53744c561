"""Rank 0 swaps with rank 1, then with rank 2, after both messages have arrived."""

from __future__ import annotations

import time

import horovod.torch as hvd

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks.world import World

BYTES = 60_000  # a receiver's socket buffers this much

hvd.init()
rank = hvd.rank()
world = World.from_horovod(hvd, hvd.global_process_set)
exchange = Exchange.between_ranks(world, name="a rank ahead", transport="tcp")
others = [1, 2] if rank == 0 else [0]
for peer in others:
    exchange.swap(peer, 1, 1)  # connects
world.allgather_object(None)
if rank == 0:
    time.sleep(1)  # the others' messages arrive meanwhile
start = time.monotonic()
for peer in others:
    exchange.swap(peer, BYTES, 1)
times = world.allgather_object([start, time.monotonic()])  # all on this machine, with one clock
if rank == 0:
    for peer in others:
        print(f"after rank 0 began, rank {peer} got it in seconds {times[peer][1] - times[0][0]}")
