"""Local steps of a Keras 3 optimizer: ranks step by themselves, and meet now and then.

At a meeting the exchange takes the differences between the last common variables and each rank's
own in place of gradients; what it delivers moves the common variables, with which all go on.
"""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse.compression import Compression
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.local_steps import AVERAGED, Interval
from hvd_sparse.ranks.world import World
from hvd_sparse.tensorflow import compat, step_data
from hvd_sparse.tensorflow.local_variables import refs_of

ATTRIBUTE = "_hvd_sparse_local_steps"  # of a distributed optimizer's class

_all: weakref.WeakSet[LocalSteps] = weakref.WeakSet()
_serials = itertools.count()


def all_in_order() -> list[LocalSteps]:
    """Returns the local steps of this process's optimizers, as they were made."""
    if len(_all) > 1:
        gc.collect()  # Keras's models are cycles: a discarded one must be gone on all ranks
    return sorted(_all, key=lambda one: one.serial)


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
        compression: A compression with local steps.
        reduce: A function of differences and variables that returns averages.
        optimizer: The optimizer.
        process_set: Horovod's process set.

    Attributes:
        serial: Number in the order in which they were made.
    """

    def __init__(
        self,
        compression: Compression,
        reduce: Callable[..., list[Any]],
        optimizer: Any,
        process_set: Any,
    ) -> None:
        self._interval = Interval(compression.local_steps)
        self._outer = compression.outer
        self._averages_moments = compression.moments == AVERAGED
        self._reduce = reduce
        self._owner = weakref.ref(optimizer)
        self._process_set = process_set
        self.serial = next(_serials)
        self._variables: list[Any] = []  # the optimizer's, which it keeps alive
        self._common: list[tf.Variable] = []
        self._momenta: list[tf.Variable] = []
        self._taken: tf.Variable | None = None
        self._length: tf.Variable | None = None
        self._losses: tf.Variable | None = None  # of this interval: their number and sum
        self._committed: list[Any] = []  # the momenta of an elastic job's last commit
        _all.add(self)

    @property
    def length(self) -> int:
        """The number of local steps from one meeting to the next."""
        return self._interval.length

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
        assert self._length is not None
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

    def note_loss(self, loss: Any) -> None:
        """Adds the loss of a local step, where the rule needs it."""
        if self._interval.follows_loss:
            one = tf.reshape(tf.cast(loss, tf.float64), ())
            self._built_losses().assign_add(tf.stack([1.0, one]))

    def meet(self) -> None:
        """Ends the interval now, outside of any graph. Collective."""
        if self.amid_interval:
            self._meet()

    def average(self, variables: Sequence[Any], what: str) -> None:
        """Replaces variables by their averages over the ranks. Collective.

        Args:
            variables: Variables of floating-point numbers, the same ones on all ranks.
            what: Their name in messages: "moments".
        """
        if not variables or not self._process_set.included():
            return
        flat = tf.concat([tf.reshape(tf.cast(one, tf.float32), [-1]) for one in variables], 0)
        name = f"hvd_sparse.local_steps.{self.serial}.{what}"
        averages = hvd.allreduce(flat, op=hvd.Average, name=name, process_set=self._process_set)
        sizes = [math.prod(one.shape) for one in variables]
        for one, average in zip(variables, tf.split(averages, sizes), strict=True):
            one.assign(tf.cast(tf.reshape(average, one.shape), compat.dtype_of(one)))

    def commit(self) -> None:
        """Copies what all ranks have in common, after a meeting, in an elastic job."""
        self._committed = [momentum.numpy() for momentum in self._momenta]

    def restore(self) -> None:
        """Begins an interval at the last commit, whose variables are restored as well."""
        if self._taken is None:
            return
        self._taken.assign(0)
        committed = self._committed or [tf.zeros_like(momentum) for momentum in self._momenta]
        for momentum, value in zip(self._momenta, committed, strict=True):
            momentum.assign(value)

    def sync(self) -> None:
        """Adopts rank 0's outer momentum and number of steps when ranks have changed. Collective.

        Raises:
            InvalidArgumentError: The optimizer was built on some ranks only.
        """
        if not self._outer.momentum and not self._interval.changes:
            return
        owner = self._owner()
        if self._taken is None and owner is not None and owner.built:
            self._build(owner._trainable_variables)
        world = World.from_horovod(hvd, hvd.global_process_set)
        built = world.allgather_object(self._taken is not None, bool)
        if not any(built):
            return
        if not all(built):
            raise InvalidArgumentError(
                f"the optimizer has no variables on rank {built.index(False)}: build it before "
                "the elastic state is synchronised, so that it adopts the state of local steps"
            )
        if self._interval.changes:
            assert self._length is not None
            self._interval.load({**world.broadcast_object(self._interval.state()), "taken": 0})
            self._length.assign(self._interval.length)
            self._built_losses().assign([0.0, 0.0])
        if self._momenta:
            hvd.broadcast_variables(self._momenta, root_rank=0)

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
        assert self._taken is not None
        pairs = list(zip(self._common, self._tensors(), strict=True))
        reports = self._reports() if self._interval.changes else None
        differences = [common.read_value() - variable.read_value() for common, variable in pairs]
        averages = self._reduce(differences, self._variables)
        momenta = self._momenta or [None] * len(averages)
        moved = [
            common.assign_sub(self._outer.lr * self._outer_step(average, momentum))
            for (common, _), average, momentum in zip(pairs, averages, momenta, strict=True)
        ]
        for (_, variable), value in zip(pairs, moved, strict=True):
            variable.assign(value)
        if self._averages_moments:
            with tf.control_dependencies(averages):  # no rank has refused the meeting
                self.average(self._moments(), "moments")
        self._taken.assign(tf.zeros_like(self._taken))
        if reports is not None:
            assert self._length is not None
            with tf.control_dependencies([*averages, reports]):  # the meeting has ended
                self._length.assign(tf.numpy_function(self._choose, [reports], tf.int64))
        return tf.constant(True)

    def _moments(self) -> list[Any]:
        """Returns the optimizer's variables that are shaped as weights: momenta and their kind."""
        owner = self._owner()
        assert owner is not None
        if refs_of(owner):
            raise UnsupportedError(
                "moments must be 'local' with local_layers, whose moments stay on their rank"
            )
        shapes = {tuple(one.shape) for one in self._variables}
        others = {id(owner.iterations), id(owner._learning_rate)}
        return [
            compat.tensor_of(one)
            for one in owner.variables
            if id(one) not in others
            and compat.dtype_of(one).is_floating
            and tuple(one.shape) in shapes
        ]

    def _reports(self) -> tf.Tensor:
        """Returns the reports of all ranks: float64, [ranks, numbers]."""
        owner, losses = self._owner(), self._built_losses()
        assert owner is not None
        assert self._taken is not None
        rate = tf.cast(owner.learning_rate, tf.float64)
        given = [rate, self._taken.read_value(), losses.read_value()]
        report = tf.reshape(tf.numpy_function(self._report, given, tf.float64), (1, -1))
        losses.assign(tf.zeros_like(losses))
        if not self._process_set.included():
            return report
        name = f"hvd_sparse.local_steps.{self.serial}"
        return hvd.allgather(report, name=name, process_set=self._process_set)

    def _report(self, rate: Any, taken: Any, losses: Any) -> NDArray[Any]:
        count, total = losses
        if count:
            self._interval.note_loss(total / count)
        self._interval.taken = int(taken)
        return np.array(self._interval.report(rate=float(rate), weights=0))

    def _choose(self, reports: NDArray[Any]) -> NDArray[Any]:
        rows = reports.tolist()
        self._interval.check(rows)
        self._interval.meet(rows)
        return np.array(self._interval.length, np.int64)

    def _outer_step(self, average: Any, momentum: tf.Variable | None) -> Any:
        if momentum is None:
            return average
        grown = momentum.assign(self._outer.momentum * momentum + average)
        return average + self._outer.momentum * grown if self._outer.nesterov else grown

    def _built_losses(self) -> tf.Variable:
        if self._losses is None:
            with tf.init_scope():
                self._losses = compat.new_variable(tf.zeros(2, tf.float64))
        return self._losses

    def _tensors(self) -> list[Any]:
        return [compat.tensor_of(one) for one in self._variables]

    def _build(self, variables: Sequence[Any]) -> None:
        self._taken = compat.new_variable(tf.zeros((), tf.int64))
        self._length = compat.new_variable(tf.constant(self._interval.length, tf.int64))
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
