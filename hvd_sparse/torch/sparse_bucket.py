"""A bucket in torch: gradients, their residual, and their exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from hvd_sparse import _core
from hvd_sparse.buckets import Bucket, Layer
from hvd_sparse.compression import Compression
from hvd_sparse.exchange.bucket_stats import BucketStats
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.planned_bucket import add_planned_bucket
from hvd_sparse.planning import plan
from hvd_sparse.torch.devices import Arrivals, current_stream
from hvd_sparse.torch.slots import Slot, buffer_of


class SparseBucket:
    """Gradients that are exchanged together, with their residual.

    Args:
        choice: The bucket's part of the plan.
        slots: The gradients, in the order of the plan; all on one device.
        compression: The user's compression.
        exchange: The exchange to which the bucket is added.

    Attributes:
        layout: Names and sizes of the layers.
        slots: The gradients, in the order of the layout.
        residual: The values that this rank has yet to send: float32, flat, as long as the bucket,
            on its device.
        velocity: The velocity, shaped like the residual; None unless momentum is corrected.
        states: The sparsifier's state of each unit of selection: float32, [units, 4].
        missing: Number of gradients that have not arrived in this step.
        launched: True while the bucket is being exchanged.
        ks: Entries to select in this step, by unit of selection.
        accumulated: Residual and gradients before selection: float32, flat; None unless the step
            is measured.
        shares_residual: True if the ranks of a node share the residual.
    """

    def __init__(
        self,
        choice: plan.BucketChoice,
        slots: Sequence[Slot],
        compression: Compression,
        exchange: Exchange,
    ) -> None:
        layers = tuple(Layer(slot.name, slot.param.numel()) for slot in slots)
        self.layout = Bucket(layers, compression.layer_wise)
        self.slots = tuple(slots)
        self._device = self.slots[0].param.device
        self._arrivals = Arrivals.on(self._device)
        self.residual = _zeros(self.layout.numel, self._device)
        self._momentum = compression.momentum_correction
        self.velocity = _zeros(self.layout.numel, self._device) if self._momentum else None
        self.states = torch.zeros(len(self.layout.segments), 4, dtype=torch.float32, device="cpu")
        self.missing = len(self.slots)
        self.launched = False
        self.ks: list[int] = []
        self.accumulated: torch.Tensor | None = None
        self.shares_residual = choice.shares_residual
        self._output_scale = 1.0
        self._densities = choice.densities
        self._warmup = compression.warmup
        self._exchange = exchange
        self._bucket = add_planned_bucket(
            exchange, self.layout, choice, compression, str(self._device)
        )

    def arrived(self) -> None:
        """Counts a gradient, which is ready after the work queued on the current stream."""
        self.missing -= 1
        self._arrivals.note()

    def note_ready(self) -> None:
        """Tells the timeline that all gradients have arrived."""
        if self._exchange.timeline is not None:
            self._exchange.timeline.ready(self._bucket)

    def gather(self) -> None:
        """Makes the current stream wait for all gradients that have arrived."""
        self._arrivals.join()

    def launch(
        self,
        *,
        step: int,
        decays: Sequence[float],
        scale: float,
        output_scale: float,
        measured: bool = False,
    ) -> None:
        """Accumulates, selects and starts the exchange; does not wait for other ranks.

        On a device this happens after the work queued on the current stream: call `gather` first.
        The memory is kept alive until `wait`, which makes that stream wait for the exchange, so
        torch's allocator need not know of other streams.

        Args:
            step: Number of steps before this one, for the warm-up.
            decays: Factors of the residual, one for each gradient.
            scale: Factor of the gradients when they are added to the residual.
            output_scale: Factor of the sum when it is written to the gradients.
            measured: True to keep the accumulated values.
        """
        self.ks = plan.ks_at(self.layout, self._densities, self._warmup, step)
        self._output_scale = output_scale
        gradients = [slot.take() for slot in self.slots]
        self.accumulated = self._accumulate(gradients, decays, scale) if measured else None
        self._exchange.start(
            self._bucket,
            [buffer_of(gradient) for gradient in gradients],
            residual=buffer_of(self.residual),
            states=buffer_of(self.states),
            ks=self.ks,
            decays=decays,
            scale=scale,
            output_scale=output_scale,
            stream=current_stream(self._device),
            velocity=None if self.velocity is None else buffer_of(self.velocity),
            momentum=self._momentum,
        )
        self.launched = True

    def wait(self) -> BucketStats:
        """Waits until the gradients hold the result for later work on the current stream."""
        assert self.launched
        return self._exchange.wait(self._bucket, stream=current_stream(self._device))

    def release(self) -> None:
        """Prepares for the next step."""
        self.missing = len(self.slots)
        self.launched = False
        self.accumulated = None

    def residuals(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields each layer with its part of the residual."""
        return self._by_layer(self.residual)

    def velocities(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields each layer with its part of the velocity, if there is one."""
        return iter(()) if self.velocity is None else self._by_layer(self.velocity)

    def sparsifier_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields each unit of selection with the sparsifier's state of it."""
        yield from zip(self.layout.units, self.states, strict=True)

    def applied(self) -> torch.Tensor:
        """Returns the sum over the ranks that the gradients hold after `wait`; float32, flat."""
        return self._flat([slot.result() for slot in self.slots]) / self._output_scale

    def _accumulate(
        self, gradients: Sequence[torch.Tensor], decays: Sequence[float], scale: float
    ) -> torch.Tensor:
        """Computes in torch, in new memory, the values that the core will select from."""
        inflow = self._flat(gradients) * scale
        if self.velocity is not None:
            inflow.add_(self.velocity, alpha=self._momentum)
        for decay, (_, residual), part in zip(
            decays, self.residuals(), self._parts(inflow), strict=True
        ):
            part.add_(residual, alpha=decay)
        return inflow

    def load(
        self,
        residuals: Mapping[str, torch.Tensor],
        sparsifier_states: Mapping[str, torch.Tensor],
        velocities: Mapping[str, torch.Tensor],
    ) -> None:
        """Restores saved tensors; parts that were not saved become zero."""
        _load(self.residuals(), residuals)
        _load(self.sparsifier_states(), sparsifier_states)
        _load(self.velocities(), velocities)

    def _by_layer(self, flat: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        for layer, part in zip(self.layout.layers, self._parts(flat), strict=True):
            yield layer.name, part

    def _parts(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(flat, [layer.numel for layer in self.layout.layers])

    @staticmethod
    def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in tensors])


def _load(parts: Iterator[tuple[str, torch.Tensor]], saved: Mapping[str, torch.Tensor]) -> None:
    for name, part in parts:
        if name in saved:
            part.copy_(saved[name])
        else:
            part.zero_()


def _zeros(numel: int, device: torch.device) -> torch.Tensor:
    """Returns an empty residual. Every step touches all of it, which is faster in huge pages."""
    if device.type != "cpu":
        return torch.zeros(numel, dtype=torch.float32, device=device)
    memory = torch.empty(numel, dtype=torch.float32, device=device)
    _core.prefer_huge_pages(buffer_of(memory))
    return memory.zero_()
