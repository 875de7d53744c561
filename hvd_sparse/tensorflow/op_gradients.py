"""The gradients that one op hands over. A graph's ops are fixed when traced; plans are not.

If the plan never changes, an op hands over a bucket. If it may change, an op hands over one layer,
and the core joins the ops of a bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hvd_sparse import _core
from hvd_sparse.buckets import Bucket, Layer
from hvd_sparse.compression import Compression
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.planned_bucket import add_planned_bucket
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.planning import plan


@dataclass(frozen=True)
class OpGradients:
    """Gradients that one op hands over together.

    Attributes:
        layers: Their layers, in the order in which they are sent.
        numel: Elements of all layers.
        segments: Number of units of selection.
    """

    layers: tuple[Layer, ...]
    numel: int
    segments: int

    @classmethod
    def of(cls, layers: Iterable[Layer], compression: Compression) -> OpGradients:
        """Returns the gradients of some layers."""
        layout = Bucket(tuple(layers), compression.layer_wise)
        return cls(layout.layers, layout.numel, len(layout.segments))


def op_gradients_of(layers: Sequence[Layer], compression: Compression) -> list[OpGradients]:
    """Returns the gradients of each op for a model's layers, in the order of sending."""
    if compression.adaptive:
        return [OpGradients.of([layer], compression) for layer in layers]
    numels = {layer.name: layer.numel for layer in layers}
    return [
        OpGradients.of((Layer(name, numels[name]) for name in choice.layers), compression)
        for choice in plan.fixed_choices(layers, compression)
    ]


def drive_choices(
    choices: Sequence[plan.BucketChoice],
    op_gradients: Sequence[OpGradients],
    *,
    with_velocity_only: int,
    exchange: Exchange,
    compression: Compression,
    reduction: Reduction,
    size: int,
    device: str,
) -> list[_core.DrivenBucket]:
    """Adds the sparse buckets of a plan to an exchange that has no buckets.

    Args:
        choices: The plan's buckets, of all layers in the order of the ops; if there are none, all
            ops pass.
        op_gradients: The gradients of each op, none of which spans two buckets.
        with_velocity_only: Number of ops after those that always pass, and exist only for their
            velocities.
        exchange: The exchange to which the buckets are added.
        compression: The user's compression.
        reduction: The reduction of gradients over the ranks.
        size: Number of ranks.
        device: The core's name of the gradients' device.

    Returns:
        All buckets of the plan, and one of the `with_velocity_only` ops, for a driver.
    """
    always = [_passing(with_velocity_only, reduction)] if with_velocity_only else []
    if not choices:
        return [*([_passing(len(op_gradients), reduction)] if op_gradients else []), *always]
    layers = {layer.name: layer for op in op_gradients for layer in op.layers}
    op_of = {layer.name: number for number, op in enumerate(op_gradients) for layer in op.layers}
    scale, output_scale = reduction.scales(size)
    buckets = []
    for choice in choices:
        count = len({op_of[name] for name in choice.layers})
        if choice.dense:
            buckets.append(_passing(count, reduction))
            continue
        layout = Bucket(tuple(layers[name] for name in choice.layers), compression.layer_wise)
        buckets.append(
            _core.DrivenBucket(
                add_planned_bucket(exchange, layout, choice, compression, device),
                scale=scale,
                output_scale=output_scale,
                ks=plan.ks_by_step(layout, choice.densities, compression.warmup),
                ops=count,
            )
        )
    return [*buckets, *always]


def _passing(ops: int, reduction: Reduction) -> _core.DrivenBucket:
    scale, output_scale = reduction.scales(1)
    return _core.DrivenBucket(
        _core.DrivenBucket.DENSE, scale=scale, output_scale=output_scale, ks=[], ops=ops
    )
