"""Pieces: the gradients that one op hands over. A graph's ops are fixed when traced; plans are not.

If the plan never changes, a piece is a bucket. If it may change, a piece is a layer, and the core
joins the pieces of a bucket.
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
class Piece:
    """Gradients that are handed over together.

    Attributes:
        layers: Their layers, in the order in which they are sent.
        numel: Elements of all layers.
        segments: Number of units of selection.
    """

    layers: tuple[Layer, ...]
    numel: int
    segments: int

    @classmethod
    def of(cls, layers: Iterable[Layer], compression: Compression) -> Piece:
        """Returns the piece of some layers."""
        layout = Bucket(tuple(layers), compression.layer_wise)
        return cls(layout.layers, layout.numel, len(layout.segments))


def pieces_of(layers: Sequence[Layer], compression: Compression) -> list[Piece]:
    """Returns the pieces of a model's layers, in the order in which they are sent."""
    if compression.adaptive:
        return [Piece.of([layer], compression) for layer in layers]
    numels = {layer.name: layer.numel for layer in layers}
    return [
        Piece.of((Layer(name, numels[name]) for name in choice.layers), compression)
        for choice in plan.fixed_choices(layers, compression)
    ]


def drive_choices(
    choices: Sequence[plan.BucketChoice],
    pieces: Sequence[Piece],
    *,
    moved: int,
    exchange: Exchange,
    compression: Compression,
    reduction: Reduction,
    size: int,
    device: str,
) -> list[_core.DrivenBucket]:
    """Adds the sparse buckets of a plan to an exchange that has no buckets.

    Args:
        choices: The plan's buckets, of all layers in the order of the pieces; if there are none,
            all pieces pass.
        pieces: The pieces, none of which spans two buckets.
        moved: Number of pieces after those that always pass, and exist only for their velocities.
        exchange: The exchange to which the buckets are added.
        compression: The user's compression.
        reduction: The reduction of gradients over the ranks.
        size: Number of ranks.
        device: The core's name of the gradients' device.

    Returns:
        All buckets of the plan, and one of the `moved` pieces, for a driver.
    """
    always = [_passing(moved, reduction)] if moved else []
    if not choices:
        return [*([_passing(len(pieces), reduction)] if pieces else []), *always]
    layers = {layer.name: layer for piece in pieces for layer in piece.layers}
    piece_of = {layer.name: number for number, piece in enumerate(pieces) for layer in piece.layers}
    scale, output_scale = reduction.scales(size)
    buckets = []
    for choice in choices:
        count = len({piece_of[name] for name in choice.layers})
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
                pieces=count,
            )
        )
    return [*buckets, *always]


def _passing(pieces: int, reduction: Reduction) -> _core.DrivenBucket:
    scale, output_scale = reduction.scales(1)
    return _core.DrivenBucket(
        _core.DrivenBucket.PASSES, scale=scale, output_scale=output_scale, ks=[], pieces=pieces
    )
