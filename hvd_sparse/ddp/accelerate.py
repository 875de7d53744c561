"""The sparse exchange in Hugging Face Accelerate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedType  # type: ignore[import-not-found]
from accelerate.optimizer import AcceleratedOptimizer  # type: ignore[import-not-found]

from hvd_sparse.ddp import rank_state
from hvd_sparse.ddp.attaching import attach
from hvd_sparse.ddp.host import GroupHost
from hvd_sparse.ddp.user_exchange import Exchange
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.state.checkpoint import Job


def attach_prepared(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: AcceleratedOptimizer,
    compression: Any,
    *,
    residuals: str = "own",
) -> Exchange:
    """Exchanges the gradients of a prepared model sparsely. Collective.

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        exchange = attach_prepared(accelerator, model, optimizer, LAGS)

    accelerator.accumulate(), clip_grad_norm_(), save_state() and load_state() then work as before:
    save_state() writes the residuals of every rank to the folder `hvd_sparse` in its own, and with
    local steps its weights and moments; load_state() reads them.

    Args:
        accelerator: An accelerator of several processes, of the type MULTI_CPU or MULTI_GPU.
        model: The model, as accelerator.prepare() returned it.
        optimizer: The model's optimizer, as accelerator.prepare() returned it.
        compression: A sparse compression, as a class or an instance.
        residuals: The policy for residuals that load_state() finds. "own": every rank continues
            with its own, as if nothing had happened; the number of ranks must be that of the
            checkpoint. "reset": residuals are dropped, for any number of ranks.

    Returns:
        A handle on the exchange; also kept as `optimizer.optimizer.exchange`.

    Raises:
        InvalidArgumentError: `residuals` is neither, or `optimizer` was not prepared; or see
            `attach`.
        UnsupportedError: The accelerator does not wrap models in DistributedDataParallel; or see
            `attach`.
    """
    if accelerator.distributed_type not in (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
        raise UnsupportedError(
            "a sparse exchange takes processes that train by DistributedDataParallel, and this "
            f"Accelerator has {accelerator.num_processes} of the type "
            f"{accelerator.distributed_type.value}: start several by accelerate launch or torchrun"
        )
    job = Job(GroupHost(call="attach_prepared()").world())
    with job.fail_together(InvalidArgumentError):
        rank_state.checked(residuals)
        if not isinstance(optimizer, AcceleratedOptimizer):
            raise InvalidArgumentError(
                "optimizer must come from accelerator.prepare(), got "
                f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
            )
    inner: torch.optim.Optimizer = optimizer.optimizer
    exchange = attach(model, inner, compression, grad_scaler=accelerator.scaler)

    # Accelerate tells the folder on all ranks, then asks the optimizer for its state or loads it.
    saving: list[str] = []
    loading: list[str] = []

    def before_save(_models: Any, _weights: Any, folder: str) -> None:
        rank_state.save(Path(folder, rank_state.NAME), model, inner)
        saving[:] = [folder]

    def after_state_dict(_: Any, whole: dict[str, Any]) -> dict[str, Any]:
        if not saving:
            return whole
        saving.clear()
        return rank_state.emptied(whole)

    def before_load(_models: Any, folder: str) -> None:
        loading[:] = [folder]

    def before_load_state_dict(_: Any, shared: dict[str, Any]) -> dict[str, Any]:
        if not loading:
            return shared
        folder = loading.pop()
        place = Path(folder, rank_state.NAME)
        return rank_state.restored(place, model, inner, shared, residuals)

    accelerator.register_save_state_pre_hook(before_save)
    accelerator.register_load_state_pre_hook(before_load)
    inner.register_state_dict_post_hook(after_state_dict)
    inner.register_load_state_dict_pre_hook(before_load_state_dict, prepend=True)
    return exchange
