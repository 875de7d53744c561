"""Gradients of overlapping process sets do not mix; ranks outside exchange nothing."""

from __future__ import annotations

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.tensorflow import TopK, prepare, stats, tuning
from tests.parallel_tensorflow.ranks import a_name, integer_gradients, loss_of, make_variables

EVERYTHING = TopK(density=1.0, min_numel=64)


@pytest.fixture(scope="module")
def sets():
    """Process sets without the last rank and without the first."""
    size = hvd.size()
    if size < 3:
        pytest.skip("needs three ranks")
    made = [hvd.add_process_set(range(size - 1)), hvd.add_process_set(range(1, size))]
    yield made
    for process_set in made:
        hvd.remove_process_set(process_set)


def total(array, process_set):
    flat = tf.constant(np.asarray(array, np.float64).ravel())
    return hvd.allreduce(flat, op=hvd.Sum, name=a_name(), process_set=process_set).numpy()


def gradients_of(variables, gradients, process_set):
    with tf.GradientTape() as tape:
        loss = loss_of(variables, gradients)
    tape = hvd.DistributedGradientTape(
        tape, compression=EVERYTHING, op=hvd.Sum, process_set=process_set
    )
    return tape.gradient(loss, variables)


def test_a_tape_sums_over_the_ranks_of_its_set(sets):
    for process_set in sets:
        variables = make_variables()
        gradients = integer_gradients(variables, 0)
        sums = gradients_of(variables, gradients, process_set)
        if not process_set.included():
            assert prepare(variables, EVERYTHING, process_set=process_set) == []
            assert stats(variables) is None
            assert tuning(variables) is None
        for gradient, found in zip(gradients, sums, strict=True):
            expected = np.ravel(gradient)
            if process_set.included():
                expected = total(gradient, process_set)
            assert np.array_equal(expected, np.ravel(found))


def test_keras_exchanges_within_its_set(sets):
    for process_set in sets:
        variable = keras.Variable(np.zeros((40, 30), np.float32), name="w")
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), compression=EVERYTHING, op=hvd.Sum, process_set=process_set
        )
        gradient = integer_gradients([variable.value], 1)[0]
        optimizer.apply([gradient], [variable])
        expected = np.ravel(gradient)
        if process_set.included():
            expected = total(gradient, process_set)
        assert np.array_equal(-np.ravel(variable), expected)
