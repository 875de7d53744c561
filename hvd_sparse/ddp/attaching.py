"""attach: gives a DistributedDataParallel module's gradients to a sparse exchange."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp.bucket_steps import BucketSteps, Deliveries
from hvd_sparse.ddp.host import GroupHost
from hvd_sparse.ddp.modules import uncompiled
from hvd_sparse.ddp.own_gradients import keep_own_gradients
from hvd_sparse.ddp.user_exchange import Exchange
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.optimizer import connect
from hvd_sparse.pytorch.parameters import NamedParameters, check_not_lazy
from hvd_sparse.pytorch.settings import Settings


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    compression: Any,
    *,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.AVG,
    gradient_predivide_factor: float = 1.0,
    grad_scaler: Any = None,
) -> Exchange:
    """Exchanges the gradients of a DistributedDataParallel module sparsely. Collective.

    loss.backward() then ends with averages of what the ranks have sent, and optimizer.step() uses
    them. Gradients that the optimizer does not update are averaged dense, as are small and 1-d
    ones. Wrap the module, make the optimizer, then call this, once for each module; all ranks of
    the module's process group call it together, in the same order. If a module is wrapped anew,
    call it again with the same optimizer, which keeps its residuals.

    Args:
        model: A DistributedDataParallel, or what torch.compile has made of one. Its parameters are
            on the CPU or, if this build has CUDA, on one GPU; of type float64, float32, float16 or
            bfloat16.
        optimizer: An optimizer of parameters of that module; any but LBFGS and SparseAdam. It is
            changed in place: hooks surround its step and its state.
        compression: A sparse compression, as a class or an instance: LAGS, LAGS(density=0.02), ...
        op: ReduceOp.AVG or ReduceOp.SUM of torch.distributed.
        gradient_predivide_factor: For averages: gradients are divided by it before the sum, and the
            sum by the rest of the number of ranks. A number above 1 keeps sums of float16 small.
        grad_scaler: The torch.amp.GradScaler that scales the loss, or any object with its
            get_scale(). Residuals then hold unscaled gradients, and in a step in which a gradient
            is not finite on one rank, all gradients are infinite on all ranks, so that all of them
            skip the step and lower the scale.

    Returns:
        A handle on the exchange, with statistics, checkpoints and more; also kept as
        `optimizer.exchange`.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, on this rank or another, or the
            ranks' models, options or optimizers' momentum differ. Nothing was exchanged.
        UnsupportedError: A sparse exchange cannot do what was asked for, or what the module was
            made with: mixed_precision, another communication hook, sparse gradients, the Python
            reducer.
        UnavailableError: torch.distributed is not initialised, or HVD_SPARSE_TRANSPORT asks for
            MPI.
    """
    host = GroupHost(getattr(uncompiled(model), "process_group", None), call="attach()")

    def prepare() -> Settings:
        ddp = _unwrapped(model)
        _check_module(ddp)
        settings = Settings.checked(
            optimizer,
            compression,
            host=host,
            named=list(_parameters_of(ddp)),
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            grad_scaler=grad_scaler,
        )
        _check_optimizer(optimizer, settings.named)
        return settings

    attachment = connect(optimizer, prepare, host=host, plain=BucketSteps, again=True)
    ddp = _unwrapped(model)
    exchange = attachment.exchange
    if exchange is not None:
        try:
            if isinstance(exchange, BucketSteps):
                deliveries = Deliveries(attachment.renewal, ddp)
                ddp.register_comm_hook(deliveries, Deliveries.deliver)
                ddp.register_forward_pre_hook(deliveries)
            elif isinstance(exchange, LocalSteps):
                reduction = host.reduction(
                    op=op, gradient_predivide_factor=gradient_predivide_factor
                )
                named = list(_parameters_of(ddp))
                keep_own_gradients(ddp, attachment.renewal, exchange, named, reduction)
        except BaseException as error:
            exchange.fail(f"{type(error).__name__}: {error}")
            raise
    handle = Exchange(optimizer)
    optimizer.exchange = handle  # type: ignore[attr-defined]
    return handle


def _unwrapped(model: torch.nn.Module) -> DistributedDataParallel:
    ddp = uncompiled(model)
    if not isinstance(ddp, DistributedDataParallel):
        raise InvalidArgumentError(
            "model must be a torch.nn.parallel.DistributedDataParallel, got "
            f"{type(ddp).__module__}.{type(ddp).__qualname__}"
        )
    return ddp


def _check_module(ddp: DistributedDataParallel) -> None:
    """Raises UnsupportedError for what a communication hook cannot honour."""
    if ddp.mixed_precision is not None:
        raise UnsupportedError(
            "mixed_precision= of DistributedDataParallel has a communication hook of its own: use "
            "torch.autocast, or a compression's wire= (values= of Dense) for narrow values"
        )
    if ddp._comm_hooks:
        name = getattr(ddp._comm_hooks[0][0], "__qualname__", str(ddp._comm_hooks[0][0]))
        raise UnsupportedError(
            f"this DistributedDataParallel has the communication hook '{name}' already, and takes "
            "one: do not register another, and wrap the module anew to attach it again"
        )
    if any(hasattr(one, "_in_backward_optimizers") for one in ddp.module.parameters()):
        raise UnsupportedError(
            "optimizers that step during backward have a communication hook of their own, and "
            "would not wait for the exchange: do not call _apply_optimizer_in_backward"
        )
    if getattr(ddp, "_use_python_reducer", False):
        raise UnsupportedError(
            "DistributedDataParallel's Python reducer, which compiled autograd takes, has no "
            "buckets: set torch._dynamo.config.optimize_ddp to another value than "
            "'python_reducer...'"
        )
    for name, module in ddp.module.named_modules():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            raise UnsupportedError(
                f"the gradient of '{name}.weight' is sparse: make the layer with sparse=False"
            )


def _parameters_of(ddp: DistributedDataParallel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parameters whose gradients DDP gathers, by their names in the wrapped module."""
    for name, param in ddp.module.named_parameters():
        if param.requires_grad and name not in ddp.parameters_to_ignore:
            check_not_lazy(name, param)
            yield name, param


def _check_optimizer(optimizer: torch.optim.Optimizer, named: NamedParameters) -> None:
    """Raises InvalidArgumentError unless DDP gathers all gradients of an optimizer, some at least.

    Others would stay the ranks' own, and replicas would differ.
    """
    gathered = {id(param) for _, param in named}
    for index, group in enumerate(optimizer.param_groups):
        for position, param in enumerate(group["params"]):
            if param.requires_grad and id(param) not in gathered:
                raise InvalidArgumentError(
                    f"parameter {position} of group {index} of {type(optimizer).__name__} does not "
                    "belong to this DistributedDataParallel, or required no gradient when that was "
                    "made"
                )
