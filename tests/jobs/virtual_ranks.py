"""Ranks on virtual hosts: Horovod knows their hosts, and blocks of all lengths arrive."""

from __future__ import annotations

import socket
import sys

import horovod.torch as hvd

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks.world import World
from tests import laws

hosts, ranks_per_host = int(sys.argv[1]), int(sys.argv[2])
hvd.init()
assert hvd.size() == hosts * ranks_per_host, hvd.size()
assert hvd.local_size() == ranks_per_host, hvd.local_size()
assert hvd.local_rank() == hvd.rank() % ranks_per_host, (hvd.rank(), hvd.local_rank())
assert hvd.cross_size() == hosts, hvd.cross_size()
assert socket.gethostname() == f"host{hvd.rank() // ranks_per_host}", socket.gethostname()

world = World.from_horovod(hvd, hvd.global_process_set)
exchange = Exchange.between_ranks(world, name="virtual ranks")
distance = 1
while distance < hvd.size():
    partner = hvd.rank() ^ distance
    # Lengths around one piece between machines, and several.
    for size in (0, 1, 65_023, 65_024, 65_025, 130_048, 1_000_000):
        assert len(exchange.swap(partner, size, 2)) == 2
    distance *= 2
for collective in ("gtopk", "allgather"):
    me = laws.Rank(exchange, hvd.rank(), [100_000], 0.5, "top_k", collective)
    laws.check_laws(world.allgather_object(me.run(2), list[laws.Step]))
print(f"rank {hvd.rank()} is done", flush=True)
