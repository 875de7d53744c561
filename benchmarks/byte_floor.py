"""Moves the bytes of a collective in its own pattern, by plain sockets."""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sockets

PORT = 4713
DISTANCE_DOUBLES = ("gtopk", "recursive doubling")  # swaps with rank XOR 1, 2, 4, ...


@dataclass(frozen=True, kw_only=True)
class Step:
    """One transfer of one rank: bytes to and from each peer, all at once."""

    out: Mapping[int, int]
    into: Mapping[int, int]


def peers_of(name: str, rank: int, size: int) -> tuple[list[int], list[int]]:
    """Returns the ranks to and from which a transfer sends blocks; `size` is a power of two."""
    if name.endswith("to the owners"):
        others = [(rank + distance) % size for distance in range(1, size)]
        return others, others
    found = re.fullmatch(r"([\w ]+),.* ?round (\d+)", name)
    if found is None:
        raise ValueError(f"the pattern of the transfer '{name}' is unknown")
    distance = 1 << (int(found[2]) - 1)
    if found[1] in DISTANCE_DOUBLES:
        return [rank ^ distance], [rank ^ distance]
    return [(rank - distance) % size], [(rank + distance) % size]  # Bruck's allgather


def schedule(rank: int, sent: Sequence[Sequence[tuple[str, int]]]) -> list[Step]:
    """Returns a rank's transfers, from the names and sent bytes of all ranks' transfers.

    Bytes to several peers are assumed to be shared evenly among them.
    """
    size = len(sent)
    steps = []
    for i, (name, _) in enumerate(sent[rank]):
        to, from_ = peers_of(name, rank, size)
        steps.append(
            Step(
                out={peer: sent[rank][i][1] // len(to) for peer in to},
                into={peer: sent[peer][i][1] // len(from_) for peer in from_},
            )
        )
    return steps


def move(
    peers: Mapping[int, socket.socket],
    outgoing: Mapping[int, memoryview],
    incoming: Mapping[int, memoryview],
) -> None:
    """Sends to and receives from several peers at once, and sleeps in poll() in between."""
    left_out = {peers[peer].fileno(): (peers[peer], data) for peer, data in outgoing.items()}
    left_in = {peers[peer].fileno(): (peers[peer], data) for peer, data in incoming.items()}
    poll = select.poll()
    watched: dict[int, int] = {}
    while left_out or left_in:
        for number in {*watched, *left_out, *left_in}:
            wanted = (select.POLLOUT if number in left_out else 0) | (
                select.POLLIN if number in left_in else 0
            )
            if wanted != watched.get(number, 0):
                if wanted:
                    poll.register(number, wanted)
                else:
                    poll.unregister(number)
                watched[number] = wanted
        for number, events in poll.poll():
            if events & select.POLLOUT and number in left_out:
                peer, data = left_out.pop(number)
                rest = data[peer.send(data[: sockets.CHUNK]) :]
                if rest:
                    left_out[number] = peer, rest
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and number in left_in:
                peer, data = left_in.pop(number)
                got = peer.recv_into(data, min(sockets.CHUNK, len(data)))
                if got == 0:
                    raise ConnectionError("the peer has closed the connection")
                if data[got:]:
                    left_in[number] = peer, data[got:]


class Floor:
    """Runs schedules over sockets that are connected once."""

    def __init__(self, rank: int, addresses: list[str]) -> None:
        others = [peer for peer in range(len(addresses)) if peer != rank]
        self._rank = rank
        self._peers = sockets.connect(rank, others, addresses, port=PORT)
        self._outgoing = np.zeros(0, np.uint8)
        self._incoming: dict[int, np.ndarray] = {peer: np.zeros(0, np.uint8) for peer in others}
        self._last: dict[int, int] = {}

    def reserve(self, steps: Sequence[Step]) -> None:
        """Makes room for a schedule, so that running it allocates nothing."""
        most = max((b for step in steps for b in step.out.values()), default=0)
        if most > self._outgoing.size:
            self._outgoing = np.full(most, self._rank, np.uint8)
        for step in steps:
            for peer, size in step.into.items():
                if size > self._incoming[peer].size:
                    self._incoming[peer] = np.zeros(size, np.uint8)

    def run(self, steps: Sequence[Step]) -> None:
        """Runs a schedule, step by step."""
        outgoing = memoryview(self._outgoing)
        for step in steps:
            move(
                self._peers,
                {peer: outgoing[:size] for peer, size in step.out.items() if size},
                {peer: memoryview(self._incoming[peer])[:n] for peer, n in step.into.items() if n},
            )
            self._last.update(step.into)

    def right(self) -> bool:
        """Returns true if the last bytes from every peer are that peer's pattern."""
        return all(bool((self._incoming[p][:n] == p).all()) for p, n in self._last.items())

    def close(self) -> None:
        """Closes the connections."""
        for peer in self._peers.values():
            peer.close()
