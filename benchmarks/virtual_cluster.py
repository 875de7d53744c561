"""Several hosts on one machine, with real sockets over links of a given rate.

    python benchmarks/virtual_cluster.py --hosts 4 --rate 1gbit -- python script.py

runs the script on every host under mpirun, as root. `--check` first measures the emulated network.
See docs/virtual_cluster.md. In a program:

    with VirtualCluster(hosts=4, rate="100mbit") as cluster:
        print(cluster.run([sys.executable, "script.py"]).output)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Annotated, Any

import typer
from cluster_check import check
from cluster_network import (
    SHARED_MEMORY,
    ClusterError,
    Network,
    Shape,
    fresh_name,
    kill_processes,
    sweep,
)

# mpirun runs this instead of ssh: it drops options and enters the host that has that address.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
address=$1; shift
exec "$(dirname "$0")/enter-$address" sh -c "$*"
"""
# Runs a command in a host: in its network and under its hostname, with its address in a variable.
ENTER = """#!/bin/sh
export VIRTUAL_CLUSTER_ADDRESS={address}
exec ip netns exec {namespace} unshare --uts sh -c 'hostname {hostname}; exec "$@"' enter "$@"
"""
MPIRUN = [
    "--bind-to", "none", "--map-by", "slot",
    "--mca", "plm", "rsh", "--mca", "plm_rsh_no_tree_spawn", "1",
    "--mca", "oob_tcp_if_include", "e0", "--mca", "btl_tcp_if_include", "e0",
    "--mca", "pml", "ob1", "--mca", "btl", "tcp,vader,self",
]  # fmt: skip
# More ranks than cores must yield while they wait, and share memory without ptrace.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True)
class Finished:
    """A command that has succeeded on all ranks.

    Attributes:
        output: Its output on stdout and stderr.
        seconds: Seconds that it ran, start of the job included.
        busy: Fraction of this machine's processor time in use in the meantime, by any process.
    """

    output: str
    seconds: float
    busy: float


def processor_ticks() -> tuple[int, int]:
    """Returns busy clock ticks, and all ticks, of all processors since the machine was started."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, first.split()[1:9])
    used = user + nice + system + irq + softirq + steal
    return used, used + idle + iowait


def missing() -> str | None:
    """Returns what a virtual cluster lacks here, as a sentence; None if nothing is known."""
    if sys.platform != "linux":
        return f"a virtual cluster needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return (
            "a virtual cluster needs root, or a kernel that allows user namespaces, for network "
            "namespaces: run it with sudo"
        )
    for command, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(command) is None:
            return f"a virtual cluster needs `{command}`: install {package}"
    return None


def enter_user_namespace() -> None:
    """Runs this program again as root of a user namespace, unless it is root already.

    Where the kernel does not allow that it returns, and the program goes on without root.
    """
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    if os.geteuid() == 0 or not all(map(shutil.which, ("unshare", "mount", "ip"))):
        return
    # ip keeps its namespaces there.
    inside = ["sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$@"', "sh"]
    if subprocess.run([*unshare, *inside, "true"], capture_output=True).returncode == 0:
        os.execvp(unshare[0], [*unshare, *inside, sys.executable, *sys.argv])


def why_not() -> str | None:
    """Returns why no virtual cluster can be built here, by building one; None if one can."""
    try:
        with VirtualCluster(hosts=1):
            return None
    except ClusterError as error:
        return str(error)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Blocks signals that would end this process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave(number: int, frame: FrameType | None) -> None:
    """Unwinds instead of ending at once, so that everything is removed."""
    sys.exit(128 + number)


class VirtualCluster:
    """Hosts that are network namespaces of this machine; a context manager.

    Everything ends with it, even through an exception, SIGINT, SIGTERM or SIGHUP: the processes in
    the hosts, the namespaces, the temporary files. Leftovers of a killed process are removed when
    the next cluster is built. Several clusters may exist at once and do not see each other.
    """

    def __init__(
        self, hosts: int = 4, rate: str | float = "1gbit", *, latency: float = 0.0
    ) -> None:
        """Checks the arguments; nothing is built before the context is entered.

        Args:
            hosts: Number of hosts, in [1, 200].
            rate: Rate of every link, in each direction: "100mbit", "1gbit", or bits per second.
            latency: Seconds of a round trip between two hosts, in [0, 2], beside those that this
                machine takes itself.
        """
        if not 1 <= hosts <= 200:
            raise ClusterError(f"hosts must lie in [1, 200], got {hosts}")
        self._name = fresh_name()
        self._network = Network(hosts, Shape.of(rate), self._name, latency=latency)
        self._folder = Path(tempfile.gettempdir()) / self._name
        self._shared = SHARED_MEMORY / self._name
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> VirtualCluster:
        if (reason := missing()) is not None:
            raise ClusterError(reason)
        try:
            self._catch_signals()
            sweep()
            self._make_folders()
            self._network.build(self._folder)
        except BaseException as error:
            self._remove()
            if isinstance(error, ClusterError):
                raise ClusterError(f"no virtual cluster can be built here: {error}") from None
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self._network.hosts)

    @property
    def addresses(self) -> list[str]:
        """IPv4 addresses, by host."""
        return self._network.addresses

    @property
    def shape(self) -> Shape:
        """Shaping of the links."""
        return self._network.shape

    def set_rate(self, rate: str | float) -> None:
        """Changes the rate of all links at once; connections and jobs continue."""
        self._network.reshape(Shape.of(rate))

    def popen_on(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Starts a command, without MPI, in one host; options are those of subprocess.Popen."""
        enter = self._folder / f"enter-{self.addresses[host]}"
        return subprocess.Popen(
            [str(enter), *command],
            **{"text": True, "stdin": subprocess.DEVNULL, "start_new_session": True, **options},
        )

    def popen(
        self,
        command: Sequence[str],
        *,
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        mpirun: Sequence[str] = (),
        stdout: int | IO[str] | None = None,
        stderr: int | IO[str] | None = None,
    ) -> subprocess.Popen[str]:
        """Starts a command on all hosts under mpirun; it ends at the latest with the cluster.

        Args:
            command: Program and arguments.
            ranks_per_host: Ranks on every host; consecutive ranks share a host.
            env: Environment variables, added to this process's.
            mpirun: Further options of mpirun.
            stdout: Passed on to subprocess.Popen.
            stderr: Passed on to subprocess.Popen.
        """
        if ranks_per_host < 1:
            raise ClusterError(f"ranks_per_host must be at least 1, got {ranks_per_host}")
        launcher = Path(sys.executable).parent / "mpirun"
        hostfile = self._folder / f"hosts-{ranks_per_host}"
        slots = "".join(f"{address} slots={ranks_per_host}\n" for address in self.addresses)
        hostfile.write_text(slots)
        return self.popen_on(
            0,
            [
                str(launcher) if launcher.exists() else "mpirun",
                *("-np", str(self.hosts * ranks_per_host), "--hostfile", str(hostfile)),
                *("--mca", "plm_rsh_agent", str(self._folder / "agent"), *MPIRUN, *mpirun),
                *command,
            ],
            env={**os.environ, **ENVIRONMENT, **self._environment(), **(env or {})},
            stdout=stdout,
            stderr=stderr,
        )

    def run(
        self,
        command: Sequence[str],
        *,
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        mpirun: Sequence[str] = (),
        timeout: float = 300,
    ) -> Finished:
        """Runs a command on all hosts under mpirun to its end; arguments as in `popen`.

        Raises:
            ClusterError: It failed, or still ran after `timeout` seconds and was killed. The
                message ends with its output.
        """
        start, (used, total) = time.monotonic(), processor_ticks()
        process = self.popen(
            command,
            ranks_per_host=ranks_per_host,
            env=env,
            mpirun=mpirun,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        shown = " ".join(command)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            kill_processes(self._network.hosts)
            output, _ = process.communicate()
            raise ClusterError(f"still running after {timeout} s: {shown}\n{output}") from None
        if process.returncode != 0:
            raise ClusterError(f"status {process.returncode} of: {shown}\n{output}")
        used_then, total_then = processor_ticks()
        busy = (used_then - used) / max(total_then - total, 1)
        return Finished(output, time.monotonic() - start, busy)

    def _environment(self) -> dict[str, str]:
        """Returns variables to find programs beside this interpreter, and Open MPI's wheel."""
        bin_ = Path(sys.executable).parent
        env = {
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
            "HOROVOD_GLOO_IFACE": "e0",
            # Files of Open MPI that a killed job would leave behind are removed with the cluster.
            "OMPI_MCA_orte_tmpdir_base": str(self._folder),
            "OMPI_MCA_btl_vader_backing_directory": str(self._shared),
        }
        if "OPAL_PREFIX" not in os.environ and (bin_ / "mpirun").exists():
            env["OPAL_PREFIX"] = str(bin_.parent)
        return env

    def _make_folders(self) -> None:
        self._folder.mkdir(mode=0o700)
        self._shared.mkdir(mode=0o700)
        scripts = {"agent": AGENT}
        for i, (namespace, address) in enumerate(
            zip(self._network.hosts, self.addresses, strict=True)
        ):
            scripts[f"enter-{address}"] = ENTER.format(
                namespace=namespace, address=address, hostname=f"host{i}"
            )
        for name, text in scripts.items():
            path = self._folder / name
            path.write_text(text)
            path.chmod(0o700)

    def _catch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, _leave)

    def _remove(self) -> None:
        with _undisturbed():
            self._network.remove()
            for folder in (self._folder, self._shared):
                shutil.rmtree(folder, ignore_errors=True)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers.clear()


def main(
    command: Annotated[
        list[str] | None, typer.Argument(help="to run on every rank, after --")
    ] = None,
    hosts: Annotated[int, typer.Option(help="how many, each with one link")] = 4,
    rate: Annotated[str, typer.Option(help="of every link in each direction")] = "1gbit",
    latency: Annotated[float, typer.Option(help="milliseconds of a round trip")] = 0.0,
    ranks_per_host: Annotated[int, typer.Option(min=1, help="ranks on every host")] = 1,
    measure: Annotated[bool, typer.Option("--check", help="first measure the network")] = False,
) -> None:
    """Builds a cluster, runs a command in it under mpirun and takes the cluster down."""
    enter_user_namespace()
    try:
        with VirtualCluster(hosts, rate, latency=latency / 1e3) as cluster:
            if measure:
                print(check(cluster), flush=True)
            status = cluster.popen(command, ranks_per_host=ranks_per_host).wait() if command else 0
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    raise typer.Exit(status)


if __name__ == "__main__":
    typer.run(main)
