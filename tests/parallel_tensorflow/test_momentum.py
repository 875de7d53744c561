"""Momentum correction: the law holds with velocities; dense layers use momentum SGD."""

from __future__ import annotations

from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.tensorflow import (
    LAGS,
    GTopK,
    TopK,
    Warmup,
    load_checkpoint,
    prepare,
    residual_variables,
    save_checkpoint,
    stats,
)
from tests.checkpoints import seal_again
from tests.parallel_tensorflow.ranks import (
    SHAPES,
    a_name,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    integer_gradients,
    loss_of,
    make_variables,
    on_each_device,
    residuals,
    total,
    velocities,
)
from tests.verdict import DENSE_STEPS

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank has no residuals")
M = 0.5  # with integers, sums are exact for some steps
OPTIONS = {"density": 0.1, "min_numel": 64, "momentum_correction": M}
COMPRESSIONS = {
    "lags": LAGS(adaptive=False, bucket_numel=1500, **OPTIONS),
    "gtopk": GTopK(**OPTIONS),
    "topk": TopK(**OPTIONS),
    "warm-up": TopK(warmup=Warmup(steps=2, densities=(0.5, 0.25)), **OPTIONS),
}


def step_of(variables, compression, op=hvd.Sum):
    @tf.function
    def step(gradients):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, gradients)
        tape = hvd.DistributedGradientTape(tape, compression=compression, op=op)
        return tape.gradient(loss, variables)

    return step


def checked_step(step, gradients):
    """Takes a step for op=Sum and checks the law of velocities and residuals."""
    residual, velocity = residuals(), velocities()
    applied = step(gradients)
    grown = [
        np.asarray(gradient, np.float64).ravel() + M * velocity.get(name, 0.0)
        for name, gradient in zip(SHAPES, gradients, strict=True)
    ]
    assert_nothing_is_lost(SHAPES, grown, applied, residual, residuals())
    assert_same_on_all_ranks(applied)


@on_each_device
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_nothing_is_lost(name, device):
    variables = make_variables(device=device)
    step = step_of(variables, COMPRESSIONS[name])
    prepare(variables, COMPRESSIONS[name], op=hvd.Sum)
    for number in range(5):
        checked_step(step, integer_gradients(variables, number))
    assert set(velocities()) == set(SHAPES)
    assert all(np.any(part) for part in velocities().values())


@on_each_device
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_what_travels_dense_is_momentum_sgd(op, device):
    variables = make_variables(device=device)
    step = step_of(variables, TopK(min_numel=10**6, momentum_correction=M), op)
    moved = [0.0] * len(variables)
    for number in range(4):
        gradients = integer_gradients(variables, number)
        for index, result in enumerate(step(gradients)):
            share = 1 if op == hvd.Sum else hvd.size()
            moved[index] = M * moved[index] + total(gradients[index]) / share
            if op == hvd.Sum:
                assert np.array_equal(result.numpy().ravel(), moved[index])
            else:
                np.testing.assert_allclose(result.numpy().ravel(), moved[index], 1e-5, 1e-6)


@several_ranks
@on_each_device
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16], ids=lambda dtype: dtype.name)
def test_nothing_is_lost_from_dense_to_sparse(verdict, dtype, device):
    verdict(sparse=True)
    variables = make_variables(dtype=dtype, device=device)
    compression = LAGS(**OPTIONS)
    step = step_of(variables, compression)
    prepare(variables, compression, op=hvd.Sum)
    sparse = []
    for number in range(DENSE_STEPS + 3):
        gradients = integer_gradients(variables, number)
        if number < DENSE_STEPS - 2:  # otherwise sums would need more bits than there are
            gradients = [tf.zeros_like(gradient) for gradient in gradients]
        checked_step(step, gradients)
        sparse.append(len(stats(variables).buckets))
    assert sparse == [0] * DENSE_STEPS + [1] * 3


@on_each_device
@pytest.mark.parametrize("bad", ["second", "bias"])
def test_a_bad_gradient_of_one_rank_leaves_finite_velocities(bad, device):
    variables = make_variables(device=device)
    step = step_of(variables, COMPRESSIONS["topk"])
    step(integer_gradients(variables, 0))
    before, velocity = residuals(), velocities()
    gradients = integer_gradients(variables, 1)
    index = list(SHAPES).index(bad)
    if hvd.rank() == hvd.size() - 1:
        flat = gradients[index].numpy().ravel()
        flat[0] = np.nan
        gradients[index] = tf.constant(flat.reshape(SHAPES[bad]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not finite|NaN or Inf"):
        step(gradients)
    after = velocities()
    assert np.array_equal(after["bias"], velocity["bias"])  # dense: skipped
    for name, part in residuals().items():
        finite = np.nan_to_num(gradients[list(SHAPES).index(name)].numpy().ravel())
        assert np.array_equal(part, before[name] + M * velocity[name] + finite)
        assert np.array_equal(after[name], M * velocity[name] + finite)
    averages = step(integer_gradients(variables, 2))
    assert all(np.isfinite(average).all() for average in averages)
    assert_same_on_all_ranks(averages)


def test_a_step_that_a_narrow_gradient_cannot_hold_is_refused():
    variables = make_variables({"bias": (7,)}, dtype=tf.float16)
    step = step_of(variables, COMPRESSIONS["topk"], hvd.Average)
    gradient = tf.fill((7,), tf.constant(40000.0, tf.float16))
    for held in (True, True, False):  # 40000, 60000, 70000
        if held:
            step([gradient])
            continue
        with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
            step([gradient])
    assert np.array_equal(velocities()["bias"], np.full(7, 60000.0))


@pytest.fixture
def folder(tmp_path_factory):
    """A folder that is the same on all ranks."""
    mine = str(tmp_path_factory.mktemp("checkpoint") / "last")
    return hvd.allgather_object(mine, name=a_name())[0]


def train(step, variables, numbers):
    for number in numbers:
        for variable, average in zip(
            variables, step(integer_gradients(variables, number)), strict=True
        ):
            variable.assign_sub(average)


@on_each_device
def test_a_checkpoint_of_tensorflow_goes_on_bit_for_bit(tmp_path, device):
    compression = COMPRESSIONS["lags"]
    variables = make_variables(device=device)
    step = step_of(variables, compression)
    train(step, variables, range(3))
    checkpoint = tf.train.Checkpoint(residuals=residual_variables(variables))
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


@pytest.mark.parametrize("policy", ["spread", "reset"])
def test_velocities_begin_anew_where_residuals_change_hands(policy, folder):
    if hvd.size() == 1 and policy == "spread":
        pytest.skip("residuals are spread over several ranks")
    variables = make_variables()
    step = step_of(variables, COMPRESSIONS["gtopk"])
    train(step, variables, range(3))
    save_checkpoint(folder, variables, None)
    load_checkpoint(folder, variables, None, residuals=policy)
    assert not any(np.any(part) for part in velocities().values())
    checked_step(step, integer_gradients(variables, 3))


def test_velocities_of_another_model_are_refused(folder):
    variables = make_variables({"w": (40, 30), "bias": (7,)})
    step = step_of(variables, COMPRESSIONS["gtopk"])
    train(step, variables, range(2))
    path = f"{folder}/rank-{hvd.rank()}-of-{hvd.size()}.npz"
    save_checkpoint(folder, variables, None)
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, "velocities/bias": np.zeros(3, np.float32)})
    seal_again(Path(path))
    with pytest.raises(CheckpointMismatchError, match="velocity of 'bias' is damaged"):
        load_checkpoint(folder, variables, None)


@pytest.mark.parametrize(
    ("optimizer", "options", "match"),
    [
        (keras.optimizers.SGD(momentum=0.9), {"momentum_correction": 0.9}, "momentum of SGD"),
        (keras.optimizers.Adam(), {"momentum_correction": 0.9}, "beta_1 of Adam is 0.9"),
        (
            keras.optimizers.Ftrl(l2_regularization_strength=0.5),
            {"weight_decay": 0.25},
            "l2_regularization_strength of Ftrl is 0.5 and weight_decay of the compression is 0.25",
        ),
    ],
    ids=["SGD", "Adam", "Ftrl"],
)
def test_nothing_is_applied_twice(optimizer, options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        hvd.DistributedOptimizer(optimizer, compression=TopK(**options))


def test_an_adam_without_momentum_of_its_own_takes_the_corrected_one():
    adam = keras.optimizers.Adam(beta_1=0.0)
    hvd.DistributedOptimizer(adam, compression=TopK(momentum_correction=0.9))


def test_decay_of_the_weights_alone_stays_the_optimizers():
    optimizer = keras.optimizers.SGD(0.5, weight_decay=0.25)
    compression = TopK(momentum_correction=0.5, weight_decay=0.5, density=1.0, min_numel=1)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
    variable = keras.Variable(np.full((8, 8), 4.0, np.float32), name="w")
    optimizer.apply([tf.zeros((8, 8))], [variable])
    # 4 - 0.5 * 0.25 * 4 = 3.5, less 0.5 * 0.5 * 4
    np.testing.assert_allclose(variable.numpy(), 2.5, rtol=1e-6)
