"""What Horovod's elastic states do with sparse exchanges, beyond what they do with all.

commit      copies what each rank has yet to send
restore     takes it up again, for the exchanges of the next ranks
sync        builds those, on ranks that join too, and gives them what the ranks hold

A state does not know what is exchanged, so all exchanges of the process go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.exceptions import HostsUpdatedInterrupt

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.state.inheritance import checked_policy
from hvd_sparse.tensorflow import accumulation, compat, registry
from hvd_sparse.tensorflow.elastic_errors import as_horovod_knows_them

_making = False


def elastic_residuals(policy: str) -> None:
    """Says what becomes of residuals when ranks have come or gone; on all ranks alike.

    It holds for all exchanges of the process: they are built again together.

    Args:
        policy: "spread", the default: the sum of what the ranks hold is shared out among those of
            now, entry by entry to one after the other. "reset": what was not sent yet is lost.

    Raises:
        InvalidArgumentError: `policy` is neither.
    """
    registry.set_policy(checked_policy(policy))


def refuse_what_resets_lose(arguments: Mapping[str, Any]) -> None:
    """Refuses, in an elastic job, what Horovod or Keras 2 would not carry through a reset.

    Args:
        arguments: With a sparse compression, of DistributedGradientTape or DistributedOptimizer.

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
    """hvd.elastic.run: what ended an exchange is an error after which training begins again."""
    wrapped: Callable[..., Any] = stock(as_horovod_knows_them(function))
    return wrapped


def make(stock: Callable[..., Any], state: Any, *args: Any, **kwargs: Any) -> None:
    """TensorFlowState.__init__, which in eager mode broadcasts: who joins would wait for ever."""
    global _making
    _making = tf.executing_eagerly()
    try:
        stock(state, *args, **kwargs)
    finally:
        _making = False


def is_making() -> bool:
    """Whether a state is being made, and is to broadcast nothing before it is synchronised."""
    return _making


def save(stock: Callable[..., Any], state: Any) -> None:
    """State.save, which `commit` calls."""
    accumulation.refuse_amid_passes()
    stock(state)
    for renewal in registry.renewals():
        renewal.commit()


def restore(stock: Callable[..., Any], state: Any) -> None:
    """State.restore: exchanges may have failed, amid a step."""
    stock(state)
    accumulation.empty_all()
    for renewal in registry.renewals():
        renewal.restore()


@as_horovod_knows_them
def sync(stock: Callable[..., Any], state: Any) -> None:
    """State.sync: no gradient is needed to build the exchanges again."""
    if isinstance(state, hvd.elastic.TensorFlowState) and tf.executing_eagerly():
        hvd.broadcast_variables(state.variables, root_rank=0)  # Horovod knows sessions alone
    stock(state)
    registry.renew_all()
    for renewal in registry.renewals():
        renewal.commit()


def check_host_updates(stock: Callable[..., Any], state: Any) -> None:
    """State.check_host_updates: a rank that is about to leave hands over what it holds."""
    try:
        stock(state)
    except HostsUpdatedInterrupt as interrupt:
        accumulation.refuse_amid_passes()
        if registry.pool_all():
            interrupt.skip_sync = False  # even if nobody joins: sync() builds the next exchanges
        raise


def save_model(stock: Callable[..., Any], state: Any) -> None:
    """TensorFlowKerasState._save_model, which knows no optimizer of Keras 3."""
    if not compat.is_keras_3_optimizer(state.optimizer):
        stock(state)
        return
    compat.build_optimizer(state.optimizer, state.model.trainable_variables)
    state._saved_model_state = _copies(state.model.variables)
    state._saved_optimizer_state = _copies(compat.variables_of(state.optimizer))


def load_model(stock: Callable[..., Any], state: Any) -> None:
    """TensorFlowKerasState._load_model, likewise."""
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
    """What TensorFlowKerasState.sync sends, likewise."""
    if not compat.is_keras_3_optimizer(optimizer):
        stock(model, optimizer, *args, **kwargs)
        return
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(compat.variables_of(optimizer), root_rank=0)


def _copies(variables: Any) -> list[tf.Tensor]:
    return [tf.identity(compat.tensor_of(variable)) for variable in variables]
