"""What the machine and this process have used so far, by the kernel's counters."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import astuple, dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
# Of "cpu" in /proc/stat: user, nice, system, two kinds of idling, irq, softirq, steal.
_IDLE, _COLUMNS = (3, 4), 8


@dataclass(frozen=True)
class Usage:
    """Counters; of their differences one speaks.

    Attributes:
        seconds: Of the clock.
        cpu_seconds: Of this process, all threads.
        busy_seconds: Of all cores of the machine, the kernel's work for the network included.
        bytes_sent: By an interface of this process's network.
    """

    seconds: float
    cpu_seconds: float
    busy_seconds: float
    bytes_sent: int

    @classmethod
    def now(cls, interface: str | None) -> Usage:
        """The counters; without an interface, no bytes."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        sent = 0 if interface is None else bytes_sent_by(interface)
        return cls(time.perf_counter(), own.ru_utime + own.ru_stime, _busy_seconds(), sent)

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(*(a - b for a, b in zip(astuple(self), astuple(earlier), strict=True)))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_of_this_process() -> int:
    """Bytes; what is shared with other processes counts in parts."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/smaps_rollup has no line Pss")


def bytes_sent_by(interface: str) -> int:
    """What the interface has sent, as this process's network namespace sees it.

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
