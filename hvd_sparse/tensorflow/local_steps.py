"""Local steps of a Keras 3 optimizer: ranks step by themselves, and meet now and then.

At a meeting the exchange takes the differences between the last common variables and each rank's
own in place of gradients; what it delivers moves the common variables, with which all go on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from hvd_sparse.compression import Compression
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.tensorflow import compat, step_data

ATTRIBUTE = "_hvd_sparse_local_steps"  # of a distributed optimizer's class

_all: weakref.WeakSet[LocalSteps] = weakref.WeakSet()


def begin_after_broadcast(variables: Sequence[Any]) -> None:
    """Begins an interval where all of an optimizer's variables have just been broadcast.

    Args:
        variables: The variables of TensorFlow that were broadcast.
    """
    known = {id(variable) for variable in variables}
    for one in _all:
        one.begin_if_among(known)


class LocalSteps:
    """The local steps of one optimizer.

    Args:
        compression: A compression with a fixed number of local steps.
        reduce: A function of differences and variables that returns averages.

    Raises:
        UnsupportedError: The number of local steps is not fixed.
    """

    def __init__(self, compression: Compression, reduce: Callable[..., list[Any]]) -> None:
        if not isinstance(compression.local_steps, int):
            raise UnsupportedError(
                "local_steps must be a number in TensorFlow, where it is part of a graph, got "
                f"{compression.local_steps!r}"
            )
        self._length = compression.local_steps
        self._outer = compression.outer
        self._reduce = reduce
        self._variables: list[Any] = []  # the optimizer's, which it keeps alive
        self._common: list[tf.Variable] = []
        self._momenta: list[tf.Variable] = []
        self._taken: tf.Variable | None = None
        _all.add(self)

    @property
    def amid_interval(self) -> bool:
        """True if this rank has taken local steps since the ranks met."""
        return self._taken is not None and int(self._taken.numpy()) != 0

    def begin_if_among(self, broadcast: set[int]) -> None:
        """Begins an interval if the ids of TensorFlow's variables have all variables of this."""
        if self._taken is not None and broadcast.issuperset(map(id, self._tensors())):
            self._taken.assign(0)

    def step(
        self, gradients: Sequence[Any], variables: Sequence[Any], take: Callable[[], object]
    ) -> None:
        """Takes a local step; the last one of an interval ends in a meeting.

        Args:
            gradients: This rank's gradients.
            variables: The variables, the same ones in the same order in every step.
            take: A function that applies the gradients.

        Raises:
            UnsupportedError: The variables differ from those of earlier steps.
        """
        if self._taken is None:
            with tf.init_scope():
                self._build(variables)
        assert self._taken is not None
        if [id(one) for one in variables] != [id(one) for one in self._variables]:
            raise UnsupportedError("with local_steps all steps must be of the same variables")
        # Ops in the branch do not see this graph's data, so it is awaited here.
        with tf.control_dependencies(step_data.awaited(gradients)):
            is_first = self._taken.read_value() == 0

        def note_common() -> tf.Tensor:
            for common, variable in zip(self._common, self._tensors(), strict=True):
                common.assign(variable)
            return tf.constant(True)

        tf.cond(is_first, note_common, lambda: tf.constant(False))
        take()
        due = self._taken.assign_add(1) >= self._length
        tf.cond(due, self._meet, lambda: tf.constant(False))

    def meet(self) -> None:
        """Ends the interval now, outside of any graph. Collective."""
        if self.amid_interval:
            self._meet()

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Lends the variables the last common values within the context."""
        if not self.amid_interval:
            yield
            return
        own = [variable.numpy() for variable in self._tensors()]
        for variable, common in zip(self._tensors(), self._common, strict=True):
            variable.assign(common)
        try:
            yield
        finally:
            for variable, value in zip(self._tensors(), own, strict=True):
                variable.assign(value)

    def _meet(self) -> tf.Tensor:
        pairs = list(zip(self._common, self._tensors(), strict=True))
        differences = [common.read_value() - variable.read_value() for common, variable in pairs]
        averages = self._reduce(differences, self._variables)
        momenta = self._momenta or [None] * len(averages)
        for (common, variable), average, momentum in zip(pairs, averages, momenta, strict=True):
            moved = common.assign_sub(self._outer.lr * self._outer_step(average, momentum))
            variable.assign(moved)
        assert self._taken is not None
        self._taken.assign(tf.zeros_like(self._taken))
        return tf.constant(True)

    def _outer_step(self, average: Any, momentum: tf.Variable | None) -> Any:
        if momentum is None:
            return average
        grown = momentum.assign(self._outer.momentum * momentum + average)
        return average + self._outer.momentum * grown if self._outer.nesterov else grown

    def _tensors(self) -> list[Any]:
        return [compat.tensor_of(one) for one in self._variables]

    def _build(self, variables: Sequence[Any]) -> None:
        self._taken = compat.new_variable(tf.zeros((), tf.int64))
        self._variables = list(variables)
        zeros = [tf.zeros(one.shape, compat.dtype_of(one)) for one in variables]
        self._common = [compat.new_variable(one) for one in zeros]
        if self._outer.momentum:
            self._momenta = [compat.new_variable(one) for one in zeros]


def refuse_amid_interval(optimizer: Any) -> None:
    """Raises InvalidArgumentError if an optimizer has taken local steps since the ranks met."""
    local = getattr(compat.stepping_of(optimizer), ATTRIBUTE, None)
    if local is not None and local.amid_interval:
        raise InvalidArgumentError(
            "a checkpoint must be saved after a meeting, and this rank has taken local steps "
            "since: call meet(optimizer) first"
        )


def meet(optimizer: Any) -> None:
    """Averages the ranks' weights now, amid an interval of local steps. Collective.

    For the end of training, and before checkpoints. After a meeting it does nothing.

    Args:
        optimizer: A Keras 3 optimizer with a compression that has local_steps.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
        ExchangeFailedError: Another rank ended the exchange, or died.
    """
    _local_steps_of(optimizer, "meet()").meet()


@contextmanager
def common_weights(optimizer: Any) -> Iterator[None]:
    """Lends the model the last common weights, the same on all ranks, within the context.

    Without it, between two meetings, the model has this rank's own weights. Do not step within.

    Args:
        optimizer: A Keras 3 optimizer with a compression that has local_steps.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
    """
    with _local_steps_of(optimizer, "common_weights()").common_weights():
        yield


def _local_steps_of(optimizer: Any, caller: str) -> LocalSteps:
    local = getattr(compat.stepping_of(optimizer), ATTRIBUTE, None)
    if not isinstance(local, LocalSteps):
        raise InvalidArgumentError(f"{caller} needs a compression with local_steps")
    return local
