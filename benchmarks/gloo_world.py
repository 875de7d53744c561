"""Horovod over Gloo in a job that mpirun has started.

horovodrun starts Gloo's ranks through ssh and passes each its rank. mpirun passes as much, so both
of Horovod's transports can be measured on the same hosts, started in the same way. Rank 0 serves
the rendezvous, through which the ranks exchange their addresses.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading
import time

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

POLL_SECONDS = 0.05
_CLONE_NEWUTS = 0x04000000  # <sched.h>
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>


def prepare(rendezvous: str, interface: str, *, patience: float = 60.0) -> None:
    """Makes the next hvd.init() use Gloo. Collective.

    Args:
        rendezvous: HOST:PORT at which rank 0 can listen and which all ranks can reach.
        interface: Network interface for Gloo.
        patience: Seconds after which a rank stops waiting for rank 0.

    Raises:
        KeyError: This process was not started by Open MPI's mpirun.
        OSError: The interface has no IPv4 address, or the host's name resolves to another address
            and cannot be changed.
        TimeoutError: Rank 0 does not answer.
    """
    host, port = rendezvous.rsplit(":", 1)
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    _name_host_after_its_address(interface)
    if rank == 0:
        _serve(host, int(port))
    _wait_for(host, int(port), patience)
    os.environ |= {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_HOSTNAME": f"host{rank}",  # pretends that each rank has a host of its own
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": str(rank),
        "HOROVOD_CROSS_SIZE": str(size),
    }


def _name_host_after_its_address(interface: str) -> None:
    """Renames the host to its address on the interface, for this process alone.

    Horovod passes the interface to Gloo for the first contexts only. Those of process sets, which
    exchange the gradients, use the address of the host's name; Gloo crashes if there is none.
    """
    address = address_of(interface)
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = ""
    if named == address or (named.startswith("127.") and address.startswith("127.")):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUTS) != 0:
        error = ctypes.get_errno()
        raise OSError(
            error,
            f"the name of this host must lead to {address}, its address on {interface}, for "
            f"Horovod over Gloo; it leads to {named or 'nothing'}, and a name of its own for this "
            f"process needs root: {os.strerror(error)}",
        )
    socket.sethostname(address)


def address_of(interface: str) -> str:
    """Returns the IPv4 address of this host on a network interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("256s", interface.encode())
        return socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24])


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
