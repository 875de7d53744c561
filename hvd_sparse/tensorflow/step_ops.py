"""The operations of a step: how gradients flow through the core and through Horovod."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse.tensorflow import ops
from hvd_sparse.tensorflow.exchange_state import ExchangeState
from hvd_sparse.tensorflow.settings import Settings


class StepOps:
    """Builds the operations of a step; they are the same in every step, whatever the plan.

    Args:
        driver: Number of the exchange's driver.
        state: The exchange's state.
        members: Indices of the gradients of each op that can be sent sparse.
        with_velocity_only: Indices of gradients that are always sent dense and have a velocity;
            each has an op.
        settings: The user's settings. If the compression is adaptive, what an op hands over can be
            sent dense, too; then it is one gradient.
        device: The device of residual, velocity and gradients.
        allreduce: A function that averages a gradient through Horovod, given its index and the
            gradient, or the tensor that is sent instead.
    """

    def __init__(
        self,
        driver: int,
        state: ExchangeState,
        *,
        members: Sequence[Sequence[int]],
        with_velocity_only: Sequence[int],
        settings: Settings,
        device: str,
        allreduce: Callable[[int, Any], Any],
    ) -> None:
        self._where: dict[str, Any] = {"driver": driver, "device": device}
        self._memory = (state.residual, state.states, state.velocity)
        self._members = members
        self._with_velocity_only = with_velocity_only
        self._settings = settings
        self._allreduce = allreduce

    def build(self, gradients: Sequence[Any], decay: tf.Tensor) -> list[Any]:
        """Returns the averages: tensors, or IndexedSlices that Horovod has gathered.

        Args:
            gradients: The gradients of all variables of the exchange, in order.
            decay: The factor of the residual, a float32 scalar.
        """
        begun = ops.begin(
            *self._memory,
            decay=decay,
            momentum=self._settings.momentum,
            dampening=self._settings.dampening,
            **self._where,
        )
        results: dict[int, Any] = {}
        for op, indices in enumerate(self._members):
            averages = self._exchanged(op, [gradients[index] for index in indices], begun)
            results |= dict(zip(indices, averages, strict=True))
        others = {index: one for index, one in enumerate(gradients) if index not in results}
        for op, index in enumerate(self._with_velocity_only, start=len(self._members)):
            others[index] = self._with_velocity(op, others[index], begun)
        results |= self._summed(
            {index: self._allreduce(index, one) for index, one in others.items()}, begun
        )
        ordered = [results[index] for index in range(len(gradients))]
        with tf.control_dependencies(tf.nest.flatten(ordered, expand_composites=True)):
            end = ops.end(*self._memory, **self._where)
        with tf.control_dependencies([end]):
            same: list[Any] = tf.nest.map_structure(tf.identity, ordered, expand_composites=True)
        return same

    def _exchanged(self, op: int, gradients: Sequence[Any], begun: ops.Begun) -> Sequence[Any]:
        averages, is_dense = ops.exchange(gradients, begun.token, op=op, **self._where)
        if not self._settings.compression.adaptive:
            return averages
        (index,), (average,) = self._members[op], averages

        def by_horovod() -> tf.Tensor:
            return self._summed({index: self._allreduce(index, average)}, begun)[index]

        return [tf.cond(is_dense, by_horovod, lambda: average)]

    def _with_velocity(self, op: int, gradient: tf.Tensor, begun: ops.Begun) -> tf.Tensor:
        """Returns the tensor to send for a gradient that is always sent dense; at least float32."""
        with tf.device(self._where["device"]):
            wide = gradient if gradient.dtype == tf.float64 else tf.cast(gradient, tf.float32)
        (joined,), _ = ops.exchange([wide], begun.token, op=op, **self._where)
        return joined

    def _summed(self, sums: Mapping[int, Any], begun: ops.Begun) -> dict[int, Any]:
        """Returns `sums` once the core has checked them: it refuses those that are not finite."""
        if not sums:
            return {}
        numbers = [
            one.values if isinstance(one, tf.IndexedSlices) else one for one in sums.values()
        ]
        seen = ops.summed(numbers, begun, **self._where)
        return {
            index: tf.IndexedSlices(same, one.indices, one.dense_shape)
            if isinstance(one, tf.IndexedSlices)
            else same
            for (index, one), same in zip(sums.items(), seen, strict=True)
        }
