"""torch.distributed as the library that runs the ranks."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hvd_sparse.arrays.channels import Ranks
from hvd_sparse.errors import PeerLostError, UnavailableError, UnsupportedError
from hvd_sparse.exchange.core_handle import cause_of, newly_failed
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.places.place import Place
from hvd_sparse.pytorch.host import Timed
from hvd_sparse.ranks.world import World
from hvd_sparse.waiting import wait_until

_Result = TypeVar("_Result", covariant=True)

_NO_MPI = (
    "the ranks of torch.distributed are connected by TCP; MPI is for jobs of Horovod that run over "
    "it"
)
_CPU = torch.device("cpu")

# Bytes of an array that travel with its length.
_BEGINNING = 256

# Groups for messages in memory of the CPU, by the name of a group whose backend takes none.
_on_cpu: dict[str, dist.ProcessGroup] = {}


class _Pending(Generic[_Result]):
    """An operation of torch.distributed that is in flight.

    Args:
        work: The operation.
        name: Its name, for messages to the user.
        read: Returns the result, once the operation has ended.
    """

    def __init__(self, work: dist.Work, name: str, read: Callable[[], _Result]) -> None:
        self.name = name
        self._work = work
        self._read = read

    def done(self) -> bool:
        return bool(self._work.is_completed())

    def result(self) -> _Result:
        _wait(self._work)
        return self._read()


class _Gathering:
    """Arrays of any lengths on their way to all ranks: first their lengths, with their beginnings.

    If one is longer than that, a second operation starts in the first call of `done` after the
    first has ended. All ranks wait for their operations in the same order, so they start this one
    in the same order, too.

    Args:
        array: This rank's array, whose first axis may differ in length from other ranks'.
        name: Name of the operation, for messages to the user.
        group: A group that takes tensors on the CPU.
    """

    def __init__(self, array: NDArray[Any], name: str, group: dist.ProcessGroup) -> None:
        self.name = name
        self._array = np.ascontiguousarray(array)
        self._group = group
        self._row = self._array.itemsize * math.prod(self._array.shape[1:])  # bytes
        self._size = dist.get_world_size(group)
        self._contents: list[torch.Tensor] | None = None
        length = np.array([len(array)], np.int64).view(np.uint8)
        self._first = self._send([length, self._bytes[:_BEGINNING]], length.nbytes + _BEGINNING)

    def done(self) -> bool:
        if not self._work.is_completed():
            return False
        if self._contents is not None:
            return True
        _wait(self._work)
        self._lengths = [int(one[:8].view(torch.int64)) for one in self._first]
        longest = max(self._lengths) * self._row
        if longest <= _BEGINNING:
            self._contents = [one[8:] for one in self._first]
            return True
        self._contents = self._send([self._bytes], longest)
        return False

    def result(self) -> NDArray[Any]:
        while not self.done():
            _wait(self._work)
        _wait(self._work)
        assert self._contents is not None
        parts = [
            content.numpy()[: length * self._row]
            for content, length in zip(self._contents, self._lengths, strict=True)
        ]
        joint = np.concatenate(parts).view(self._array.dtype)
        return joint.reshape(-1, *self._array.shape[1:])

    @property
    def _bytes(self) -> NDArray[np.uint8]:
        return self._array.view(np.uint8).reshape(-1)

    def _send(self, parts: list[NDArray[np.uint8]], nbytes: int) -> list[torch.Tensor]:
        """Starts an operation that brings so many bytes of each rank, which are returned."""
        own = torch.zeros(nbytes, dtype=torch.uint8, device=_CPU)
        joint = np.concatenate(parts)
        own.numpy()[: joint.size] = joint
        everywhere = [torch.empty_like(own) for _ in range(self._size)]
        self._work = dist.all_gather(everywhere, own, group=self._group, async_op=True)
        return everywhere


class _Roll:
    """Notes in the job's store which ranks have come to an operation, to name those that have not.

    Args:
        group: The ranks.
        operation: Name of the operation, the same on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup, operation: str) -> None:
        self._ranks = dist.get_process_group_ranks(group)
        self._place = f"hvd_sparse/{group.group_name}/{operation}"
        self._store: Any = dist.distributed_c10d._get_default_store()  # None over MPI

    def __enter__(self) -> _Roll:
        if self._store is not None:
            self._store.set(self._key(dist.get_rank()), "")
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the process that had the store may be gone
            if self._store is not None:
                self._store.delete_key(self._key(dist.get_rank()))

    def missing(self) -> str:
        """Returns the ranks that have not come, as text; empty if there is none, or none known."""
        if self._store is None:
            return ""
        try:
            gone = [str(rank) for rank in self._ranks if not self._store.check([self._key(rank)])]
        except RuntimeError:
            return ""
        return f"rank {', '.join(gone)}" if gone else ""

    def _key(self, rank: int) -> str:
        return f"{self._place}/{rank}"


class GroupHost:
    """The ranks of a process group; a TorchHost.

    Args:
        group: The process group; None: all ranks.
        call: The function that the user has called, in messages about ranks that do not.
    """

    name = "torch.distributed"
    fuses = False
    failure: type[Exception] = dist.DistError

    def __init__(self, group: dist.ProcessGroup | None = None, *, call: str = "hvd_sparse") -> None:
        self.require_initialized()
        self._call = call
        chosen = dist.group.WORLD if group is None else group
        assert chosen is not None
        self._group: dist.ProcessGroup = chosen

    @property
    def timeout(self) -> float | None:
        """The group's timeout in seconds; None if its backends have none, as MPI's."""
        found = []
        for kind in _backends_of(self._group):
            backend = self._group._get_backend(torch.device(kind))
            options = getattr(getattr(backend, "wrapped_pg", backend), "options", None)
            if options is not None:
                found.append(options._timeout.total_seconds())
        return min(found, default=None)

    @property
    def ranks(self) -> Sequence[int]:
        """Numbers of the ranks in the whole job."""
        ranks: Sequence[int] = dist.get_process_group_ranks(self._group)
        return ranks

    def world(self) -> World:
        """Returns the ranks. Collective."""
        rank, size = self.place()
        here = f"{socket.gethostname()} {os.environ.get('GROUP_RANK', '')}"
        everywhere = [here]
        if size > 1:
            line = np.frombuffer(f"{here}\n".encode(), np.uint8)
            everywhere = self._gathered(line, "nodes").tobytes().decode().split("\n")[:-1]
        neighbours = [number for number, node in enumerate(everywhere) if node == here]
        return World(
            rank,
            size,
            local_size=int(os.environ.get("LOCAL_WORLD_SIZE", len(neighbours))),
            local_rank=neighbours.index(rank),
            job_rank=dist.get_rank(),
            node=here,
            mpi_problem=_NO_MPI,
            timeout=self.timeout,
            serials=itertools.count(),
            allgather=self._gathered,
        )

    def _gathered(self, array: NDArray[Any], name: str) -> NDArray[Any]:
        """Joins the arrays of all ranks, and waits for them.

        Raises:
            ExchangeFailedError: A rank was lost, or ended an exchange, while this one waited.
            ExchangeTimeoutError: A rank has not come until the deadline.
        """
        with _Roll(self._group, f"{self._call}/{name}") as roll:

            def what() -> str:
                return f"{roll.missing() or 'the other ranks'} in {self._call}"

            try:
                gathering = self.allgather(array, name)
                wait_until(gathering.done, newly_failed(), what, timeout=self.timeout)
                return gathering.result()
            except self.failure as error:
                cause = cause_of(error)
                missing = roll.missing()
                if cause is error and missing:
                    cause = PeerLostError(f"{missing} did not come to {self._call}: {error}")
                raise cause from error

    def of_call(self) -> Ranks:
        """Returns the ranks of a single call."""
        name: str = self._group.group_name
        return Ranks(name, self._group, self.ranks, f"group {name}", self.world)

    def has_peers(self) -> bool:
        """Returns true if this rank belongs to the group, and is not the only one."""
        return self.included() and self.place()[1] > 1

    def included(self) -> bool:
        """Returns true if this rank belongs to the group."""
        return dist.get_rank(self._group) >= 0

    def require_initialized(self) -> None:
        """Raises UnavailableError if torch.distributed is not initialised."""
        if not dist.is_initialized():
            raise UnavailableError(
                "torch.distributed is not initialised: call "
                "torch.distributed.init_process_group() first"
            )

    def place(self) -> tuple[int, int]:
        """Returns this process's rank in the group, and the number of its ranks."""
        return dist.get_rank(self._group), dist.get_world_size(self._group)

    def reduction(self, **options: Any) -> Reduction:
        """Returns the reduction over the ranks that these options of `attach` ask for."""
        return checked_reduction(**options)

    def of_all_shards(self) -> GroupHost:
        """Returns this host: models are not sharded."""
        return self

    def of_this_replica(self) -> GroupHost | None:
        """Returns None: a replica has one shard."""
        return None

    def require_sums_on(self, device: torch.device, what: str) -> None:
        """Raises UnsupportedError if the group has no backend for a device."""
        if device.type not in _backends_of(self._group):
            raise UnsupportedError(
                f"torch.distributed sums {what}, and the backend of this group "
                f"({dist.get_backend_config(self._group)}) takes no tensors there"
            )

    def allgather(self, array: NDArray[Any], name: str) -> _Gathering:
        """Joins the arrays of all ranks."""
        return _Gathering(array, name, self._for_messages())

    def add_up(self, array: NDArray[Any], name: str) -> _Pending[NDArray[Any]]:
        """Sums arrays over the ranks."""
        total = torch.from_numpy(array.copy())
        work = dist.all_reduce(total, group=self._for_messages(), async_op=True)
        return _Pending(work, name, lambda: np.asarray(total.numpy()))

    def sums_in(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the type of sums: that of the tensors, but MPI knows none of 16 bits."""
        narrow = dtype in (torch.float16, torch.bfloat16)
        return torch.float32 if narrow and self._is_over_mpi() else dtype

    def reduce(
        self, tensor: torch.Tensor, name: str, reduction: Reduction
    ) -> _Pending[torch.Tensor]:
        """Reduces a tensor over the ranks, in place."""
        before, after = reduction.scales(self.place()[1])
        work = dist.all_reduce(_scaled(tensor, before), group=self._group, async_op=True)
        return _Pending(work, name, lambda: _scaled(tensor, after))

    def timed_sum(self, nbytes: int, values: str, name: str, place: Place) -> _Pending[float]:
        """Sums so many bytes at a place; the result is the time in seconds."""
        timed = Timed(nbytes, values, place, sums_in=self.sums_in)
        work = dist.all_reduce(timed.tensor, group=self._group, async_op=True)
        return _Pending(work, name, timed.seconds)

    def _is_over_mpi(self) -> bool:
        return dist.Backend.MPI in _backends_of(self._group).values()

    def _for_messages(self) -> dist.ProcessGroup:
        """Returns a group of the same ranks that takes tensors on the CPU."""
        if "cpu" in _backends_of(self._group):
            return self._group
        name = self._group.group_name
        if name not in _on_cpu:
            _on_cpu[name] = dist.new_group(
                list(self.ranks), backend="gloo", use_local_synchronization=True
            )
        return _on_cpu[name]


def checked_reduction(
    *, op: dist.ReduceOp.RedOpType = dist.ReduceOp.AVG, gradient_predivide_factor: float = 1.0
) -> Reduction:
    """Returns the reduction that a user of torch.distributed has asked for.

    Args:
        op: ReduceOp.AVG or ReduceOp.SUM.
        gradient_predivide_factor: A finite number above 0; 1 for a sum.

    Raises:
        InvalidArgumentError: The factor lies outside its limits, or does not go with the op.
        UnsupportedError: A sparse exchange cannot honour the op.
    """
    if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
        raise UnsupportedError(f"op must be ReduceOp.AVG or ReduceOp.SUM, got {op}")
    return Reduction.checked(
        averages=op == dist.ReduceOp.AVG, gradient_predivide_factor=gradient_predivide_factor
    )


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiplies a tensor in place."""
    return tensor if factor == 1.0 else tensor.mul_(factor)


def _backends_of(group: dist.ProcessGroup) -> dict[str, str]:
    """Returns the names of a group's backends by the kind of device."""
    config = dist.get_backend_config(group)  # "cpu:gloo,cuda:nccl"
    return dict(one.split(":") for one in config.split(","))


def _wait(work: dist.Work) -> None:
    """Waits for an operation; Gloo tells a lost rank by a plain RuntimeError."""
    try:
        work.wait()
    except dist.DistError:
        raise
    except RuntimeError as error:
        raise dist.DistBackendError(str(error)) from error
