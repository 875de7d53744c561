"""Averages gradients over all ranks, in eager mode and as part of a graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse import _core
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.local_share import LocalShare
from hvd_sparse.exchange.messages import Messages
from hvd_sparse.exchange.step_buckets import StepBuckets, op_gradients_of
from hvd_sparse.planning import plan
from hvd_sparse.ranks.world import World, may_have_peers
from hvd_sparse.state.saved_exchange import conditions_of
from hvd_sparse.stats.quality_meter import QualityMeter
from hvd_sparse.stats.residual_growth import ResidualGrowth
from hvd_sparse.stats.step_stats import Stats, StepStats, TotalStats
from hvd_sparse.tensorflow import compat, devices, ops, step_data
from hvd_sparse.tensorflow.dense import DenseReducer
from hvd_sparse.tensorflow.exchange_state import ExchangeState
from hvd_sparse.tensorflow.graph_state import GraphState
from hvd_sparse.tensorflow.host import HorovodHost
from hvd_sparse.tensorflow.local_gradient import LocalGradient
from hvd_sparse.tensorflow.names import saved_names, unique_names
from hvd_sparse.tensorflow.places import place_of
from hvd_sparse.tensorflow.settings import Settings
from hvd_sparse.tensorflow.slices import as_slices
from hvd_sparse.tensorflow.step_ops import StepOps
from hvd_sparse.tensorflow.step_reading import reading_of
from hvd_sparse.tuning.measurer import Measurer
from hvd_sparse.tuning.tuner import Tuner


class GradientExchange:
    """The exchange of the gradients of some variables.

    A single rank's gradients are unchanged; only elastic jobs build an exchange for one rank.
    Buckets are made from the last variable to the first, and start in the order in which rank 0 saw
    their gradients become ready. Small and one-dimensional gradients go through Horovod. All
    results become available together: a step refused for one gradient changes no variable.

    Args:
        variables: TensorFlow or Keras variables; not kept.
        sliced: For each variable, true if its gradients are IndexedSlices that Horovod gathers.
        settings: The user's settings.
        world: The ranks.
        exchange: The core's exchange between the ranks.
        process_set: Horovod's process set.
        prefix: Prefix of operations' names, unique to the exchange, the same on all ranks.
        graph: The state that traced functions refer to. With that of an exchange that has ended,
            this one takes its place in them.
        device: TensorFlow's name of the device of the variables; residuals lie there, too.

    Attributes:
        world: The ranks.
        prefix: As given.
        messages: Messages between the ranks.
        velocities_begun: True once velocities go on where the optimizer's own momentum was.
        layers: The layers that can be sent sparse, in the order in which they are sent.
        total: Cost of all steps, those of former exchanges included.
        tuner: The tuner that chooses how gradients are sent, if the compression is adaptive.
        conditions: The conditions under which plan and thresholds are found, for checkpoints.
        saved_names: Names under which the variables' state is saved, by variable. They do not
            depend on how many Keras models the process has made before.
        saved_numels: Elements of each variable, by saved name.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        sliced: Sequence[bool],
        settings: Settings,
        *,
        world: World,
        exchange: Exchange,
        process_set: Any,
        prefix: str,
        graph: GraphState,
        device: str,
    ) -> None:
        self.world = world
        self.tuner: Tuner | None = None
        self.total = TotalStats()
        self._settings = settings
        self._exchange = exchange
        self._process_set = process_set
        self.prefix = prefix
        self._graph = graph
        self._device = device
        self._names = unique_names(variables)
        # Differences of weights come in float32 at least.
        dtype_of = compat.wide_type_of if settings.compression.is_local else compat.dtype_of
        self._templates = [(tuple(v.shape), dtype_of(v)) for v in variables]
        self._sliced = tuple(sliced)
        # The number of rows of IndexedSlices changes from step to step.
        self._eager = tf.function(self._reduce, autograph=False, reduce_retracing=True)
        compression = settings.compression
        self.conditions = conditions_of(
            compression, local_size=exchange.local_size, device=devices.core_name(device)
        )
        numels = [math.prod(shape) for shape, _ in self._templates]
        backwards = [index for index in reversed(range(len(variables))) if not sliced[index]]
        self.layers = tuple(
            Layer(self._names[index], numels[index])
            for index in backwards
            if numels[index] > 0 and compression.takes(self._templates[index][0])
        )
        self.saved_names = saved_names(self._names)
        self.saved_numels = dict(zip(self.saved_names.values(), numels, strict=True))
        share = LocalShare.of(compression, settings.reduction, size=world.size)
        self._local = LocalGradient(share, graph)
        host = HorovodHost(process_set, device=device)
        self.messages = Messages(prefix, host=host, exchange=exchange)
        self._dense = DenseReducer(prefix, settings, process_set=process_set)
        self._ops = op_gradients_of(self.layers, compression) if may_have_peers(world.size) else []
        self._members = [
            [self._names.index(layer.name) for layer in one.layers] for one in self._ops
        ]
        # A gradient that is always sent dense has an op, too, if it has a velocity; it passes.
        sparse = {index for members in self._members for index in members}
        self._with_velocity_only = [index for index in backwards if index not in sparse]
        if not settings.momentum:
            self._with_velocity_only = []
        self._others = len(sparse) < len(variables)
        self._before: StepStats | None = None  # stats of the last step, if it had other buckets
        self.velocities_begun = False
        self._first_step = 0  # steps of earlier exchanges, which count as well
        self._driver: ops.Driver | None = None
        if self._ops or self._with_velocity_only:
            self._build()

    def _build(self) -> None:
        compression = self._settings.compression
        velocity_only = [Layer(self._names[i], self._numel(i)) for i in self._with_velocity_only]
        self._state = ExchangeState(
            self._graph,
            self._ops,
            velocity_only,
            momentum=self._settings.momentum > 0,
            device=self._device,
        )
        messages = self.messages
        place = place_of(self._device, self._exchange)
        self._measurer = Measurer(
            self.world,
            self._exchange,
            allreduce=lambda nbytes, values: messages.timed_sum(nbytes, values, place),
            place=place,
        )
        self._meter = QualityMeter(
            compression,
            self.messages.add_up,
            size=self.world.size,
            local_size=self._exchange.local_size,
        )
        self._growth = ResidualGrowth(self.world.rank)
        self._buckets = StepBuckets(
            self._exchange,
            self._ops,
            dense=velocity_only,
            compression=compression,
            reduction=self._settings.reduction,
            size=self.world.size,
            device=devices.core_name(self._device),
            broadcast_order=self.messages.broadcast_order,
        )
        choices: tuple[plan.BucketChoice, ...] = ()
        if self._ops and self.world.size > 1:
            self.tuner = self._measurer.tuner(
                self.layers, compression, self.messages, keeps_order=True
            )
            choices = (
                plan.fixed_choices(self.layers, compression)
                if self.tuner is None
                else tuple(self.tuner.tuning.choices)
            )
        self._driver = ops.Driver(
            self._exchange,
            self._buckets.op_sizes,
            self._buckets.adopt(choices),
            number=self._graph.number,
            rules=_core.StepRules(
                marks_non_finite=self._settings.marks_non_finite,
                has_velocity=self._settings.momentum > 0,
                masks_velocity=self._settings.masks_velocity,
                measure_every=compression.feedback.quality_every or 0,
                others=self._others,
                device=devices.core_name(self._device),
            ),
            measured=self._measured,
            step_ended=self._step_ended if self.world.size > 1 else None,
        )

    @property
    def variables(self) -> list[tf.Variable]:
        """The exchange's state, for checkpoints; see `Exchange.residual_variables`."""
        if self._driver is None:
            return []
        return self._state.variables(follows_rate=self._settings.follows_rate)

    @property
    def closed(self) -> bool:
        """True once the exchange has ended, by an error or because Horovod was shut down."""
        return self._driver is not None and self._driver.closed

    @property
    def steps(self) -> int:
        """Steps exchanged so far."""
        return 0 if self._driver is None else self._driver.steps

    @property
    def rate(self) -> float:
        """The learning rate at which the residual was accumulated; 0 if none is known."""
        return float(self._state.rate.last.numpy()) if self._driver is not None else 0.0

    @property
    def pending(self) -> bool:
        """True if residuals may be added to dense gradients of the next step."""
        return self._driver is None or self._driver.pending

    def residuals(self) -> dict[str, tf.Tensor]:
        """Returns a copy of this rank's residual by layer, float32, flat."""
        return {} if self._driver is None else self._state.residuals()

    def sparsifier_states(self) -> dict[str, tf.Tensor]:
        """Returns the sparsifier's states by first layer of a unit of selection, float32, [4]."""
        return {} if self._driver is None else self._state.sparsifier_states()

    def velocities(self) -> dict[str, tf.Tensor]:
        """Returns a copy of this rank's velocity by variable, float32, flat, if there is one."""
        return {} if self._driver is None else self._state.velocities()

    def load(
        self,
        residuals: Mapping[str, NDArray[Any]],
        sparsifier_states: Mapping[str, NDArray[Any]],
        velocities: Mapping[str, NDArray[Any]],
        *,
        step: int,
        rate: float,
        pending: bool = True,
    ) -> None:
        """Loads another exchange's state of these layers, between two steps, on all ranks.

        Args:
            residuals: Residuals by layer, float32, flat; missing ones are zero.
            sparsifier_states: As `sparsifier_states` returns them; missing ones are zero.
            velocities: Velocities, as `velocities` returns them; missing ones are zero.
            step: Number of steps so far.
            rate: Learning rate, as `rate` returns it.
            pending: As `pending` was after those steps, the same on all ranks.
        """
        if self._driver is None:
            return
        self._state.load(residuals, sparsifier_states, velocities, rate=rate)
        self._before, self._first_step = None, step
        self._driver.continue_after(step, pending=pending)

    def begin_velocities(self, velocities: Mapping[str, NDArray[Any]]) -> None:
        """Replaces, between two steps, the velocities of all variables; missing ones are zero."""
        if self._driver is not None:
            self._state.begin_velocities(velocities)

    def forget(self, names: Collection[str]) -> None:
        """Zeroes, between two steps, state of variables that another exchange has taken over."""
        if self._driver is not None:
            self._state.forget(names)

    def restore_tuning(self, settled: str | None, *, step: int) -> None:
        """Restores, on all ranks alike, what `tuner.state()` returned after `step` steps."""
        assert self.tuner is not None
        self._replace_buckets(self.tuner.load(settled, steps=step).choices)

    @property
    def stats(self) -> Stats:
        """The cost of the steps."""
        return Stats(last=self._last_step(), total=self.total)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients of one step."""
        return sum(self._numel(i) * dtype.size for i, (_, dtype) in enumerate(self._templates))

    def _last_step(self) -> StepStats | None:
        """Returns the cost of the last step; None before the first."""
        steps = self.steps
        if self._driver is not None and steps == self._first_step:
            return None
        if self._before is not None and self._before.step == steps - 1:
            return self._before
        choices = () if self._driver is None else self._buckets.choices
        sparse = {name for choice in choices if not choice.dense for name in choice.layers}
        dense = [
            self._numel(index)
            * (max(4, dtype.size) if index in self._with_velocity_only else dtype.size)
            for index, (_, dtype) in enumerate(self._templates)
            if self._names[index] not in sparse
        ]
        return StepStats(
            step=max(0, steps - 1),
            buckets=() if self._driver is None else tuple(self._driver.stats),
            dense_bytes=sum(dense),
            wait_seconds=math.nan,
            transport=self._exchange.transport,
            quality=None if self._driver is None else self._meter.of(steps - 1),
        )

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], rate: Any = None
    ) -> list[Any]:
        """Returns the average of each gradient; a missing one counts as zero.

        Args:
            gradients: Tensors or IndexedSlices, one for each variable, or None.
            variables: The variables of this exchange.
            rate: The learning rate that the residual follows, if it follows one.

        Raises:
            UnsupportedError: A gradient that was agreed to be a tensor is IndexedSlices.
        """
        whole = [
            self._prepared(index, *both)
            for index, both in enumerate(zip(gradients, variables, strict=True))
        ]
        follows = rate is not None and self._driver is not None
        with tf.control_dependencies(step_data.awaited(gradients)):
            with tf.device(ops.CPU):  # the step's begin reads it there
                decay = tf.constant(self._settings.compression.feedback.decay)
                if follows:
                    decay *= self._state.rate.decay(rate, whole)
            if not tf.executing_eagerly():
                return self._reduce(whole, decay)
        # All ops of a step complete together, so ops that run one by one would wait for ever.
        try:
            return list(compat.call_as_graph(self._eager, whole, decay))
        except tf.errors.OpError as error:
            if not isinstance(error, tf.errors.UnknownError):  # that is an error of Horovod's ops
                self._exchange.end()  # acknowledges the error, which reaches the caller
            raise

    def replan(self) -> None:
        """Measures the network anew, between two steps, and restarts tuning. Collective."""
        assert self.tuner is not None
        self.tuner.restart(self._measurer.network())
        self._replace_buckets(self.tuner.tuning.choices)

    def refuse_if_ended(self) -> None:
        """Raises ExchangeFailedError, with its first cause, if the exchange has ended."""
        self._exchange.check()

    def mark(self, mark: str) -> None:
        """Sets this rank's mark from the next step on."""
        self._exchange.note(f"marked '{mark}'")

    def close(self) -> None:
        """Ends this rank's part; a step in flight ends on all ranks."""
        (self._driver or self._exchange).close()

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks."""
        (self._driver or self._exchange).fail(reason)

    def _step_ended(self, arrived: list[float], step: _core.StepReading | None) -> None:
        """Counts, reorders, tunes and replans; between two steps, on the driver's thread."""
        assert self._driver is not None
        last = self._last_step()
        if last is not None:
            self.total = self.total.plus(last)
        self._growth.end_step(self.steps, self._driver, self._buckets.choices)
        order = self._buckets.end_step(arrived)
        if order is not None:
            self._driver.reorder(order)
        if self.tuner is None:
            return
        times = None if step is None else reading_of(step, len(self._ops), self._exchange.check)
        tuning = self.tuner.end_step(times, steps=self.steps)
        if tuning is not None:
            self._replace_buckets(tuning.choices)
        self._driver.time_steps(self.tuner.times_next_step)

    def _replace_buckets(self, choices: Sequence[plan.BucketChoice]) -> None:
        """Replaces the buckets but not the residuals; between two steps, on all ranks alike."""
        assert self._driver is not None
        self._before = self._last_step()
        self._driver.replace(self._buckets.adopt(choices))

    def _measured(self, bucket: int, step: int, accumulated: Any, left: Any, applied: Any) -> None:
        """Measures a bucket's quality; called on the driver's thread, before results are out."""
        layout, choice = self._buckets.layout(bucket), self._buckets.choices[bucket]
        self._meter.take(layout, choice, step, accumulated, left, applied)

    def _numel(self, index: int) -> int:
        return math.prod(self._templates[index][0])

    def _prepared(self, index: int, gradient: Any, variable: Any) -> Any:
        shape, dtype = self._templates[index]
        if self._sliced[index]:
            return as_slices(gradient, shape, dtype)
        if isinstance(gradient, tf.IndexedSlices) and not self._settings.sparse_as_dense:
            raise UnsupportedError(
                f"the gradient of '{self._names[index]}' counts as a tensor, since no rank had "
                "IndexedSlices when its exchange was built, and is IndexedSlices now: use "
                "sparse_as_dense=True, or prepare(..., sliced=[...]) before the first step"
            )
        whole = tf.zeros(shape, dtype) if gradient is None else tf.convert_to_tensor(gradient)
        if whole.shape != shape:
            whole = tf.reshape(whole, shape)
        return self._local.prepare(whole, variable)

    def _reduce(self, gradients: Sequence[Any], decay: tf.Tensor) -> list[Any]:
        if self._driver is None:
            return [self._allreduce(index, one) for index, one in enumerate(gradients)]
        ops_of_step = StepOps(
            self._driver.number,
            self._state,
            members=self._members,
            with_velocity_only=self._with_velocity_only,
            settings=self._settings,
            device=self._device,
            allreduce=self._allreduce,
        )
        return ops_of_step.build(gradients, decay)

    def _allreduce(self, index: int, gradient: Any) -> Any:
        average = self._dense.allreduce(self._names[index], gradient)
        if isinstance(average, tf.IndexedSlices):
            return average
        return tf.cast(average, self._templates[index][1])
