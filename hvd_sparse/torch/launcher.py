"""Launches buckets, one after the other, as soon as their gradients have arrived."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hvd_sparse.exchange.bucket_stats import BucketStats
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.launch_order import LaunchOrder
from hvd_sparse.planning.plan import BucketChoice
from hvd_sparse.torch.learning_rates import LearningRates
from hvd_sparse.torch.local_gradient import LocalGradient
from hvd_sparse.torch.loss_scale import LossScale
from hvd_sparse.torch.settings import Settings
from hvd_sparse.torch.slots import Slot
from hvd_sparse.torch.sparse_bucket import SparseBucket


class Launcher:
    """The sparse buckets of one optimizer; none until `replace_buckets`.

    Args:
        settings: The user's settings.
        size: Number of ranks.
        exchange: The exchange of the buckets.
        rates: Learning rates, which determine the decay of residuals.
        loss_scale: Loss scale of the gradients.
        local: Clipping and weight decay, applied to each gradient first.
        broadcast: Broadcasts the launch order; see LaunchOrder.

    Attributes:
        buckets: The buckets with their residuals.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        size: int,
        exchange: Exchange,
        rates: LearningRates,
        loss_scale: LossScale,
        local: LocalGradient,
        broadcast: Callable[[list[int]], Callable[[], list[int]]],
    ) -> None:
        self.buckets: list[SparseBucket] = []
        self._compression = settings.compression
        self._exchange = exchange
        self._rates = rates
        self._loss_scale = loss_scale
        self._local = local
        self._broadcast = broadcast
        self._scale, self._output_scale = settings.reduction.scales(size)
        self._quality_every = settings.compression.quality_every
        self._number_of: dict[str, int] = {}
        self._order = LaunchOrder(0, broadcast)
        self._launched = 0

    def __contains__(self, slot: Slot) -> bool:
        return slot.name in self._number_of

    def replace_buckets(self, choices: Sequence[BucketChoice], slots: Mapping[str, Slot]) -> None:
        """Replaces all buckets, between two steps, on all ranks alike. The residuals are empty.

        Args:
            choices: The new buckets, in the order in which their gradients are expected.
            slots: Slots by name.
        """
        self._order.close()
        self._exchange.clear_buckets()
        self.buckets = [
            SparseBucket(
                choice, [slots[name] for name in choice.layers], self._compression, self._exchange
            )
            for choice in choices
        ]
        self._number_of = {
            slot.name: number for number, bucket in enumerate(self.buckets) for slot in bucket.slots
        }
        self._order = LaunchOrder(len(self.buckets), self._broadcast)
        self._launched = 0

    def ready(self, slot: Slot, *, step: int) -> None:
        """Counts a gradient that has arrived; launches the buckets that are due."""
        number = self._number_of[slot.name]
        bucket = self.buckets[number]
        bucket.arrived()
        if bucket.missing == 0:
            bucket.note_ready()
            self._order.became_ready(number)
            self._launch(step, force=False)

    def launch_rest(self, *, step: int) -> None:
        """Launches all remaining buckets; missing gradients count as zero."""
        self._launch(step, force=True)

    def wait(self) -> tuple[BucketStats, ...]:
        """Waits until the gradients of all buckets hold the result."""
        return tuple(bucket.wait() for bucket in self.buckets)

    def end_step(self) -> None:
        """Counts an exchanged step."""
        self._order.end_step()

    def release(self) -> None:
        """Prepares for the next step."""
        for bucket in self.buckets:
            bucket.release()
        self._order.release()
        self._launched = 0

    def _launch(self, step: int, *, force: bool) -> None:
        while self._launched < len(self._order):
            bucket = self.buckets[self._order[self._launched]]
            if bucket.missing and not force:
                return
            bucket.gather()
            for slot in bucket.slots:
                self._local.prepare(slot)
            bucket.launch(
                step=step,
                decays=self._rates.decays(bucket.slots),
                scale=self._scale / self._loss_scale.value,
                output_scale=self._output_scale * self._loss_scale.value,
                measured=self._quality_every is not None and step % self._quality_every == 0,
            )
            self._launched += 1
