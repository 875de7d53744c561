"""TensorFlow for the laws of tests/framework_laws: a tape, or an optimizer of Keras."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression import Compression
from hvd_sparse.stats.step_stats import StepStats
from hvd_sparse.tensorflow import (
    Exchange,
    prepare,
)
from hvd_sparse.tensorflow.elastic_errors import with_horovod_errors
from hvd_sparse.tensorflow.registry import find_exchange
from hvd_sparse.tuning.stages import Tuning
from tests import frameworks
from tests.frameworks import SHAPES, Arrays, Framework, Shapes
from tests.parallel_tensorflow.ranks import a_name, loss_of

# The step has no control flow for AutoGraph to rewrite, and rewriting takes longer than tracing.
in_a_graph = functools.partial(tf.function, autograph=False)
MODES: dict[str, Callable[[Any], Any]] = {"eager": lambda step: step, "graph": in_a_graph}


def array_of(tensor: Any) -> np.ndarray:
    """Returns a tensor or variable as float64."""
    return tf.cast(tensor, tf.float64).numpy().copy()


class Model(frameworks.Model):
    """Variables; the subclasses exchange and apply their gradients.

    Args:
        compression: The compression; None for Horovod's dense gradients.
        variables: The variables, by name.
        exchange: Horovod's arguments for the exchange.
        device: TensorFlow's name of the device of the variables.
    """

    def __init__(
        self,
        compression: Compression | None,
        variables: dict[str, Any],
        *,
        exchange: dict[str, Any],
        device: str,
    ) -> None:
        self.compression = compression
        self._variables = variables
        self._exchange = {
            "compression": hvd.Compression.none if compression is None else compression,
            **exchange,
        }
        self._device = device

    @property
    def _target(self) -> Any:
        """The object by which the exchange is found."""
        return self._list

    @property
    def _list(self) -> list[Any]:
        return list(self._variables.values())

    def _as_tensors(self, gradients: Arrays) -> list[tf.Tensor | None]:
        return [
            tf.cast(tf.constant(gradients[name]), variable.dtype) if name in gradients else None
            for name, variable in self._variables.items()
        ]

    @property
    def _exchanged(self) -> Exchange:
        return Exchange(self._target)

    def residuals(self) -> Arrays:
        exchange = find_exchange(self._target)
        if exchange is None:
            return {}
        variables = self._exchanged.residual_variables
        assert all(one.device.endswith(self._device) for one in (*variables[:1], *variables[-1:]))
        return {name: array_of(one) for name, one in exchange.residuals().items()}

    def velocities(self) -> Arrays:
        exchange = find_exchange(self._target)
        found = {} if exchange is None else exchange.velocities()
        return {name: array_of(one) for name, one in found.items()}

    def weights(self) -> Arrays:
        return {name: array_of(one) for name, one in self._variables.items()}

    def fill(self, value: float) -> None:
        for variable in self._list:
            variable.assign(tf.fill(variable.shape, tf.cast(value, variable.dtype)))

    def stats(self) -> StepStats | None:
        return self._exchanged.stats.last

    def tuning(self) -> Tuning | None:
        return self._exchanged.tuning

    def replan(self) -> None:
        self._exchanged.replan()


class ThroughATape(Model):
    """Variables with a tape that exchanges, and an optimizer of Keras that applies.

    One graph serves all steps, whatever the plan.
    """

    def __init__(
        self, *args: Any, mode: Callable[[Any], Any], rate: float, optimizer: str, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._optimizer = getattr(keras.optimizers, optimizer)(rate)
        self._optimizer.build(self._list)
        if self.compression is not None and self.compression.feedback.rescale is True:
            self._exchange["learning_rate"] = self._optimizer.learning_rate
        self._traces = 0  # two if the first one makes variables
        self._traced = mode is in_a_graph
        self._train = mode(self._exchange_and_apply)

    def _exchange_and_apply(self, gradients: list[tf.Tensor | None]) -> list[tf.Tensor | None]:
        self._traces += 1
        assert self._traces <= 2 or not self._traced
        given = [(v, g) for v, g in zip(self._list, gradients, strict=True) if g is not None]
        with tf.GradientTape() as tape:
            loss = loss_of(*zip(*given, strict=True))
        tape = hvd.DistributedGradientTape(tape, **self._exchange)
        averages = tape.gradient(loss, self._list)
        pairs = [(g, v) for v, g in zip(self._list, averages, strict=True) if g is not None]
        assert all(one.dtype == variable.dtype for one, variable in pairs)
        self._optimizer.apply_gradients(pairs)
        return averages

    def step(self, gradients: Arrays) -> Arrays | None:
        averages = self._train(self._as_tensors(gradients))
        found = zip(self._variables, averages, strict=True)
        return {name: array_of(one) for name, one in found if one is not None}

    def prepare(self) -> None:
        if self.compression is not None:
            prepare(self._list, **self._exchange)

    def moments(self) -> list[np.ndarray]:
        return [array_of(one) for one in self._optimizer.variables]

    def set_rate(self, rate: float) -> None:
        self._optimizer.learning_rate = rate

    def loss_scale(self) -> float:
        return 1.0

    def save(self, folder: str | Path, **extra: Any) -> None:
        self._exchanged.save_checkpoint(folder, self._list, optimizer=self._optimizer, **extra)

    def load(self, folder: str | Path, **options: Any) -> dict[str, Any] | None:
        options["optimizer"] = self._optimizer
        return self._exchanged.load_checkpoint(folder, self._list, **options)


class ThroughAnOptimizer(Model):
    """Variables with a distributed optimizer of Keras, which adds up passes and scales losses."""

    def __init__(
        self,
        *args: Any,
        mode: Callable[[Any], Any],
        rate: float,
        optimizer: str,
        passes: int,
        loss_scale: float | None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._passes = passes
        self._optimizer = self._inner = hvd.DistributedOptimizer(
            getattr(keras.optimizers, optimizer)(rate),
            backward_passes_per_step=passes,
            **self._exchange,
        )
        self._scales = loss_scale is not None
        if self._scales:
            self._optimizer = keras.optimizers.LossScaleOptimizer(
                self._inner, initial_scale=loss_scale
            )
            self._optimizer.build(self._list)
        self._apply = mode(lambda gradients: self._optimizer.apply(gradients, self._list))

    @property
    def _target(self) -> Any:
        return self._inner

    def step(self, gradients: Arrays) -> Arrays | None:
        scale, before = self.loss_scale(), self.weights()
        for _ in range(self._passes):
            self._apply(self._as_tensors({name: scale * one for name, one in gradients.items()}))
        if self.loss_scale() < scale:
            return None
        rate = float(self._inner.learning_rate)
        return {name: (before[name] - one) / rate for name, one in self.weights().items()}

    def prepare(self) -> None:
        exchange = {k: v for k, v in self._exchange.items() if k != "compression"}
        prepare(self._list, self.compression, optimizer=self._optimizer, **exchange)

    def moments(self) -> list[np.ndarray]:
        return [array_of(one) for one in self._inner.variables]

    def set_rate(self, rate: float) -> None:
        self._inner.learning_rate = rate

    def loss_scale(self) -> float:
        return float(self._optimizer.dynamic_scale) if self._scales else 1.0

    def save(self, folder: str | Path, **extra: Any) -> None:
        self._optimizer.exchange.save_checkpoint(folder, self._list, **extra)

    def load(self, folder: str | Path, **options: Any) -> dict[str, Any] | None:
        return self._optimizer.exchange.load_checkpoint(folder, self._list, **options)


class ThroughLocalSteps(ThroughAnOptimizer):
    """Variables with a distributed optimizer of Keras that takes local steps."""

    @with_horovod_errors
    def step(self, gradients: Arrays) -> None:
        self._apply(self._as_tensors(gradients))

    def meet(self) -> None:
        self._optimizer.exchange.meet()

    def common_weights(self) -> AbstractContextManager[None]:
        return self._optimizer.exchange.common_weights()


class TensorFlow(Framework):
    """TensorFlow.

    Args:
        device: TensorFlow's name of the device of the variables.
        mode: "eager" or "graph".
    """

    refusal = tf.errors.InvalidArgumentError
    scales_passes = False  # LossScaleOptimizer decides after each

    def __init__(self, device: str, mode: str) -> None:
        self.rank, self.size = hvd.rank(), hvd.size()
        self.everyone = hvd.global_process_set
        self._device = device
        self._mode = MODES[mode]

    def model(
        self,
        compression: Compression | None,
        shapes: Shapes = SHAPES,
        *,
        dtype: str = "float32",
        op: str = "Sum",
        predivide: float = 1.0,
        passes: int = 1,
        loss_scale: float | None = None,
        rate: float = 1.0,
        optimizer: str = "SGD",
        ranks: Any = None,
    ) -> Model:
        on_cpu_alone = compression is not None and compression.nodes_first is True
        if self._device.startswith("GPU") and on_cpu_alone:
            pytest.skip("nodes_first adds up residuals on the CPU alone")
        is_local = compression is not None and compression.is_local
        through_a_tape = passes == 1 and loss_scale is None and not is_local
        kind = tf.Variable if through_a_tape else keras.Variable
        with tf.device(self._device):
            variables = {
                name: kind(np.zeros(shape), dtype=dtype, name=name)
                for name, shape in shapes.items()
            }
        options = {
            "exchange": {
                "op": getattr(hvd, op),
                "gradient_predivide_factor": predivide,
                "process_set": self.everyone if ranks is None else ranks,
            },
            "device": self._device,
            "mode": self._mode,
            "rate": rate,
            "optimizer": optimizer,
        }
        if through_a_tape:
            return ThroughATape(compression, variables, **options)
        through_an_optimizer = ThroughLocalSteps if is_local else ThroughAnOptimizer
        return through_an_optimizer(
            compression, variables, passes=passes, loss_scale=loss_scale, **options
        )

    def dense_refusal(self, name: str) -> str:
        return "sent dense is not finite"

    def gathered(self, values: np.ndarray, ranks: Any = None) -> np.ndarray:
        ranks = self.everyone if ranks is None else ranks
        row = tf.constant(values.astype(np.float64)[None])
        return hvd.allgather(row, name=a_name(), process_set=ranks).numpy()

    def reduced(self, values: np.ndarray, dtype: str, op: str, predivide: float) -> np.ndarray:
        given = tf.cast(tf.constant(values), dtype)
        wide = tf.cast(given, tf.float32) if dtype == "bfloat16" else given
        summed = hvd.allreduce(
            wide,
            op=getattr(hvd, op),
            name=a_name(),
            prescale_factor=1 / predivide,
            postscale_factor=predivide,
        )
        return array_of(tf.cast(summed, dtype))

    def seed(self, seed: int) -> None:
        tf.random.set_global_generator(tf.random.Generator.from_seed(seed))

    def coin_flips(self, shape: tuple[int, ...]) -> np.ndarray:
        drawn = tf.random.get_global_generator().uniform(shape)
        return np.floor(2 * drawn.numpy()).astype(np.float64)
