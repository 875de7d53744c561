"""A long job of random exchanges: the laws hold after every one, and memory does not grow.

  make soak                   (mpirun -np 4 python -m tests.jobs.soak --exchanges 10000)

Several exchanges are open at once, between all ranks and some of them, over MPI and over TCP. In
each round some of them exchange buckets of random shapes, number types, densities and methods at
the same time; occasionally a gradient holds a NaN; buckets are replaced after a few steps, and
exchanges are closed and rebuilt. Gradients are small integers, so the laws hold with ==.

Twenty times in a run everything is closed, and each rank's memory, descriptors and threads are
read. None may grow after the second reading.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np

from benchmarks.reporting import Row, report
from hvd_sparse.ranks import transport
from hvd_sparse.ranks.world import World
from tests.jobs.soaked import Slot

READINGS = 20
SLOTS = 4
MIB = 2**20

_LIBC = ctypes.CDLL(None)
_COUNTERS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallocInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in _COUNTERS]


_LIBC.mallinfo2.restype = _MallocInfo


@dataclass(frozen=True)
class Reading:
    """Resources of one rank's process while no exchange is open.

    Attributes:
        exchanges: Number of exchanges done before.
        memory: Resident bytes.
        heap: Bytes allocated and not freed.
        descriptors: Open files and sockets.
        threads: Threads of the process.
    """

    exchanges: int
    memory: int
    heap: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls, exchanges: int) -> Reading:
        """Reads this process, after returning the allocator's free memory to the system."""
        gc.collect()
        _LIBC.malloc_trim(0)
        heap = _LIBC.mallinfo2()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            exchanges,
            pages * os.sysconf("SC_PAGE_SIZE"),
            heap.uordblks + heap.hblkhd,
            len(list(Path("/proc/self/fd").iterdir())),
            len(list(Path("/proc/self/task").iterdir())),
        )


@dataclass
class Soak:
    """The program of all ranks; `plan` draws the same on each of them.

    Attributes:
        sets: Process sets, the one of all ranks first.
        transports: The available transports.
        plan: Random generator for the choice of exchanges and faults.
        covered: Number of this rank's exchanges by property.
        readings: This rank's readings.
    """

    sets: list[Any]
    transports: list[str]
    plan: np.random.Generator
    covered: Counter[str] = field(default_factory=Counter)
    readings: list[Reading] = field(default_factory=list)
    done: int = 0
    built: int = 0
    slots: list[Slot] = field(default_factory=list)

    def run(self, exchanges: int) -> None:
        """Runs at least so many exchanges; raises AssertionError if a law does not hold."""
        for reading in range(1, READINGS + 1):
            while self.done < exchanges * reading // READINGS:
                self._round()
            for slot in self.slots:
                slot.close()
            self.slots.clear()
            self.readings.append(Reading.now(self.done))
            if hvd.rank() == 0:
                print(self.readings[-1], file=sys.stderr, flush=True)

    def _round(self) -> None:
        """Runs steps of one to all of the open exchanges concurrently."""
        while len(self.slots) < SLOTS:
            self.slots.append(self._build())
        chosen = self.plan.choice(SLOTS, self.plan.integers(1, SLOTS + 1), replace=False)
        active = [self.slots[i] for i in chosen]
        for slot in active:
            slot.plan_step()
        mine = [slot for slot in active if slot.included]
        # No exchange waits for another one: ranks may start them in different orders.
        for slot in mine if hvd.rank() % 2 else mine[::-1]:
            slot.start()
        for slot in mine:
            slot.finish(self.covered)
        self.done += sum(slot.buckets for slot in active)
        for i in chosen:
            if self.plan.random() < 0.05:
                self.slots[i].close()
                self.slots[i] = self._build()

    def _build(self) -> Slot:
        self.built += 1
        process_set = self.sets[self.plan.integers(len(self.sets))]
        chosen = self.transports[self.plan.integers(len(self.transports))]
        select_on = ("caller", "engine")[self.plan.integers(2)]
        return Slot.build(
            process_set,
            name=f"soak {self.built}",
            transport=chosen,
            select_on=select_on,
            seed=int(self.plan.integers(1 << 31)),
        )


def subsets(size: int) -> list[Any]:
    """Returns process sets in addition to that of all ranks."""
    everybody = tuple(range(size))
    some = dict.fromkeys([everybody[1:], everybody[::2], everybody[:-1]])
    return [hvd.ProcessSet(list(ranks)) for ranks in some if ranks and ranks != everybody]


def problems_of(ranks: list[list[Reading]], growth: float) -> list[str]:
    """Returns what has grown on which rank between the second reading and the last."""
    found = []
    for rank, readings in enumerate(ranks):
        first, last = readings[1], readings[-1]
        for name, limit in (("memory", 1 + growth), ("descriptors", 1.0), ("threads", 1.0)):
            before, after = getattr(first, name), getattr(last, name)
            if after > before * limit:
                found.append(
                    f"{name} of rank {rank} grew from {before} after {first.exchanges} exchanges "
                    f"to {after} after {last.exchanges}, and may grow by {limit - 1:.0%}"
                )
    return found


def rows_of(ranks: list[list[Reading]]) -> list[Row]:
    """Returns rows to print: one per reading, with the maximum over all ranks."""
    rows = []
    for readings in zip(*ranks, strict=True):
        facts: dict[str, float | int | str] = {
            "MiB resident": round(max(one.memory for one in readings) / MIB, 1),
            "MiB allocated": round(max(one.heap for one in readings) / MIB, 1),
            "descriptors": max(one.descriptors for one in readings),
            "threads": max(one.threads for one in readings),
        }
        rows.append(Row(f"{readings[0].exchanges} exchanges", None, facts))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exchanges", type=int, default=10_000)
    parser.add_argument("--transport", choices=(transport.MPI, transport.TCP))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--growth", type=float, default=0.02, help="of memory, after warm-up")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    # hvd.size() is known after hvd.init(), which has to enable process sets.
    hvd.init(process_sets="dynamic")
    sets = [hvd.global_process_set, *(hvd.add_process_set(one) for one in subsets(hvd.size()))]
    transports = [args.transport] if args.transport else [transport.MPI, transport.TCP]
    soak = Soak(sets, transports, np.random.default_rng(args.seed))
    begin = time.monotonic()
    soak.run(args.exchanges)
    seconds = time.monotonic() - begin

    world = World.from_horovod(hvd, hvd.global_process_set)
    ranks = world.allgather_object(soak.readings, list[Reading])
    covered = sum(map(Counter, world.allgather_object(soak.covered)), Counter())
    problems = problems_of(ranks, args.growth)
    if hvd.rank() == 0:
        title = f"{soak.done} exchanges, {soak.built} built, {hvd.size()} ranks, {seconds:.0f} s"
        settings = {
            **{key: str(value) for key, value in vars(args).items()},
            "seconds": seconds,
            "covered": dict(sorted(covered.items())),
        }
        report(title, rows_of(ranks), settings=settings, verified=not problems, file=args.json)
        print("on all ranks together:")
        for name, count in sorted(covered.items()):
            print(f"  {name}: {count}")
        for problem in problems:
            print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
