"""Dense gradients, which the host reduces: small and 1-d ones, and all that are faster dense."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.slots import Slot
from hvd_sparse.ranks.host import Pending
from hvd_sparse.timeline.exchange_timeline import ExchangeTimeline


class DenseReducer:
    """Reduces gradients through the host; the wait ends when the exchange fails.

    Args:
        link: The connection between the ranks; its prefix begins the names of operations.
        reduction: The reduction over the ranks.
        timeline: The timeline that shows the sums, if there is one.

    Attributes:
        bytes: Size of this step's gradients, as they are sent.
    """

    def __init__(
        self, link: Link, reduction: Reduction, *, timeline: ExchangeTimeline | None = None
    ) -> None:
        self.bytes = 0
        self._link = link
        self._reduction = reduction
        self._timeline = timeline
        self._collected: list[Slot] = []
        self._in_flight: dict[str, _Sum] = {}  # by the name of the first slot

    def launch(self, slot: Slot) -> None:
        """Starts the reduction of a gradient that was taken; see `Slot.take`.

        If the host does not fuse small tensors, it starts with the next `flush`.
        """
        dtype = self._link.host.sums_in(slot.result().dtype)
        if dtype != slot.result().dtype:
            slot.convert(dtype)
        self._collected.append(slot)
        if self._link.host.fuses:
            self._send([slot], slot.result())
            self._collected.clear()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the gradients that wait for `flush`."""
        return sum(slot.nbytes for slot in self._collected)

    def flush(self, buffer: torch.Tensor | None = None) -> None:
        """Starts the reduction of all gradients that wait for it, as one tensor for each type.

        Args:
            buffer: Memory, flat; if it holds these gradients and nothing else, it is that tensor.
        """
        slots, self._collected = self._collected, []
        if not slots:
            return
        if buffer is not None and _fill(buffer, slots):
            self._send(slots, buffer)
            return
        slots.sort(key=lambda slot: slot.name)  # for the same bits in any order of arrival
        for dtype in dict.fromkeys(slot.result().dtype for slot in slots):
            alike = [slot for slot in slots if slot.result().dtype == dtype]
            self._send(alike, torch.cat([slot.result().view(-1) for slot in alike]))

    def wait(
        self,
        *,
        summed: Callable[[str, bool], None] | None = None,
        slots: Sequence[Slot] | None = None,
    ) -> None:
        """Waits for launched gradients; the results are then in their slots.

        Args:
            summed: Gets a slot's name, and whether its sum is finite; None: nothing is checked.
            slots: The slots to wait for, if the host fuses; None: all of them, at the end of a
                step.

        Raises:
            ExchangeFailedError: The exchange has ended.
        """
        self.flush()
        for name in list(self._in_flight) if slots is None else [slot.name for slot in slots]:
            one = self._in_flight.pop(name)
            self._link.messages.wait_for(one.pending)
            one.hand_out()
            if summed is not None:
                for slot in one.slots:
                    summed(slot.name, _fits(slot))
        if self._timeline is not None and slots is None:
            self._timeline.dense_done()

    def release(self) -> None:
        """Prepares for the next step."""
        self._collected.clear()
        self._in_flight.clear()
        self.bytes = 0

    def _send(self, slots: list[Slot], tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        self.bytes += size
        if self._timeline is not None:
            self._timeline.dense_launched(size)
        name = f"{self._link.prefix}.{slots[0].name}"
        pending = self._link.host.reduce(tensor, name, self._reduction)
        self._in_flight[slots[0].name] = _Sum(slots, tensor, pending)


class _Sum(NamedTuple):
    """Gradients that are reduced together.

    Attributes:
        slots: Their slots.
        tensor: The reduced tensor: the slots' own memory, or a copy, one after the other.
        pending: The reduction.
    """

    slots: list[Slot]
    tensor: torch.Tensor
    pending: Pending[Any]

    def hand_out(self) -> None:
        """Copies the result into the slots, unless it is there already."""
        if _lies_in(self.tensor, self.slots[0]):
            return
        parts = torch.split(self.tensor, [slot.numel for slot in self.slots])
        for slot, part in zip(self.slots, parts, strict=True):
            slot.result().view(-1).copy_(part)


def _fill(buffer: torch.Tensor, slots: Sequence[Slot]) -> bool:
    """Returns true if the results of these slots are all that a buffer holds."""
    return sum(slot.numel for slot in slots) == buffer.numel() and all(
        _lies_in(buffer, slot) for slot in slots
    )


def _lies_in(memory: torch.Tensor, slot: Slot) -> bool:
    """Returns true if the result of a slot is a part of contiguous memory."""
    result = slot.result()
    begin = memory.data_ptr()
    end = begin + memory.numel() * memory.element_size()
    return result.dtype == memory.dtype and begin <= result.data_ptr() < end


def _fits(slot: Slot) -> bool:
    """Returns true if a result is finite in the type of its gradient, which may be narrower.

    Allocates only scalars: other ranks may have committed the step already, so it must not fail.
    """
    extremes = torch.stack(slot.result().aminmax())
    return all(map(math.isfinite, extremes.to(slot.taken_dtype()).tolist()))
