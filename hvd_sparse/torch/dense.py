"""Gradients that Horovod exchanges for us, dense: small and 1-d ones, and all that pays dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import horovod.torch.mpi_ops as hvd_ops
import torch

from hvd_sparse.exchange import Exchange
from hvd_sparse.torch.dense_velocities import DenseVelocities
from hvd_sparse.torch.learning_rates import LearningRates
from hvd_sparse.torch.local_gradient import LocalGradient
from hvd_sparse.torch.loss_scale import LossScale
from hvd_sparse.torch.messages import wait_for
from hvd_sparse.torch.settings import Settings
from hvd_sparse.torch.slots import Slot

# What Horovod has no name for, and the type in which it travels instead.
_TRAVELS_AS = {torch.bfloat16: torch.float32}


class DenseReducer:
    """Allreduces gradients through Horovod; ends the wait when the exchange fails.

    A layer that was exchanged sparsely before has a residual. It joins the next gradient, and is
    gone once that step is committed; but for what the gradient's type rounds away.

    Args:
        prefix: Of the names of the operations; the same on all ranks, of no other optimizer.
        settings: Horovod's arguments.
        process_set: Horovod's.
        exchange: Whose failure ends every wait.
        rates: Tell how the residuals decay.
        loss_scale: Of the gradients.
        local: What is done to a gradient first.

    Attributes:
        bytes: Of the gradients of this step.
        residuals: By layer, float32, flat: what has yet to join a gradient.
        velocities: Of these gradients, where momentum is corrected.
    """

    def __init__(
        self,
        prefix: str,
        settings: Settings,
        *,
        process_set: Any,
        exchange: Exchange,
        rates: LearningRates,
        loss_scale: LossScale,
        local: LocalGradient,
    ) -> None:
        self.bytes = 0
        self.residuals: dict[str, torch.Tensor] = {}
        self.velocities = DenseVelocities(settings.compression.momentum_correction)
        self._prefix = prefix
        self._exchange = exchange
        self._rates = rates
        self._loss_scale = loss_scale
        self._local = local
        self._scale = settings.reduction.scales(1)[0]
        self._options = {**settings.reduction.of_horovod(), "process_set": process_set}
        self._in_flight: list[tuple[Slot, int]] = []
        self._remainders: dict[str, torch.Tensor] = {}
        # Whether any rank may have a residual here: alike on all ranks, whatever each one holds.
        self._owed = True

    def launch(self, slot: Slot) -> None:
        """Starts the allreduce of a gradient, with velocity and residual of its layer."""
        self._local.prepare(slot)
        dtype = slot.gradient().dtype
        dtype = _TRAVELS_AS.get(dtype, dtype)
        joins = slot.name in self.residuals
        if self.velocities:
            work = slot.take(torch.promote_types(dtype, torch.float32), copy=True)
            self.velocities.join(slot, work.view(-1), self._loss_scale.value / self._scale)
        else:
            work = slot.take(dtype, copy=joins)
        if joins:
            self._join(slot, work.view(-1))
        size = work.numel() * work.element_size()
        self.bytes += size
        if self._exchange.timeline is not None:
            self._exchange.timeline.dense_launched(size)
        handle = hvd_ops.allreduce_async_(work, name=f"{self._prefix}.{slot.name}", **self._options)
        self._in_flight.append((slot, handle))

    def wait(self, *, alone: bool) -> str | None:
        """Waits for all launched gradients; the results then lie in their slots' `work`.

        Args:
            alone: Whether the whole step travels dense. Then, where no residual may have joined it
                on any rank, nothing depends on finite sums, and they are not looked at: the step is
                Horovod's own, and takes no longer.

        Returns:
            Why the step cannot be applied, found by all ranks alike, or None.

        Raises:
            ExchangeFailedError: The exchange has ended.
        """
        refuse = None
        checks = not alone or self._owed or bool(self.velocities)
        for slot, handle in self._in_flight:
            wait_for(handle, self._exchange)
            assert slot.work is not None
            if checks and refuse is None and not _fits(slot.work, slot.gradient().dtype):
                refuse = f"the sum of the gradients of '{slot.name}' over the ranks is not finite"
        if self._exchange.timeline is not None:
            self._exchange.timeline.dense_done()
        return refuse

    def committed(self) -> None:
        """The step is applied, and not yet written: the residuals that joined it are gone."""
        self.velocities.committed()
        for slot, _ in self._in_flight:
            self.residuals.pop(slot.name, None)
        self.residuals |= self._remainders
        self._owed = bool(self._remainders)

    def load(self, residuals: Mapping[str, torch.Tensor]) -> None:
        """Takes over residuals, copied, in place of those that are here; on all ranks alike.

        A rank may take over none where others take over some.
        """
        self.residuals = {name: residual.clone() for name, residual in residuals.items()}
        self._owed = True

    def reset(self) -> None:
        """Forgets residuals and velocities, perhaps on this rank alone."""
        self.residuals.clear()
        self.velocities.load({})

    def release(self) -> None:
        """Makes ready for the next step."""
        self._in_flight.clear()
        self._remainders.clear()
        self.velocities.release()
        self.bytes = 0

    def _join(self, slot: Slot, work: torch.Tensor) -> None:
        (decay,) = self._rates.decays([slot])
        factor = self._loss_scale.value / self._scale
        residual = self.residuals[slot.name]
        if decay != 1:  # whether the step is applied or not: the rate has been noted
            residual.mul_(decay)
        if work.dtype != torch.float16:
            work.add_(residual.to(work.dtype), alpha=factor)
            return
        largest = torch.finfo(work.dtype).max
        total = work.to(torch.float32).add_(residual, alpha=factor)
        finite = torch.isfinite(total)
        work.copy_(torch.where(finite, total.clamp(-largest, largest), total))
        rest = torch.where(finite, total - work.to(torch.float32), 0.0)
        # Also where it is zero: whether sums are looked at must be the same on all ranks.
        self._remainders[slot.name] = rest.div_(factor)


def _fits(work: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a result is finite in the type of its gradient, which may be narrower."""
    return bool(torch.isfinite(work.to(dtype)).all())
