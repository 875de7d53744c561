"""The library that runs the ranks, as an exchange of PyTorch's gradients uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.messages import Messages
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.places.buffer import BYTES
from hvd_sparse.places.place import Place
from hvd_sparse.pytorch.replica import Replica
from hvd_sparse.ranks.host import Host, Pending
from hvd_sparse.ranks.world import World


class Timed:
    """A tensor for an operation that begins at once, and the time that it takes.

    The tensor is cast from float32 before, and back afterwards. It holds ones: zeros may be added
    faster where float16 is summed in software. Where the host casts the type once more for its
    sums, so does this.

    Args:
        nbytes: Bytes of the tensor.
        values: Type of its elements, "float32" or "float16".
        place: The place of the tensor.
        sums_in: The host's `TorchHost.sums_in`.
    """

    def __init__(
        self,
        nbytes: int,
        values: str,
        place: Place,
        *,
        sums_in: Callable[[torch.dtype], torch.dtype],
    ) -> None:
        ones = torch.ones(nbytes // BYTES[values], dtype=torch.float32, device=place.device)
        self._clock = place.clock
        self._made = self._clock.mark()
        self._clock.seconds(self._made, self._made)  # waits for the tensor
        self._begin = self._clock.mark()
        dtype: torch.dtype = getattr(torch, values)
        self.tensor = ones.to(dtype).to(sums_in(dtype))

    def seconds(self) -> float:
        """Returns the seconds until now, once the operation has ended."""
        self.tensor.to(torch.float32)
        end = self._clock.mark()
        found = self._clock.seconds(self._begin, end)
        self._clock.release([self._made, self._begin, end])
        return found


class TorchHost(Host, Protocol):
    """A host that reduces tensors, too.

    Attributes:
        fuses: True if the library itself reduces small tensors together.
    """

    fuses: bool

    @property
    def ranks(self) -> Sequence[int]:
        """Numbers of the ranks in the whole job, for messages."""

    def has_peers(self) -> bool:
        """Returns true if this process belongs to the ranks, and is not the only one.

        Raises:
            UnavailableError: The library no longer knows the ranks.
        """

    def included(self) -> bool:
        """Returns true if this process belongs to the ranks."""

    def require_initialized(self) -> None:
        """Raises UnavailableError if the library is not initialised."""

    def place(self) -> tuple[int, int]:
        """Returns this process's rank, and the number of ranks, as they are now."""

    def reduction(self, **options: Any) -> Reduction:
        """Returns the reduction over the ranks that the library's own options ask for.

        Raises:
            InvalidArgumentError: An option lies outside its limits.
            UnsupportedError: A sparse exchange cannot honour an option.
        """

    def of_all_shards(self) -> TorchHost:
        """Returns the host of all ranks of the model: these, or those of all its shards."""

    def of_this_replica(self) -> TorchHost | None:
        """Returns the host of the ranks that hold this replica's shards; None if it has one."""

    def require_sums_on(self, device: torch.device, what: str) -> None:
        """Raises UnsupportedError if the library cannot sum tensors on a device.

        Args:
            device: The device.
            what: The tensors that would be summed there, as the error names them.
        """

    def sums_in(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the type in which the library sums tensors of a type that gradients may have."""

    def reduce(self, tensor: torch.Tensor, name: str, reduction: Reduction) -> Pending[Any]:
        """Reduces a contiguous tensor, of a type that `sums_in` returns, in place."""


@dataclass(frozen=True)
class Link:
    """The connection between the ranks that exchange one optimizer's gradients.

    Attributes:
        world: The ranks.
        core: The core's exchange between them.
        host: The host, which sums what is sent dense.
        prefix: Prefix of the names of the host's operations, the same on all ranks, unique to the
            optimizer.
        messages: Messages between the ranks.
        replica: The ranks that hold the shards of this replica; None if it has one.
    """

    world: World
    core: Exchange
    host: TorchHost
    prefix: str
    messages: Messages
    replica: Replica | None = None

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks, and on those of this replica's other shards."""
        self.core.fail(reason)
        if self.replica is not None:
            self.replica.fail(reason)

    def close(self) -> None:
        """Ends this rank's part."""
        self.core.close()
        if self.replica is not None:
            self.replica.close()
