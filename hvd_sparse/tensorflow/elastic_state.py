"""Extends Horovod's elastic states to sparse exchanges.

commit      lets ranks that take local steps meet, and copies each rank's residuals
restore     goes back to them, for the next world's exchanges
sync        builds these exchanges, on joining ranks too, and loads the ranks' residuals

A state does not know which variables are exchanged, so it covers all exchanges, and all optimizers
that take local steps, of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.exceptions import HostsUpdatedInterrupt

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.tensorflow import accumulation, compat, registry
from hvd_sparse.tensorflow.elastic_errors import with_horovod_errors
from hvd_sparse.tensorflow.local_steps import all_in_order

_making = False


def refuse_what_resets_lose(arguments: Mapping[str, Any]) -> None:
    """Refuses, in an elastic job, arguments that would not survive a reset of Horovod or Keras 2.

    Args:
        arguments: Arguments of DistributedGradientTape or DistributedOptimizer, with a sparse
            compression.

    Raises:
        UnsupportedError: Names the argument.
    """
    process_set = arguments.get("process_set", hvd.global_process_set)
    if process_set is not hvd.global_process_set:
        raise UnsupportedError(
            "process_set must be that of all ranks in an elastic job, where Horovod forgets others "
            f"when ranks come or go; got {process_set}"
        )
    passes = arguments.get("backward_passes_per_step", 1)
    if passes != 1 and not compat.is_keras_3_optimizer(arguments["optimizer"]):
        raise UnsupportedError(
            f"backward_passes_per_step must be 1 in an elastic job with Keras 2, got {passes}: "
            "ranks that join would count passes from another one on"
        )


def run(stock: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps hvd.elastic.run: the error that ended an exchange restarts training."""
    wrapped: Callable[..., Any] = stock(with_horovod_errors(function))
    return wrapped


def make(stock: Callable[..., Any], state: Any, *args: Any, **kwargs: Any) -> None:
    """Wraps TensorFlowState.__init__: its broadcast (eager) would block a joining rank for ever."""
    global _making
    _making = tf.executing_eagerly()
    try:
        stock(state, *args, **kwargs)
    finally:
        _making = False


def is_making() -> bool:
    """Returns true while a state is being made, which must not broadcast before `sync`."""
    return _making


def save(stock: Callable[..., Any], state: Any) -> None:
    """Wraps State.save, which `commit` calls, on all ranks in the same step."""
    accumulation.refuse_amid_passes()
    for local in all_in_order():
        local.meet()
        local.commit()
    stock(state)
    for renewal in registry.renewals():
        renewal.commit()


def restore(stock: Callable[..., Any], state: Any) -> None:
    """Wraps State.restore: exchanges may have failed in the middle of a step."""
    stock(state)
    accumulation.empty_all()
    for local in all_in_order():
        local.restore()
    for renewal in registry.renewals():
        renewal.restore()


@with_horovod_errors
def sync(stock: Callable[..., Any], state: Any) -> None:
    """Wraps State.sync: rebuilds the exchanges, for which no gradient is needed."""
    if isinstance(state, hvd.elastic.TensorFlowState) and tf.executing_eagerly():
        hvd.broadcast_variables(state.variables, root_rank=0)  # Horovod's own needs a session
    stock(state)
    for local in all_in_order():
        local.sync()
        local.commit()
    registry.renew_all()
    for renewal in registry.renewals():
        renewal.commit()


def check_host_updates(stock: Callable[..., Any], state: Any) -> None:
    """Wraps State.check_host_updates: a rank that will leave hands over its residuals."""
    try:
        stock(state)
    except HostsUpdatedInterrupt as interrupt:
        accumulation.refuse_amid_passes()
        for local in all_in_order():
            local.meet()
        if registry.pool_all():
            interrupt.skip_sync = False  # even if nobody joins: sync() builds the next exchanges
        raise


def save_model(stock: Callable[..., Any], state: Any) -> None:
    """Wraps TensorFlowKerasState._save_model, which does not support Keras 3 optimizers."""
    if not compat.is_keras_3_optimizer(state.optimizer):
        stock(state)
        return
    compat.build_optimizer(state.optimizer, state.model.trainable_variables)
    state._saved_model_state = _copies(state.model.variables)
    state._saved_optimizer_state = _copies(compat.variables_of(state.optimizer))


def load_model(stock: Callable[..., Any], state: Any) -> None:
    """Wraps TensorFlowKerasState._load_model, for Keras 3 optimizers."""
    if not compat.is_keras_3_optimizer(state.optimizer):
        stock(state)
        return
    for variables, saved in (
        (state.model.variables, state._saved_model_state),
        (compat.variables_of(state.optimizer), state._saved_optimizer_state),
    ):
        for variable, value in zip(variables, saved, strict=True):
            compat.tensor_of(variable).assign(value)


def broadcast_model(
    stock: Callable[..., Any], model: Any, optimizer: Any, *args: Any, **kwargs: Any
) -> None:
    """Wraps the broadcast of TensorFlowKerasState.sync, for Keras 3 optimizers."""
    if not compat.is_keras_3_optimizer(optimizer):
        stock(model, optimizer, *args, **kwargs)
        return
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(compat.variables_of(optimizer), root_rank=0)


def _copies(variables: Any) -> list[tf.Tensor]:
    return [tf.identity(compat.tensor_of(variable)) for variable in variables]
