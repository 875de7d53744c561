"""Dense gradients, which Horovod exchanges: small and 1-d ones, and all that are faster dense."""

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
from hvd_sparse.torch.settings import Settings, may_be_sparse
from hvd_sparse.torch.slots import Slot


class DenseReducer:
    """Allreduces gradients through Horovod; ends the wait when the exchange fails.

    A layer that was sparse before has a residual. It is added to the layer's next gradient, and
    dropped once that step is committed. A narrow gradient is then sent as float32, and each rank
    keeps its share of the rounding error of the result.

    Args:
        prefix: Prefix of operation names; the same on all ranks, unique to the optimizer.
        settings: The user's settings.
        size: Number of ranks.
        process_set: Horovod's process set.
        exchange: The exchange whose failure ends every wait.
        rates: Learning rates, which determine the decay of residuals.
        loss_scale: Loss scale of the gradients.
        local: Clipping and weight decay, applied to each gradient first.

    Attributes:
        bytes: Size of this step's gradients, as they are sent.
        residuals: By layer, float32, flat: residuals to add to the next gradients.
        rounding_errors: By layer, float32, flat: those of results that contain a residual. They are
            kept until the layer is sparse: a narrow gradient would round them away again.
        may_have_residuals: True if any rank may have a residual here; the same on all ranks,
            whatever each holds.
        velocities: Velocities of these gradients, used if momentum is corrected.
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
        self.rounding_errors: dict[str, torch.Tensor] = {}
        self.may_have_residuals = True
        self.velocities = DenseVelocities(settings.compression.momentum_correction)
        self._prefix = prefix
        self._exchange = exchange
        self._rates = rates
        self._loss_scale = loss_scale
        self._local = local
        self._scale, output_scale = settings.reduction.scales(size)
        self._share = 1 / (output_scale * size)  # of a rounding error, in the residual's unit
        self._compression = settings.compression
        self._options = {**settings.reduction.of_horovod(), "process_set": process_set}
        self._in_flight: list[tuple[Slot, int]] = []
        self._rounding_errors_of_step: dict[str, torch.Tensor] = {}  # filled by committed()

    def launch(self, slot: Slot) -> None:
        """Starts the allreduce of a gradient plus its layer's velocity and residual."""
        self._local.prepare(slot)
        joins = slot.name in self.residuals
        work = slot.take(self._sent_as(slot), copy=joins or bool(self.velocities))
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
        """Waits for all launched gradients; the results are then in their slots' `work`.

        Args:
            alone: True if the whole step is dense. Unless a residual or a velocity may be part of
                it on any rank, nothing then depends on finite sums, and they are not checked: the
                step is Horovod's own, and takes no longer.

        Returns:
            The reason why the step cannot be applied, the same on all ranks, or None.

        Raises:
            ExchangeFailedError: The exchange has ended.
        """
        refuse = None
        checks = not alone or self.may_have_residuals or bool(self.velocities)
        for slot, handle in self._in_flight:
            wait_for(handle, self._exchange, f"{self._prefix}.{slot.name}")
            assert slot.work is not None
            if checks and refuse is None and not _fits(slot.work, slot.gradient().dtype):
                refuse = f"the sum of the gradients of '{slot.name}' over the ranks is not finite"
        if self._exchange.timeline is not None:
            self._exchange.timeline.dense_done()
        return refuse

    def committed(self) -> None:
        """Commits residuals and velocities; called once the results are in the gradients.

        Allocates no memory, since a committed step must not fail on one rank.
        """
        self.velocities.committed()
        for slot, _ in self._in_flight:
            self.residuals.pop(slot.name, None)
            if slot.name in self._rounding_errors_of_step:
                self.rounding_errors[slot.name] = self._rounding_error_of(slot)
        self.may_have_residuals = False

    def load(
        self,
        residuals: Mapping[str, torch.Tensor],
        rounding_errors: Mapping[str, torch.Tensor],
        *,
        may_have_residuals: bool,
    ) -> None:
        """Replaces all residuals and rounding errors by copies of these.

        All ranks pass the same layers, and only the values differ. If one rank has a residual, all
        have one, even if it is zero: it makes the rank keep its share of the rounding error.
        """
        self.residuals = {name: residual.clone() for name, residual in residuals.items()}
        self.rounding_errors = {name: rest.clone() for name, rest in rounding_errors.items()}
        self.may_have_residuals = may_have_residuals

    def reset(self) -> None:
        """Drops residuals and velocities, perhaps on this rank alone."""
        for residual in self.residuals.values():
            residual.zero_()  # and keeps it: see `load`
        self.rounding_errors.clear()
        self.velocities.load({})

    def release(self) -> None:
        """Prepares for the next step."""
        self._in_flight.clear()
        self._rounding_errors_of_step.clear()
        self.velocities.release()
        self.bytes = 0

    def _sent_as(self, slot: Slot) -> torch.dtype:
        """Returns the type in which a gradient is sent; the same on all ranks."""
        dtype = slot.gradient().dtype
        joins = self.may_have_residuals and may_be_sparse(slot.param, self._compression)
        if joins or self.velocities or dtype == torch.bfloat16:  # which Horovod does not know
            return torch.promote_types(dtype, torch.float32)
        return dtype

    def _join(self, slot: Slot, work: torch.Tensor) -> None:
        (decay,) = self._rates.decays([slot])
        residual = self.residuals[slot.name]
        if decay != 1:  # even if the step is refused: the new rate has been noted
            residual.mul_(decay)
        work.add_(residual.to(work.dtype), alpha=self._loss_scale.value / self._scale)
        if work.dtype != slot.gradient().dtype:
            self._rounding_errors_of_step[slot.name] = torch.empty_like(work)

    def _rounding_error_of(self, slot: Slot) -> torch.Tensor:
        """Returns this rank's share of the rounding error of a result in a narrow gradient."""
        result, rest = slot.result(), self._rounding_errors_of_step[slot.name]
        rest.view(result.shape).copy_(slot.gradient())
        torch.sub(result.view(-1), rest, out=rest)
        return rest.mul_(self._share / self._loss_scale.value)


def _fits(work: torch.Tensor, dtype: torch.dtype) -> bool:
    """Returns true if a result is finite in the type of its gradient, which may be narrower.

    Allocates only scalars: other ranks may have committed the step already, so it must not fail.
    """
    return bool(torch.stack(work.aminmax()).to(dtype).isfinite().all())
