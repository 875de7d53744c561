"""Measures the network that a virtual cluster really emulates, with plain sockets.

Between the first two hosts, messages are sent one by one, with pauses between them; each is timed
from its first byte sent to its last byte received (all hosts share this machine's clock). They
should take alpha + bytes / rate. Then all pairs of hosts stream in both directions at once.
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import sockets

if TYPE_CHECKING:
    from virtual_cluster import VirtualCluster

PORT = 4711
SIZES = (8_000, 20_000, 50_000, 125_000, 300_000, 800_000, 2_000_000)
TOLERANCE = 0.15
STREAM_SECONDS = 1.0
LONGEST_SECONDS = 2.0  # limit of one message; larger ones are left out on slow links


@dataclass(frozen=True)
class Emulated:
    """The measured network.

    Attributes:
        asked: The rate asked for, in bits per second.
        rate: The rate fitted to the messages, in bits of payload per second.
        alpha: The fitted seconds that a message takes in addition to bytes / rate. Negative on slow
            links, if the burst that passes after a pause outweighs the latency.
        seconds: Median time of messages of each size.
        goodput: Bits of payload per second in each direction of streams between all pairs of hosts
            at once, for the slowest pair.
    """

    asked: float
    rate: float
    alpha: float
    seconds: dict[int, float]
    goodput: float

    def error(self, size: int) -> float:
        """Returns the relative error of a size's time against alpha + bytes / asked rate."""
        expected = self.alpha + 8 * size / self.asked
        return self.seconds[size] / expected - 1

    @property
    def worst(self) -> float:
        """The error of largest magnitude over all sizes."""
        return max((self.error(size) for size in self.seconds), key=abs)

    @property
    def holds(self) -> bool:
        """True if all sizes take the expected time within the tolerance."""
        return abs(self.worst) <= TOLERANCE

    def __str__(self) -> str:
        summary = (
            f"asked {self.asked / 1e6:.6g} Mb/s; fitted {self.rate / 1e6:.4g} Mb/s of payload, "
            f"alpha {1e6 * self.alpha:.0f} us; "
            f"worst of the messages {100 * self.worst:+.1f} % off; "
            f"streams in both directions {self.goodput / 1e6:.4g} Mb/s each"
        )
        lines = [summary]
        for size, seconds in self.seconds.items():
            lines.append(
                f"  {size:>9,} bytes {1e3 * seconds:9.3f} ms, "
                f"bytes / rate {8e3 * size / self.asked:9.3f} ms, {100 * self.error(size):+6.1f} %"
            )
        return "\n".join(lines)


def fit(seconds: dict[int, float]) -> tuple[float, float]:
    """Fits t = alpha + 8 n / rate by relative least squares; returns (alpha, bits per second)."""
    rows = [(1 / t, 8 * n / t) for n, t in seconds.items()]
    aa, ab = sum(a * a for a, _ in rows), sum(a * b for a, b in rows)
    bb = sum(b * b for _, b in rows)
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    alpha = (a1 * bb - b1 * ab) / determinant
    inverse = (aa * b1 - ab * a1) / determinant
    return alpha, 1 / inverse


def check(cluster: VirtualCluster, *, repetitions: int = 9) -> Emulated:
    """Measures a cluster of at least two hosts, on which nothing else runs."""
    asked = cluster.shape.rate
    addresses = cluster.addresses[: len(cluster.addresses) // 2 * 2]
    program = [sys.executable, str(Path(__file__).resolve())]
    nodes = [
        cluster.popen_on(
            rank,
            [*program, str(rank), str(asked), str(repetitions), *addresses],
            stdout=subprocess.PIPE,
        )
        for rank in range(len(addresses))
    ]
    found = [json.loads(node.communicate()[0]) for node in nodes]
    seconds = {int(size): value for size, value in found[1]["seconds"].items()}
    alpha, rate = fit(seconds)
    return Emulated(asked, rate, alpha, seconds, min(node["goodput"] for node in found))


def main(rank: int, asked: float, repetitions: int, addresses: list[str]) -> None:
    """Runs one host's part; prints its measurements as JSON."""
    partner = rank ^ 1
    everybody = set(range(len(addresses)))
    others = everybody - {0} if rank == 0 else {0, partner}
    peers = sockets.connect(rank, sorted(others), addresses, port=PORT)
    seconds = messages(rank, peers[partner], asked, repetitions) if rank < 2 else {}
    for peer in sorted(peers) if rank == 0 else [0]:  # all begin together
        sockets.swap(peers[peer], memoryview(b"!"), memoryview(bytearray(1)))
    size = round(asked / 8 * STREAM_SECONDS)
    outgoing, incoming = bytearray(size), bytearray(size)
    start = time.perf_counter()
    sockets.swap(peers[partner], memoryview(outgoing), memoryview(incoming))
    goodput = 8 * size / (time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "goodput": goodput}))


def messages(rank: int, peer: socket.socket, asked: float, repetitions: int) -> dict[int, float]:
    """Rank 0 sends and rank 1 times; both pause before each message until the links are idle."""
    found = {}
    nothing = memoryview(b"")
    for size in SIZES:
        wire = 8 * size / asked
        if wire > LONGEST_SECONDS:
            break
        data, stamp = bytearray(size), bytearray(8)
        took = []
        for _ in range(max(3, min(repetitions, round(2 / wire)))):
            if rank == 0:
                time.sleep(0.01 + 0.2 * wire)
                struct.pack_into("d", data, 0, time.monotonic())
                sockets.swap(peer, memoryview(data), nothing)
                sockets.swap(peer, nothing, memoryview(stamp))
            else:
                sockets.swap(peer, nothing, memoryview(data))
                took.append(time.monotonic() - struct.unpack_from("d", data)[0])
                sockets.swap(peer, memoryview(stamp), nothing)
        if rank == 1:
            found[size] = statistics.median(took)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
