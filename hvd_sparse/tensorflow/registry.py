"""Which exchange belongs to which variables: built when their gradients are met for the first time.

A tape is made anew in every step, so it cannot keep an exchange, nor residuals. They belong to the
variables, and live as long as the first of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.agreement import agree
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.exchange import Exchange
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.names import unique_names
from hvd_sparse.tensorflow.settings import Settings, check_variable
from hvd_sparse.world import ProcessSetKey, World, key_of

# Ids of the owner and of the variables, settings, and Horovod's number of the process set.
_Key: TypeAlias = tuple[int, tuple[int, ...], str, ProcessSetKey]

_exchanges: dict[_Key, GradientExchange] = {}
_serial = 0


def live_exchanges() -> list[GradientExchange]:
    """The exchanges of this process."""
    return [exchange for exchange in _exchanges.values() if not exchange.closed]


def find_exchange(target: Any) -> GradientExchange | None:
    """The first exchange of an optimizer's gradients, or of these variables'; None if none yet."""
    return next(iter(find_exchanges(target)), None)


def find_exchanges(target: Any) -> list[GradientExchange]:
    """All of them: an optimizer may exchange several lists of variables, one after the other."""
    variables = isinstance(target, (list, tuple))
    wanted = _ids(target) if variables else id(compat.stepping_of(target))
    return [
        exchange
        for (owner, ids, *_), exchange in _exchanges.items()
        if wanted == (ids if variables else owner) and not exchange.closed
    ]


def exchange_of(
    variables: Sequence[Any],
    sliced: Sequence[bool],
    settings: Settings,
    *,
    process_set: Any,
    owner: object = None,
) -> GradientExchange:
    """The exchange of these variables' gradients. Collective where it is met for the first time.

    Args:
        variables: Of TensorFlow or Keras.
        sliced: Which gradients are IndexedSlices; counts when the exchange is built.
        settings: What the user asked for.
        process_set: Horovod's; contains this rank and others.
        owner: Two owners (two optimizers) share no residuals.

    Raises:
        InvalidArgumentError: The ranks' variables or options differ. Nothing was exchanged.
        UnsupportedError: A sparse exchange cannot do what was asked for.
        UnavailableError: HVD_SPARSE_TRANSPORT asks for MPI, and this build or job lacks it; or this
            build lacks TensorFlow.
    """
    key = (
        id(owner) if owner is not None else 0,
        _ids(variables),
        repr(settings),
        key_of(process_set),
    )
    found = _exchanges.get(key)
    if found is None or found.closed:
        with tf.init_scope():
            found = _exchanges[key] = _build(variables, sliced, settings, process_set)
        holder = variables[0] if owner is None else owner
        weakref.finalize(holder, _drop, key, found).atexit = False
    return found


def _ids(variables: Sequence[Any]) -> tuple[int, ...]:
    return tuple(id(compat.tensor_of(variable)) for variable in variables)


def _drop(key: _Key, exchange: GradientExchange) -> None:
    if _exchanges.get(key) is exchange:
        del _exchanges[key]
    exchange.close()


def _build(
    variables: Sequence[Any], sliced: Sequence[bool], settings: Settings, process_set: Any
) -> GradientExchange:
    global _serial
    world = World.from_horovod(hvd, process_set)
    sliced = [slices and not settings.sparse_as_dense for slices in sliced]
    _serial = 1 + agree(
        world,
        process_set.ranks,
        problem=_problem(variables, sliced, settings),
        parameters=[
            f"'{name}' {tuple(variable.shape)} {compat.dtype_of(variable).name}"
            f"{' IndexedSlices' if slices else ''}"
            for name, variable, slices in zip(
                unique_names(variables), variables, sliced, strict=True
            )
        ],
        options=settings.describe(),
        serial=_serial,
    )
    return GradientExchange(
        variables,
        sliced,
        settings,
        world=world,
        exchange=Exchange.between_ranks(world, name=f"exchange {_serial}"),
        process_set=process_set,
        prefix=f"hvd_sparse.tensorflow.{_serial}",
    )


def _problem(
    variables: Sequence[Any], sliced: Sequence[bool], settings: Settings
) -> Exception | None:
    try:
        for variable, slices in zip(variables, sliced, strict=True):
            check_variable(variable, sliced=slices, compression=settings.compression)
    except UnsupportedError as error:
        return error
    return None
