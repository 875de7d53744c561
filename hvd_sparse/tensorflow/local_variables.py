"""Variables whose gradients stay on their rank: `local_layers` of Horovod's partial functions.

Horovod registers each with an optimizer or a tape, by `variable.ref()`, which Keras 3 variables
lack. The exchange does not include them: they may differ between ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import compress
from typing import Any, NoReturn

import tensorflow as tf

from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.dense import size_of

REFS = "_local_vars"  # Horovod's name, in its own optimizers


class LocalVariables:
    """The local variables of one optimizer.

    Args:
        process_set: Horovod's process set.
        scales: True if their gradients are divided by the number of ranks, as in Horovod.

    Attributes:
        refs: The refs of the variables.
    """

    def __init__(self, process_set: Any, *, scales: bool) -> None:
        self.refs: set[Any] = set()
        self._process_set = process_set
        self._scales = scales

    def add(self, variable: Any) -> None:
        """Registers a variable as local; takes effect in the next graph that is traced."""
        self.refs.add(compat.tensor_of(variable).ref())

    def __contains__(self, variable: Any) -> bool:
        return is_among(self.refs, variable)

    def around(self, reduce: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """Wraps `reduce` so that it leaves out the gradients of local variables."""

        def reduce_others(
            gradients: Sequence[Any], variables: Sequence[Any], *args: Any
        ) -> list[Any]:
            is_shared = [variable not in self for variable in variables]
            averages = reduce(
                list(compress(gradients, is_shared)), list(compress(variables, is_shared)), *args
            )
            rest = iter(averages)
            return [
                next(rest) if shared else self._share(gradient)
                for shared, gradient in zip(is_shared, gradients, strict=True)
            ]

        return reduce_others

    def _share(self, gradient: Any) -> Any:
        if gradient is None or not self._scales:
            return gradient
        size = tf.cast(size_of(self._process_set), gradient.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
        return gradient / size


def refs_of(optimizer: Any) -> Collection[Any]:
    """Returns the refs of an optimizer's local variables."""
    refs: Collection[Any] = getattr(optimizer, REFS, ())
    return refs


def is_among(refs: Collection[Any], variable: Any) -> bool:
    """Returns true if the ref of a TensorFlow or Keras variable is in `refs`."""
    return bool(refs) and compat.tensor_of(variable).ref() in refs


def exchanged(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Returns the variables that are not local variables of the optimizer."""
    refs = refs_of(optimizer)
    return [variable for variable in variables if not is_among(refs, variable)]


def refuse_to_share(optimizer: Any) -> None:
    """Raises InvalidArgumentError if an optimizer has local variables."""
    if refs_of(optimizer):
        raise InvalidArgumentError(
            "local_layers must be empty where a checkpoint keeps one model for all ranks: let each "
            "rank save its own, with exchange.residual_variables"
        )


def refuse_to_scale(optimizer: Any) -> None:
    """Raises UnsupportedError if an optimizer under loss scaling has local variables."""
    if refs_of(optimizer):
        _refuse_under_loss_scaling()


def refuse_in(scaling: Any) -> None:
    """Makes a LossScaleOptimizer class refuse local variables, which Horovod would not report."""
    scaling.register_local_var = _refuse_under_loss_scaling


def _refuse_under_loss_scaling(*_: Any) -> NoReturn:
    raise UnsupportedError(
        "local_layers must be empty under loss scaling, where a rank whose local gradient is not "
        "finite would skip a step that the others take"
    )
