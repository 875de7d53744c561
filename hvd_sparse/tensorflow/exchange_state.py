"""The state that an exchange keeps from step to step, as TensorFlow variables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse.compression.buckets import Layer
from hvd_sparse.exchange.step_buckets import OpGradients
from hvd_sparse.tensorflow.graph_state import GraphState
from hvd_sparse.tensorflow.learning_rate import LearningRate


class ExchangeState:
    """This rank's state of one exchange: residual, sparsifier states, velocity, learning rate.

    Args:
        graph: The graph state that holds the variables.
        op_gradients: The gradients of each op that can be sent sparse.
        dense: Gradients that are always sent dense and have a velocity; none without momentum
            correction.
        momentum: True if momentum is corrected: then `op_gradients` and `dense` have velocities.
        device: The device of residual and velocity; all else is on the CPU.

    Attributes:
        residual: This rank's residual of all `op_gradients`, float32, flat.
        states: The sparsifier's state of each unit of selection, float32, [units, 4].
        velocity: The velocity of `op_gradients`, then of `dense`, float32, flat; None without
            momentum.
        rate: The learning rate that the residual follows, if it follows one.
    """

    def __init__(
        self,
        graph: GraphState,
        op_gradients: Sequence[OpGradients],
        dense: Sequence[Layer],
        *,
        momentum: bool,
        device: str,
    ) -> None:
        self._layers = [layer for op in op_gradients for layer in op.layers]
        self._dense = list(dense)
        # The name of each unit of selection's first layer; a unit is a layer or all of an op.
        self._units = [one.name for op in op_gradients for one in op.layers[: len(op.units)]]
        sparse_numel = sum(layer.numel for layer in self._layers)
        self.residual = graph.variable("residual", (sparse_numel,), device=device)
        self.states = graph.variable("states", (len(self._units), 4))
        self.velocity: tf.Variable | None = None
        if momentum:
            velocity_numel = sparse_numel + sum(layer.numel for layer in dense)
            self.velocity = graph.variable("velocity", (velocity_numel,), device=device)
        self.rate = LearningRate(graph.variable("learning_rate", ()))

    def variables(self, *, follows_rate: bool) -> list[tf.Variable]:
        """Returns the variables to save, as far as they are used."""
        return [
            *([self.residual, self.states] if self._layers else []),
            *([self.rate.last] if follows_rate and self._layers else []),
            *([] if self.velocity is None else [self.velocity]),
        ]

    def residuals(self) -> dict[str, tf.Tensor]:
        """Returns a copy of this rank's residual by layer, float32, flat."""
        return dict(_split(self.residual, self._layers))

    def sparsifier_states(self) -> dict[str, tf.Tensor]:
        """Returns the sparsifier's states by first layer of a unit of selection, float32, [4]."""
        return dict(zip(self._units, tf.unstack(self.states), strict=True))

    def velocities(self) -> dict[str, tf.Tensor]:
        """Returns a copy of this rank's velocity by layer, float32, flat; {} without momentum."""
        if self.velocity is None:
            return {}
        return dict(_split(self.velocity, [*self._layers, *self._dense]))

    def load(
        self,
        residuals: Mapping[str, NDArray[Any]],
        sparsifier_states: Mapping[str, NDArray[Any]],
        velocities: Mapping[str, NDArray[Any]],
        *,
        rate: float,
    ) -> None:
        """Loads what the methods of these names returned; missing entries are zero."""
        self.residual.assign(_joined(residuals, self._layers))
        rows = [sparsifier_states.get(name, np.zeros(4, np.float32)) for name in self._units]
        self.states.assign(np.reshape(rows, self.states.shape))
        if self.velocity is not None:
            self.begin_velocities(velocities)
        self.rate.last.assign(rate)

    def begin_velocities(self, velocities: Mapping[str, NDArray[Any]]) -> None:
        """Replaces all velocities; missing ones are zero."""
        assert self.velocity is not None
        self.velocity.assign(_joined(velocities, [*self._layers, *self._dense]))

    def forget(self, names: Collection[str]) -> None:
        """Zeroes the residual and the velocity of the named layers, as far as they have them."""
        for flat, layers in (
            (self.residual, self._layers),
            (self.velocity, [*self._layers, *self._dense]),
        ):
            if flat is not None:
                parts = _split(flat, layers)
                flat.assign(
                    _joined({n: part.numpy() for n, part in parts if n not in names}, layers)
                )


def _split(flat: tf.Variable, layers: Sequence[Layer]) -> Iterator[tuple[str, tf.Tensor]]:
    offset = 0
    for layer in layers:
        yield layer.name, flat[offset : offset + layer.numel]
        offset += layer.numel


def _joined(parts: Mapping[str, NDArray[Any]], layers: Sequence[Layer]) -> NDArray[Any]:
    zero = np.zeros(0, np.float32)
    wanted = (parts.get(one.name, np.zeros(one.numel, np.float32)) for one in layers)
    return np.concatenate([zero, *wanted])
