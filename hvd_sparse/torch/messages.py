"""Small messages between the ranks through Horovod, for which no rank has to wait at once.

A rank may be busy with another optimizer while this one ends its step. So a message is sent in one
step and received in the next: by then every rank has started the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import horovod.torch.mpi_ops as hvd_ops
import numpy as np
import torch
from numpy.typing import NDArray

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.place import Place
from hvd_sparse.waiting import wait_until


class Messages:
    """Messages between the ranks of one optimizer.

    Args:
        prefix: Prefix of operation names; the same on all ranks, unique to the optimizer.
        process_set: Horovod's process set.
        exchange: The exchange whose failure ends every wait.
    """

    def __init__(self, prefix: str, *, process_set: Any, exchange: Exchange) -> None:
        self._prefix = prefix
        self._process_set = process_set
        self._exchange = exchange

    def add_up(self, array: NDArray[Any]) -> NDArray[Any]:
        """Returns the sum of all ranks' float32 arrays, flat and of one length. Blocks."""
        name = f"{self._prefix}.quality"
        handle = hvd_ops.allreduce_async(
            torch.from_numpy(array), op=hvd_ops.Sum, name=name, process_set=self._process_set
        )
        return np.asarray(wait_for(handle, self._exchange, name).numpy())

    def broadcast_order(self, numbers: list[int]) -> Callable[[], list[int]]:
        """Broadcasts the integers of the set's first rank; all ranks pass as many."""
        result = self._broadcast(torch.tensor(numbers, device="cpu"), "launch_order")
        return lambda: [int(number) for number in result()]

    def broadcast(self, text: str) -> Callable[[], str]:
        """Sends the first rank's text, one line, to all ranks, which pass an empty one."""
        line = torch.frombuffer(bytearray(f"{text}\n".encode()), dtype=torch.uint8)
        name = f"{self._prefix}.decision"
        handle = hvd_ops.allgather_async(line, name=name, process_set=self._process_set)

        def result() -> str:
            lines = wait_for(handle, self._exchange, name)
            return bytes(lines.tolist()).decode().partition("\n")[0]

        return result

    def gather(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Sends every rank's numbers to all ranks; all pass as many."""
        row = torch.tensor([numbers], dtype=torch.float64, device="cpu")
        name = f"{self._prefix}.measured"
        handle = hvd_ops.allgather_async(row, name=name, process_set=self._process_set)

        def result() -> list[list[float]]:
            rows = wait_for(handle, self._exchange, name)
            return [[float(number) for number in row] for row in rows]

        return result

    def _broadcast(self, tensor: torch.Tensor, what: str) -> Callable[[], torch.Tensor]:
        name = f"{self._prefix}.{what}"
        handle = hvd_ops.broadcast_async_(
            tensor, self._process_set.ranks[0], name=name, process_set=self._process_set
        )

        def result() -> torch.Tensor:
            wait_for(handle, self._exchange, name)
            return tensor

        return result


def timed_allreduce(
    prefix: str, *, process_set: Any, exchange: Exchange, place: Place
) -> Callable[[int], float]:
    """Returns a function that times Horovod's sum of so many bytes of float32, in seconds.

    Args:
        prefix: Prefix of the operation's name; see `Messages`.
        process_set: Horovod's process set.
        exchange: The exchange whose failure ends every wait.
        place: The place of the gradients, where the tensor is created.
    """
    name = f"{prefix}.allreduce"

    def allreduce(nbytes: int) -> float:
        clock = place.clock
        tensor = torch.zeros(nbytes // 4, dtype=torch.float32, device=place.device)
        made = clock.mark()
        clock.seconds(made, made)  # waits for the tensor
        begin = clock.mark()
        handle = hvd_ops.allreduce_async_(
            tensor, name=name, op=hvd_ops.Sum, process_set=process_set
        )
        wait_for(handle, exchange, name)
        end = clock.mark()
        seconds = clock.seconds(begin, end)
        clock.release([made, begin, end])
        return seconds

    return allreduce


def wait_for(handle: int, exchange: Exchange, name: str) -> Any:
    """Waits for a Horovod operation and returns its result.

    Args:
        handle: Handle of the operation.
        exchange: The exchange whose failure ends the wait.
        name: Name of the operation, as registered with Horovod.

    Raises:
        ExchangeFailedError: The exchange ended before the operation.
        ExchangeTimeoutError: The operation takes longer than HVD_SPARSE_TIMEOUT.
    """
    wait_until(lambda: hvd_ops.poll(handle), exchange.check, f"Horovod's operation '{name}'")
    return hvd_ops.synchronize(handle)
