"""What ranks tell each other at a meeting of local steps, before they send differences."""

from __future__ import annotations

import math
import weakref
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse.errors import HvdSparseError, RanksDisagreeError
from hvd_sparse.exchange.interval import Interval
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.gather_watch import GatherWatch
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.registry import find_exchange


class MeetingReports:
    """The reports of one optimizer's meetings, in eager mode and in graphs.

    Args:
        interval: Makes and checks the reports.
        owner: A reference to the optimizer.
        process_set: Horovod's process set.
    """

    def __init__(self, interval: Interval, owner: weakref.ref[Any], process_set: Any) -> None:
        self._interval = interval
        self._owner = owner
        self._process_set = process_set
        self._watch = GatherWatch()
        # Of this interval: the number and sum of finite losses, and the number of others.
        self._losses: tf.Variable | None = None

    def note_loss(self, loss: Any) -> None:
        """Adds the loss of a local step, where the rule needs it."""
        if self._interval.follows_loss:
            one = tf.reshape(tf.cast(loss, tf.float64), ())
            finite = tf.math.is_finite(one)
            self._built_losses().assign_add(tf.where(finite, [1.0, one, 0.0], [0.0, 0.0, 1.0]))

    def forget_losses(self) -> None:
        """Forgets the losses that were noted since the last meeting."""
        self._built_losses().assign([0.0, 0.0, 0.0])

    def compare(
        self, exchange: GradientExchange | None, *, taken: tf.Variable, origin: tf.Variable
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Compares what the ranks have done. Collective.

        Args:
            exchange: The exchange of the differences; None if this rank has no peers.
            taken: The number of local steps since the last meeting, an integer.
            origin: The checksum of the common weights; not above 0 if a meeting has made them.

        Returns:
            The reports of all ranks, float64, [ranks, numbers]; and a text that says why the
            meeting cannot be held, or is empty. In a graph, the exchange has ended then, and raises
            the error.

        Raises:
            RanksDisagreeError: In eager mode, if the ranks have not taken as many steps from equal
                weights.
            ExchangeFailedError: In eager mode, if the exchange has ended.
        """
        owner, losses = self._owner(), self._built_losses()
        assert owner is not None
        if exchange is not None and tf.executing_eagerly():
            exchange.refuse_if_ended()
        rate = tf.cast(owner.learning_rate, tf.float64)
        given = [rate, taken.read_value(), origin.read_value(), losses.read_value()]
        report = tf.reshape(tf.numpy_function(self._report, given, tf.float64), (1, -1))
        losses.assign(tf.zeros_like(losses))
        if exchange is None:
            return report, tf.constant("")
        name = f"{exchange.prefix}.local_steps"
        reports = tf.cond(
            tf.math.is_nan(report[0, 0]),
            lambda: report,
            lambda: hvd.allgather(report, name=name, process_set=self._process_set),
        )
        problem = tf.ensure_shape(tf.numpy_function(self._problem, [reports], tf.string), ())
        if tf.executing_eagerly() and problem.numpy():
            raise RanksDisagreeError(problem.numpy().decode())
        return reports, problem

    def choose(self, reports: tf.Tensor) -> tf.Tensor:
        """Ends the interval; returns the number of local steps of the next one."""
        return tf.numpy_function(self._choose, [reports], tf.int64)

    def _report(self, rate: Any, taken: Any, origin: Any, losses: Any) -> NDArray[Any]:
        """Returns this rank's report; NaN if the exchange has ended, so that nobody is asked."""
        count, total, others = losses
        for loss, reported in ((total / max(count, 1), count), (math.nan, others)):
            if reported:
                self._interval.note_loss(loss)
        self._interval.taken = int(taken)
        report = np.array(self._interval.report(rate=float(rate), weights=max(int(origin), 0)))
        exchange = find_exchange(self._owner())
        if exchange is None:  # without peers, or closed
            return report
        try:
            exchange.refuse_if_ended()
        except HvdSparseError:
            return np.full_like(report, np.nan)
        self._watch.begin(exchange)
        return report

    def _problem(self, reports: NDArray[Any]) -> NDArray[Any]:
        """Returns why a meeting with these reports cannot be held, or an empty text."""
        self._watch.end()
        if np.isnan(reports[:, 0]).any():
            return np.array("the exchange has ended")
        try:
            self._interval.check(reports.tolist())
        except RanksDisagreeError as error:
            exchange = find_exchange(self._owner())
            if exchange is not None:
                exchange.fail(str(error))
            return np.array(str(error))
        return np.array("")

    def _choose(self, reports: NDArray[Any]) -> NDArray[Any]:
        self._interval.meet(reports.tolist())
        return np.array(self._interval.length, np.int64)

    def _built_losses(self) -> tf.Variable:
        if self._losses is None:
            with tf.init_scope():
                self._losses = compat.new_variable(tf.zeros(3, tf.float64))
        return self._losses
