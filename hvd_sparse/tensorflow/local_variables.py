"""Variables whose gradients stay on their rank: `local_layers` of Horovod's partial functions.

Horovod tells an optimizer or a tape of each, and knows it by `variable.ref()`, which variables of
Keras 3 lack. The exchange knows nothing of them: other ranks may have others.
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
    """Those of one optimizer.

    Args:
        process_set: Horovod's.
        scales: Whether their gradients are divided by the number of ranks, as Horovod has it.

    Attributes:
        refs: By which they are known.
    """

    def __init__(self, process_set: Any, *, scales: bool) -> None:
        self.refs: set[Any] = set()
        self._process_set = process_set
        self._scales = scales

    def add(self, variable: Any) -> None:
        """From the next graph on."""
        self.refs.add(compat.tensor_of(variable).ref())

    def around(self, reduce: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """What averages gradients as `reduce` does, but for those of these variables."""

        def reduce_others(
            gradients: Sequence[Any], variables: Sequence[Any], *args: Any
        ) -> list[Any]:
            travels = [not is_among(self.refs, variable) for variable in variables]
            averages = reduce(
                list(compress(gradients, travels)), list(compress(variables, travels)), *args
            )
            rest = iter(averages)
            return [
                next(rest) if travelling else self._share(gradient)
                for travelling, gradient in zip(travels, gradients, strict=True)
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
    """By which an optimizer's local variables are known."""
    refs: Collection[Any] = getattr(optimizer, REFS, ())
    return refs


def is_among(refs: Collection[Any], variable: Any) -> bool:
    """Whether a variable of TensorFlow or Keras is known by one of these."""
    return bool(refs) and compat.tensor_of(variable).ref() in refs


def exchanged(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Those of an optimizer's variables that are not local."""
    refs = refs_of(optimizer)
    return [variable for variable in variables if not is_among(refs, variable)]


def refuse_to_share(optimizer: Any) -> None:
    """Raises InvalidArgumentError where an optimizer has local variables."""
    if refs_of(optimizer):
        raise InvalidArgumentError(
            "local_layers must be empty where a checkpoint keeps one model for all ranks: let each "
            "rank save its own, with residual_variables(optimizer)"
        )


def refuse_to_scale(optimizer: Any) -> None:
    """Raises UnsupportedError where an optimizer under loss scaling has local variables."""
    if refs_of(optimizer):
        _refuse_under_loss_scaling()


def refuse_in(scaling: Any) -> None:
    """Lets a class of LossScaleOptimizers refuse them, whom Horovod would not tell else."""
    scaling.register_local_var = _refuse_under_loss_scaling


def _refuse_under_loss_scaling(*_: Any) -> NoReturn:
    raise UnsupportedError(
        "local_layers must be empty under loss scaling, where a rank whose local gradient is not "
        "finite would skip a step that the others take"
    )
