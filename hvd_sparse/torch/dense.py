"""Gradients that Horovod exchanges for us, dense: small and 1-d ones, and all that pays dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import horovod.torch.mpi_ops as hvd_ops
import torch

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.torch.dense_velocities import DenseVelocities
from hvd_sparse.torch.learning_rates import LearningRates
from hvd_sparse.torch.local_gradient import LocalGradient
from hvd_sparse.torch.loss_scale import LossScale
from hvd_sparse.torch.messages import wait_for
from hvd_sparse.torch.settings import Settings, travels_sparse
from hvd_sparse.torch.slots import Slot


class DenseReducer:
    """Allreduces gradients through Horovod; ends the wait when the exchange fails.

    A layer that was exchanged sparsely before has a residual. It joins the next gradient, and is
    gone once that step is committed. A narrow gradient travels as float32 then, and each rank keeps
    its share of what the result rounds away.

    Args:
        prefix: Of the names of the operations; the same on all ranks, of no other optimizer.
        settings: What the user asked for.
        size: Number of ranks.
        process_set: Horovod's.
        exchange: Whose failure ends every wait.
        rates: Tell how the residuals decay.
        loss_scale: Of the gradients.
        local: What is done to a gradient first.

    Attributes:
        bytes: Of the gradients of this step.
        residuals: By layer, float32, flat: what has yet to join a gradient.
        rests: Likewise, what a narrow gradient could not hold of a step that a residual joined. It
            waits until the layer travels sparse: a narrow gradient would round it away again.
        owed: Whether any rank may have a residual here: alike on all ranks, whatever each one
            holds.
        velocities: Of these gradients, where momentum is corrected.
    """

    def __init__(
        self,
        prefix: str,
        settings: Settings,
        *,
        size: int,
        process_set: Any,
        exchange: Exchange,
        rates: LearningRates,
        loss_scale: LossScale,
        local: LocalGradient,
    ) -> None:
        self.bytes = 0
        self.residuals: dict[str, torch.Tensor] = {}
        self.rests: dict[str, torch.Tensor] = {}
        self.owed = True
        self.velocities = DenseVelocities(settings.compression.momentum_correction)
        self._prefix = prefix
        self._exchange = exchange
        self._rates = rates
        self._loss_scale = loss_scale
        self._local = local
        self._scale, output_scale = settings.reduction.scales(size)
        self._share = 1 / (output_scale * size)  # of a result, as each rank's residual counts it
        self._compression = settings.compression
        self._options = {**settings.reduction.of_horovod(), "process_set": process_set}
        self._in_flight: list[tuple[Slot, int]] = []
        self._rests_of_step: dict[str, torch.Tensor] = {}  # memory that a commit fills

    def launch(self, slot: Slot) -> None:
        """Starts the allreduce of a gradient, with velocity and residual of its layer."""
        self._local.prepare(slot)
        joins = slot.name in self.residuals
        work = slot.take(self._travels_as(slot), copy=joins or bool(self.velocities))
        if self.velocities:
            self.velocities.join(slot, work.view(-1), self._loss_scale.value / self._scale)
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
        checks = not alone or self.owed or bool(self.velocities)
        for slot, handle in self._in_flight:
            wait_for(handle, self._exchange, f"{self._prefix}.{slot.name}")
            assert slot.work is not None
            if checks and refuse is None and not _fits(slot.work, slot.gradient().dtype):
                refuse = f"the sum of the gradients of '{slot.name}' over the ranks is not finite"
        if self._exchange.timeline is not None:
            self._exchange.timeline.dense_done()
        return refuse

    def committed(self) -> None:
        """The step is applied, and written to the gradients: the residuals that joined it are gone.

        Takes no memory, since a step that counts must not fail on one rank.
        """
        self.velocities.committed()
        for slot, _ in self._in_flight:
            self.residuals.pop(slot.name, None)
            if slot.name in self._rests_of_step:
                self.rests[slot.name] = self._rest_of(slot)
        self.owed = False

    def load(
        self,
        residuals: Mapping[str, torch.Tensor],
        rests: Mapping[str, torch.Tensor],
        *,
        owed: bool,
    ) -> None:
        """Takes over residuals and rests, copied, in place of all that is here.

        On all ranks alike, but for the values. Where one rank has a residual all have one, be it of
        zeros: it joins for the rank's share of what is rounded away.
        """
        self.residuals = {name: residual.clone() for name, residual in residuals.items()}
        self.rests = {name: rest.clone() for name, rest in rests.items()}
        self.owed = owed

    def reset(self) -> None:
        """Forgets residuals and velocities, perhaps on this rank alone."""
        for residual in self.residuals.values():
            residual.zero_()  # it still joins, as `load` says
        self.rests.clear()
        self.velocities.load({})

    def release(self) -> None:
        """Makes ready for the next step."""
        self._in_flight.clear()
        self._rests_of_step.clear()
        self.velocities.release()
        self.bytes = 0

    def _travels_as(self, slot: Slot) -> torch.dtype:
        """The type of a gradient on its way; alike on all ranks, whatever joins it on each one."""
        dtype = slot.gradient().dtype
        joins = self.owed and travels_sparse(slot.param, self._compression)
        if joins or self.velocities or dtype == torch.bfloat16:  # for which Horovod has no name
            return torch.promote_types(dtype, torch.float32)
        return dtype

    def _join(self, slot: Slot, work: torch.Tensor) -> None:
        (decay,) = self._rates.decays([slot])
        residual = self.residuals[slot.name]
        if decay != 1:  # whether the step is applied or not: the rate has been noted
            residual.mul_(decay)
        work.add_(residual.to(work.dtype), alpha=self._loss_scale.value / self._scale)
        if work.dtype != slot.gradient().dtype:
            self._rests_of_step[slot.name] = torch.empty_like(work)

    def _rest_of(self, slot: Slot) -> torch.Tensor:
        """This rank's share of what a narrow gradient has rounded away of a result."""
        result, rest = slot.result(), self._rests_of_step[slot.name]
        rest.view(result.shape).copy_(slot.gradient())
        torch.sub(result.view(-1), rest, out=rest)
        return rest.mul_(self._share / self._loss_scale.value)


def _fits(work: torch.Tensor, dtype: torch.dtype) -> bool:
    """Checks that a result is finite in the type of its gradient, which may be narrower.

    Other ranks may have committed the step already: takes no memory that could be missing.
    """
    return bool(torch.stack(work.aminmax()).to(dtype).isfinite().all())
