"""hvd.DistributedGradientTape for sparse compressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.begun_momentum import begin_velocities
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.local_variables import is_among
from hvd_sparse.tensorflow.registry import exchange_of
from hvd_sparse.tensorflow.settings import Settings


def exchange_for(
    settings: Settings,
    variables: Sequence[Any],
    sliced: Sequence[bool | None],
    process_set: Any,
    owner: Any,
) -> GradientExchange | None:
    """Returns the exchange of these variables; None if settings need none. See `exchange_of`."""
    if not variables or not settings.needs_exchange(process_set):
        return None
    agreed = settings.among(process_set)
    return exchange_of(variables, sliced, agreed, process_set=process_set, owner=owner)


def reducer(
    settings: Settings,
    process_set: Any = hvd.global_process_set,
    owner: Any = None,
    learning_rate: Any = None,
) -> Callable[..., list[Any]]:
    """Returns a function that averages gradients, with the signature that Horovod calls.

    Args:
        settings: The user's settings.
        process_set: Horovod's process set; ranks outside it exchange nothing.
        owner: The optimizer that the residuals belong to; None if all reducers of the same
            variables share them.
        learning_rate: The learning rate that the residuals follow, if they follow one; None for
            the owner's.
    """

    def reduce(
        gradients: Sequence[Any], variables: Sequence[Any], use_generic_names: bool = False
    ) -> list[Any]:
        for variable in variables if settings.needs_exchange(process_set) else ():
            if not hasattr(variable, "assign"):
                raise UnsupportedError(
                    "a sparse compression takes gradients of variables, which own the residuals; "
                    f"got a source of type {type(variable).__name__}"
                )
        sliced = [None if one is None else isinstance(one, tf.IndexedSlices) for one in gradients]
        exchange = exchange_for(settings, variables, sliced, process_set, owner)
        if exchange is None:
            return list(gradients)
        if owner is not None and settings.moves_momentum(process_set):
            with tf.init_scope():
                averages = settings.reduction.averages
                begin_velocities(exchange, owner, variables, averages=averages)
        rate = None
        if settings.follows_rate:
            rate = compat.rate_of(owner) if learning_rate is None else learning_rate
        return exchange.reduce(gradients, variables, rate)

    unconverted: Callable[..., list[Any]] = tf.autograph.experimental.do_not_convert(reduce)
    return unconverted


def distribute_tape(
    stock: Callable[..., Any], arguments: dict[str, Any], learning_rate: Any = None
) -> tuple[Any, list[Any]]:
    """Returns Horovod's tape with a sparse exchange, and a list of the variables it exchanges.

    The list is empty until the tape is asked for gradients.

    Args:
        stock: Horovod's DistributedGradientTape.
        arguments: The arguments of a call of it, by name.
        learning_rate: The learning rate with which the gradients will be applied, which the
            residual then follows, as in the LAGS paper. A variable or a tensor; a number becomes a
            constant of the graph. None if the residual follows none.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
        UnsupportedError: A sparse exchange does not support an argument.
    """
    settings, rest = Settings.taken_from(arguments)
    settings = settings.of_tape(learning_rate)
    tape = stock(**rest)
    average = reducer(settings, tape.process_set, learning_rate=learning_rate)
    exchanged: list[Any] = []

    def reduce(gradients: Sequence[Any], variables: Sequence[Any], *rest: Any) -> list[Any]:
        exchanged[:] = variables
        return average(gradients, variables, *rest)

    tape._allreduce_grads = tf.autograph.experimental.do_not_convert(reduce)
    return tape, exchanged


def accept_keras_3_variables(kind: Any) -> None:
    """Makes a tape class of Horovod's accept Keras 3 variables, which have no `ref`.

    The class is changed, not the tape: a tape that held a closure over itself would keep its
    activations until the garbage collector runs.
    """
    gradient, register = kind.gradient, kind.register_local_source

    def gradient_of(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        return gradient(self, target, [compat.tensor_of(one) for one in sources], *args, **kwargs)

    def register_local_source(self: Any, source: Any) -> None:
        register(self, compat.tensor_of(source))

    def get_local_and_global_gradients(
        self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> tuple[list[Any], list[Any]]:
        pairs = list(zip(sources, self.gradient(target, sources, *args, **kwargs), strict=True))
        known = self._local_sources
        local = [pair for pair in pairs if is_among(known, pair[0])]
        return local, [pair for pair in pairs if not is_among(known, pair[0])]

    unconverted = tf.autograph.experimental.do_not_convert
    kind.gradient = unconverted(gradient_of)
    kind.register_local_source = register_local_source
    kind.get_local_and_global_gradients = unconverted(get_local_and_global_gradients)
