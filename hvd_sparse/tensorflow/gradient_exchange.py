"""Averages gradients over all ranks, in eager mode and as part of a graph."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from hvd_sparse import plan
from hvd_sparse.buckets import Layer
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.exchange import Exchange
from hvd_sparse.launch_order import LaunchOrder
from hvd_sparse.measurer import Measurer
from hvd_sparse.step_clock import StepTimes
from hvd_sparse.step_stats import StepStats
from hvd_sparse.tensorflow import compat, ops
from hvd_sparse.tensorflow.learning_rate import LearningRate
from hvd_sparse.tensorflow.messages import Messages, timed_allreduce
from hvd_sparse.tensorflow.pieces import drive_choices, pieces_of
from hvd_sparse.tensorflow.settings import Settings
from hvd_sparse.tuner import Tuner
from hvd_sparse.world import World

# What Horovod has no name for, and the type in which it travels instead.
_TRAVELS_AS = {tf.bfloat16: tf.float32}


class GradientExchange:
    """The exchange of the gradients of some variables.

    Buckets are made from the last variable to the first, and start in the order in which rank 0 saw
    their gradients become ready. Small gradients and those of one dimension go
    through Horovod, and no result is there before all are: a step that is refused for one gradient
    changes no variable.

    Args:
        variables: Of TensorFlow or Keras; not kept.
        sliced: Whether each one's gradients are IndexedSlices that Horovod shall gather.
        settings: What the user asked for.
        world: The ranks.
        exchange: Between them.
        process_set: Horovod's.
        prefix: Of names of operations; the same on all ranks, of no other exchange.

    Attributes:
        world: The ranks.
        layers: Those that can travel sparse, in the order in which they travel.
        tuner: Decides how gradients travel, if the compression is adaptive.
        saved_names: By layer, under which name its state is saved: the same in a process that has
            made more models of Keras before, or fewer.
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
    ) -> None:
        self.world = world
        self.tuner: Tuner | None = None
        self._settings = settings
        self._exchange = exchange
        self._process_set = process_set
        self._prefix = prefix
        self._names = unique_names(variables)
        self._templates = [(tuple(v.shape), compat.dtype_of(v)) for v in variables]
        self._sliced = tuple(sliced)
        self._eager = tf.function(self._reduce, autograph=False)
        compression = settings.compression
        least = max(1, compression.min_numel)
        numels = [math.prod(shape) for shape, _ in self._templates]
        large = [
            place
            for place in reversed(range(len(variables)))
            if len(variables[place].shape) >= 2 and numels[place] >= least and not sliced[place]
        ]
        self.layers = tuple(Layer(self._names[place], numels[place]) for place in large)
        unnumbered = _unique(re.sub(r"_\d+(?=/|$)", "", name) for name in self._names)
        self.saved_names = {self._names[place]: unnumbered[place] for place in large}
        self._pieces = pieces_of(self.layers, compression)
        self._members = [
            [self._names.index(layer.name) for layer in piece.layers] for piece in self._pieces
        ]
        self._choices: tuple[plan.BucketChoice, ...] = ()
        self._before: StepStats | None = None  # the last step, where it had other buckets
        self._first_step = 0  # of this exchange, as steps are counted
        self._driver: ops.Driver | None = None
        if self.layers:
            self._build()

    def _build(self) -> None:
        compression = self._settings.compression
        self._residual = make_state(
            (sum(piece.numel for piece in self._pieces),), f"{self._prefix}/residual"
        )
        self._states = make_state(
            (sum(piece.segments for piece in self._pieces), 4), f"{self._prefix}/states"
        )
        self._rate = LearningRate(make_state((), f"{self._prefix}/learning_rate"))
        self._measurer = Measurer(
            self.world,
            self._exchange,
            allreduce=timed_allreduce(
                self._prefix, process_set=self._process_set, exchange=self._exchange
            ),
        )
        self._messages = Messages(
            self._prefix, process_set=self._process_set, exchange=self._exchange
        )
        self.tuner = self._measurer.tuner(
            self.layers, compression, self._messages, keeps_order=True
        )
        if self.tuner is None:
            self._choices = plan.fixed_choices(self.layers, compression)
        self._driver = ops.Driver(
            self._exchange,
            [(piece.numel, piece.segments) for piece in self._pieces],
            self._driven(),
            step_ended=self._step_ended if len(self._pieces) > 1 or self.tuner else None,
            marks_non_finite=self._settings.marks_non_finite,
        )

    @property
    def variables(self) -> list[tf.Variable]:
        """The exchange's state, for checkpoints; see `residual_variables`."""
        if not self._pieces:
            return []
        rate = [self._rate.last] if self._settings.follows_rate else []
        return [self._residual, self._states, *rate]

    @property
    def closed(self) -> bool:
        """Whether this has ended, because of an error or because Horovod was shut down."""
        return self._driver is not None and self._driver.closed

    @property
    def steps(self) -> int:
        """Steps exchanged so far."""
        return 0 if self._driver is None else self._driver.steps

    @property
    def rate(self) -> float:
        """The learning rate at which the residual was accumulated; 0: none is known."""
        return float(self._rate.last.numpy()) if self._pieces else 0.0

    def residuals(self) -> dict[str, tf.Tensor]:
        """By layer, float32, flat: a copy of what this rank has yet to send."""
        if not self.layers:
            return {}
        parts = tf.split(self._residual, [layer.numel for layer in self.layers])
        return {layer.name: part for layer, part in zip(self.layers, parts, strict=True)}

    def memories(self) -> dict[str, tf.Tensor]:
        """By first layer of a unit of selection, float32, [4]: what the sparsifier remembers."""
        if not self.layers:
            return {}
        return dict(zip(self._units(), tf.unstack(self._states), strict=True))

    def load(
        self,
        residuals: Mapping[str, np.ndarray],
        memories: Mapping[str, np.ndarray],
        *,
        step: int,
        rate: float,
    ) -> None:
        """Takes up, between two steps, what another exchange of these layers had; on all ranks.

        Args:
            residuals: By layer, float32, flat; what lacks is zero.
            memories: As from `memories`; what lacks is zero.
            step: Steps before this one.
            rate: As from `rate`.
        """
        if self._driver is None:
            return
        parts = [residuals.get(one.name, np.zeros(one.numel, np.float32)) for one in self.layers]
        self._residual.assign(np.concatenate(parts))
        rows = [memories.get(name, np.zeros(4, np.float32)) for name in self._units()]
        self._states.assign(np.stack(rows))
        self._rate.last.assign(rate)
        self._before, self._first_step = None, step
        self._driver.go_on_after(step)

    def go_on_as(self, settled: str) -> None:
        """Takes up, between two steps and on all ranks alike, what `tuner.state()` gave."""
        assert self.tuner is not None
        self._take_up(self.tuner.load(settled).choices)

    def stats(self) -> StepStats | None:
        """What became of the last step; None before the first."""
        steps = self.steps
        if self._driver is not None and steps == self._first_step:
            return None
        if self._before is not None and self._before.step == steps - 1:
            return self._before
        sparse = {name for choice in self._choices if not choice.dense for name in choice.layers}
        dense = [
            math.prod(shape) * dtype.size
            for name, (shape, dtype) in zip(self._names, self._templates, strict=True)
            if name not in sparse
        ]
        return StepStats(
            step=max(0, steps - 1),
            buckets=tuple(self._exchange.stats(number) for number in self._exchange.buckets),
            dense_bytes=sum(dense),
            wait_seconds=math.nan,
            transport=self._exchange.transport,
        )

    def reduce(self, gradients: Sequence[Any], rate: Any = None) -> list[Any]:
        """The average of each gradient; a missing one counts as zero.

        Args:
            gradients: Tensors or IndexedSlices, one for each variable, or None.
            rate: The learning rate that the residual follows, if it does.

        Raises:
            UnsupportedError: A gradient is sliced that was not before.
        """
        whole = [self._checked(place, gradient) for place, gradient in enumerate(gradients)]
        follows = rate is not None and self._driver is not None
        decay = self._rate.decay(rate) if follows else tf.ones(())
        if not tf.executing_eagerly():
            return self._reduce(whole, decay)
        # Pieces are done together; one op after the other would wait for ever.
        return list(self._eager(whole, decay))

    def replan(self) -> None:
        """Measures the network anew, between two steps, and begins tuning again. Collective."""
        assert self.tuner is not None
        self.tuner.restart(self._measurer.network())
        self._take_up(())

    def mark(self, mark: str) -> None:
        """Says at which step this rank is, from the next one on; see `mark_step`."""
        self._exchange.note(f"marked '{mark}'")

    def close(self) -> None:
        """Ends this rank's part; a step that is under way ends on all ranks."""
        (self._driver or self._exchange).close()

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks."""
        (self._driver or self._exchange).fail(reason)

    def _step_ended(self, step: float, forward: float, ready: list[float]) -> None:
        """Between two steps, on the driver's thread."""
        self._learn_order(ready)
        if self.tuner is None:
            return
        times = StepTimes(step=step, forward=forward, ready=tuple(ready))
        tuning = self.tuner.end_step(None if math.isnan(step) else times)
        if tuning is not None:
            self._take_up(tuning.choices)

    def _learn_order(self, ready: list[float]) -> None:
        """Buckets start in the order in which they became ready; on rank 0, and a step later.

        What an executor with several threads does first differs from step to step, so a bucket's
        places in all steps count.
        """
        assert self._driver is not None
        pieces = iter(ready)
        last = [max(itertools.islice(pieces, count)) for count in self._counts]
        for place, bucket in enumerate(sorted(range(len(last)), key=last.__getitem__)):
            self._places[bucket] += place
        for bucket in sorted(range(len(last)), key=self._places.__getitem__):
            self._order.became_ready(bucket)
        before = self._order.order
        self._order.end_step()
        if self._order.order != before:
            self._driver.reorder(self._order.order)

    def _take_up(self, choices: Sequence[plan.BucketChoice]) -> None:
        """Between two steps, on all ranks alike: other buckets, the same residuals."""
        assert self._driver is not None
        self._before = self.stats()
        self._exchange.clear_buckets()
        self._choices = tuple(choices)
        self._order.close()
        self._driver.replace(self._driven())

    def _units(self) -> list[str]:
        """The first layer of each unit of selection, which is a layer or a whole piece."""
        return [one.name for piece in self._pieces for one in piece.layers[: piece.segments]]

    def _driven(self) -> list[Any]:
        buckets = drive_choices(
            self._choices,
            self._pieces,
            exchange=self._exchange,
            compression=self._settings.compression,
            reduction=self._settings.reduction,
            size=self.world.size,
        )
        self._counts = [bucket.pieces for bucket in buckets]
        self._order = LaunchOrder(len(buckets), self._messages.broadcast_order)
        self._places = [0] * len(buckets)  # of each, summed over the steps
        return buckets

    def _checked(self, place: int, gradient: Any) -> Any:
        shape, dtype = self._templates[place]
        if gradient is None:
            return tf.zeros(shape, dtype)
        if not isinstance(gradient, tf.IndexedSlices):
            return tf.reshape(gradient, shape) if gradient.shape != shape else gradient
        if self._settings.sparse_as_dense:
            return tf.convert_to_tensor(gradient)
        if not self._sliced[place]:
            raise UnsupportedError(
                f"the gradient of '{self._names[place]}' was a tensor before and is IndexedSlices "
                "now: use sparse_as_dense=True"
            )
        return gradient

    def _reduce(self, gradients: Sequence[Any], decay: tf.Tensor) -> list[Any]:
        results: list[Any] = [None] * len(gradients)
        if self._driver is not None:
            state = (self._residual, self._states)
            token = ops.begin(*state, decay, driver=self._driver.number)
            for piece, members in enumerate(self._members):
                given = [gradients[place] for place in members]
                averages = self._exchanged(piece, given, token)
                for place, average in zip(members, averages, strict=True):
                    results[place] = average
        for place, gradient in enumerate(gradients):
            if results[place] is None:
                results[place] = self._allreduce(place, gradient)
        if self._driver is not None:
            with tf.control_dependencies(results):
                end = ops.end(*state, driver=self._driver.number)
            with tf.control_dependencies([end]):
                results = tf.nest.map_structure(tf.identity, results, expand_composites=True)
        return results

    def _exchanged(self, piece: int, gradients: Sequence[Any], token: Any) -> Sequence[Any]:
        assert self._driver is not None
        averages, passes = ops.exchange(gradients, token, driver=self._driver.number, piece=piece)
        if self.tuner is None:  # then none ever passes
            return averages
        (place,), (average,) = self._members[piece], averages
        return [tf.cond(passes, lambda: self._allreduce(place, average), lambda: average)]

    def _allreduce(self, place: int, gradient: Any) -> Any:
        name = f"{self._prefix}.{self._names[place]}".replace("/", ".")
        options = {**self._settings.reduction.of_horovod(), "process_set": self._process_set}
        if isinstance(gradient, tf.IndexedSlices):
            return hvd.allreduce(gradient, op=options["op"], process_set=self._process_set)
        travels_as = _TRAVELS_AS.get(gradient.dtype, gradient.dtype)
        result = hvd.allreduce(
            tf.cast(gradient, travels_as), name=name, ignore_name_scope=True, **options
        )
        return tf.cast(result, gradient.dtype)


def unique_names(variables: Iterable[Any]) -> list[str]:
    """The variables' names, the same on all ranks; numbered where two share one."""
    return _unique(compat.name_of(variable).removesuffix(":0") for variable in variables)


def _unique(names: Iterable[str]) -> list[str]:
    unique: list[str] = []
    seen: set[str] = set()
    for number, name in enumerate(names):
        chosen = f"{name}.{number}" if name in seen else name
        seen.add(chosen)
        unique.append(chosen)
    return unique


def make_state(shape: tuple[int, ...], name: str) -> tf.Variable:
    """A variable of the exchange, float32, zeros."""
    with tf.device("CPU"):
        return tf.Variable(tf.zeros(shape), trainable=False, name=name.replace(".", "_"))
