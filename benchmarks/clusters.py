"""Where the ranks of a measurement run: on this machine as it is, or on the hosts of a cluster.

A Launcher gives Hosts; Hosts run a program, one rank on each, to its end. On a cluster, whose hosts
share few cores, ranks wait without using them: patient_waits.c.
"""

from __future__ import annotations

import os
import shutil
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

# See slack_seconds.
SLACK_BYTES, LONGEST_SLACK = 6_000, 500e-6

MPIRUN = ("mpirun", "--oversubscribe", "--bind-to", "none")


class Hosts(Protocol):
    """Hosts that can reach each other."""

    @property
    def interface(self) -> str:
        """The network's name on every host."""

    @property
    def rate(self) -> float | None:
        """Bits per second of every link; None where links are not shaped."""

    @property
    def frame(self) -> int:
        """Bytes that a link lets pass at once after a pause; 0 where links are not shaped."""

    def address(self) -> str:
        """HOST:PORT on the first host, a port that is free; another one each time."""

    def run(self, program: Sequence[str], *, env: Mapping[str, str], timeout: float) -> None:
        """Runs a Python program on all hosts under mpirun, one rank on each.

        Raises:
            RuntimeError: It failed, or was still running after `timeout` seconds.
        """


class Launcher(Protocol):
    """Makes hosts."""

    def hosts(self, number: int, rate: float) -> AbstractContextManager[Hosts]:
        """So many hosts, joined by links of so many bits per second."""


@dataclass(frozen=True)
class ThisMachine:
    """Ranks beside each other; mpirun takes shared memory, and no link is shaped."""

    number: int
    interface: str = "lo"
    rate: float | None = None
    frame: int = 0

    def address(self) -> str:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return f"127.0.0.1:{server.getsockname()[1]}"

    def run(self, program: Sequence[str], *, env: Mapping[str, str], timeout: float) -> None:
        command = [*MPIRUN, "-np", str(self.number), sys.executable, *program]
        process = subprocess.Popen(command, env={**os.environ, **env}, start_new_session=True)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"still running after {timeout:g} s: {' '.join(program)}") from None
        finally:
            if process.poll() is None:
                process.terminate()  # mpirun ends its ranks
                process.wait()
        if status != 0:
            raise RuntimeError(f"status {status} of: {' '.join(program)}")


class LocalLauncher:
    """For a look at whether all works; the times mean nothing for a network."""

    @contextmanager
    def hosts(self, number: int, rate: float) -> Iterator[Hosts]:
        yield ThisMachine(number)


@dataclass(frozen=True)
class ClusterHosts:
    """The hosts of a virtual cluster."""

    cluster: Any
    rate: float | None
    patience: Path  # the library that makes waits patient
    interface: str = "e0"
    ports: Iterator[int] = field(default_factory=lambda: count(29_500))

    @property
    def frame(self) -> int:
        return int(self.cluster.shape.burst)

    def address(self) -> str:
        return f"{self.cluster.addresses[0]}:{next(self.ports)}"

    def run(self, program: Sequence[str], *, env: Mapping[str, str], timeout: float) -> None:
        # mpirun itself, and what enters a host, wait as ever.
        slack = f"PATIENT_NANOSECONDS={round(1e9 * slack_seconds(self.rate))}"
        command = ["env", slack, f"LD_PRELOAD={self.patience}", sys.executable, *program]
        finished = self.cluster.run(command, env=env, timeout=timeout)
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
    """How late a rank may notice a message: as long as a few packets take on the link.

    Longer than that, and sockets' buffers might run empty: a transport that sends piece by piece
    would look slower than it is.
    """
    return LONGEST_SLACK if rate is None else min(LONGEST_SLACK, 8 * SLACK_BYTES / rate)


def patient_waits(folder: Path) -> Path:
    """The library of patient_waits.c, built into a folder.

    Raises:
        RuntimeError: There is no C compiler, or it failed.
    """
    source, library = Path(__file__).parent / "patient_waits.c", folder / "patient.so"
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise RuntimeError("the papers' tables need a C compiler: none is in CC, and no cc on PATH")
    built = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)],
        capture_output=True, text=True,
    )  # fmt: skip
    if built.returncode != 0:
        raise RuntimeError(f"{compiler} failed on {source.name}: {built.stderr}")
    return library
