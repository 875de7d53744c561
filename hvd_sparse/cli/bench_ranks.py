"""The library that runs the ranks of `hvd-sparse bench`: Horovod or torch.distributed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from hvd_sparse.errors import UnavailableError

if TYPE_CHECKING:
    from hvd_sparse.bench.ranks import JobRanks
    from hvd_sparse.pytorch.host import TorchHost

_OF_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_OF_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


class Library(str, Enum):
    """A library that runs ranks."""

    HOROVOD = "horovod"
    TORCH = "torch"


def library_of(environment: Mapping[str, str]) -> Library:
    """Returns the library whose launcher has started this process.

    Args:
        environment: The environment of this process. torchrun's variables count, even if Slurm or
            mpirun has started torchrun itself; those of another launcher for torch.distributed
            count unless there are variables of MPI, too. A process without a launcher is a job of
            one rank to Horovod.
    """
    if "HOROVOD_RANK" in environment:
        return Library.HOROVOD
    if "TORCHELASTIC_RUN_ID" in environment:
        return Library.TORCH
    by_torch = all(name in environment for name in _OF_TORCH)
    by_mpi = any(name in environment for name in _OF_MPI)
    return Library.TORCH if by_torch and not by_mpi else Library.HOROVOD


@contextmanager
def ranks_of(library: Library) -> Iterator[JobRanks]:
    """Connects the ranks of this job, and disconnects them at the end. Collective.

    Raises:
        UnavailableError: PyTorch or the library is missing, or torch.distributed cannot connect
            the ranks.
    """
    if library is Library.HOROVOD:
        yield _horovod_ranks()
        return
    with _torch_ranks() as ranks:
        yield ranks


# The libraries are imported here, so that the other commands work without them or the core.


def _horovod_ranks() -> JobRanks:
    try:
        import horovod.torch as hvd
        import torch

        from hvd_sparse.torch.host import HorovodHost
    except ImportError as error:
        raise UnavailableError(
            f"hvd-sparse bench takes Horovod with PyTorch ({error}), or PyTorch alone under "
            "torchrun; `hvd-sparse doctor` says what is missing"
        ) from None
    hvd.init()
    torch.set_num_threads(1)
    return _job_ranks(HorovodHost())


@contextmanager
def _torch_ranks() -> Iterator[JobRanks]:
    try:
        import torch
        import torch.distributed as dist

        from hvd_sparse.ddp.host import GroupHost
    except ImportError as error:
        raise UnavailableError(
            f"hvd-sparse bench under torchrun takes PyTorch ({error}); `hvd-sparse doctor` says "
            "what is missing"
        ) from None
    try:
        dist.init_process_group("gloo")  # gradients of a bench lie on the CPU
    except (ValueError, RuntimeError) as error:  # a variable is missing; nobody has answered
        raise UnavailableError(f"torch.distributed cannot connect the ranks: {error}") from None
    torch.set_num_threads(1)
    try:
        yield _job_ranks(GroupHost())
    finally:
        dist.destroy_process_group()  # its threads may otherwise abort the process at its end


def _job_ranks(host: TorchHost) -> JobRanks:
    import torch

    from hvd_sparse.bench.ranks import Array, JobRanks
    from hvd_sparse.exchange.reduction import Reduction

    plain_sum = Reduction(averages=False, gradient_predivide_factor=1.0)

    def allreduce(array: Array) -> None:
        host.reduce(torch.from_numpy(array), "hvd_sparse.bench", plain_sum).result()

    return JobRanks(host, allreduce)
