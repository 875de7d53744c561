"""The profile: the measured numbers that a plan is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning import records
from hvd_sparse.planning.network import GpuLinks, Link, Network

__all__ = ["GpuLinks", "LayerProfile", "Link", "Machine", "Network", "Profile"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Times of a rank's own work, in seconds.

    Attributes:
        select_seconds_per_entry: Accumulating and selecting, per entry of the gradient. On a device
            it includes the copy of a block of one entry in a thousand to the CPU.
        select_overhead: Starting one bucket, whatever its size.
        merge_seconds_per_entry: Merging two blocks, per entry of both.
        code_seconds_per_entry: Packing an entry of a block and unpacking it; half of it each way.
        scatter_seconds_per_entry: Writing the sum into the gradient, per entry of the gradient.
        exchange_overhead: Handing one bucket to the exchange's thread, and waking its waiter.
        copy_seconds_per_entry: If gradients lie on a device, copying an entry of a block from there
            to the CPU, and back; half of it each way. Else 0.
        take_seconds_per_entry: If gradients lie on a device, error feedback, coding and copying to
            the CPU, per entry of the core's dense sum. Else 0: it takes what selecting takes.
        pass_seconds_per_entry: If gradients lie on a device, accumulating and selecting on the CPU,
            which stands for any pass over an array there. Else 0, likewise.
        write_seconds_per_entry: If gradients lie on a device, copying an entry of a dense sum there
            and writing it. Else 0.
    """

    select_seconds_per_entry: float
    select_overhead: float
    merge_seconds_per_entry: float
    code_seconds_per_entry: float
    scatter_seconds_per_entry: float = 0.0
    exchange_overhead: float = 0.0
    copy_seconds_per_entry: float = 0.0
    take_seconds_per_entry: float = 0.0
    pass_seconds_per_entry: float = 0.0
    write_seconds_per_entry: float = 0.0

    def __post_init__(self) -> None:
        records.check_finite(self)

    @property
    def on_device(self) -> bool:
        """True if gradients lie on a device."""
        return self.copy_seconds_per_entry > 0

    @property
    def knows_dense_sums(self) -> bool:
        """True unless gradients lie on a device whose dense sums were not timed, as once."""
        return not self.on_device or self.write_seconds_per_entry > 0

    def select_seconds(self, numel: int) -> float:
        """Returns the seconds to start a bucket: accumulate, select, hand over."""
        return self.select_overhead + self.select_seconds_per_entry * numel


# A rank with one thread of a server's CPU: docs/performance_kernels.md, "Selection" and "Merging".
ONE_CORE = Machine(
    select_seconds_per_entry=0.55e-9,
    select_overhead=20e-6,
    merge_seconds_per_entry=3.8e-9,
    code_seconds_per_entry=2e-9,
    scatter_seconds_per_entry=0.15e-9,
)


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """The measured numbers of one layer.

    Attributes:
        name: Name of its parameter.
        numel: Entries of its gradient.
        backward: Seconds between the gradient that became ready before this one (for the first:
            the end of forward) and this one.
    """

    name: str
    numel: int
    backward: float

    def __post_init__(self) -> None:
        records.check_finite(self)


@dataclass(frozen=True, kw_only=True)
class Profile(records.Saved):
    """A model, a machine and a network.

    Attributes:
        layers: The layers, in the order in which their gradients become ready: the last one first.
        forward: Seconds of the forward pass, and of all else that comes before backward.
        network: The network between the ranks.
        machine: The machine of each rank.
    """

    KIND: ClassVar[str] = "hvd_sparse profile"
    VERSION: ClassVar[int] = 1

    layers: tuple[LayerProfile, ...]
    forward: float
    network: Network
    machine: Machine

    def __post_init__(self) -> None:
        records.check_finite(self)
        names = [layer.name for layer in self.layers]
        if not names:
            raise InvalidArgumentError("a Profile must have layers, got none")
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InvalidArgumentError(f"names of a Profile's layers must differ; twice: {twice}")

    @property
    def numel(self) -> int:
        """Entries of all layers."""
        return sum(layer.numel for layer in self.layers)

    @property
    def backward(self) -> float:
        """Seconds of the backward pass."""
        return sum(layer.backward for layer in self.layers)

    @property
    def compute(self) -> float:
        """Seconds of a step without any exchange."""
        return self.forward + self.backward

    def glued(self, borders: Sequence[int]) -> Profile:
        """Returns this profile with each group of neighbours as one layer.

        Args:
            borders: The first layer of each group, ascending, then the number of layers.
        """
        groups = [self.layers[a:b] for a, b in pairwise(borders)]
        layers = [
            LayerProfile(
                name=group[0].name,
                numel=sum(layer.numel for layer in group),
                backward=sum(layer.backward for layer in group),
            )
            for group in groups
        ]
        return replace(self, layers=tuple(layers))

    def scaled(self, *, size: int | None = None, network: Network | None = None) -> Profile:
        """Returns the same model with another number of ranks, or on another network."""
        chosen = self.network if network is None else network
        if size is not None and size != chosen.size:
            chosen = chosen.scaled(size)
        return replace(self, network=chosen)
