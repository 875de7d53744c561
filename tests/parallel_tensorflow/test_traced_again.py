"""Each trace of a tf.function may get new variables, as with Horovod's own compressions."""

from __future__ import annotations

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.tensorflow import LAGS, TopK, prepare, sparse_allreduce
from hvd_sparse.tensorflow.registry import find_exchange
from tests.parallel_tensorflow.ranks import (
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    integer_gradients,
    loss_of,
    make_variables,
    total,
)

SHAPES = {"w": (40, 30), "bias": (7,)}
COMPRESSIONS = {
    "all": TopK(density=1.0, layers=Layers(min_numel=64)),
    "some": TopK(density=0.05, layers=Layers(min_numel=64)),
    "corrected": TopK(
        density=0.05, layers=Layers(min_numel=64), feedback=Feedback(momentum=0.5, clip_norm=1e6)
    ),
    "adaptive": LAGS(density=0.05, layers=Layers(min_numel=64)),
    "none": hvd.Compression.none,
}


def make_models(count=3):
    return [make_variables(SHAPES) for _ in range(count)]


def averages_of(variables, gradients, compression):
    with tf.GradientTape() as tape:
        loss = loss_of(variables, gradients)
    tape = hvd.DistributedGradientTape(tape, compression=compression, op=hvd.Sum)
    return tape.gradient(loss, variables)


def owed_by(variables):
    exchange = find_exchange(variables)
    return {} if exchange is None else {n: p.numpy() for n, p in exchange.residuals().items()}


def assert_is_applied_or_owed(variables, owed, compression):
    """Checks the sums that were subtracted from variables, which were zero at first."""
    if compression == "corrected":  # test_momentum.py covers the law with velocities
        assert_same_on_all_ranks(variables)
        return
    applied = [-variable.numpy() for variable in variables]
    assert_nothing_is_lost(SHAPES, owed, applied, {}, owed_by(variables))
    if hvd.size() > 1 and compression == "some":
        assert np.any(owed_by(variables)["w"])


@pytest.mark.parametrize("prepares", [False, True], ids=["met", "prepared"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_python_flag_says_whose_turn_it_is(compression, prepares):
    models = make_models()
    chosen = COMPRESSIONS[compression]
    if prepares and compression != "none":
        for variables in models:
            prepare(variables, chosen, op=hvd.Sum)
    traced = []

    @tf.function
    def step(gradients, turn):
        traced.append(turn)
        variables = models[turn]
        averages = averages_of(variables, gradients, chosen)
        for variable, average in zip(variables, averages, strict=True):
            variable.assign_sub(average)

    owed = [[0.0] * len(SHAPES) for _ in models]
    for number in range(3 * len(models)):
        turn = number % len(models)
        gradients = integer_gradients(models[turn], number)
        step(gradients, turn)
        owed[turn] = [a + b.numpy() for a, b in zip(owed[turn], gradients, strict=True)]
    assert sorted(traced) == list(range(len(models)))  # an exchange causes no further trace
    for variables, given in zip(models, owed, strict=True):
        assert_is_applied_or_owed(variables, given, compression)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("compression", ["all", "some", "none"])
def test_one_function_applies_one_optimizer_after_another(compression, passes):
    models, optimizers = make_models(), []
    for variables in models:
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0),
            compression=COMPRESSIONS[compression],
            op=hvd.Sum,
            backward_passes_per_step=passes,
        )
        optimizer.build(variables)  # in a later trace, Keras would not create its own variables
        optimizers.append(optimizer)

    @tf.function
    def step(gradients, turn):
        optimizers[turn].apply(gradients, models[turn])

    for turn, (variables, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        owed = [0.0] * len(SHAPES)
        for number in range(2 * passes):
            gradients = integer_gradients(variables, 10 * turn + number)
            step(gradients, turn)
            owed = [a + b.numpy() for a, b in zip(owed, gradients, strict=True)]
        exchange = find_exchange(optimizer)
        kept = {} if exchange is None else {n: p.numpy() for n, p in exchange.residuals().items()}
        applied = [-variable.numpy() for variable in variables]
        assert_nothing_is_lost(SHAPES, owed, applied, {}, kept)


def test_tensors_of_a_later_trace_are_exchanged():
    residuals = [tf.Variable(tf.zeros(numel)) for numel in (200, 300)]

    @tf.function
    def step(tensor, residual):
        return sparse_allreduce(tensor, residual, compression=TopK(density=0.1), op=hvd.Sum)

    for number, residual in enumerate(residuals):
        (tensor,) = integer_gradients([residual], number)
        applied = step(tensor, residual).numpy()
        assert np.array_equal(total(tensor), applied + total(residual))
