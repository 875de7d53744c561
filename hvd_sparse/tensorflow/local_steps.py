"""Local steps of a Keras 3 optimizer: ranks step by themselves, and meet now and then.

At a meeting the exchange takes the differences between the last common variables and each rank's
own in place of gradients; what it delivers moves the common variables, with which all go on.
"""

from __future__ import annotations

import gc
import itertools
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse.compression import Compression
from hvd_sparse.compression.local_steps import AVERAGED
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.exchange.interval import Interval
from hvd_sparse.ranks.world import World
from hvd_sparse.tensorflow import compat, moments, step_data
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.local_variables import is_among, refs_of
from hvd_sparse.tensorflow.meeting_reports import MeetingReports

ATTRIBUTE = "_hvd_sparse_local_steps"  # of a distributed optimizer's class

# Where the common weights come from, if it is not a checksum of the weights that the program set.
_NOWHERE, _A_MEETING = -1, 0

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
        exchange_of: A function of variables that returns the exchange of their differences, which
            it builds if there is none yet; None if this rank has no peers.
        optimizer: The optimizer.
        process_set: Horovod's process set.

    Attributes:
        serial: Number in the order in which they were made.
    """

    def __init__(
        self,
        compression: Compression,
        reduce: Callable[..., list[Any]],
        exchange_of: Callable[[Sequence[Any]], GradientExchange | None],
        optimizer: Any,
        process_set: Any,
    ) -> None:
        self._interval = Interval(compression.local_steps)
        self._outer = compression.local_steps.outer
        self._averages_moments = compression.local_steps.moments == AVERAGED
        self._reduce = reduce
        self._exchange_of = exchange_of
        self._owner = weakref.ref(optimizer)
        self._reports = MeetingReports(self._interval, self._owner, process_set)
        self._process_set = process_set
        self.serial = next(_serials)
        self._variables: list[Any] = []  # the optimizer's, which it keeps alive
        self._common: list[tf.Variable] = []  # float32 at least
        self._origin: tf.Variable | None = None  # of the common weights: see the constants
        self._momenta: list[tf.Variable] = []
        self._taken: tf.Variable | None = None
        self._length: tf.Variable | None = None
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
            self.begin()

    def begin(self) -> None:
        """Begins an interval with the variables as they are, the same on all ranks."""
        if self._taken is not None:
            assert self._origin is not None
            self._taken.assign(0)
            self._origin.assign(_NOWHERE)

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
        tf.cond(is_first, self._note_common, lambda: tf.constant(False))
        take()
        due = self._taken.assign_add(1) >= self._length
        tf.cond(due, self._meet, lambda: tf.constant(False))

    def _note_common(self) -> tf.Tensor:
        """Notes the common weights before the first local step of an interval.

        Where a variable is what the last meeting has left, its common weights stay, which may be
        wider. All others were set by the program, and the ranks compare a checksum of theirs.
        """
        assert self._origin is not None
        values, known = [], [self._origin >= _A_MEETING]
        for common, variable, is_local in self._parts():
            stays = tf.cast(common, variable.dtype) == variable
            wide = tf.cast(variable, common.dtype)
            value = common.assign(tf.where(stays, common, wide))
            if not is_local:
                values.append(value)
                known.append(tf.reduce_all(stays))

        def note_origin() -> tf.Tensor:
            assert self._origin is not None
            self._origin.assign(tf.numpy_function(_checksum, values, tf.int64))
            return tf.constant(True)

        return tf.cond(tf.reduce_all(tf.stack(known)), lambda: tf.constant(False), note_origin)

    def note_loss(self, loss: Any) -> None:
        """Adds the loss of a local step, where the rule needs it."""
        self._reports.note_loss(loss)

    def meet(self) -> None:
        """Ends the interval now, outside of any graph. Collective.

        Raises:
            RanksDisagreeError: The ranks have not taken as many steps from equal weights.
            ExchangeFailedError: The exchange has ended.
        """
        self._build_with_owner()
        if self._taken is None:
            return
        reports, problem = self._compare()
        if self.amid_interval:
            self._average(reports, problem)

    def average(self, variables: Sequence[Any], what: str) -> None:
        """Replaces variables by their averages over the ranks; see `moments.average`. Collective.

        Args:
            variables: Variables of floating-point numbers, the same ones on all ranks.
            what: Their name in messages: "moments".
        """
        exchange = self._exchange_of(self._variables)
        prefix = f"hvd_sparse.local_steps.{self.serial}" if exchange is None else exchange.prefix
        moments.average(variables, f"{prefix}.{what}", process_set=self._process_set)

    def commit(self) -> None:
        """Copies what all ranks have in common, after a meeting, in an elastic job."""
        self._committed = [momentum.numpy() for momentum in self._momenta]

    def restore(self) -> None:
        """Begins an interval at the last commit, whose variables are restored as well."""
        if self._taken is None:
            return
        self.begin()
        committed = self._committed or [tf.zeros_like(momentum) for momentum in self._momenta]
        for momentum, value in zip(self._momenta, committed, strict=True):
            momentum.assign(value)

    def sync(self) -> None:
        """Adopts rank 0's outer momentum and number of steps when ranks have changed. Collective.

        Raises:
            InvalidArgumentError: The optimizer was built on some ranks only.
        """
        self.begin()
        if not self._outer.momentum and not self._interval.changes:
            return
        self._build_with_owner()
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
            self._reports.forget_losses()
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
            variable.assign(tf.cast(common, variable.dtype))
        try:
            yield
        finally:
            for variable, value in zip(self._tensors(), own, strict=True):
                variable.assign(value)

    def _meet(self) -> tf.Tensor:
        self._average(*self._compare())
        return tf.constant(True)

    def _compare(self) -> tuple[tf.Tensor, tf.Tensor]:
        assert self._taken is not None
        assert self._origin is not None
        exchange = self._exchange_of(self._variables)
        return self._reports.compare(exchange, taken=self._taken, origin=self._origin)

    def _average(self, reports: tf.Tensor, problem: tf.Tensor) -> None:
        """Moves all ranks to the new common weights.

        The variables are the last common weights again before anything is sent, so that they are so
        on all ranks if the differences are refused. Only local variables stay their rank's.
        """
        assert self._taken is not None
        assert self._origin is not None
        agreed, parts = tf.equal(problem, ""), self._parts()
        starts = [tf.cast(common, variable.dtype) for common, variable, _ in parts]
        differences = [
            tf.cast(start, common.dtype) - tf.cast(variable, common.dtype)
            for start, (common, variable, _) in zip(starts, parts, strict=True)
        ]
        with tf.control_dependencies(differences):
            back = [
                variable.assign(tf.where(agreed, start, variable))
                for start, (_, variable, is_local) in zip(starts, parts, strict=True)
                if not is_local
            ]
            for count, value in ((self._taken, 0), (self._origin, _A_MEETING)):
                back.append(count.assign(tf.where(agreed, tf.cast(value, count.dtype), count)))
        with tf.control_dependencies(back):
            averages = self._reduce(differences, self._variables)
        with tf.control_dependencies(averages):  # an exchange that has ended has raised its error
            held = tf.debugging.Assert(agreed, [problem])
        momenta = self._momenta or [None] * len(averages)
        with tf.control_dependencies([] if held is None else [held]):
            for (common, variable, _), average, momentum in zip(
                parts, averages, momenta, strict=True
            ):
                step = self._outer.lr * self._outer_step(average, momentum)
                variable.assign(tf.cast(common.assign_sub(step), variable.dtype))
            if self._averages_moments:
                self.average(self._moments(), "moments")
            if self._interval.changes:
                assert self._length is not None
                self._length.assign(self._reports.choose(reports))

    def _parts(self) -> list[tuple[tf.Variable, Any, bool]]:
        """Returns common weights, TensorFlow's variable, and true if it is a local variable."""
        refs = refs_of(self._owner())
        return [
            (common, variable, is_among(refs, variable))
            for common, variable in zip(self._common, self._tensors(), strict=True)
        ]

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

    def _outer_step(self, average: Any, momentum: tf.Variable | None) -> Any:
        if momentum is None:
            return average
        grown = momentum.assign(self._outer.momentum * momentum + average)
        return average + self._outer.momentum * grown if self._outer.nesterov else grown

    def _tensors(self) -> list[Any]:
        return [compat.tensor_of(one) for one in self._variables]

    def _build_with_owner(self) -> None:
        """Makes the variables of local steps if the optimizer has made its own."""
        owner = self._owner()
        if self._taken is None and owner is not None and owner.built:
            self._build(owner._trainable_variables)

    def _build(self, variables: Sequence[Any]) -> None:
        self._taken = compat.new_variable(tf.zeros((), tf.int64))
        self._origin = compat.new_variable(tf.constant(_NOWHERE, tf.int64))
        self._length = compat.new_variable(tf.constant(self._interval.length, tf.int64))
        self._variables = list(variables)
        zeros = [tf.zeros(one.shape, compat.wide_type_of(one)) for one in variables]
        self._common = [compat.new_variable(one) for one in zeros]
        if self._outer.momentum:
            self._momenta = [compat.new_variable(one) for one in zeros]


def _checksum(*weights: NDArray[Any]) -> NDArray[Any]:
    checksum = 0
    for one in weights:
        checksum = zlib.crc32(np.ascontiguousarray(one).data, checksum)
    return np.array(checksum, np.int64)


def begin_interval(optimizer: Any) -> None:
    """Begins an interval of an optimizer that takes local steps, if it is one: after loading."""
    local = getattr(compat.stepping_of(optimizer), ATTRIBUTE, None)
    if local is not None:
        local.begin()


def refuse_amid_interval(optimizer: Any) -> None:
    """Raises InvalidArgumentError if an optimizer has taken local steps since the ranks met."""
    local = getattr(compat.stepping_of(optimizer), ATTRIBUTE, None)
    if local is not None and local.amid_interval:
        raise InvalidArgumentError(
            "a checkpoint must be saved after a meeting, and this rank has taken local steps "
            "since: call optimizer.exchange.meet() first"
        )
