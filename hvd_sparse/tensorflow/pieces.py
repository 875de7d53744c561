"""Pieces: what one op hands over. The ops of a graph are fixed when it is traced; plans are not.

Where the plan never changes, a piece is a bucket. Where it may, a piece is a layer, and the core
puts together those that travel together.
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
        layers: Theirs, in the order in which they travel.
        numel: Elements of all.
        segments: How many units of selection they are.
    """

    layers: tuple[Layer, ...]
    numel: int
    segments: int

    @classmethod
    def of(cls, layers: Iterable[Layer], compression: Compression) -> Piece:
        """The piece of some layers."""
        layout = Bucket(tuple(layers), compression.layer_wise)
        return cls(layout.layers, layout.numel, len(layout.segments))


def pieces_of(layers: Sequence[Layer], compression: Compression) -> list[Piece]:
    """The pieces of a model's layers, in the order in which they travel."""
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
    """Gives an exchange, which has no buckets, those of a plan.

    Args:
        choices: The plan's buckets, of all layers in the order of the pieces; none: all pass.
        pieces: Each of layers of one bucket.
        moved: Pieces behind them that always pass, for the sake of their velocities.
        exchange: Gets the buckets.
        compression: What the user asked for.
        reduction: What gradients become.
        size: Number of ranks.
        device: Of the gradients, as the core knows it.

    Returns:
        The same for a driver.
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
