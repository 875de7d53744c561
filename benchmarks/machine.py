"""Resources that the machine and this process have used so far, by the kernel's counters."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import astuple, dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
# Columns of "cpu" in /proc/stat: user, nice, system, two kinds of idling, irq, softirq, steal.
_IDLE, _COLUMNS = (3, 4), 8


@dataclass(frozen=True)
class Usage:
    """Counters, whose differences are meaningful.

    Attributes:
        seconds: Clock time.
        cpu_seconds: Processor time of this process, all threads.
        busy_seconds: Busy time of all cores of the machine, the kernel's network code included.
        bytes_sent: Bytes sent by an interface of this process's network.
    """

    seconds: float
    cpu_seconds: float
    busy_seconds: float
    bytes_sent: int

    @classmethod
    def now(cls, interface: str | None) -> Usage:
        """Reads the counters; without an interface, bytes are 0."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        sent = 0 if interface is None else bytes_sent_by(interface)
        return cls(time.perf_counter(), own.ru_utime + own.ru_stime, _busy_seconds(), sent)

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(*(a - b for a, b in zip(astuple(self), astuple(earlier), strict=True)))


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_of_this_process() -> int:
    """Returns the process's bytes, with a share of the memory that it shares with others."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/smaps_rollup has no line Pss")


def bytes_sent_by(interface: str) -> int:
    """Returns the bytes that the interface has sent, in this process's network namespace.

    Raises:
        ValueError: There is no such interface.
    """
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    counters = dict(line.strip().split(":", 1) for line in lines)
    if interface not in counters:
        raise ValueError(f"interface must be one of {', '.join(counters)}, got {interface!r}")
    return int(counters[interface].split()[8])


def _busy_seconds() -> float:
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1 : 1 + _COLUMNS]]
    return (sum(ticks) - sum(ticks[i] for i in _IDLE)) / _TICK
