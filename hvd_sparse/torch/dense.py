"""What Horovod exchanges for us: small and 1-d gradients, dense, and the order of the buckets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import horovod.torch.mpi_ops as hvd_ops
import torch

from hvd_sparse.exchange import Exchange
from hvd_sparse.torch.slots import Slot

# What Horovod has no name for, and the type in which it travels instead.
_TRAVELS_AS = {torch.bfloat16: torch.float32}

# Between two looks at a Horovod operation and at the exchange.
_POLL_SECONDS = 1e-4


class DenseReducer:
    """Allreduces gradients through Horovod; ends the wait when the exchange fails.

    Args:
        prefix: Of the names of the operations; the same on all ranks, of no other optimizer.
        op: Horovod's Average or Sum.
        predivide: Gradients are divided by it before they are summed, and multiplied after.
        process_set: Horovod's.
        exchange: Whose failure ends every wait.
    """

    def __init__(
        self, prefix: str, *, op: int, predivide: float, process_set: Any, exchange: Exchange
    ) -> None:
        self._prefix = prefix
        self._exchange = exchange
        self._options = {
            "op": op,
            "prescale_factor": 1.0 / predivide,
            "postscale_factor": predivide,
            "process_set": process_set,
        }
        self._in_flight: list[tuple[Slot, int]] = []
        self.bytes = 0

    def launch(self, slot: Slot) -> None:
        """Starts the allreduce of a gradient."""
        grad = slot.param.grad
        dtype = slot.param.dtype if grad is None else grad.dtype
        work = slot.take(_TRAVELS_AS.get(dtype, dtype))
        self.bytes += work.numel() * work.element_size()
        handle = hvd_ops.allreduce_async_(work, name=f"{self._prefix}.{slot.name}", **self._options)
        self._in_flight.append((slot, handle))

    def wait(self) -> str | None:
        """Waits for all launched gradients; the results then lie in their slots' `work`.

        Returns:
            Why the step cannot be applied, found by all ranks alike, or None.

        Raises:
            ExchangeFailedError: The exchange has ended.
        """
        refuse = None
        for slot, handle in self._in_flight:
            _wait(handle, self._exchange)
            assert slot.work is not None
            if refuse is None and not bool(torch.isfinite(slot.work).all()):
                refuse = f"the sum of the gradients of '{slot.name}' over the ranks is not finite"
        return refuse

    def release(self) -> None:
        """Makes ready for the next step."""
        self._in_flight.clear()
        self.bytes = 0


def broadcaster(
    prefix: str, *, process_set: Any, exchange: Exchange
) -> Callable[[list[int]], Callable[[], list[int]]]:
    """What sends a list of numbers from the set's first rank to all, as LaunchOrder wants it."""

    def broadcast(numbers: list[int]) -> Callable[[], list[int]]:
        tensor = torch.tensor(numbers)
        handle = hvd_ops.broadcast_async_(
            tensor, process_set.ranks[0], name=f"{prefix}.launch_order", process_set=process_set
        )

        def result() -> list[int]:
            _wait(handle, exchange)
            return [int(number) for number in tensor]

        return result

    return broadcast


def _wait(handle: int, exchange: Exchange) -> None:
    while not hvd_ops.poll(handle):
        exchange.check()
        time.sleep(_POLL_SECONDS)
    hvd_ops.synchronize(handle)
