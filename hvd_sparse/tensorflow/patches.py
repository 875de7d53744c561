"""Changes horovod.tensorflow when hvd_sparse.tensorflow is imported; written for Horovod 0.28.

DistributedGradientTape   accepts sparse compressions, a learning rate, and Keras 3 variables, also
                          as local ones
DistributedOptimizer      accepts sparse compressions; with Keras 3, exchanges with any compression,
                          except gradients of local layers; also that of horovod.keras. Its
                          results have an `exchange`, and so have tapes with a sparse compression
load_model                returns models with these optimizers, with Keras 3, too
callbacks                 for broadcast and learning rate support Keras 3; local variables may be
                          Keras's
broadcast_variables       accepts Keras 3 variables; random seeds of layers stay each rank's own
LossScaleOptimizer        exchanges before it checks whether gradients are finite; in Keras 2 gives
                          the inner optimizer the scale of the gradients that it exchanges; refuses
                          local layers
join                      is refused while there is a sparse exchange
shutdown                  ends the exchanges first
elastic states            keep residuals when ranks come and go, between meetings of local steps;
                          support Keras 3 optimizers
elastic.run               restarts training after an error that has ended an exchange
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import horovod._keras
import horovod._keras.callbacks
import horovod.tensorflow
import horovod.tensorflow.elastic
import horovod.tensorflow.functions
import horovod.tensorflow.keras
import horovod.tensorflow.keras.elastic
import horovod.tensorflow.mpi_ops
import tensorflow as tf

from hvd_sparse.compression import as_compression, is_sparse_compression
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.ranks import lifecycle
from hvd_sparse.ranks.horovod_names import replace
from hvd_sparse.ranks.world import in_elastic_job
from hvd_sparse.tensorflow import compat, elastic_state, keras_callbacks
from hvd_sparse.tensorflow.keras_optimizer import distribute_keras_2, distribute_keras_3
from hvd_sparse.tensorflow.local_steps import begin_after_broadcast
from hvd_sparse.tensorflow.local_variables import refuse_in
from hvd_sparse.tensorflow.loss_scaling import apply_scaled, compute_scaled
from hvd_sparse.tensorflow.registry import live_exchanges
from hvd_sparse.tensorflow.tape import accept_keras_3_variables, distribute_tape
from hvd_sparse.tensorflow.user_exchange import Exchange

# Horovod's modules that hold these functions under the same names.
_MODULES = (
    "horovod.tensorflow",
    "horovod.tensorflow.elastic",
    "horovod.tensorflow.functions",
    "horovod.tensorflow.keras",
    "horovod.tensorflow.keras.elastic",
)


def install() -> None:
    """Changes horovod.tensorflow; further calls have no effect."""
    hvd, keras, elastic = horovod.tensorflow, horovod.tensorflow.keras, horovod.tensorflow.elastic
    callbacks = horovod._keras.callbacks
    for name, home, around in (
        ("DistributedGradientTape", hvd, _distributed_gradient_tape),
        ("DistributedOptimizer", hvd, _distributed_optimizer),
        ("DistributedOptimizer", keras, _distributed_optimizer),
        # horovod.keras calls this. It is not imported here: standalone Keras may be missing.
        ("create_distributed_optimizer", horovod._keras, _distributed_optimizer),
        ("load_model", horovod._keras, _load_model),
        (
            "on_batch_end",
            callbacks.BroadcastGlobalVariablesCallbackImpl,
            keras_callbacks.broadcast_at_batch_end,
        ),
        (
            "_adjust_learning_rate",
            callbacks.LearningRateScheduleCallbackImpl,
            keras_callbacks.adjust_learning_rate,
        ),
        ("broadcast_variables", horovod.tensorflow.functions, _broadcast_variables),
        ("join", horovod.tensorflow.mpi_ops, _join),
        ("shutdown", horovod.tensorflow.mpi_ops, lifecycle.shut_down),
        ("run", elastic, elastic_state.run),
        ("_broadcast_model", elastic, elastic_state.broadcast_model),
        ("_save_model", elastic.TensorFlowKerasState, elastic_state.save_model),
        ("_load_model", elastic.TensorFlowKerasState, elastic_state.load_model),
        ("__init__", elastic.TensorFlowState, elastic_state.make),
        *(
            (name, kind, getattr(elastic_state, name))
            for name in ("save", "restore", "sync", "check_host_updates")
            for kind in (elastic.TensorFlowKerasState, elastic.TensorFlowState)
        ),
    ):
        replace(name, home, around, modules=_MODULES)
    keras_callbacks.accept_local_variables(callbacks.BroadcastGlobalVariablesCallbackImpl)
    scaling = compat.keras_3_loss_scaling()
    if scaling is not None:
        replace("apply", scaling, apply_scaled)
        keras_callbacks.with_short_rate(scaling)
        refuse_in(scaling)
        _give_handle(scaling)
    for kind, method in compat.keras_2_loss_scaling():
        replace(method, kind, compute_scaled)
        refuse_in(kind)
        _give_handle(kind)


def _arguments(stock: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    arguments = dict(inspect.signature(stock).bind(*args, **kwargs).arguments)
    compression = arguments.get("compression")
    if "compression" in arguments and not hasattr(compression, "compress"):
        as_compression(compression)  # raises unless it is a sparse one
    if is_sparse_compression(compression) and in_elastic_job():
        elastic_state.refuse_what_resets_lose(arguments)
    return arguments


def _distributed_gradient_tape(
    stock: Callable[..., Any], *args: Any, learning_rate: Any = None, **kwargs: Any
) -> Any:
    arguments = _arguments(stock, args, kwargs)
    if is_sparse_compression(arguments.get("compression")):
        tape, exchanged = distribute_tape(stock, arguments, learning_rate)
        tape.exchange = Exchange(exchanged)
    elif learning_rate is not None:
        raise InvalidArgumentError(
            f"learning_rate must be None with a compression of Horovod's, got {learning_rate!r}"
        )
    else:
        tape = stock(*args, **kwargs)
    accept_keras_3_variables(type(tape))  # Horovod creates a class for each tape
    return tape


def _distributed_optimizer(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    arguments = _arguments(stock, args, kwargs)
    optimizer = arguments["optimizer"]
    if compat.is_keras_3_optimizer(optimizer):
        arguments.pop("keras", None)
        stepping = compat.stepping_of(optimizer)
        distribute_keras_3(**{**arguments, "optimizer": stepping})
        _give_handle(type(stepping))
        return optimizer
    if not is_sparse_compression(arguments.get("compression")):
        return stock(*args, **kwargs)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise UnsupportedError(
            f"{type(optimizer).__name__} is an optimizer of TensorFlow 1, which a "
            "sparse compression cannot be used with: use one of Keras, or DistributedGradientTape"
        )
    distributed = distribute_keras_2(stock, arguments)
    _give_handle(type(compat.stepping_of(distributed)))
    return distributed


def _give_handle(kind: Any) -> None:
    """Gives optimizers of a class a property `exchange`."""
    kind.exchange = property(Exchange)


def _load_model(
    stock: Callable[..., Any],
    keras: Any,
    wrap_optimizer: Callable[[Any], Callable[[], Any]],
    filepath: Any,
    custom_optimizers: Any,
    custom_objects: Any,
    legacy_opts: bool = False,
) -> Any:
    if not compat.is_keras_3(keras):
        return stock(
            keras, wrap_optimizer, filepath, custom_optimizers, custom_objects, legacy_opts
        )
    if legacy_opts:
        raise InvalidArgumentError(f"legacy_opts must be False with Keras 3, got {legacy_opts!r}")
    # Keras 3 does not look up its own optimizers in custom objects, where Horovod puts wrappers.
    custom = {kind.__name__: kind for kind in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=custom)
    if model.optimizer is not None:
        wrap_optimizer(lambda: model.optimizer)()  # it changes the optimizer in place
    return model


def _broadcast_variables(
    stock: Callable[..., Any], variables: Any, *args: Any, **kwargs: Any
) -> Any:
    if elastic_state.is_making():
        return None
    shared = [compat.tensor_of(one) for one in variables if not compat.is_seed(one)]
    result = stock(shared, *args, **kwargs)
    begin_after_broadcast(shared)
    return result


def _join(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    exchanges = live_exchanges()
    if exchanges:
        lifecycle.refuse_join(exchanges)
    return stock(*args, **kwargs)
