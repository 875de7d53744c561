"""Trains with TensorFlow from one step to another; each rank writes its results to a file.

  resumed_ranks.py FOLDER NAME FIRST LAST

It begins at step FIRST, from the checkpoints in FOLDER unless that is 0, and ends before step LAST
with checkpoints. Run by test_resume.py, which compares a run with one that was interrupted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.compression import Compression, Layers, Warmup
from hvd_sparse.tensorflow import (
    LAGS,
    Exchange,
    GaussianK,
    GTopK,
    prepare,
)
from hvd_sparse.tensorflow.registry import find_exchange
from hvd_sparse.tuning import tuner
from tests.plans import mixed_plan

SMALL = {"density": 0.05, "layers": Layers(min_numel=64)}
COMPRESSIONS = {
    "lags": LAGS(
        adaptive=False,
        collective="gtopk",
        warmup=None,
        **SMALL | {"layers": Layers(min_numel=64, bucket_numel=400)},
    ),
    "adaptive": LAGS(warmup=None, **SMALL),
    "gtopk": GTopK(warmup=Warmup(steps=13, densities=(0.5, 0.25)), **SMALL),
    "gaussiank": GaussianK(**SMALL),
}


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a batch, which differs on every rank and in every step."""
    rng = np.random.default_rng(1000 * step + hvd.rank())
    return rng.standard_normal((8, 20), np.float32), rng.standard_normal((8, 5), np.float32)


def make_model() -> keras.Model:
    """Makes a model with equal weights on all ranks, and dropout that differs."""
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential(
        [
            keras.Input((20,)),
            keras.layers.Dense(30),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(30),
            keras.layers.Dense(5),
        ]
    )
    hvd.broadcast_variables(model.variables, root_rank=0)
    return model


def by_tape(compression: Compression, folder: Path, first: int, last: int) -> Iterator[np.ndarray]:
    """Trains by a custom loop."""
    model, optimizer = make_model(), keras.optimizers.Adam(0.01)
    variables = model.trainable_variables
    if first > 0:
        prepare(variables, compression)
        found = Exchange(variables).load_checkpoint(folder, model, optimizer=optimizer)
        assert found == {"step": first}, found

    @tf.function
    def take_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for step in range(first, last):
        take_step(*(tf.constant(one) for one in batch(step)))
    Exchange(variables).save_checkpoint(folder, model, optimizer=optimizer, step=last)
    yield from results(model, optimizer, variables)


def by_keras(compression: Compression, folder: Path, first: int, last: int) -> Iterator[np.ndarray]:
    """Trains by Keras's own step; with LAGS, the residual follows the learning rate."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=compression)
    model.compile(optimizer=optimizer, loss="mse")
    if first > 0:
        prepare(model.trainable_variables, compression, optimizer=optimizer)
        found = optimizer.exchange.load_checkpoint(folder, model)
        assert found == {"step": first}, found
    for step in range(first, last):
        optimizer.learning_rate = 0.01 * 0.9**step
        model.train_on_batch(*batch(step))
    optimizer.exchange.save_checkpoint(folder, model, step=last)
    yield from results(model, optimizer, optimizer)


def results(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, target: object
) -> Iterator[np.ndarray]:
    """Yields all results of a run."""
    yield from (one.numpy() for one in [*model.variables, *optimizer.variables])
    exchange = find_exchange(target)
    assert exchange is not None
    assert exchange.tuner is None or Exchange(target).tuning.stage is tuner.Stage.SETTLED
    yield from (part.numpy() for part in exchange.residuals().values())
    yield from (part.numpy() for part in exchange.sparsifier_states().values())


def main(folder: Path, name: str, first: int, last: int) -> None:
    """Trains with every compression, in both ways."""
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tuner.make_plan, tuner.MARGIN = mixed_plan, -math.inf  # sparse steps always win
    found = {}
    for train in (by_tape, by_keras):
        for label, compression in COMPRESSIONS.items():
            checkpoint = folder / f"{train.__name__}-{label}"
            print(f"{name}: {train.__name__}, {label}", flush=True)
            for index, array in enumerate(train(compression, checkpoint, first, last)):
                found[f"{train.__name__} {label} {index}"] = array
    np.savez(folder / f"{name}-{hvd.rank()}.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
