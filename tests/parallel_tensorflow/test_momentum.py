"""Momentum correction: the law holds with velocities; dense layers use momentum SGD."""

from __future__ import annotations

from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.tensorflow import (
    LAGS,
    Exchange,
    GTopK,
    TopK,
    prepare,
)
from tests.checkpoints import seal_again
from tests.framework_laws import laws_in, momentum
from tests.parallel_tensorflow.every_place import device
from tests.parallel_tensorflow.ranks import (
    integer_gradients,
    loss_of,
    make_variables,
    on_each_device,
)

__all__ = ["device"]

globals().update(laws_in(momentum))

OPTIONS = {"density": 0.1, "layers": Layers(min_numel=64), "feedback": Feedback(momentum=0.5)}


def step_of(variables, compression, op=hvd.Sum):
    @tf.function
    def step(gradients):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, gradients)
        tape = hvd.DistributedGradientTape(tape, compression=compression, op=op)
        return tape.gradient(loss, variables)

    return step


def train(step, variables, numbers):
    for number in numbers:
        for variable, average in zip(
            variables, step(integer_gradients(variables, number)), strict=True
        ):
            variable.assign_sub(average)


@on_each_device
def test_a_checkpoint_of_tensorflow_goes_on_bit_for_bit(tmp_path, device):
    compression = LAGS(
        adaptive=False, **OPTIONS | {"layers": Layers(min_numel=64, bucket_numel=1500)}
    )
    variables = make_variables(device=device)
    step = step_of(variables, compression)
    train(step, variables, range(3))
    checkpoint = tf.train.Checkpoint(residuals=Exchange(variables).residual_variables)
    path = checkpoint.save(str(tmp_path / f"residuals-{hvd.rank()}"))
    weights = [v.numpy() for v in variables]
    train(step, variables, range(3, 6))
    twins = make_variables(device=device)
    prepared = prepare(twins, compression, op=hvd.Sum)
    assert prepared[-1].device.endswith(device)  # holds the velocity
    tf.train.Checkpoint(residuals=prepared).restore(path).assert_consumed()
    for twin, weight in zip(twins, weights, strict=True):
        twin.assign(weight)
    train(step_of(twins, compression), twins, range(3, 6))
    for variable, twin in zip(variables, twins, strict=True):
        assert np.array_equal(variable, twin)


def test_velocities_of_another_model_are_refused(folder):
    variables = make_variables({"w": (40, 30), "bias": (7,)})
    step = step_of(variables, GTopK(**OPTIONS))
    train(step, variables, range(2))
    path = f"{folder}/rank-{hvd.rank()}-of-{hvd.size()}.npz"
    Exchange(variables).save_checkpoint(folder, variables)
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, "velocities/bias": np.zeros(3, np.float32)})
    seal_again(Path(path))
    with pytest.raises(CheckpointMismatchError, match="velocity of 'bias' is damaged"):
        Exchange(variables).load_checkpoint(folder, variables)


@pytest.mark.parametrize(
    ("optimizer", "options", "match"),
    [
        (
            keras.optimizers.SGD(momentum=0.9),
            {"feedback": Feedback(momentum=0.9)},
            "momentum of SGD",
        ),
        (keras.optimizers.Adam(), {"feedback": Feedback(momentum=0.9)}, "beta_1 of Adam is 0.9"),
        (
            keras.optimizers.Ftrl(l2_regularization_strength=0.5),
            {"feedback": Feedback(weight_decay=0.25)},
            "l2_regularization_strength of Ftrl is 0.5 and Feedback weight_decay is 0.25",
        ),
    ],
    ids=["SGD", "Adam", "Ftrl"],
)
def test_nothing_is_applied_twice(optimizer, options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        hvd.DistributedOptimizer(optimizer, compression=TopK(**options))


def test_an_adam_without_momentum_of_its_own_takes_the_corrected_one():
    adam = keras.optimizers.Adam(beta_1=0.0)
    hvd.DistributedOptimizer(adam, compression=TopK(feedback=Feedback(momentum=0.9)))


def test_decay_of_the_weights_alone_stays_the_optimizers():
    optimizer = keras.optimizers.SGD(0.5, weight_decay=0.25)
    compression = TopK(
        feedback=Feedback(momentum=0.5, weight_decay=0.5), density=1.0, layers=Layers(min_numel=1)
    )
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
    variable = keras.Variable(np.full((8, 8), 4.0, np.float32), name="w")
    optimizer.apply([tf.zeros((8, 8))], [variable])
    # 4 - 0.5 * 0.25 * 4 = 3.5, less 0.5 * 0.5 * 4
    np.testing.assert_allclose(variable.numpy(), 2.5, rtol=1e-6)
