"""Patches horovod.torch when hvd_sparse.torch is imported; written for Horovod 0.28.

DistributedOptimizer        accepts sparse compressions; Horovod handles all others. Its result has
                            an `exchange`
broadcast_optimizer_state   of a sparse optimizer starts no exchange and changes no parameter; all
                            ranks continue at the root's step, and with its plan
join                        is refused while there is a sparse optimizer
shutdown                    ends the exchanges first
elastic.TorchState          keeps residuals when ranks come and go, between meetings of local steps
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any

import horovod.torch
import horovod.torch.elastic.state
import horovod.torch.functions
import horovod.torch.mpi_ops
import horovod.torch.optimizer
import torch

from hvd_sparse.compression import as_compression, is_sparse_compression
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.pytorch import state
from hvd_sparse.pytorch.attachment import attachment_of
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.optimizer import distribute, live_exchanges
from hvd_sparse.ranks import lifecycle
from hvd_sparse.ranks.horovod_names import replace
from hvd_sparse.torch.elastic_state import (
    check_host_updates,
    restore_optimizer,
    save,
    sync_optimizer,
)
from hvd_sparse.torch.host import HorovodHost
from hvd_sparse.torch.user_exchange import Exchange

# Modules of Horovod that hold the functions under their own names.
_MODULES = (
    "horovod.torch",
    "horovod.torch.optimizer",
    "horovod.torch.functions",
    "horovod.torch.mpi_ops",
    "horovod.torch.elastic",
    "horovod.torch.elastic.state",
)

# What DistributedOptimizer takes beside Horovod's arguments, with a sparse compression.
_OPTIONS = ("grad_scaler", "wait_in_forward")


def install() -> None:
    """Patches horovod.torch; further calls have no effect."""
    elastic = horovod.torch.elastic.state
    for name, home, around in (
        ("DistributedOptimizer", horovod.torch.optimizer, _distributed_optimizer),
        ("broadcast_optimizer_state", horovod.torch.functions, _broadcast_optimizer_state),
        ("join", horovod.torch.mpi_ops, _join),
        ("shutdown", horovod.torch.mpi_ops, lifecycle.shut_down),
        ("restore", elastic.OptimizerStateHandler, restore_optimizer),
        ("sync", elastic.OptimizerStateHandler, sync_optimizer),
        ("save", elastic.TorchState, save),
        ("check_host_updates", elastic.TorchState, check_host_updates),
    ):
        replace(name, home, around, modules=_MODULES)


def _distributed_optimizer(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    optimizer = _distributed(stock, *args, **kwargs)
    optimizer.exchange = Exchange(optimizer)
    return optimizer


def _distributed(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    own = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
    bound = inspect.signature(stock).bind(*args, **kwargs)
    compression = bound.arguments.get("compression")
    if is_sparse_compression(compression):
        options = dict(bound.arguments)
        host = HorovodHost(options.pop("process_set", None))
        return distribute(**options, **own, host=host)
    asked = [name for name, value in own.items() if value not in (None, False)]
    if asked:
        raise InvalidArgumentError(
            f"{', '.join(asked)} needs compression=LAGS, or another of hvd_sparse's, got "
            f"{compression!r}"
        )
    if "compression" in bound.arguments and not hasattr(compression, "compress"):
        as_compression(compression)  # raises
    optimizer = bound.arguments["optimizer"]
    if attachment_of(optimizer) is not None:
        raise InvalidArgumentError(
            f"this {type(optimizer).__name__} already is a distributed optimizer"
        )
    return stock(*args, **kwargs)


def _broadcast_optimizer_state(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    bound = inspect.signature(stock).bind(*args, **kwargs)
    optimizer = bound.arguments["optimizer"]
    attachment = attachment_of(optimizer)
    if attachment is None:
        return stock(*args, **kwargs)
    # If the state is empty, Horovod creates it by a step with zero gradients. If only one rank does
    # so, weight decay would move its parameters, and its momentum would start from that.
    params = [param for group in optimizer.param_groups for param in group["params"]]
    kept = [(param, param.detach().clone(), param.grad) for param in params]
    with attachment.paused():
        exchange = attachment.exchange
        if exchange is not None:
            exchange.momentum.give_back(exchange.velocities())
        result = stock(*args, **kwargs)
    with torch.no_grad():
        for param, value, grad in kept:
            param.copy_(value)
            param.grad = grad
    if exchange is not None:
        state.adopt_progress(exchange, bound.arguments["root_rank"])
    return result


def _join(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if live_exchanges():
        gc.collect()  # an optimizer that is no longer used does not count
    alive = live_exchanges()
    # Operations that a failed exchange has left behind in Horovod make a later join crash.
    if alive or GradientExchange.any_ended_early:
        lifecycle.refuse_join(alive, advice=" (drop_last, DistributedSampler)")
    return stock(*args, **kwargs)
