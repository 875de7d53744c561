"""Averages gradients over all ranks, in eager mode and as part of a graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse import _core, plan
from hvd_sparse.buckets import Bucket, Layer
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.exchange import Exchange
from hvd_sparse.planned_bucket import add_planned_bucket
from hvd_sparse.step_stats import StepStats
from hvd_sparse.tensorflow import compat, ops
from hvd_sparse.tensorflow.settings import Settings
from hvd_sparse.world import World

# What Horovod has no name for, and the type in which it travels instead.
_TRAVELS_AS = {tf.bfloat16: tf.float32}


@dataclass(frozen=True)
class _Bucket:
    """Gradients that travel together.

    Attributes:
        number: In the exchange.
        driven: What holds for it in every step.
        members: Places of the gradients among all, in the order of the bucket.
        residual: float32, flat: what this rank has yet to send.
        states: float32, [units of selection, 4]: what the sparsifier remembers of each.
    """

    number: int
    driven: _core.DrivenBucket
    members: tuple[int, ...]
    residual: tf.Variable
    states: tf.Variable


class GradientExchange:
    """The exchange of the gradients of some variables.

    Gradients are gathered into buckets from the last variable to the first. Small ones and those of
    one dimension go through Horovod, and no result is there before all are: a step that is refused
    for one gradient changes no variable.

    Args:
        variables: Of TensorFlow or Keras; not kept.
        sliced: Whether each one's gradients are IndexedSlices that Horovod shall gather.
        settings: What the user asked for.
        world: The ranks.
        exchange: Between them.
        process_set: Horovod's.
        prefix: Of names of operations; the same on all ranks, of no other exchange.
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
        self._settings = settings
        self._exchange = exchange
        self._process_set = process_set
        self._prefix = prefix
        self._names = unique_names(variables)
        self._templates = [(tuple(v.shape), compat.dtype_of(v)) for v in variables]
        self._sliced = tuple(sliced)
        self._eager = tf.function(self._reduce, autograph=False)
        numels = {
            name: math.prod(shape)
            for name, (shape, _), slices in zip(
                reversed(self._names), reversed(self._templates), reversed(sliced), strict=True
            )
            if len(shape) >= 2 and not slices
        }
        least = max(1, settings.compression.min_numel)
        layers = [Layer(name, numel) for name, numel in numels.items() if numel >= least]
        choices = plan.fixed_choices(layers, settings.compression)
        self._buckets = [self._add_bucket(choice, numels) for choice in choices]
        driven = [bucket.driven for bucket in self._buckets]
        self._driver = ops.Driver(exchange, driven) if driven else None

    def _add_bucket(self, choice: plan.BucketChoice, numels: Mapping[str, int]) -> _Bucket:
        compression = self._settings.compression
        layers = tuple(Layer(name, numels[name]) for name in choice.layers)
        layout = Bucket(layers, compression.layer_wise)
        number = add_planned_bucket(self._exchange, layout, choice, compression)
        scale, output_scale = self._settings.reduction.scales(self.world.size)
        ks = plan.ks_by_step(layout, choice.densities, compression.warmup)
        return _Bucket(
            number=number,
            driven=_core.DrivenBucket(number, scale=scale, output_scale=output_scale, ks=ks),
            members=tuple(self._names.index(name) for name in choice.layers),
            residual=make_state((layout.numel,), f"{self._prefix}/residual/{choice.layers[0]}"),
            states=make_state(
                (len(layout.segments), 4), f"{self._prefix}/states/{choice.layers[0]}"
            ),
        )

    @property
    def variables(self) -> list[tf.Variable]:
        """The exchange's state, for checkpoints: of every bucket the residual, and the states."""
        return [one for bucket in self._buckets for one in (bucket.residual, bucket.states)]

    @property
    def closed(self) -> bool:
        """Whether this has ended, because of an error or because Horovod was shut down."""
        return self._driver is not None and self._driver.closed

    def residuals(self) -> dict[str, tf.Tensor]:
        """By variable, float32, flat: a copy of what this rank has yet to send."""
        found: dict[str, tf.Tensor] = {}
        for bucket in self._buckets:
            sizes = [math.prod(self._templates[place][0]) for place in bucket.members]
            parts = tf.split(bucket.residual, sizes)
            found |= {
                self._names[place]: part for place, part in zip(bucket.members, parts, strict=True)
            }
        return found

    def stats(self) -> StepStats | None:
        """What became of the last step; None before the first."""
        if self._driver is not None and self._driver.steps == 0:
            return None
        sparse = {member for bucket in self._buckets for member in bucket.members}
        dense = [
            math.prod(shape) * dtype.size
            for place, (shape, dtype) in enumerate(self._templates)
            if place not in sparse
        ]
        buckets = tuple(self._exchange.stats(one.number) for one in self._buckets)
        return StepStats(
            step=buckets[0].step if buckets else 0,
            buckets=buckets,
            dense_bytes=sum(dense),
            wait_seconds=math.nan,
        )

    def reduce(self, gradients: Sequence[Any]) -> list[Any]:
        """The average of each gradient; a missing one counts as zero.

        Args:
            gradients: Tensors or IndexedSlices, one for each variable, or None.

        Raises:
            UnsupportedError: A gradient is sliced that was not before.
        """
        whole = [self._checked(place, gradient) for place, gradient in enumerate(gradients)]
        if not tf.executing_eagerly():
            return self._reduce(whole)
        # Buckets are done together; one op after the other would wait for ever.
        self._exchange.check()
        return list(self._eager(whole))

    def close(self) -> None:
        """Ends this rank's part; a step that is under way ends on all ranks."""
        (self._driver or self._exchange).close()

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks."""
        (self._driver or self._exchange).fail(reason)

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

    def _reduce(self, gradients: Sequence[Any]) -> list[Any]:
        results: list[Any] = [None] * len(gradients)
        for place, bucket in enumerate(self._buckets):
            assert self._driver is not None
            averages = ops.exchange(
                [gradients[member] for member in bucket.members],
                residual=bucket.residual,
                states=bucket.states,
                driver=self._driver.number,
                place=place,
            )
            for member, average in zip(bucket.members, averages, strict=True):
                results[member] = average
        sparse = [result for result in results if result is not None]
        dense = {
            place: self._allreduce(place, gradient)
            for place, gradient in enumerate(gradients)
            if results[place] is None
        }
        with tf.control_dependencies(sparse):
            for place, result in dense.items():
                results[place] = tf.nest.map_structure(tf.identity, result, expand_composites=True)
        return results

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
    names: list[str] = []
    seen: set[str] = set()
    for number, variable in enumerate(variables):
        name = compat.name_of(variable).removesuffix(":0")
        if name in seen:
            name = f"{name}.{number}"
        seen.add(name)
        names.append(name)
    return names


def make_state(shape: tuple[int, ...], name: str) -> tf.Variable:
    """A variable of the exchange, float32, zeros."""
    with tf.device("CPU"):
        return tf.Variable(tf.zeros(shape), trainable=False, name=name.replace(".", "_"))
