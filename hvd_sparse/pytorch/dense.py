"""Dense gradients, which the host reduces: small and 1-d ones, and all that are faster dense."""

from __future__ import annotations

from typing import Any

import torch

from hvd_sparse.exchange.messages import Messages
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.slots import Slot
from hvd_sparse.ranks.host import Pending
from hvd_sparse.timeline.exchange_timeline import ExchangeTimeline


class DenseReducer:
    """Reduces gradients through the host; the wait ends when the exchange fails.

    Args:
        prefix: Prefix of operation names; the same on all ranks, unique to the optimizer.
        host: The host.
        reduction: The reduction over the ranks.
        messages: Messages of the exchange, which wait for the host's operations.
        timeline: The timeline of the exchange, if there is one.

    Attributes:
        bytes: Size of this step's gradients, as they are sent.
    """

    def __init__(
        self,
        prefix: str,
        *,
        host: TorchHost,
        reduction: Reduction,
        messages: Messages,
        timeline: ExchangeTimeline | None,
    ) -> None:
        self.bytes = 0
        self._prefix = prefix
        self._host = host
        self._reduction = reduction
        self._messages = messages
        self._timeline = timeline
        self._in_flight: list[tuple[Slot, Pending[Any]]] = []

    def launch(self, slot: Slot) -> None:
        """Starts the reduction of a gradient that was taken; see `Slot.take`."""
        if slot.result().dtype == torch.bfloat16:  # which Horovod does not know
            slot.convert(torch.float32)
        work = slot.result()
        size = work.numel() * work.element_size()
        self.bytes += size
        if self._timeline is not None:
            self._timeline.dense_launched(size)
        pending = self._host.reduce(work, f"{self._prefix}.{slot.name}", self._reduction)
        self._in_flight.append((slot, pending))

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
        for slot, pending in self._in_flight:
            self._messages.wait_for(pending)
            if check_finite and refuse is None and not _fits(slot):
                refuse = f"the sum of the gradients of '{slot.name}' over the ranks is not finite"
        if self._timeline is not None:
            self._timeline.dense_done()
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
