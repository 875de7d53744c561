"""Horovod as the library that runs the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import horovod.torch as hvd
import horovod.torch.mpi_ops as hvd_ops
import numpy as np
import torch
from horovod.common.exceptions import HorovodInternalError
from numpy.typing import NDArray

from hvd_sparse.errors import UnavailableError, UnsupportedError, fail_like
from hvd_sparse.exchange.core_handle import explaining
from hvd_sparse.exchange.reduction import Reduction, checked_reduction
from hvd_sparse.places.place import Place
from hvd_sparse.pytorch.host import Timed
from hvd_sparse.ranks.world import World

_Result = TypeVar("_Result")

fail_like(HorovodInternalError)


class _Pending(Generic[_Result]):
    """An operation of Horovod's that is in flight.

    Args:
        handle: Handle of the operation.
        name: Its name.
        read: Returns the result, given the tensor.
    """

    def __init__(self, handle: int, name: str, read: Callable[[torch.Tensor], _Result]) -> None:
        self.name = name
        self._handle = handle
        self._read = read

    def done(self) -> bool:
        return bool(hvd_ops.poll(self._handle))

    def result(self) -> _Result:
        return self._read(hvd_ops.synchronize(self._handle))


class HorovodHost:
    """The ranks of a process set; a TorchHost.

    Args:
        process_set: The process set; None: all ranks.
    """

    name = "Horovod"
    fuses = True
    failure: type[Exception] = HorovodInternalError
    timeout: float | None = None

    def __init__(self, process_set: Any = None) -> None:
        self._process_set = hvd.global_process_set if process_set is None else process_set

    @property
    def ranks(self) -> Sequence[int]:
        """Numbers of the ranks in the whole job."""
        ranks: Sequence[int] = self._process_set.ranks
        return ranks

    def world(self) -> World:
        """Returns the ranks."""
        return explaining(World.from_horovod(hvd, self._process_set), self.failure)

    def has_peers(self) -> bool:
        """Returns true if this rank belongs to the set, and is not the only one."""
        try:
            size = self._process_set.size()
        except ValueError:
            size = None
        ranks = self._process_set.ranks
        if size is None or (ranks is not None and size != len(ranks)):
            raise UnavailableError(
                f"Horovod does not know {self._process_set}: shutting it down leaves the set of "
                "all ranks only; add others again with hvd.add_process_set() after hvd.init()"
            )
        return bool(size > 1 and self.included())

    def included(self) -> bool:
        """Returns true if this rank belongs to the set."""
        return bool(self._process_set.included())

    def require_initialized(self) -> None:
        """Raises UnavailableError if Horovod is not initialised."""
        if not hvd.is_initialized():
            raise UnavailableError(
                "Horovod is not initialised: call hvd.init() first, also after hvd.shutdown()"
            )

    def place(self) -> tuple[int, int]:
        """Returns this process's rank in the set, and the number of its ranks."""
        return self._process_set.rank(), self._process_set.size()

    def reduction(self, **options: Any) -> Reduction:
        """Returns the reduction that these options of DistributedOptimizer ask for."""
        return checked_reduction(hvd, **options)

    def of_all_shards(self) -> HorovodHost:
        """Returns this host: models are not sharded."""
        return self

    def of_this_replica(self) -> None:
        """Returns None: a replica has one shard."""

    def require_sums_on(self, device: torch.device, what: str) -> None:
        """Raises UnsupportedError if this Horovod was not built for a device.

        One that was built for the CPU has functions for tensors of a GPU, too, but they sum what
        the GPU may not have written yet.
        """
        if device.type != "cpu" and not (hvd.cuda_built() or hvd.rocm_built()):
            raise UnsupportedError(
                f"Horovod exchanges {what}, and this one was built for the CPU only: build it with "
                "HOROVOD_GPU_OPERATIONS=NCCL"
            )

    def allgather(self, array: NDArray[Any], name: str) -> _Pending[NDArray[Any]]:
        """Joins the arrays of all ranks."""
        handle = hvd_ops.allgather_async(
            torch.from_numpy(array), name=name, process_set=self._process_set
        )
        return _Pending(handle, name, _as_array)

    def add_up(self, array: NDArray[Any], name: str) -> _Pending[NDArray[Any]]:
        """Sums arrays over the ranks."""
        handle = hvd_ops.allreduce_async(
            torch.from_numpy(array), op=hvd_ops.Sum, name=name, process_set=self._process_set
        )
        return _Pending(handle, name, _as_array)

    def sums_in(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the type of sums: Horovod does not know bfloat16."""
        return torch.float32 if dtype == torch.bfloat16 else dtype

    def reduce(
        self, tensor: torch.Tensor, name: str, reduction: Reduction
    ) -> _Pending[torch.Tensor]:
        """Reduces a tensor over the ranks, in place."""
        options = reduction.of_horovod(hvd)
        handle = hvd_ops.allreduce_async_(
            tensor, name=name, process_set=self._process_set, **options
        )
        return _Pending(handle, name, lambda same: same)

    def timed_sum(self, nbytes: int, values: str, name: str, place: Place) -> _Pending[float]:
        """Sums so many bytes at a place; the result is the time in seconds."""
        timed = Timed(nbytes, values, place, sums_in=self.sums_in)
        handle = hvd_ops.allreduce_async_(
            timed.tensor, name=name, op=hvd_ops.Sum, process_set=self._process_set
        )
        return _Pending(handle, name, lambda _: timed.seconds())


def _as_array(tensor: torch.Tensor) -> NDArray[Any]:
    return np.asarray(tensor.numpy())
