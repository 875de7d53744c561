"""The ops of a step, the buckets that they form, and the order in which buckets start.

An op is a group of gradients that are handed to the core together. If the plan never changes,
an op is a bucket. If it may change, an op is one layer, and the core joins the ops of a bucket: a
TensorFlow graph's ops are fixed when traced, and residuals, which lie in the order of the ops, stay
where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hvd_sparse import _core
from hvd_sparse.compression import Compression
from hvd_sparse.compression.buckets import Bucket, Layer, check_size
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.launch_order import LaunchOrder
from hvd_sparse.exchange.planned_bucket import add_planned_bucket
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.planning import plan


@dataclass(frozen=True)
class OpGradients:
    """Gradients that one op hands over together.

    Attributes:
        layers: Their layers, in the order in which they are sent.
        numel: Elements of all layers.
        units: Names of the units of selection.
    """

    layers: tuple[Layer, ...]
    numel: int
    units: tuple[str, ...]

    @classmethod
    def of(cls, layers: Iterable[Layer], compression: Compression) -> OpGradients:
        """Returns the gradients of some layers."""
        layout = Bucket(tuple(layers), compression.layers.layer_wise)
        return cls(layout.layers, layout.numel, layout.units)

    @property
    def size(self) -> tuple[int, int]:
        """Elements, and units of selection."""
        return self.numel, len(self.units)


def op_gradients_of(layers: Sequence[Layer], compression: Compression) -> list[OpGradients]:
    """Returns the gradients of each op for a model's layers, in the order of sending.

    Raises:
        UnsupportedError: A layer has more than 2^31 - 1 entries.
    """
    for layer in layers:
        check_size(layer)
    if compression.adaptive:
        return [OpGradients.of([layer], compression) for layer in layers]
    by_name = {layer.name: layer for layer in layers}
    return [
        OpGradients.of((by_name[name] for name in choice.layers), compression)
        for choice in plan.fixed_choices(layers, compression)
    ]


class StepBuckets:
    """The buckets of an exchange: which ops form them, and the order in which they start.

    Until `adopt`, all ops are sent dense.

    Args:
        exchange: The exchange, which has no other buckets.
        ops: The ops whose gradients can be sent sparse.
        dense: Gradients that are always sent dense, and have a velocity: an op each, after `ops`.
        compression: The user's compression.
        reduction: The reduction of gradients over the ranks.
        size: Number of ranks.
        device: The core's name of the gradients' device.
        broadcast_order: Sends rank 0's order to all ranks; see LaunchOrder.

    Attributes:
        choices: The plan's buckets, of all layers in the order of the ops; none while all ops are
            sent dense.
        op_sizes: Elements and units of selection of each op.
        several: True if more than one bucket is exchanged, so that their order matters.
    """

    def __init__(
        self,
        exchange: Exchange,
        ops: Sequence[OpGradients],
        *,
        dense: Sequence[Layer],
        compression: Compression,
        reduction: Reduction,
        size: int,
        device: str,
        broadcast_order: Callable[[list[int]], Callable[[], list[int]]],
    ) -> None:
        self.choices: tuple[plan.BucketChoice, ...] = ()
        self.several = False
        self.op_sizes = [op.size for op in ops] + [(layer.numel, 0) for layer in dense]
        self._exchange = exchange
        self._layers = {layer.name: layer for op in ops for layer in op.layers}
        self._op_of = {layer.name: i for i, op in enumerate(ops) for layer in op.layers}
        self._ops, self._dense_ops = len(ops), len(dense)
        # A tuner's plans have the densities of a warm-up.
        self._compression = compression.settled() if compression.adaptive else compression
        self._reduction = reduction
        self._size = size
        self._device = device
        self._broadcast_order = broadcast_order
        self._op_counts: list[int] = []  # of each bucket, if their order matters
        self._order = LaunchOrder((), broadcast_order)

    def adopt(self, choices: Sequence[plan.BucketChoice]) -> list[_core.DrivenBucket]:
        """Replaces the buckets; between two steps, on all ranks alike.

        Args:
            choices: The new value of the attribute. No op spans two of them.

        Returns:
            The buckets for the core's step engine: those of `choices`, then one of `dense`.
        """
        self._order.close()
        self._exchange.clear_buckets()
        self.choices = tuple(choices)
        buckets = [self._driven(number) for number in range(len(choices))]
        if not choices and self._ops:
            buckets = [self._sent_dense(self._ops)]
        if self._dense_ops:
            buckets.append(self._sent_dense(self._dense_ops))
        self.several = sum(not choice.dense for choice in choices) > 1
        self._op_counts = [bucket.ops for bucket in buckets] if self.several else []
        self._order = LaunchOrder(self._op_counts, self._broadcast_order)
        return buckets

    def end_step(
        self,
        came: Sequence[float],
        *,
        used: Sequence[int] = (),
        stats: Sequence[_core.BucketStats] = (),
    ) -> list[int] | None:
        """Counts a step; returns a new order of the buckets, if any. See LaunchOrder.

        Args:
            came: Time at which each op was handed over, in seconds from the first one.
            used: Ops in the order in which the next forward pass waited for them, if it did.
            stats: Statistics of the buckets that are exchanged.
        """
        if not used:
            return self._order.end_step(came)
        bucket_of = [number for number, ops in enumerate(self._op_counts) for _ in range(ops)]
        exchanged = iter(stats)
        seconds = [
            0.0 if choice.dense else next(exchanged).exchange_seconds for choice in self.choices
        ]
        seconds += [0.0] * (len(self._op_counts) - len(seconds))  # the host sums what is left
        uses = list(dict.fromkeys(bucket_of[op] for op in used))
        return self._order.end_step(came, uses=uses, seconds=seconds)

    def layout(self, number: int) -> Bucket:
        """Returns names and sizes of the layers of one of `choices`."""
        layers = tuple(self._layers[name] for name in self.choices[number].layers)
        return Bucket(layers, self._compression.layers.layer_wise)

    def _driven(self, number: int) -> _core.DrivenBucket:
        choice = self.choices[number]
        ops = len({self._op_of[name] for name in choice.layers})
        if choice.dense:
            return self._sent_dense(ops)
        layout, compression = self.layout(number), self._compression
        scale, output_scale = self._reduction.scales(self._size)
        return _core.DrivenBucket(
            add_planned_bucket(self._exchange, layout, choice, compression, self._device),
            scale=scale,
            output_scale=output_scale,
            ks=plan.ks_by_step(layout, choice.densities, compression.warmup),
            ops=ops,
        )

    def _sent_dense(self, ops: int) -> _core.DrivenBucket:
        scale, output_scale = self._reduction.scales(1)
        return _core.DrivenBucket(
            _core.DrivenBucket.DENSE, scale=scale, output_scale=output_scale, ks=[], ops=ops
        )
