"""Keras 3: where an optimizer's momentum is not moved, it stays the optimizer's, exactly."""

from __future__ import annotations

import horovod.tensorflow
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.tensorflow import TopK
from hvd_sparse.tensorflow.registry import find_exchange
from hvd_sparse.tensorflow.settings import Settings
from tests.parallel_tensorflow.own_momentum import (
    DENSE,
    SHAPES,
    SPARSE,
    M,
    gradients_of,
    make_variables,
    several_ranks,
    summed,
    velocities_of,
)
from tests.parallel_tensorflow.ranks import integer_gradients


def smoothed(momentum, gradient):
    return M * momentum + (1 - M) * gradient


class Adam(keras.optimizers.RMSprop):
    """Not the Adam of Keras."""

    beta_1 = 0.9


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.RMSprop(momentum=0.9),
        keras.optimizers.Lion(),
        keras.optimizers.Lamb(),
        keras.optimizers.SGD(),
        keras.optimizers.Adam(beta_1=0.0),
        keras.optimizers.Adam(gradient_accumulation_steps=2),
        Adam(),
    ],
    ids=lambda one: f"{type(one).__name__} {one.get_config().get('momentum', '')}",
)
def test_other_momenta_stay_with_their_optimizers(optimizer):
    update = type(optimizer).update_step
    hvd.DistributedOptimizer(optimizer, compression=SPARSE)
    assert type(optimizer).update_step is update
    variables = make_variables()
    optimizer.apply(gradients_of(variables, 0), variables)
    assert (find_exchange(optimizer) is None) == (hvd.size() == 1)
    assert velocities_of(optimizer) == {}


def test_without_correction_the_momentum_stays():
    optimizer = keras.optimizers.Adam(0.01, beta_1=M)
    compression = TopK(density=1.0, layers=Layers(min_numel=64), feedback=Feedback(momentum="keep"))
    hvd.DistributedOptimizer(optimizer, compression=compression, op=hvd.Sum)
    variables = make_variables()
    for number in range(2):
        optimizer.apply(gradients_of(variables, number), variables)
    assert velocities_of(optimizer) == {}
    first, second = (summed(gradients_of(variables, number)) for number in range(2))
    for slot, before, now in zip(optimizer._momentums, first, second, strict=True):
        assert np.array_equal(slot, smoothed(smoothed(0.0, before), now))


def test_a_tape_moves_nothing():
    variables = [tf.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()]
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(3.0 * one) for one in variables])
    tape = horovod.tensorflow.DistributedGradientTape(tape, compression=SPARSE)
    tape.gradient(loss, variables)
    assert (find_exchange(variables) is None) == (hvd.size() == 1)
    assert velocities_of(variables) == {}


def test_gathered_slices_and_local_variables_keep_the_optimizers_own():
    variables = make_variables({"table": (20, 8), "local": (6, 5), "kernel": (40, 30)})
    _, local, kernel = variables
    optimizer = keras.optimizers.Adam(0.01, beta_1=M)
    optimizer = hvd.DistributedOptimizer(
        optimizer, compression=DENSE, op=hvd.Sum, scale_local_gradients=False
    )
    optimizer.register_local_var(local)
    optimizer.build(variables)

    @tf.function
    def step(gradients):
        values, *others = gradients
        rows = tf.constant([hvd.rank(), 19])
        sliced = tf.IndexedSlices(values, rows, tf.constant([20, 8]))
        optimizer.apply([sliced, *others], variables)

    momenta = [0.0] * 3
    for number in range(4):
        values, own, shared = integer_gradients(
            [tf.zeros((2, 8)), local.value, kernel.value], number
        )
        step([values, own, shared])
        rows = np.zeros((20, 8))
        np.add.at(rows, [hvd.rank(), 19], values.numpy())
        given = [*summed([rows]), own.numpy(), *summed([shared])]
        momenta = list(map(smoothed, momenta, given))
        for slot, momentum in zip(optimizer._momentums, momenta, strict=True):
            assert np.array_equal(slot, momentum)
    if hvd.size() > 1:
        assert set(velocities_of(optimizer)) == {"kernel"}


class Failing(keras.optimizers.Nadam):
    """Keeps what it has seen, and fails."""

    def update_step(self, gradient, variable, learning_rate):
        self.seen = self.beta_1, float(self._u_product)
        raise ZeroDivisionError


def test_the_momentum_is_restored_after_an_error():
    optimizer = Failing(0.1)
    hvd.DistributedOptimizer(optimizer, compression=DENSE)
    variables = make_variables()
    with pytest.raises(ZeroDivisionError):
        optimizer.apply(gradients_of(variables, 0), variables)
    assert (optimizer.seen == (0.0, 0.0)) == (hvd.size() > 1)
    assert optimizer.beta_1 == 0.9
    assert float(optimizer._u_product) > 0
    with pytest.raises(ZeroDivisionError):  # what was averaged before is forgotten
        optimizer.update_step(gradients_of(variables, 0)[0], variables[0].value, 0.1)
    assert optimizer.seen[0] == 0.9


@several_ranks
def test_a_momentum_that_has_changed_is_refused():
    optimizer = keras.optimizers.Adam(0.01, beta_1=M)
    hvd.DistributedOptimizer(optimizer, compression=DENSE)
    variables = make_variables()
    optimizer.apply(gradients_of(variables, 0), variables)
    before = variables[0].numpy()
    optimizer.beta_1 = 0.9
    with pytest.raises(InvalidArgumentError, match=r"beta_1 of Adam is 0.9 and was 0.5"):
        optimizer.apply(gradients_of(variables, 1), variables)
    assert np.array_equal(variables[0], before)


@several_ranks
def test_ranks_whose_momenta_differ_are_refused():
    optimizer = keras.optimizers.Adam(0.01, beta_1=M if hvd.rank() else 0.75)
    hvd.DistributedOptimizer(optimizer, compression=DENSE)
    variables = make_variables()
    with pytest.raises(InvalidArgumentError, match="momentum"):
        optimizer.apply(gradients_of(variables, 0), variables)


class OneRank:
    """A process set of this rank alone, as far as settings ask."""

    def included(self):
        return True

    def size(self):
        return 1


def test_a_single_rank_keeps_its_optimizers_momentum(monkeypatch):
    settings = Settings.checked(TopK(feedback=Feedback(clip_norm=1.0))).of_optimizer(
        keras.optimizers.Adam()
    )
    assert settings.needs_exchange(OneRank())
    assert settings.momentum == settings.dampening == 0.9
    alone = settings.among(OneRank())
    assert alone.momentum == alone.dampening == 0
    assert not settings.moves_momentum(OneRank())
    given = Settings.checked(TopK(feedback=Feedback(momentum=0.5)))
    assert given.among(OneRank()) is given
    assert (given.momentum, given.dampening) == (0.5, 0.0)
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")  # others may join
    assert settings.among(OneRank()) is settings


@several_ranks
def test_ranks_outside_the_process_set_keep_it():
    first = hvd.add_process_set([0])
    try:
        optimizer = keras.optimizers.Adam(0.01, beta_1=M)
        compression = TopK(
            density=1.0, layers=Layers(min_numel=64), feedback=Feedback(clip_norm=1e9)
        )
        hvd.DistributedOptimizer(optimizer, compression=compression, process_set=first)
        variables = make_variables()
        for number in range(2):
            optimizer.apply(gradients_of(variables, number), variables)
        assert velocities_of(optimizer) == {}
        before, now = (gradients_of(variables, number) for number in range(2))
        for slot, one, two in zip(optimizer._momentums, before, now, strict=True):
            assert np.array_equal(slot, smoothed(smoothed(0.0, one), two))
    finally:
        hvd.remove_process_set(first)
