"""The network, as measured or assumed: the times of a message and of a dense allreduce.

Ranks are connected through their CPUs, and possibly through their devices, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning import records


@dataclass(frozen=True, kw_only=True)
class Link:
    """A straight line: seconds = alpha + beta * bytes.

    Attributes:
        alpha: Seconds per message.
        beta: Seconds per byte.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        records.check_finite(self)

    def seconds(self, nbytes: float) -> float:
        """Returns the seconds that `nbytes` bytes take."""
        return self.alpha + self.beta * nbytes

    def times(self, alpha: float, beta: float) -> Link:
        """Returns the line whose numbers are these multiples of its own."""
        return Link(alpha=alpha * self.alpha, beta=beta * self.beta)


# The work of a message beside its time on the way, where it was not measured.
MESSAGE_SECONDS = 50e-6
# The link between ranks of a node where none was measured: TCP through its memory.
MEMORY = Link(alpha=5e-6, beta=1 / 5e9)

Links: TypeAlias = tuple[tuple[int, Link], ...]


@dataclass(frozen=True, kw_only=True)
class GpuLinks:
    """The links between the ranks' devices, and the work of a device in a round.

    All three are lines over the bytes of a message, which between devices is as long as a block can
    get: see models.gtopk.device_message.

    Attributes:
        links: Like `Network.links`, but from a device's memory to another one's.
        merge: Merging two blocks and keeping as many entries as one of them can have.
        handing: Handing a block from the CPU up to the device, and a result down again.
    """

    links: Links
    merge: Link
    handing: Link

    def __post_init__(self) -> None:
        _check_distances(self)

    @property
    def link(self) -> Link:
        """The worst link of all distances, in alpha and in beta."""
        return _worst(self.links)

    def at(self, distance: int) -> Link:
        """Returns the link to a partner so many ranks away; the worst one if not measured."""
        return dict(self.links).get(distance, self.link)


@dataclass(frozen=True, kw_only=True)
class Network:
    """The links between the ranks of one job, while all of them communicate at once.

    Attributes:
        size: Number of ranks.
        local_size: Ranks on one node; rank r is on node r // local_size.
        links: (distance, link) for partners that are 1, 2, 4, ... ranks away, ascending. Measured
            while every rank swaps with its partner, so that ranks that share a cable share it here.
        dense: The host's dense allreduce of float32 between these ranks, over the bytes of its
            tensor.
        dense16: The host's allreduce of float16, with the casts from float32 and back, over the
            bytes of its tensor; None: not timed.
        local: The link between two ranks of one node; None: not known.
        gap: Seconds, without its bytes, that each further message to another rank adds when several
            are sent at once; None: as much as the first one, the alpha of `link`.
        devices: The network between the ranks' devices; None: nothing connects them, or gradients
            do not lie on devices.
    """

    size: int
    local_size: int = 1
    links: Links
    dense: Link
    dense16: Link | None = None
    local: Link | None = None
    gap: float | None = None
    devices: GpuLinks | None = None

    def __post_init__(self) -> None:
        records.check_finite(self)
        if self.size < 1:
            raise InvalidArgumentError(f"size of a Network must be at least 1, got {self.size}")
        if not 1 <= self.local_size <= self.size:
            raise InvalidArgumentError(
                f"local_size of a Network must lie in [1, {self.size}], got {self.local_size}"
            )
        _check_distances(self)
        if self.size > 1 and not self.links:
            raise InvalidArgumentError(f"a Network of {self.size} ranks must have links")

    @property
    def nodes(self) -> int:
        """Number of nodes, the last of which may be only partly filled."""
        return -(-self.size // self.local_size)

    @property
    def link(self) -> Link:
        """The worst link of all distances, in alpha and beta, which methods over all ranks meet."""
        return _worst(self.links)

    def at(self, distance: int) -> Link:
        """Returns the link to a partner so many ranks away; the worst one if not measured."""
        return dict(self.links).get(distance, self.link)

    def scaled(self, size: int) -> Network:
        """Returns this network with another number of ranks.

        Every distance gets the worst link, also between devices. Dense allreduces keep their time
        per step and per byte of a ring: 2 (P - 1) steps, 2 (P - 1) / P of the bytes.

        Raises:
            InvalidArgumentError: This network has one rank, which says nothing of larger ones.
        """
        if size == self.size:
            return self
        if self.size == 1:
            raise InvalidArgumentError("a Network of 1 rank cannot be scaled to more: it was alone")
        steps = (size - 1) / (self.size - 1)
        share = steps * self.size / size
        dense16 = self.dense16
        devices = self.devices
        if devices is not None:
            devices = replace(devices, links=_every_distance(size, devices.link))
        return Network(
            size=size,
            local_size=min(self.local_size, size),
            links=_every_distance(size, self.link),
            dense=self.dense.times(steps, share),
            dense16=None if dense16 is None else dense16.times(steps, share),
            local=self.local,
            gap=self.gap,
            devices=devices,
        )

    @classmethod
    def assumed(
        cls,
        size: int,
        bandwidth: float,
        latency: float,
        *,
        local_size: int = 1,
        local: Link | None = None,
    ) -> Network:
        """Makes a network from plain numbers: the same link everywhere, dense as an ideal ring.

        Devices are not connected, and nothing is said of sums in 16 bits.

        Args:
            size: Number of ranks.
            bandwidth: Bytes per second that one rank sends while all of them do.
            latency: Seconds per message. Messages sent at once wait for it together, and each
                further one adds 50 us at most.
            local_size: Ranks on one node.
            local: The link between two ranks of one node; None: not known.

        Raises:
            InvalidArgumentError: A number lies outside its limits.
        """
        if not bandwidth > 0:
            raise InvalidArgumentError(f"bandwidth must be positive, got {bandwidth}")
        link = Link(alpha=latency, beta=1 / bandwidth)
        steps = 2 * max(0, size - 1)
        return cls(
            size=size,
            local_size=local_size,
            links=_every_distance(size, link),
            dense=Link(alpha=steps * link.alpha, beta=steps / max(1, size) * link.beta),
            local=local,
            gap=min(latency, MESSAGE_SECONDS),
        )


def distances_below(size: int) -> list[int]:
    """Returns the distances of partners in an exchange of so many ranks: 1, 2, 4, ..."""
    return [1 << bit for bit in range(max(0, size - 1).bit_length())]


def _every_distance(size: int, link: Link) -> Links:
    return tuple((distance, link) for distance in distances_below(size))


def _worst(links: Links) -> Link:
    return Link(
        alpha=max((link.alpha for _, link in links), default=0.0),
        beta=max((link.beta for _, link in links), default=0.0),
    )


def _check_distances(record: Network | GpuLinks) -> None:
    distances = [distance for distance, _ in record.links]
    if distances != sorted(set(distances)) or any(distance < 1 for distance in distances):
        raise InvalidArgumentError(
            f"distances of a {type(record).__name__}'s links must ascend from 1, got {distances}"
        )
