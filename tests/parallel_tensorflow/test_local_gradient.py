"""Clipping and weight decay before error feedback: the law holds for the changed gradient."""

from __future__ import annotations

import math

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.tensorflow import TopK
from tests.parallel_tensorflow.ranks import (
    SHAPES,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    integer_gradients,
    loss_of,
    make_variables,
    on_each_device,
    residuals,
    signs,
    total,
)

SMALL = {"density": 0.1, "min_numel": 64}


def step_of(variables, compression, op=hvd.Sum, mode=tf.function, **options):
    @mode
    def step(gradients):
        with tf.GradientTape() as tape:
            given = [(v, g) for v, g in zip(variables, gradients, strict=True) if g is not None]
            loss = loss_of(*zip(*given, strict=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression, op=op, **options)
        return tape.gradient(loss, variables)

    return step


@on_each_device
@pytest.mark.parametrize("mode", [lambda step: step, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize(("norm", "factor"), [(64.0, 0.25), (16.0, 1.0), (8.0, 1.0)])
def test_the_law_counts_the_clipped_gradient(norm, factor, mode, device):
    shapes = {"first": (40, 30), "second": (25, 20)}
    variables = make_variables(shapes, device=device)
    limit = 16 * math.sqrt(hvd.size())  # of the result: 16 per rank
    step = step_of(variables, TopK(clip_norm=limit, **SMALL), mode=mode)
    before = {}
    for number in range(4):
        gradients = signs(variables, number, norm=norm)
        averages = step(gradients)
        after = residuals() if hvd.size() > 1 else {}
        clipped = [factor * gradient for gradient in gradients]
        assert_nothing_is_lost(shapes, clipped, averages, before, after)
        assert_same_on_all_ranks(averages)
        before = after


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_orthogonal_gradients_give_a_result_of_the_norm_asked_for(op):
    variables = make_variables({"matrix": (64, 64), "vector": (64,)})
    step = step_of(variables, TopK(density=1.0, min_numel=64, clip_norm=2.0), op)
    own = [np.zeros(v.shape, np.float32) for v in variables]
    for one in own:
        one[hvd.rank()] = 100.0
    for result in step([tf.constant(one) for one in own]):
        assert float(tf.norm(result)) == pytest.approx(2.0)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_the_result_has_weight_decay_times_the_weights(op):
    variables = make_variables()
    for variable in variables:
        variable.assign(tf.fill(variable.shape, 8.0))
    step = step_of(variables, TopK(density=1.0, min_numel=64, weight_decay=0.25), op)
    gradients = integer_gradients(variables, 0)
    for gradient, result in zip(gradients, step(gradients), strict=True):
        mean = total(gradient) / (1 if op == hvd.Sum else hvd.size())
        np.testing.assert_allclose(np.ravel(result), mean + 2.0, rtol=1e-6, atol=1e-6)


def test_weight_decay_that_is_not_sent_yet_is_in_the_residuals():
    variables = make_variables()
    for variable in variables:
        variable.assign(tf.fill(variable.shape, 4.0))
    step = step_of(variables, TopK(weight_decay=0.5 * hvd.size(), **SMALL))
    gradients = integer_gradients(variables, 0)
    averages = step(gradients)
    decayed = [gradient + 2.0 for gradient in gradients]
    after = residuals() if hvd.size() > 1 else {}
    assert_nothing_is_lost(SHAPES, decayed, averages, {}, after)


def test_weights_decay_as_they_are_in_each_step_of_a_graph():
    variables = make_variables({"w": (16, 16)})
    variables[0].assign(tf.fill((16, 16), 16.0))
    compression = TopK(density=1.0, min_numel=1, weight_decay=0.5)
    step = step_of(variables, compression, mode=lambda step: step)

    @tf.function
    def loop():
        for _ in tf.range(3):
            variables[0].assign_sub(step([tf.zeros((16, 16))])[0])

    loop()
    np.testing.assert_allclose(variables[0].numpy(), 2.0, rtol=1e-6)


def test_a_missing_gradient_decays_too():
    variables = make_variables()
    for variable in variables:
        variable.assign(tf.fill(variable.shape, 4.0))
    step = step_of(variables, TopK(density=1.0, min_numel=64, weight_decay=0.5), hvd.Average)
    averages = step([*integer_gradients(variables, 0)[:-1], None])
    np.testing.assert_allclose(averages[-1], np.full((30, 20), 2.0), rtol=1e-6)


def test_what_is_not_finite_does_not_spoil_the_rest_of_a_clipped_gradient():
    variables = make_variables({"matrix": (40, 30)})
    step = step_of(variables, TopK(clip_norm=16 * math.sqrt(hvd.size()), **SMALL))
    (gradient,) = signs(variables, 0, norm=64.0)
    bad = gradient.numpy().ravel()
    if hvd.rank() == 0:
        bad[np.flatnonzero(bad == 0)[0]] = np.inf
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not finite|NaN or Inf"):
        averages = step([tf.constant(bad.reshape(40, 30))])
        tf.debugging.check_numerics(averages[0], "not finite")  # for a single rank
    for part in residuals().values() if hvd.size() > 1 else ():
        assert np.array_equal(part, 0.25 * gradient.numpy().ravel())


@pytest.mark.parametrize(
    "options", [{"clip_norm": 1.0}, {"weight_decay": 0.5}, {"momentum_correction": 0.5}]
)
def test_slices_must_be_made_dense(options):
    table = tf.Variable(tf.ones((20, 8)), name="table")

    def step(as_dense):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [3, 3]))
        tape = hvd.DistributedGradientTape(
            tape, compression=TopK(**options), op=hvd.Sum, sparse_as_dense=as_dense
        )
        return tape.gradient(loss, [table])[0]

    with pytest.raises(UnsupportedError, match=r"'table:0' is IndexedSlices.*sparse_as_dense=True"):
        step(False)
    assert step(True).shape == (20, 8)
