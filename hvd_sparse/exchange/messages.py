"""Small messages between the ranks of an exchange, for which no rank has to wait at once.

A rank may be busy with another optimizer while this one ends its step. So a message is sent in one
step and received in the next: by then every rank has started the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.place import Place
from hvd_sparse.ranks.host import Host, Pending
from hvd_sparse.waiting import wait_until

_Result = TypeVar("_Result")


class Messages:
    """The messages of one exchange; every wait ends when the exchange does.

    Args:
        prefix: Prefix of the operations' names, unique to the exchange, the same on all ranks.
        host: The library that carries the messages.
        exchange: The exchange.
    """

    def __init__(self, prefix: str, *, host: Host, exchange: Exchange) -> None:
        self._prefix = prefix
        self._host = host
        self._exchange = exchange

    def gather(
        self, numbers: Sequence[float], *, what: str = "measured"
    ) -> Callable[[], list[list[float]]]:
        """Sends every rank's numbers to all ranks, bit for bit; each rank passes as many.

        Args:
            numbers: This rank's numbers.
            what: A name, of which one message is under way at a time.
        """
        rows = self._rows(numbers, what)
        return lambda: [[float(number) for number in row] for row in rows()]

    def broadcast(self, text: str) -> Callable[[], str]:
        """Sends rank 0's text, one line, to all ranks, which pass an empty one."""
        line = np.frombuffer(f"{text}\n".encode(), np.uint8).copy()
        sent = self._host.allgather(line, f"{self._prefix}.decision")
        return lambda: self.wait_for(sent).tobytes().decode().partition("\n")[0]

    def broadcast_order(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        """Sends rank 0's integers to all ranks; each rank passes as many."""
        rows = self._rows(numbers, "launch_order")
        return lambda: [int(number) for number in rows()[0]]

    def add_up(self, array: NDArray[Any]) -> NDArray[Any]:
        """Returns the sum of all ranks' float32 arrays, flat and of one length. Blocks."""
        return self.wait_for(self._host.add_up(array, f"{self._prefix}.quality"))

    def timed_sum(self, nbytes: int, values: str, place: Place) -> float:
        """Returns the seconds that the host takes to sum so many bytes. Blocks.

        Args:
            nbytes: Bytes of each rank's tensor.
            values: Type of its elements, see `Host.timed_sum`.
            place: The place of the gradients, where the tensor lies.
        """
        name = f"{self._prefix}.allreduce.{values}"
        return self.wait_for(self._host.timed_sum(nbytes, values, name, place))

    def wait_for(self, pending: Pending[_Result]) -> _Result:
        """Waits for an operation of the host's and returns its result.

        Raises:
            ExchangeFailedError: The exchange ended before the operation.
            ExchangeTimeoutError: The operation has not ended until the deadline.
        """
        operation = f"{self._host.name}'s operation '{pending.name}'"
        wait_until(pending.done, self._exchange.check, operation, timeout=self._host.timeout)
        return pending.result()

    def _rows(self, numbers: Sequence[float], what: str) -> Callable[[], NDArray[Any]]:
        row = np.array([numbers], np.float64)
        sent = self._host.allgather(row, f"{self._prefix}.{what}")
        return lambda: self.wait_for(sent)
