"""Adds a bucket of a plan, or of a single tensor, to an exchange."""

from __future__ import annotations

from hvd_sparse.compression import Compression
from hvd_sparse.compression.buckets import Bucket, Layer
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.planning import plan
from hvd_sparse.planning.routes import CALLS


def add_planned_bucket(
    exchange: Exchange,
    layout: Bucket,
    choice: plan.BucketChoice,
    compression: Compression,
    device: str = "cpu",
) -> int:
    """Adds a bucket; in the same order on every rank.

    Args:
        exchange: The exchange that gets the bucket.
        layout: Names and sizes of the bucket's layers.
        choice: Densities, collective, wire format, type of values, and route.
        compression: The user's compression, for all other options.
        device: Device of the gradients.

    Returns:
        The bucket's number in the exchange.

    Raises:
        InvalidArgumentError: See `Exchange.add_bucket`.
    """
    return exchange.add_bucket(
        layout.name,
        numels=[layer.numel for layer in layout.layers],
        segments=layout.segments,
        max_ks=plan.largest_ks(layout, choice.densities, compression.warmup),
        sparsifier=as_sparsifier(compression.sparsifier),
        collective=choice.collective,
        collective_options=compression.collective_options,
        indices=choice.wire,
        values=choice.values,
        device=device,
        nodes_first=choice.nodes_first,
        by_devices=choice.route != CALLS,
    )


def add_tensor_bucket(
    exchange: Exchange, label: str, numel: int, compression: Compression, device: str = "cpu"
) -> int:
    """Adds the bucket of a single tensor; in the same order on every rank.

    Each of its exchanges sends the compression's own density: they count no steps, so a warm-up
    would have no end, and does not apply.

    Args:
        exchange: The exchange that gets the bucket.
        label: Name of the tensor, for errors.
        numel: Number of the tensor's elements.
        compression: The user's compression.
        device: Device of the tensor.

    Returns:
        The bucket's number in the exchange; all of its exchanges send as much as they may.
    """
    settled = compression.settled()
    layout = Bucket((Layer(label, numel),), layer_wise=False)
    (choice,) = plan.fixed_choices(layout.layers, settled)
    return add_planned_bucket(exchange, layout, choice, settled, device)
