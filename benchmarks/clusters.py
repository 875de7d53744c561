"""Places to run ranks of a measurement: this machine as it is, or the hosts of a cluster.

A Launcher makes Hosts; Hosts run a program to its end, one rank on each. On a cluster, whose hosts
share few cores, ranks wait without using the processor: patient_waits.c.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

# Limits of slack_seconds.
SLACK_BYTES, LONGEST_SLACK = 6_000, 500e-6

MPIRUN = ("mpirun", "--oversubscribe", "--bind-to", "none")


class Hosts(Protocol):
    """Hosts that can reach each other."""

    @property
    def interface(self) -> str:
        """Name of the network interface on every host."""

    @property
    def rate(self) -> float | None:
        """Bits per second of every link; None if links are not shaped."""

    @property
    def frame(self) -> int:
        """Bytes that pass a link at once after a pause; 0 if links are not shaped."""

    def address(self) -> str:
        """Returns HOST:PORT on the first host with a free port, a different one each time."""

    def run(
        self,
        program: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float,
        ranks_per_host: int = 1,
    ) -> None:
        """Runs a Python program on all hosts under mpirun; consecutive ranks share a host.

        Raises:
            RuntimeError: It failed, or was still running after `timeout` seconds.
        """


class Launcher(Protocol):
    """Makes hosts."""

    def hosts(self, number: int, rate: float) -> AbstractContextManager[Hosts]:
        """Returns `number` hosts, joined by links of `rate` bits per second."""


@dataclass(frozen=True)
class ThisMachine:
    """Ranks on this machine; mpirun uses shared memory, and no link is shaped."""

    number: int
    interface: str = "lo"
    rate: float | None = None
    frame: int = 0

    def address(self) -> str:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return f"127.0.0.1:{server.getsockname()[1]}"

    def run(
        self,
        program: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float,
        ranks_per_host: int = 1,
    ) -> None:
        ranks = str(self.number * ranks_per_host)
        command = [*MPIRUN, "-np", ranks, sys.executable, *program]
        process = subprocess.Popen(command, env={**os.environ, **env}, start_new_session=True)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"still running after {timeout:g} s: {' '.join(program)}") from None
        finally:
            if process.poll() is None:
                process.terminate()  # mpirun then ends its ranks
                process.wait()
        if status != 0:
            raise RuntimeError(f"status {status} of: {' '.join(program)}")


class LocalLauncher:
    """A launcher for checking that everything works; its times say nothing about a network."""

    @contextmanager
    def hosts(self, number: int, rate: float) -> Iterator[Hosts]:
        yield ThisMachine(number)


@dataclass(frozen=True)
class ClusterHosts:
    """The hosts of a virtual cluster."""

    cluster: Any
    rate: float | None
    patience: Path  # the library of patient_waits.c
    interface: str = "e0"
    ports: Iterator[int] = field(default_factory=lambda: count(29_500))

    @property
    def frame(self) -> int:
        return int(self.cluster.shape.burst)

    def address(self) -> str:
        return f"{self.cluster.addresses[0]}:{next(self.ports)}"

    def run(
        self,
        program: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float,
        ranks_per_host: int = 1,
    ) -> None:
        # mpirun itself, and the program that enters a host, wait as usual.
        slack = f"PATIENT_NANOSECONDS={round(1e9 * slack_seconds(self.rate))}"
        command = ["env", slack, f"LD_PRELOAD={self.patience}", sys.executable, *program]
        finished = self.cluster.run(
            command, ranks_per_host=ranks_per_host, env=env, timeout=timeout
        )
        print(finished.output, end="", flush=True)


class ClusterLauncher:
    """Hosts of virtual_cluster.VirtualCluster: network namespaces with shaped links."""

    @contextmanager
    def hosts(self, number: int, rate: float) -> Iterator[Hosts]:
        from virtual_cluster import VirtualCluster

        with (
            tempfile.TemporaryDirectory() as folder,
            VirtualCluster(hosts=number, rate=rate) as cluster,
        ):
            yield ClusterHosts(cluster, rate, patient_waits(Path(folder)))


def slack_seconds(rate: float | None) -> float:
    """Returns how late a rank may notice a message: the time of a few packets on the link.

    With more, sockets' buffers might run empty, and a transport that sends piece by piece would
    look slower than it is.
    """
    return LONGEST_SLACK if rate is None else min(LONGEST_SLACK, 8 * SLACK_BYTES / rate)


def patient_waits(folder: Path) -> Path:
    """Builds the library of patient_waits.c in a folder.

    Raises:
        RuntimeError: There is no C compiler, or it failed.
    """
    from cluster_network import compile_c

    source = Path(__file__).with_name("patient_waits.c")
    return compile_c(source, folder / "patient.so", "-shared", "-fPIC")
