"""Plain sockets between hosts: the fastest way for a program to move bytes."""

from __future__ import annotations

import select
import socket
import time

CONNECT_SECONDS = 30.0
CHUNK = 1 << 20  # limit of one call, in bytes


def listen(port: int) -> socket.socket:
    """Returns a socket that peers can connect to."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen(64)
    listener.settimeout(CONNECT_SECONDS)
    return listener


def connect(
    rank: int, peers: list[int], addresses: list[str], *, port: int
) -> dict[int, socket.socket]:
    """Connects this rank with each of its peers; all of them call this.

    Args:
        rank: This rank.
        peers: The other ranks.
        addresses: Addresses of the hosts, by rank.
        port: A port that is free on every host.

    Returns:
        A non-blocking socket for each peer.
    """
    listener = listen(port)
    found: dict[int, socket.socket] = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    for peer in (peer for peer in peers if peer < rank):
        while True:
            try:
                found[peer] = socket.create_connection((addresses[peer], port), timeout=5)
                break
            except OSError:  # the peer does not listen yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        found[peer].sendall(rank.to_bytes(4, "little"))
    while len(found) < len(peers):
        accepted, _ = listener.accept()
        found[int.from_bytes(accepted.recv(4, socket.MSG_WAITALL), "little")] = accepted
    listener.close()
    for one in found.values():
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setblocking(False)
    return found


def swap(peer: socket.socket, outgoing: memoryview, incoming: memoryview) -> None:
    """Sends and receives at once, and sleeps in poll() while neither is possible.

    Args:
        peer: A non-blocking socket.
        outgoing: Bytes to send; may be empty.
        incoming: Room for the bytes to receive; may be empty.
    """
    poll = select.poll()
    sent = received = 0
    watched = -1
    while sent < len(outgoing) or received < len(incoming):
        wanted = (select.POLLOUT if sent < len(outgoing) else 0) | (
            select.POLLIN if received < len(incoming) else 0
        )
        if wanted != watched:
            poll.register(peer, wanted)
            watched = wanted
        events = poll.poll()[0][1]
        if events & select.POLLOUT:
            sent += peer.send(outgoing[sent : sent + CHUNK])
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and received < len(incoming):
            got = peer.recv_into(incoming[received:], min(CHUNK, len(incoming) - received))
            if got == 0:
                raise ConnectionError("the peer has closed the connection")
            received += got
