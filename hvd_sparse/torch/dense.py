"""Dense gradients, which Horovod exchanges: small and 1-d ones, and all that are faster dense."""

from __future__ import annotations

from typing import Any

import horovod.torch.mpi_ops as hvd_ops
import torch

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.torch.messages import wait_for
from hvd_sparse.torch.settings import Settings
from hvd_sparse.torch.slots import Slot


class DenseReducer:
    """Allreduces gradients through Horovod; ends the wait when the exchange fails.

    Args:
        prefix: Prefix of operation names; the same on all ranks, unique to the optimizer.
        settings: The user's settings.
        process_set: Horovod's process set.
        exchange: The exchange whose failure ends every wait.

    Attributes:
        bytes: Size of this step's gradients, as they are sent.
    """

    def __init__(
        self, prefix: str, settings: Settings, *, process_set: Any, exchange: Exchange
    ) -> None:
        self.bytes = 0
        self._prefix = prefix
        self._exchange = exchange
        self._options = {**settings.reduction.of_horovod(), "process_set": process_set}
        self._in_flight: list[tuple[Slot, int]] = []

    def launch(self, slot: Slot) -> None:
        """Starts the allreduce of a gradient that was taken; see `Slot.take`."""
        if slot.result().dtype == torch.bfloat16:  # which Horovod does not know
            slot.convert(torch.float32)
        work = slot.result()
        size = work.numel() * work.element_size()
        self.bytes += size
        if self._exchange.timeline is not None:
            self._exchange.timeline.dense_launched(size)
        handle = hvd_ops.allreduce_async_(work, name=f"{self._prefix}.{slot.name}", **self._options)
        self._in_flight.append((slot, handle))

    def wait(self, *, check_finite: bool) -> str | None:
        """Waits for all launched gradients; the results are then in their slots.

        Args:
            check_finite: True to check the sums for values that are not finite.

        Returns:
            The reason why the step cannot be applied, the same on all ranks, or None.

        Raises:
            ExchangeFailedError: The exchange has ended.
        """
        refuse = None
        for slot, handle in self._in_flight:
            wait_for(handle, self._exchange, f"{self._prefix}.{slot.name}")
            if check_finite and refuse is None and not _fits(slot):
                refuse = f"the sum of the gradients of '{slot.name}' over the ranks is not finite"
        if self._exchange.timeline is not None:
            self._exchange.timeline.dense_done()
        return refuse

    def release(self) -> None:
        """Prepares for the next step."""
        self._in_flight.clear()
        self.bytes = 0


def _fits(slot: Slot) -> bool:
    """Returns true if a result is finite in the type of its gradient, which may be narrower.

    Allocates only scalars: other ranks may have committed the step already, so it must not fail.
    """
    dtype = slot.gradient().dtype
    return bool(torch.stack(slot.result().aminmax()).to(dtype).isfinite().all())
