"""Two ranks on hosts of their own swap; rank 0 prints how many connections that took."""

from __future__ import annotations

import os
from pathlib import Path

import horovod.torch as hvd

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks.world import World

ADDRESS = "VIRTUAL_CLUSTER_ADDRESS"
ESTABLISHED = "01"  # as the kernel prints it


def connections() -> int:
    """Returns the number of connections of this host, its network namespace, from any address."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = "".join(f"{int(part):02X}" for part in reversed(os.environ[ADDRESS].split(".")))
    return sum(fields[1].startswith(own) and fields[3] == ESTABLISHED for fields in sockets)


hvd.init()
world = World.from_horovod(hvd, hvd.global_process_set)
exchange = Exchange.between_ranks(world, name="over a slow network", transport="tcp")
before = connections()
exchange.swap(1 - hvd.rank(), 1_000_000, 1)
if hvd.rank() == 0:
    print(f"connections: {connections() - before}")
