"""attach: gives the gradients of a model that FSDP2 has sharded to a sparse exchange."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from hvd_sparse.compression import Compression
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.fsdp.groups import Group, Mesh, common_mesh, groups_of, groups_to_take, named_in
from hvd_sparse.fsdp.host import ShardHost
from hvd_sparse.fsdp.sharded_steps import ShardedSteps
from hvd_sparse.fsdp.user_exchange import Exchange
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.optimizer import connect
from hvd_sparse.pytorch.parameters import NamedParameters, check_kind
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
    """Exchanges the gradients of a sharded model sparsely between its replicas. Collective.

    FSDP2 goes on to gather parameters, and to reduce gradients, over the shards of each replica;
    what it would all-reduce between the replicas is exchanged in its place, each parameter's shard
    by itself. loss.backward() then ends with averages of what the ranks have sent, as it does
    without. All ranks of the mesh commit a step, or none does.

    Shard the model, make the optimizer, then call this, before the first step; all ranks of the
    mesh call it together. Each optimizer of the model has a call of its own; groups of parameters
    that none of them updates stay FSDP2's.

    Args:
        model: A module, in which fully_shard was called with a mesh of two dimensions, for replicas
            and shards; or what torch.compile has made of one. It contains all parameters of the
            optimizer; its parameters are of type float64, float32, float16 or bfloat16.
        optimizer: An optimizer of parameters of that module; any but LBFGS and SparseAdam. It is
            changed in place: hooks surround its step and its state.
        compression: A sparse compression, as a class or an instance: LAGS, LAGS(density=0.02), ...
            Densities, and the size below which a tensor is sent dense, are those of shards.
        op: ReduceOp.AVG or ReduceOp.SUM of torch.distributed, over the replicas; what FSDP2 reduces
            over the shards of a replica is an average.
        gradient_predivide_factor: See `hvd_sparse.ddp.attach`, for averages over the replicas.
        grad_scaler: The torch.amp.GradScaler that scales the loss, or any object with its
            get_scale(); see `hvd_sparse.ddp.attach`.

    Returns:
        A handle on the exchange, with statistics, state for checkpoints and more; also kept as
        `optimizer.exchange`. On a mesh with one replica nothing is exchanged.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, on this rank or another; the
            mesh has no replicas; the optimizer updates a part of a group; or the ranks' models,
            options or optimizers' momentum differ. Nothing was exchanged.
        UnsupportedError: A sparse exchange cannot do what was asked for: FSDP1, tensor parallelism,
            an all-reduce hook.
        UnavailableError: torch.distributed is not initialised, or HVD_SPARSE_TRANSPORT asks for
            MPI.
    """
    check_kind("model", model, torch.nn.Module)
    groups = groups_of(model)
    mesh = common_mesh(groups)
    host = ShardHost(mesh, call="attach()")
    taken: list[Group] = []

    def prepare() -> Settings:
        for group in groups:
            group.check()
        taken.extend(groups_to_take(groups, optimizer))
        settings = Settings.checked(
            optimizer,
            compression,
            host=host,
            named=named_in(model, taken),
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            grad_scaler=grad_scaler,
        )
        _check_compression(settings.compression, mesh, settings.named)
        return settings

    def reshard() -> None:
        for group in taken:
            group.reshard()

    attachment = connect(optimizer, prepare, host=host, plain=ShardedSteps, again=True)
    exchange = attachment.exchange
    if exchange is not None:
        if isinstance(exchange, ShardedSteps):
            exchange.follow(taken)
        elif isinstance(exchange, LocalSteps):
            exchange.before_move = reshard
        for group in taken:
            group.take_over(attachment.renewal)
    attachment.loss_note.may_be_apart = True
    handle = Exchange(optimizer)
    optimizer.exchange = handle  # type: ignore[attr-defined]
    return handle


def _check_compression(compression: Compression, mesh: Mesh, named: NamedParameters) -> None:
    """Raises UnsupportedError for what the shards of a replica would do differently."""
    if mesh.shards == 1:
        return
    for name, param in named if compression.is_local else ():
        sharded = param.placements[mesh.shard_dim]  # type: ignore[attr-defined]
        rows = param.shape[sharded.dim]
        if math.ceil(rows / math.ceil(rows / mesh.shards)) < mesh.shards:
            raise UnsupportedError(
                f"local steps need a part of '{name}' in each of {mesh.shards} shards, and it has "
                f"{rows} rows in dimension {sharded.dim}"
            )
    if compression.feedback.clip_norm is not None:
        raise UnsupportedError(
            f"clip_norm must be None on a mesh of {mesh.shards} shards, where a rank knows the "
            "norm of a shard alone: call torch.nn.utils.clip_grad_norm_ after backward, got "
            f"{compression.feedback.clip_norm}"
        )
