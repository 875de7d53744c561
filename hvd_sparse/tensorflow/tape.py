"""hvd.DistributedGradientTape for sparse compressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.tensorflow.registry import exchange_of
from hvd_sparse.tensorflow.settings import Settings


def reducer(
    settings: Settings, process_set: Any = hvd.global_process_set, owner: Any = None
) -> Callable[..., list[Any]]:
    """What averages gradients, in the form in which Horovod's tape and optimizers call it.

    Args:
        settings: What the user asked for.
        process_set: Horovod's; ranks outside it exchange nothing.
        owner: The optimizer that the residuals belong to; None: whoever asks for the same variables
            shares them.
    """

    def reduce(
        gradients: Sequence[Any], variables: Sequence[Any], use_generic_names: bool = False
    ) -> list[Any]:
        if not variables or not process_set.included() or process_set.size() == 1:
            return list(gradients)
        for variable in variables:
            if not hasattr(variable, "assign"):
                raise UnsupportedError(
                    "a sparse compression takes gradients of variables, which own the residuals; "
                    f"got a source of type {type(variable).__name__}"
                )
        sliced = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
        exchange = exchange_of(variables, sliced, settings, process_set=process_set, owner=owner)
        return exchange.reduce(gradients, owner.learning_rate if settings.follows_rate else None)

    unconverted: Callable[..., list[Any]] = tf.autograph.experimental.do_not_convert(reduce)
    return unconverted


def distribute_tape(stock: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Horovod's tape, with gradients that are exchanged sparsely.

    Args:
        stock: Horovod's DistributedGradientTape.
        arguments: Of a call of it, by name.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
        UnsupportedError: A sparse exchange cannot do what was asked for.
    """
    settings, rest = Settings.taken_from(arguments)
    settings = settings.of_optimizer(None)
    tape = stock(**rest)
    tape._allreduce_grads = reducer(settings, tape.process_set)
    return tape
