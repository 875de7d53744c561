"""Times messages between two hosts: bytes over the rate of the network, plus a latency.

    mpirun -np 2 python benchmarks/messages.py --address 127.0.0.1:29500 --json FILE

Rank 1 sends spaced messages to rank 0 through a TCP connection; each contains its sending time.
Both ranks must share a clock, that is, run on one machine, in any number of networks.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import time
from pathlib import Path
from typing import Annotated

import typer
from reporting import write

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

SIZES = (8_000, 32_000, 128_000, 512_000, 2_000_000)
# Sent first, untimed: a new connection does not know the link's rate yet.
FIRST = 1_000_000
HEAD = struct.Struct("=d")  # sending time
PATIENCE = 60.0  # seconds


def receive(connection: socket.socket, count: int) -> bytes:
    """Receives exactly `count` bytes."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise ConnectionError(f"the sender has gone, {count - len(parts)} bytes were to come")
        parts += part
    return bytes(parts)


def listen(host: str, port: int, repetitions: int) -> dict[int, list[float]]:
    """Receives the messages; returns the seconds of each, by its bytes."""
    seconds: dict[int, list[float]] = {}
    with socket.create_server((host, port)) as server:
        server.settimeout(PATIENCE)
        connection, _ = server.accept()
    with connection:
        for size in (FIRST, *SIZES):
            for _ in range(1 + repetitions):
                (sent_at,) = HEAD.unpack(receive(connection, size)[: HEAD.size])
                seconds.setdefault(size, []).append(time.monotonic() - sent_at)
                connection.sendall(b"!")
    return {size: seconds[size][1:] for size in SIZES}


def send(host: str, port: int, repetitions: int, pause: float) -> None:
    """Sends the messages, with pauses in which queues drain."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=PATIENCE)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in (FIRST, *SIZES):
            rest = bytes(size - HEAD.size)
            for _ in range(1 + repetitions):
                time.sleep(pause)
                connection.sendall(HEAD.pack(time.monotonic()) + rest)
                receive(connection, 1)


@app.command()
def main(
    address: Annotated[str, typer.Option(help="HOST:PORT of rank 0")],
    repetitions: Annotated[int, typer.Option(min=2, help="timed, of each size")] = 9,
    pause: Annotated[float, typer.Option(help="seconds before each message")] = 0.02,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times messages from rank 1 to rank 0; other ranks do nothing."""
    host, port = address.rsplit(":", 1)
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    if rank == 1:
        send(host, int(port), repetitions, pause)
    if rank != 0:
        return
    medians = {
        size: statistics.median(s) for size, s in listen(host, int(port), repetitions).items()
    }
    for size, seconds in medians.items():
        print(f"{size:9} bytes {1e3 * seconds:9.3f} ms")
    if json is not None:
        write(json, [{"bytes": size, "seconds": seconds} for size, seconds in medians.items()])


if __name__ == "__main__":
    app()
