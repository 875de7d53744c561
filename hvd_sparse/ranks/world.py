"""The ranks of an exchange, as the library that runs them knows them."""

from __future__ import annotations

import importlib
import itertools
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, get_origin

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.errors import HvdSparseError, InvalidArgumentError, UnavailableError
from hvd_sparse.ranks import messages, transport

# The function that makes a tensor for Horovod's module of a NumPy array: "module:function".
_TENSOR_MAKERS = {
    "horovod.torch": "torch:from_numpy",
    "horovod.tensorflow": "tensorflow:convert_to_tensor",
}
_LENGTH_BYTES = 8  # before each message in a gathering

ProcessSetKey = tuple[int, tuple[int, ...]]  # number and ranks of a process set; see key_of

# Serial numbers of our small Horovod operations: the same on all ranks of a process set.
_serials: defaultdict[ProcessSetKey, Iterator[int]] = defaultdict(itertools.count)


def in_elastic_job() -> bool:
    """Returns true if ranks may join while others train, as the launcher has told Horovod."""
    return os.environ.get("HOROVOD_ELASTIC", "") not in ("", "0")


def may_have_peers(size: int) -> bool:
    """Returns true if there are other ranks to exchange with, or may be: an elastic job can grow.

    A rank that is alone in such a job must treat gradients as several ranks do.
    """
    return size > 1 or in_elastic_job()


def key_of(process_set: Any) -> ProcessSetKey:
    """Returns a key of a process set; Horovod reuses the number of a set that was removed.

    The set of all ranks stays the same one while ranks come and go.
    """
    number = process_set.process_set_id
    return number, () if number == 0 else tuple(process_set.ranks or ())


def reset_serials() -> None:
    """Restarts the serial numbers after Horovod's shutdown: later ranks may be new."""
    _serials.clear()


@dataclass(frozen=True)
class World:
    """The ranks of one process set or group.

    Attributes:
        rank: This process's rank in the set, from 0.
        size: Number of ranks in the set.
        process_set_id: Number of the set, in names of messages; 0 is all ranks.
        local_size: Ranks of the whole job on this machine.
        local_rank: This process's rank among them.
        job_rank: This process's rank in the whole job.
        node: Name of the node; equal for two ranks of one node only.
        mpi_problem: The reason why exchanges between these ranks cannot use MPI; empty if they can.
        timeout: The deadline of waits for a rank in seconds, see `limits_of_waits`.
        serials: Numbers for the names of messages, the same on all ranks.
        allgather: Joins the flat arrays of all ranks, of any lengths, under a name; blocks.
    """

    rank: int
    size: int
    process_set_id: int = 0
    local_size: int = 1
    local_rank: int = 0
    job_rank: int = 0
    node: str = ""
    mpi_problem: str = ""
    timeout: float | None = None
    serials: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)
    allgather: Callable[[NDArray[Any], str], NDArray[Any]] | None = field(
        default=None, repr=False, compare=False
    )

    @classmethod
    def from_horovod(cls, hvd: ModuleType, process_set: Any) -> World:
        """Makes the world of a Horovod process set that contains this process.

        Args:
            hvd: `horovod.torch` or `horovod.tensorflow`, after `hvd.init()`.
            process_set: A Horovod `ProcessSet`.

        Raises:
            InvalidArgumentError: The set does not contain this process.
            UnavailableError: Horovod is not initialised.
        """
        if not hvd.is_initialized():
            raise UnavailableError("Horovod is not initialised: call hvd.init() first")
        if not process_set.included():
            raise InvalidArgumentError(
                f"process_set must contain this process (rank {hvd.rank()}), got {process_set}"
            )
        size = process_set.size()
        module, function = _TENSOR_MAKERS[hvd.__name__].split(":")
        as_tensor = getattr(importlib.import_module(module), function)

        def allgather(array: NDArray[Any], name: str) -> NDArray[Any]:
            gathered = hvd.allgather(as_tensor(array), name=name, process_set=process_set)
            return np.asarray(gathered.numpy())

        return cls(
            process_set.rank(),
            size,
            process_set.process_set_id,
            local_size=hvd.local_size(),
            local_rank=hvd.local_rank(),
            job_rank=hvd.rank(),
            # The cross rank tells containers with the same host name apart. It repeats if nodes
            # have unequal numbers of ranks; the host name tells those apart.
            node=f"{socket.gethostname()} {hvd.cross_rank()}",
            mpi_problem=transport.problem_with_mpi(hvd),
            serials=_serials[key_of(process_set)],
            allgather=allgather,
        )

    def allgather_object(self, value: Any, kind: Any = Any) -> list[Any]:
        """Returns every rank's `value`, in the order of the ranks. Collective.

        Args:
            value: A value that `messages.encode` takes.
            kind: Type of the values, the same on all ranks, against which received ones are
                checked. Without it tuples and sets come back as lists.

        Raises:
            InvalidArgumentError: On a rank whose `value` cannot be sent.
            HvdSparseError: On all other ranks in that case; and on all ranks if one has sent a
                value of another type. Names the rank and the type.
        """
        problem: InvalidArgumentError | None = None
        try:
            message = messages.encode(value)
        except InvalidArgumentError as error:  # the others wait for this rank
            message, problem = messages.UNREADABLE, error
        everything = [message] if self.size == 1 else self._allgather_bytes(message)
        if problem is not None:
            raise problem
        return [self._read(rank, theirs, kind) for rank, theirs in enumerate(everything)]

    def broadcast_object(self, value: Any, kind: Any = Any) -> Any:
        """Returns the `value` of the set's rank 0; other ranks' is ignored. Collective.

        Raises the errors of `allgather_object`.

        Args:
            value: A value that `messages.encode` takes.
            kind: Type of the value; must include None.
        """
        return self.allgather_object(value if self.rank == 0 else None, kind)[0]

    def _allgather_bytes(self, message: bytes) -> list[bytes]:
        """Returns every rank's message, in the order of the ranks. Collective."""
        assert self.allgather is not None
        # Releases until 0.2 gather sizes under this name: Horovod refuses their other type.
        name = f"hvd_sparse.world.{self.process_set_id}.{next(self.serials)}.sizes"
        own = len(message).to_bytes(_LENGTH_BYTES, "little") + message
        everything = self.allgather(np.frombuffer(own, np.uint8).copy(), name).tobytes()
        received, end = [], 0
        for _ in range(self.size):
            start = end + _LENGTH_BYTES
            end = start + int.from_bytes(everything[end:start], "little")
            received.append(everything[start:end])
        return received

    def _read(self, rank: int, message: bytes, kind: Any) -> Any:
        try:
            return messages.decode(message, kind)
        except ValueError as error:
            name = str(kind) if get_origin(kind) else getattr(kind, "__name__", str(kind))
            what = "read" if kind is Any else f"read as {name.lstrip('_')}"
            raise HvdSparseError(
                f"rank {rank} of {self.size} has sent a message that cannot be {what}: {error}. Do "
                "all ranks run the same version of hvd_sparse?"
            ) from None
