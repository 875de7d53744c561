"""Horovod over Gloo in a job that mpirun has started.

horovodrun starts Gloo's ranks through ssh and tells each who it is. mpirun tells as much, so both
of Horovod's transports can be measured on the same hosts, started the same way. Rank 0 serves the
rendezvous: the place where the ranks leave their addresses for each other.
"""

from __future__ import annotations

import os
import socket
import threading
import time

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

POLL_SECONDS = 0.05


def prepare(rendezvous: str, interface: str, *, patience: float = 60.0) -> None:
    """Makes the next hvd.init() use Gloo. Collective.

    Args:
        rendezvous: HOST:PORT where rank 0 can listen; all ranks can reach it.
        interface: Of the network that Gloo is to use.
        patience: Seconds after which a rank gives up waiting for rank 0.

    Raises:
        KeyError: This process was not started by Open MPI's mpirun.
        TimeoutError: Rank 0 does not answer.
    """
    host, port = rendezvous.rsplit(":", 1)
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    if rank == 0:
        _serve(host, int(port))
    _wait_for(host, int(port), patience)
    os.environ |= {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_HOSTNAME": f"host{rank}",  # a host of its own for each rank
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": str(rank),
        "HOROVOD_CROSS_SIZE": str(size),
    }


def _serve(host: str, port: int) -> None:
    server = RendezvousHTTPServer((host, port), RendezvousHandler, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _wait_for(host: str, port: int, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"rank 0 does not serve the rendezvous at {host}:{port} after {patience:g} s"
                ) from error
            time.sleep(POLL_SECONDS)
