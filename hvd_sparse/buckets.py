"""Buckets: which layers travel in one message, and in which units their entries are chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hvd_sparse.compression import MAX_BUCKET_NUMEL
from hvd_sparse.errors import UnsupportedError


@dataclass(frozen=True)
class Layer:
    """A parameter, as far as buckets are concerned."""

    name: str
    numel: int


@dataclass(frozen=True)
class Bucket:
    """Layers that travel together.

    Attributes:
        layers: In the order in which they lie in the bucket.
        layer_wise: Whether each layer is a unit of selection, or the whole bucket is one.
    """

    layers: tuple[Layer, ...]
    layer_wise: bool

    @property
    def name(self) -> str:
        """For messages: its first layer, and how many follow."""
        first, more = self.layers[0].name, len(self.layers) - 1
        return f"{first} and {more} more" if more else first

    @property
    def numel(self) -> int:
        """Number of entries."""
        return sum(layer.numel for layer in self.layers)

    @property
    def segments(self) -> tuple[int, ...]:
        """Numbers of entries of the units of selection."""
        return tuple(layer.numel for layer in self.layers) if self.layer_wise else (self.numel,)

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units of selection: the layers, or the whole bucket."""
        return tuple(layer.name for layer in self.layers) if self.layer_wise else (self.name,)


def check_size(layer: Layer) -> None:
    """Raises UnsupportedError for a layer of more entries than a block has indices for."""
    if layer.numel > MAX_BUCKET_NUMEL:
        raise UnsupportedError(
            f"'{layer.name}' has {layer.numel} elements; a sparse exchange takes at most "
            f"{MAX_BUCKET_NUMEL} per parameter"
        )


def assign_buckets(
    layers: Iterable[Layer], *, bucket_numel: int, layer_wise: bool
) -> tuple[Bucket, ...]:
    """Merges layers, in the given order, into buckets.

    Args:
        layers: In the order in which their gradients become ready.
        bucket_numel: The most entries of a bucket, but for a single larger layer. Without meaning
            for `layer_wise=False`: there a bucket takes all that fits, 2^31 - 1 entries.
        layer_wise: Whether each layer is a unit of selection.

    Raises:
        UnsupportedError: A layer has more than 2^31 - 1 entries.
    """
    limit = bucket_numel if layer_wise else MAX_BUCKET_NUMEL
    merged: list[list[Layer]] = []
    filled = 0
    for layer in layers:
        check_size(layer)
        if not merged or filled + layer.numel > limit:
            merged.append([])
            filled = 0
        merged[-1].append(layer)
        filled += layer.numel
    return tuple(Bucket(tuple(group), layer_wise) for group in merged)
