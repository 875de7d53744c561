"""A bucket in torch: gradients, the residual that belongs to them, and how they are exchanged."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_sparse import _core, plan
from hvd_sparse.buckets import Bucket
from hvd_sparse.compression import Compression
from hvd_sparse.exchange import BucketStats, Exchange
from hvd_sparse.sparsifiers import as_sparsifier
from hvd_sparse.torch.slots import Slot, buffer_of


class SparseBucket:
    """Gradients that travel together, with the memory of what was not sent.

    Attributes:
        layout: Names and sizes.
        slots: The gradients, in the order of the layout.
        residual: float32, flat, as long as the bucket: what this rank has yet to send.
        states: float32, [units of selection, 4]: what the sparsifier remembers of each.
        missing: Gradients that have not arrived in this step.
        launched: Whether the bucket is being exchanged.
    """

    def __init__(
        self, layout: Bucket, slots: Sequence[Slot], compression: Compression, exchange: Exchange
    ) -> None:
        self.layout = layout
        self.slots = tuple(slots)
        self.residual = _zeros(layout.numel)
        self.states = torch.zeros(len(layout.segments), 4, dtype=torch.float32)
        self.missing = len(self.slots)
        self.launched = False
        self._compression = compression
        self._exchange = exchange
        self._bucket = exchange.add_bucket(
            layout.name,
            numels=[layer.numel for layer in layout.layers],
            segments=layout.segments,
            capacity_ks=plan.largest_ks(layout, compression),
            sparsifier=as_sparsifier(compression.sparsifier),
            collective=compression.collective,
        )
        self._handle: int | None = None

    def launch(
        self, *, step: int, decays: Sequence[float], scale: float, output_scale: float
    ) -> None:
        """Accumulates, selects and starts the exchange; does not wait for other ranks.

        Args:
            step: Steps before this one, for the density.
            decays: Of the residual, per gradient.
            scale: Of the gradients on their way into the residual.
            output_scale: Of the sum on its way into the gradients.
        """
        self._handle = self._exchange.start(
            self._bucket,
            [buffer_of(slot.take()) for slot in self.slots],
            residual=buffer_of(self.residual),
            states=buffer_of(self.states),
            ks=plan.ks_at(self.layout, self._compression, step),
            decays=decays,
            scale=scale,
            output_scale=output_scale,
        )
        self.launched = True

    def wait(self) -> BucketStats:
        """Waits until the gradients hold the result."""
        assert self._handle is not None
        return self._exchange.wait(self._handle)

    def release(self) -> None:
        """Makes ready for the next step."""
        self.missing = len(self.slots)
        self.launched = False
        self._handle = None

    def reset(self) -> None:
        """Forgets what was not sent."""
        self.residual.zero_()
        self.states.zero_()


def _zeros(numel: int) -> torch.Tensor:
    """A residual; every step reads and writes all of it, which is faster in huge pages."""
    memory = torch.empty(numel, dtype=torch.float32)
    _core.prefer_huge_pages(buffer_of(memory))
    return memory.zero_()
