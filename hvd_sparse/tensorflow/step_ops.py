"""The operations of a step: how gradients flow through the core and through Horovod."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse.tensorflow import ops
from hvd_sparse.tensorflow.exchange_state import ExchangeState


class StepOps:
    """Builds the operations of a step; they are the same in every step, whatever the plan.

    Args:
        driver: Number of the exchange's driver.
        state: What the exchange remembers.
        members: By piece that can travel sparse, the places of its gradients.
        moved: Places of those that always travel dense and have a velocity, each a piece.
        may_pass: Whether a piece can travel dense, too; then it is of one gradient.
        device: Of residual, velocity and gradients.
        allreduce: What Horovod makes of the gradient of a place, given that or what travels
            instead.
    """

    def __init__(
        self,
        driver: int,
        state: ExchangeState,
        *,
        members: Sequence[Sequence[int]],
        moved: Sequence[int],
        may_pass: bool,
        device: str,
        allreduce: Callable[[int, Any], Any],
    ) -> None:
        self._where: dict[str, Any] = {"driver": driver, "device": device}
        self._memory = (state.residual, state.states, state.velocity)
        self._members = members
        self._moved = moved
        self._may_pass = may_pass
        self._allreduce = allreduce

    def build(self, gradients: Sequence[Any], decay: tf.Tensor) -> list[Any]:
        """What becomes of gradients: tensors, or IndexedSlices that Horovod gathers.

        Args:
            gradients: One for each place.
            decay: float32, a scalar: of the residual.
        """
        begun = ops.begin(*self._memory, decay, **self._where)
        results: dict[int, Any] = {}
        for piece, places in enumerate(self._members):
            averages = self._exchanged(piece, [gradients[place] for place in places], begun)
            results |= dict(zip(places, averages, strict=True))
        others = {place: one for place, one in enumerate(gradients) if place not in results}
        for piece, place in enumerate(self._moved, start=len(self._members)):
            others[place] = self._with_velocity(piece, others[place], begun)
        results |= self._summed(
            {place: self._allreduce(place, one) for place, one in others.items()}, begun
        )
        ordered = [results[place] for place in range(len(gradients))]
        with tf.control_dependencies(tf.nest.flatten(ordered, expand_composites=True)):
            end = ops.end(*self._memory, **self._where)
        with tf.control_dependencies([end]):
            same: list[Any] = tf.nest.map_structure(tf.identity, ordered, expand_composites=True)
        return same

    def _exchanged(self, piece: int, gradients: Sequence[Any], begun: ops.Begun) -> Sequence[Any]:
        averages, passes = ops.exchange(gradients, begun.token, piece=piece, **self._where)
        if not self._may_pass:
            return averages
        (place,), (average,) = self._members[piece], averages

        def by_horovod() -> tf.Tensor:
            return self._summed({place: self._allreduce(place, average)}, begun)[place]

        return [tf.cond(passes, by_horovod, lambda: average)]

    def _with_velocity(self, piece: int, gradient: tf.Tensor, begun: ops.Begun) -> tf.Tensor:
        """What travels in place of a gradient that always travels dense; float32 at least."""
        with tf.device(self._where["device"]):
            wide = gradient if gradient.dtype == tf.float64 else tf.cast(gradient, tf.float32)
        (moved,), _ = ops.exchange([wide], begun.token, piece=piece, **self._where)
        return moved

    def _summed(self, sums: Mapping[int, Any], begun: ops.Begun) -> dict[int, Any]:
        """The same, once the core has seen them: it refuses a step in which one is not finite."""
        if not sums:
            return {}
        numbers = [
            one.values if isinstance(one, tf.IndexedSlices) else one for one in sums.values()
        ]
        seen = ops.summed(numbers, begun, **self._where)
        return {
            place: tf.IndexedSlices(same, one.indices, one.dense_shape)
            if isinstance(one, tf.IndexedSlices)
            else same
            for (place, one), same in zip(sums.items(), seen, strict=True)
        }
