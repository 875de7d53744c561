"""Times rounds of swaps: an exchange's messages against plain sockets, and Horovod's allgather.

    python benchmarks/transport.py --hosts 2 --hosts 4 --hosts 8 --rate 1gbit

builds virtual clusters (as root; see docs/virtual_cluster.md) and times in each, side by side and
for messages of 8 k bytes, that is k entries of a value and an index:

* sockets: log2 P rounds of swaps at distances 1, 2, 4, ... by non-blocking sockets and poll(), the
  floor of every exchange that doubles distances;
* exchange: the same rounds by Exchange.swap, over MPI and over TCP, there by the number of
  connections between two ranks, too, if --connections asks for some;
* Horovod: allgather of k values and k indices, both in flight at once.

Each time is that of the slowest rank, from a common start, after a pause if --pause asks for one:
TCP sends slowly at first after each. Each rank has a host of its own.
"""

from __future__ import annotations

import json as json_module
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import sockets
import typer
from reporting import Row, Timing, report, write
from virtual_cluster import VirtualCluster

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks.transport import MPI, TCP
from hvd_sparse.ranks.world import World

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

PORT = 4712
UNTIMED = 3  # repetitions before the timed ones
WORKER = "HVD_SPARSE_TRANSPORT_WORKER"  # set for the ranks: the first one's output file


def partners(rank: int, size: int) -> list[int]:
    """Returns a rank's swap partners, round by round."""
    return [rank ^ (1 << i) for i in range(size.bit_length() - 1)]


class SocketRounds:
    """The floor: plain sockets."""

    def __init__(self, rank: int, addresses: list[str], entries: int) -> None:
        self._rank = rank
        self._partners = partners(rank, len(addresses))
        self._peers = sockets.connect(rank, sorted(self._partners), addresses, port=PORT)
        self._outgoing = np.full(8 * entries, rank, np.uint8)
        self._incoming = np.zeros(8 * entries, np.uint8)

    def __call__(self) -> None:
        for partner in self._partners:
            sockets.swap(
                self._peers[partner], memoryview(self._outgoing), memoryview(self._incoming)
            )

    def right(self) -> bool:
        """Returns true if the last round received the partner's bytes."""
        return bool((self._incoming == self._partners[-1]).all())

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


def connected(name: str, world: World, connections: int | None) -> Exchange:
    """Returns an exchange over a transport; None: as many connections as it chooses itself."""
    os.environ["HVD_SPARSE_CONNECTIONS"] = str(connections or "")
    return Exchange.between_ranks(world, name=f"{name} {connections}", transport=name)


def measure(
    entries: int, repetitions: int, pause: float, connections: list[int]
) -> tuple[dict[str, list[float]], bool]:
    """Returns the seconds of all methods on all ranks, and true if all data was right."""
    import horovod.torch as hvd
    import torch

    rank, size = hvd.rank(), hvd.size()
    world = World.from_horovod(hvd, hvd.global_process_set)
    addresses = world.allgather_object(os.environ["VIRTUAL_CLUSTER_ADDRESS"])
    plain = SocketRounds(rank, addresses, entries)
    exchanges = {
        f"exchange over {name.upper()}": connected(name, world, None) for name in (MPI, TCP)
    }
    for number in connections:
        exchanges[f"exchange over TCP, {number} connections"] = connected(TCP, world, number)
    values = torch.full((entries,), float(rank))
    indices = torch.full((entries,), rank, dtype=torch.int32)
    gathered: list[torch.Tensor] = []

    def swaps(exchange: Exchange) -> None:
        for partner in partners(rank, size):
            exchange.swap(partner, 8 * entries, 1)

    def allgather() -> None:
        handles = [
            hvd.allgather_async(values, name="values"),
            hvd.allgather_async(indices, name="indices"),
        ]
        gathered[:] = [hvd.synchronize(handle) for handle in handles]

    methods: dict[str, Callable[[], None]] = {
        "sockets": plain,
        **{name: partial(swaps, exchange) for name, exchange in exchanges.items()},
        "Horovod's allgather": allgather,
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for repetition in range(UNTIMED + repetitions):
        for name, method in methods.items():
            time.sleep(pause)
            hvd.barrier()
            start = time.monotonic()
            method()
            took = np.array([start, time.monotonic()])
            everybody = np.array(world.allgather_object(took))  # one clock: all on this machine
            if repetition >= UNTIMED:
                seconds[name].append(float(everybody[:, 1].max() - everybody[:, 0].max()))
    expected = torch.arange(size).repeat_interleave(entries)
    right = plain.right() and all(torch.equal(one.long(), expected) for one in gathered)
    plain.close()
    for exchange in exchanges.values():
        exchange.close()
    return seconds, all(world.allgather_object(right))


def work(ks: list[int], repetitions: int, pause: float, connections: list[int], file: Path) -> None:
    """Runs one rank's part; the first one writes the results."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.set_num_threads(1)
    found = {k: measure(k, repetitions, pause, connections) for k in ks}
    if hvd.rank() == 0:
        write(file, {str(k): {"seconds": s, "right": right} for k, (s, right) in found.items()})


def rows_of(hosts: int, k: int, seconds: dict[str, list[float]]) -> list[Row]:
    """Returns rows that compare all methods with the sockets."""
    timings = {name: Timing.of(times) for name, times in seconds.items()}
    floor = timings["sockets"].median
    return [
        Row(f"P = {hosts}, k = {k:,}: {name}", timing, {"x sockets": timing.median / floor})
        for name, timing in timings.items()
    ]


@app.command()
def main(
    hosts: Annotated[list[int] | None, typer.Option(help="powers of two; may be repeated")] = None,
    k: Annotated[list[int] | None, typer.Option(help="entries; may be given repeatedly")] = None,
    rate: Annotated[str, typer.Option(help="of every link in each direction")] = "1gbit",
    latency: Annotated[float, typer.Option(help="milliseconds of a round trip")] = 0.0,
    pause: Annotated[float, typer.Option(help="seconds before each repetition")] = 0.0,
    connections: Annotated[
        list[int] | None, typer.Option(help="of two ranks; may be repeated")
    ] = None,
    repetitions: Annotated[int, typer.Option(min=2, help="timed, of each")] = 20,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times rounds of swaps over a virtual cluster's links."""
    counts, ks = hosts or [2, 4, 8], k or [25_600, 256_000]
    if WORKER in os.environ:
        work(ks, repetitions, pause, connections or [], Path(os.environ[WORKER]))
        return
    if any(count < 2 or count & (count - 1) for count in counts):
        raise typer.BadParameter(f"hosts must be powers of two from 2 on, got {counts}")
    rows, verified = [], True
    options = [f"--k={one}" for one in ks] + [f"--connections={one}" for one in connections or []]
    options += [f"--repetitions={repetitions}", f"--pause={pause}"]
    for count in counts:
        with (
            VirtualCluster(count, rate, latency=latency / 1e3) as cluster,
            TemporaryDirectory() as folder,
        ):
            file = Path(folder) / "seconds.json"
            command = [sys.executable, str(Path(__file__).resolve()), *options]
            cluster.run(command, env={WORKER: str(file)}, timeout=600)
            found = json_module.loads(file.read_text())
        for one in ks:
            rows += rows_of(count, one, found[str(one)]["seconds"])
            verified &= found[str(one)]["right"]
    settings = {"rate": rate, "latency": latency, "pause": pause, "repetitions": repetitions}
    report(f"rounds of swaps at {rate}", rows, settings=settings, verified=verified, file=json)
    if not verified:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
