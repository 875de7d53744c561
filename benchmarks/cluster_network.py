"""Namespaces joined by a bridge over links with a rate: the network of a virtual cluster.

Every host is a network namespace with one interface, e0, whose other end is a port of a bridge in a
namespace of its own. Both ends of a link are shaped by `tc tbf`: the host's end limits what it
sends, the bridge's end what it receives. The namespaces' names identify the owning process, so that
leftovers of a killed process can be found, and namespaces in use are left alone.

Without latency the bridge joins all links. With it each link ends in a bridge of its own, and
delaying_switch.c joins these.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SWITCH = Path(__file__).with_name("delaying_switch.c")
NETNS = Path("/run/netns")
SHARED_MEMORY = Path("/dev/shm")
UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

# Capacity of the bucket beside one frame. A timer that is late by less than this costs none of the
# rate, and a message gains no more than this, and the frame, after a pause.
BURST_SECONDS = 40e-6
# Bytes of a frame, by the lowest rate at which they are used. Every frame costs processor time, so
# they grow with the rate; and one passes unshaped after a pause, so on slow links they stay well
# below a message of 8 kB.
MTU_FROM = ((0.0, 1500), (20e6, 3000), (45e6, 4500), (400e6, 9000))
ETHERNET_HEADER = 14
# Capacity of a queue, in seconds of the rate, and at least in bytes: a switch's buffer.
QUEUE_SECONDS, QUEUE_BYTES = 20e-3, 256 * 1024
# Largest packet of segmentation offload.
GSO_BYTES = 65536
LONGEST_LATENCY = 2.0  # seconds

_names = itertools.count(1)


class ClusterError(RuntimeError):
    """The virtual cluster cannot be built, or a program in it failed."""


def bits_per_second(rate: str | float) -> float:
    """Parses "100mbit", "1gbit" or a plain number of bits per second.

    Raises:
        ClusterError: The rate is none of these.
    """
    text = str(rate).strip().lower()
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(bit|kbit|mbit|gbit)?", text)
    try:
        bits = float(match[1]) * UNITS[match[2] or "bit"] if match else 0.0
    except ValueError:
        bits = 0.0
    if not 1e5 <= bits <= 1e12:
        raise ClusterError(
            f"rate must lie between 100kbit and 1000gbit, such as 100mbit or 1gbit; got {rate!r}"
        )
    return bits


@dataclass(frozen=True)
class Shape:
    """Shaping of a link.

    Attributes:
        rate: Bits per second, headers included.
        mtu: Bytes of a packet without Ethernet's header.
        burst: Bytes that may pass at once after a pause.
        queue: Bytes that wait before packets are dropped.
    """

    rate: float
    mtu: int
    burst: int
    queue: int

    @classmethod
    def of(cls, rate: str | float) -> Shape:
        """Returns the shape whose messages take bytes / rate as exactly as timers allow."""
        bits = bits_per_second(rate)
        mtu = max(mtu for least, mtu in MTU_FROM if bits >= least)
        burst = mtu + ETHERNET_HEADER + round(bits / 8 * BURST_SECONDS)
        queue = max(QUEUE_BYTES, round(bits / 8 * QUEUE_SECONDS))
        return cls(bits, mtu, burst, queue)

    def link(self, device: str) -> str:
        """Returns arguments of `ip` for one end of a link.

        tbf would split packets that segmentation offload made larger than its bucket, one by one;
        the limit prevents them.
        """
        gso = min(GSO_BYTES, max(self.burst, 2 * self.mtu))
        return f"link set {device} mtu {self.mtu} gso_max_size {gso}"

    def qdisc(self, verb: str, device: str) -> str:
        """Returns arguments of `tc` for one end of a link."""
        return (
            f"qdisc {verb} dev {device} root tbf rate {round(self.rate)}bit "
            f"burst {self.burst} limit {self.queue + self.burst}"
        )


def _started(pid: int) -> str | None:
    """Returns a process's start time, in the kernel's ticks; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def fresh_name() -> str:
    """Returns a name for a new cluster, which identifies its owner: this process."""
    return f"virtual-cluster-{os.getpid()}-{_started(os.getpid())}-{next(_names)}"


def sweep() -> None:
    """Removes the clusters whose owners no longer run, and their folders."""
    for folder in (NETNS, SHARED_MEMORY, Path(tempfile.gettempdir())):
        for path in folder.glob("virtual-cluster-*"):
            owner = re.match(r"virtual-cluster-(\d+)-(\d+)-", path.name)
            if owner is None or _started(int(owner[1])) == owner[2]:
                continue
            if folder == NETNS:
                remove_namespaces([path.name])
            else:
                shutil.rmtree(path, ignore_errors=True)


def processes_in(namespaces: list[str]) -> list[int]:
    """Returns the processes in any of these namespaces."""
    inodes = set()
    for name in namespaces:
        with contextlib.suppress(OSError):
            inodes.add((NETNS / name).stat().st_ino)
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended in the meantime
            if entry.name.isdigit() and (entry / "ns" / "net").stat().st_ino in inodes:
                found.append(int(entry.name))
    return found


def kill_processes(namespaces: list[str], seconds: float = 10) -> None:
    """Kills all processes in these namespaces and waits until they are gone."""
    deadline = time.monotonic() + seconds
    while pids := processes_in(namespaces):
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {pids} in {namespaces} do not end")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def remove_namespaces(names: list[str]) -> None:
    """Kills all processes in these namespaces, and removes these and all their interfaces."""
    kill_processes(names)
    for name in names:
        if (NETNS / name).exists():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def tool(*command: str, lines: list[str] | None = None) -> None:
    """Runs `ip` or `tc`, with a batch of lines if any are given.

    Raises:
        ClusterError: It failed; the message contains its output.
    """
    batch = None if lines is None else "\n".join(lines) + "\n"
    command = command if lines is None else (*command, "-batch", "-")
    done = subprocess.run(command, input=batch, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout}")


def compile_c(source: Path, output: Path, *options: str) -> Path:
    """Compiles one file of C; returns `output`.

    Raises:
        ClusterError: There is no C compiler, or it failed.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise ClusterError(f"{source.name} needs a C compiler: none is in CC, and no cc on PATH")
    command = [compiler, "-O2", *options, "-o", str(output), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise ClusterError(f"{compiler} failed on {source.name}: {built.stderr}")
    return output


class Network:
    """The hosts' namespaces and what joins them, made by `build` and ended by `remove`.

    Attributes:
        shape: Shaping of the links.
        latency: Seconds that a message and its answer wait on their way, as `ping` shows them.
        hosts: Names of the hosts' namespaces.
        addresses: Their IPv4 addresses.
    """

    def __init__(self, hosts: int, shape: Shape, name: str, *, latency: float = 0.0) -> None:
        if not 0 <= latency <= LONGEST_LATENCY:
            raise ClusterError(f"latency must lie in [0, {LONGEST_LATENCY:g}] s, got {latency:g}")
        self.shape = shape
        self.latency = latency
        self.hosts = [f"{name}-h{i}" for i in range(hosts)]
        self.addresses = [f"10.77.{(i + 1) // 250}.{(i + 1) % 250 + 1}" for i in range(hosts)]
        self._bridge = f"{name}-bridge"

    def build(self, folder: Path) -> None:
        """Makes everything, programs in `folder`; if it fails, `remove` cleans up the parts."""
        tool("ip", "netns", "add", self._bridge)
        bridges = [f"br{i if self.latency else 0}" for i in range(len(self.hosts))]
        lines = [
            line
            for bridge in dict.fromkeys(bridges)
            for line in (f"link add {bridge} type bridge", f"link set {bridge} up")
        ]
        tool("ip", "-n", self._bridge, lines=lines)
        if self.latency:
            self._start_switch(folder, bridges)
        for host in self.hosts:
            tool("ip", "netns", "add", host)
        ports, shapes = [], []
        for i, (host, bridge) in enumerate(zip(self.hosts, bridges, strict=True)):
            ports += [
                f"link add p{i} type veth peer name e0 netns {host}",
                f"link set p{i} master {bridge} up",
                self.shape.link(f"p{i}"),
            ]
            shapes.append(self.shape.qdisc("add", f"p{i}"))
        tool("ip", "-n", self._bridge, lines=ports)
        tool("tc", "-n", self._bridge, lines=shapes)
        for host, address in zip(self.hosts, self.addresses, strict=True):
            lines = [
                "link set lo up",
                f"addr add {address}/16 dev e0",
                self.shape.link("e0"),
                "link set e0 up",
                # The usual congestion control, whatever this machine prefers.
                f"route replace 10.77.0.0/16 dev e0 src {address} congctl cubic",
            ]
            tool("ip", "-n", host, lines=lines)
            tool("tc", "-n", host, lines=[self.shape.qdisc("add", "e0")])

    def _start_switch(self, folder: Path, bridges: list[str]) -> None:
        """Joins the bridges by a switch that delays what it delivers; `remove` ends it."""
        switch = compile_c(SWITCH, folder / SWITCH.stem)
        taps = [f"t{i}" for i in range(len(bridges))]
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._bridge, switch, str(round(5e8 * self.latency)), *taps],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != "ready\n":
            raise ClusterError(f"no link can be delayed here: {process.stderr.read().strip()}")
        lines = [
            line
            for tap, bridge in zip(taps, bridges, strict=True)
            for line in (
                f"link set {tap} mtu {MTU_FROM[-1][1]} txqueuelen 10000",
                f"link set {tap} master {bridge} up",
            )
        ]
        tool("ip", "-n", self._bridge, lines=lines)

    def reshape(self, shape: Shape) -> None:
        """Changes all links; connections survive."""
        ends = [(host, ["e0"]) for host in self.hosts]
        ends.append((self._bridge, [f"p{i}" for i in range(len(self.hosts))]))

        def links() -> None:
            for namespace, devices in ends:
                tool("ip", "-n", namespace, lines=[shape.link(device) for device in devices])

        def qdiscs() -> None:
            for namespace, devices in ends:
                lines = [shape.qdisc("change", device) for device in devices]
                tool("tc", "-n", namespace, lines=lines)

        # tbf drops packets that are larger than its bucket, so there must never be any.
        if shape.mtu < self.shape.mtu:
            links()
            qdiscs()
        else:
            qdiscs()
            ends.reverse()
            links()
        self.shape = shape

    def remove(self) -> None:
        """Ends all processes in the network and removes it; missing parts are ignored."""
        remove_namespaces([*self.hosts, self._bridge])
