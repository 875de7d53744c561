"""DistributedDataParallel over gloo, with PyTorch's own communication hooks, under mpirun."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

HOOKS = ("", "fp16", "powersgd")
PATIENCE = timedelta(seconds=120)
LARGEST_BUCKET_MB = 1024  # a model is one bucket


def join_ddp(rendezvous: str, interface: str | None) -> None:
    """Makes torch.distributed's group of all ranks that mpirun started.

    Args:
        rendezvous: HOST:PORT at which rank 0 can listen and which all ranks can reach.
        interface: Network interface for gloo; None: the one of the host's name.
    """
    import torch.distributed as dist

    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    dist.init_process_group(
        "gloo", f"tcp://{rendezvous}", rank=rank, world_size=size, timeout=PATIENCE
    )


def wrapped(
    module: nn.Module,
    *,
    hook: str = "",
    matrix_rank: int = 1,
    dense_steps: int = 50,
    bucket_mb: int | None = None,
    **options: Any,
) -> tuple[DistributedDataParallel, Any]:
    """Wraps a module, and registers one of PyTorch's hooks.

    PowerSGD starts its second sum from the callback of the first. With several buckets these
    callbacks may come in another order on each rank, and gloo would pair sums of different sizes:
    the hook gets one bucket. Its other settings are the defaults: error feedback, warm start and
    min_compression_rate=2.

    Args:
        module: The module.
        hook: One of HOOKS; "": DDP's own allreduce.
        matrix_rank: PowerSGD's matrix_approximation_rank.
        dense_steps: PowerSGD's start_powerSGD_iter, at least 2.
        bucket_mb: DDP's bucket_cap_mb, but for PowerSGD; None: DDP's default.
        options: Further options of DistributedDataParallel.

    Returns:
        The wrapped module, and the hook's state; None if it has none.

    Raises:
        ValueError: There is no such hook.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if hook not in HOOKS:
        raise ValueError(f"hook must be one of {HOOKS}, got {hook!r}")
    size = LARGEST_BUCKET_MB if hook == "powersgd" else bucket_mb
    ddp = DistributedDataParallel(module, bucket_cap_mb=size, **options)
    state = None
    if hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=matrix_rank, start_powerSGD_iter=dense_steps
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp, state
