"""Buckets: the layers that are sent in one message, and their units of selection."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hvd_sparse.compression.parts import MAX_BUCKET_NUMEL
from hvd_sparse.errors import UnsupportedError


@dataclass(frozen=True)
class Layer:
    """A parameter, or a slice of one, by name and size.

    Attributes:
        name: Name of the parameter; a slice adds its range, as in "weight[0:4000000]".
        numel: Number of entries.
        slice_of: Name of the parameter, if this is a slice of it.
        begin: First entry of a slice in the flattened parameter.
    """

    name: str
    numel: int
    slice_of: str | None = None
    begin: int = 0

    @property
    def parameter(self) -> str:
        """Name of the parameter."""
        return self.slice_of or self.name

    def slices(self, largest: int) -> tuple[Layer, ...]:
        """Returns slices of about the same size, of `largest` entries at most, or the layer."""
        count = -(-self.numel // largest)
        if count <= 1:
            return (self,)
        bounds = [self.numel * i // count for i in range(count + 1)]
        return tuple(
            Layer(f"{self.name}[{begin}:{end}]", end - begin, self.name, begin)
            for begin, end in itertools.pairwise(bounds)
        )


@dataclass(frozen=True)
class Bucket:
    """Layers that are sent together.

    Attributes:
        layers: The layers, in the order in which they lie in the bucket.
        layer_wise: True if each layer is a unit of selection; otherwise the whole bucket is one.
    """

    layers: tuple[Layer, ...]
    layer_wise: bool

    @property
    def name(self) -> str:
        """The bucket's name in messages: its first layer, and how many follow."""
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
    """Raises UnsupportedError if a layer has more entries than a block can index."""
    if layer.numel > MAX_BUCKET_NUMEL:
        raise UnsupportedError(
            f"'{layer.name}' has {layer.numel} elements; a sparse exchange takes at most "
            f"{MAX_BUCKET_NUMEL} per parameter"
        )


def fragments_of(layers: Sequence[Layer], count: int) -> list[list[Layer]]:
    """Returns the layers in fragments of about the same size, in the given order.

    Args:
        layers: The layers. All slices of a parameter belong to one fragment.
        count: Number of fragments; fewer are returned if a layer is larger than one.
    """
    numel_of: dict[str, int] = {}
    for layer in layers:
        numel_of[layer.parameter] = numel_of.get(layer.parameter, 0) + layer.numel
    total, before = max(1, sum(numel_of.values())), 0
    fragment_of = {}
    for name, numel in numel_of.items():  # by the middle of a parameter
        fragment_of[name] = min((2 * before + numel) * count // (2 * total), count - 1)
        before += numel
    groups = itertools.groupby(layers, lambda layer: fragment_of[layer.parameter])
    return [list(group) for _, group in groups]


def assign_buckets(
    layers: Iterable[Layer], *, bucket_numel: int, layer_wise: bool
) -> tuple[Bucket, ...]:
    """Merges layers, in the given order, into buckets.

    Args:
        layers: Layers in the order in which their gradients become ready. A slice is a bucket of
            its own.
        bucket_numel: Limit of a bucket's entries; a single larger layer is a bucket of its own.
            Ignored for `layer_wise=False`: a bucket then takes up to 2^31 - 1 entries.
        layer_wise: True if each layer is a unit of selection.

    Raises:
        UnsupportedError: A layer has more than 2^31 - 1 entries.
    """
    limit = bucket_numel if layer_wise else MAX_BUCKET_NUMEL
    merged: list[list[Layer]] = []
    filled = 0
    for layer in layers:
        check_size(layer)
        alone = layer.slice_of or (merged and merged[-1][-1].slice_of)
        if not merged or alone or filled + layer.numel > limit:
            merged.append([])
            filled = 0
        merged[-1].append(layer)
        filled += layer.numel
    return tuple(Bucket(tuple(group), layer_wise) for group in merged)
