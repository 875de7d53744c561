"""A bucket in torch: gradients, the residual that belongs to them, and how they are exchanged."""

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
    """Gradients that travel together, with the memory of what was not sent.

    Args:
        choice: What the plan says of this bucket.
        slots: The gradients, in the order of the plan; all of one device.
        compression: What the user asked for.
        exchange: Gets the bucket.

    Attributes:
        layout: Names and sizes.
        slots: The gradients, in the order of the layout.
        residual: float32, flat, as long as the bucket, on its device: what this rank has yet to
            send.
        velocity: Like the residual, where momentum is corrected; else None.
        states: float32, [units of selection, 4]: what the sparsifier remembers of each.
        missing: Gradients that have not arrived in this step.
        launched: Whether the bucket is being exchanged.
        ks: Entries asked for in this step, by unit of selection.
        accumulated: float32, flat: residual and gradients before selection, in a step in which
            that is measured.
        shares_residual: Whether the ranks of a node share what they have yet to send.
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
        self._handle: int | None = None

    def arrived(self) -> None:
        """One of the gradients is there, for what the current stream is given next."""
        self.missing -= 1
        self._arrivals.note()

    def note_ready(self) -> None:
        """Tells the timeline that all gradients are there."""
        if self._exchange.timeline is not None:
            self._exchange.timeline.ready(self._bucket)

    def gather(self) -> None:
        """What the current stream is given next finds all gradients that have arrived."""
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

        On a device, after what the current stream has been given: call `gather` first. The memory
        is held here until `wait`, after which that stream follows, so torch's allocator need not
        know of others.

        Args:
            step: Steps before this one, for the warm-up.
            decays: Of the residual, per gradient.
            scale: Of the gradients on their way into the residual.
            output_scale: Of the sum on its way into the gradients.
            measured: Whether to keep what was accumulated.
        """
        self.ks = plan.ks_at(self.layout, self._densities, self._warmup, step)
        self._output_scale = output_scale
        gradients = [slot.take() for slot in self.slots]
        self.accumulated = self._accumulate(gradients, decays, scale) if measured else None
        self._handle = self._exchange.start(
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
        """Waits until the gradients hold the result, for what the current stream is given next."""
        assert self._handle is not None
        return self._exchange.wait(self._handle, stream=current_stream(self._device))

    def release(self) -> None:
        """Makes ready for the next step."""
        self.missing = len(self.slots)
        self.launched = False
        self.accumulated = None
        self._handle = None

    def residuals(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By layer, the part of the residual that belongs to it."""
        return self._by_layer(self.residual)

    def velocities(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By layer, the part of the velocity that belongs to it, where there is one."""
        return iter(()) if self.velocity is None else self._by_layer(self.velocity)

    def memories(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By unit of selection, what the sparsifier remembers."""
        yield from zip(self.layout.units, self.states, strict=True)

    def applied(self) -> torch.Tensor:
        """The sum over the ranks that the gradients hold after `wait`; float32, flat."""
        return self._flat([slot.result() for slot in self.slots]) / self._output_scale

    def _accumulate(
        self, gradients: Sequence[torch.Tensor], decays: Sequence[float], scale: float
    ) -> torch.Tensor:
        """What the core is going to select from: the same in torch, in memory of its own."""
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
        memories: Mapping[str, torch.Tensor],
        velocities: Mapping[str, torch.Tensor],
    ) -> None:
        """Takes up what was saved; where there is nothing, it is empty."""
        _load(self.residuals(), residuals)
        _load(self.memories(), memories)
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
    """A residual; every step reads and writes all of it, which is faster in huge pages."""
    if device.type != "cpu":
        return torch.zeros(numel, dtype=torch.float32, device=device)
    memory = torch.empty(numel, dtype=torch.float32, device=device)
    _core.prefer_huge_pages(buffer_of(memory))
    return memory.zero_()
