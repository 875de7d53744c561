"""What an exchange remembers from step to step, as variables of TensorFlow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse.buckets import Layer
from hvd_sparse.tensorflow.graph_state import GraphState
from hvd_sparse.tensorflow.learning_rate import LearningRate
from hvd_sparse.tensorflow.pieces import Piece


class ExchangeState:
    """Residuals and the like of one exchange, on this rank.

    Args:
        graph: Has the variables.
        pieces: That can travel sparse.
        dense: What always travels dense and has a velocity; none where momentum is not corrected.
        momentum: Whether it is: then all of them have velocities.
        device: Of residual and velocity; all else is on the CPU.

    Attributes:
        residual: float32, flat: what this rank has yet to send, of all pieces.
        states: float32, [units of selection, 4]: what the sparsifier remembers of each.
        velocity: float32, flat: of the pieces, then of `dense`; None without momentum.
        rate: The learning rate that the residual follows, if it does.
    """

    def __init__(
        self,
        graph: GraphState,
        pieces: Sequence[Piece],
        dense: Sequence[Layer],
        *,
        momentum: bool,
        device: str,
    ) -> None:
        self._layers = [layer for piece in pieces for layer in piece.layers]
        self._dense = list(dense)
        # The first layer of each unit of selection, which is a layer or a whole piece.
        self._units = [one.name for piece in pieces for one in piece.layers[: piece.segments]]
        owed = sum(layer.numel for layer in self._layers)
        self.residual = graph.variable("residual", (owed,), device=device)
        self.states = graph.variable("states", (len(self._units), 4))
        self.velocity: tf.Variable | None = None
        if momentum:
            moved = owed + sum(layer.numel for layer in dense)
            self.velocity = graph.variable("velocity", (moved,), device=device)
        self.rate = LearningRate(graph.variable("learning_rate", ()))

    def variables(self, *, follows_rate: bool) -> list[tf.Variable]:
        """All that is to be saved: residual and states where there are any; rate; velocity."""
        return [
            *([self.residual, self.states] if self._layers else []),
            *([self.rate.last] if follows_rate and self._layers else []),
            *([] if self.velocity is None else [self.velocity]),
        ]

    def residuals(self) -> dict[str, tf.Tensor]:
        """By layer, float32, flat: a copy of what this rank has yet to send."""
        return dict(_split(self.residual, self._layers))

    def memories(self) -> dict[str, tf.Tensor]:
        """By first layer of a unit of selection, float32, [4]: what the sparsifier remembers."""
        return dict(zip(self._units, tf.unstack(self.states), strict=True))

    def velocities(self) -> dict[str, tf.Tensor]:
        """By layer, float32, flat: a copy of this rank's velocity; of none without momentum."""
        if self.velocity is None:
            return {}
        return dict(_split(self.velocity, [*self._layers, *self._dense]))

    def load(
        self,
        residuals: Mapping[str, NDArray[Any]],
        memories: Mapping[str, NDArray[Any]],
        velocities: Mapping[str, NDArray[Any]],
        *,
        rate: float,
    ) -> None:
        """Takes up what these methods gave; what lacks is zero."""
        self.residual.assign(_joined(residuals, self._layers))
        rows = [memories.get(name, np.zeros(4, np.float32)) for name in self._units]
        self.states.assign(np.reshape(rows, self.states.shape))
        if self.velocity is not None:
            self.velocity.assign(_joined(velocities, [*self._layers, *self._dense]))
        self.rate.last.assign(rate)

    def forget(self, names: Collection[str]) -> None:
        """Zeroes residuals and velocities of some layers, or of what has none."""
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
