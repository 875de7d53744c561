"""Keras 3: the optimizer's own momentum is moved in front of error feedback."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.compression import Layers
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.tensorflow import (
    LAGS,
    prepare,
)
from hvd_sparse.tensorflow.registry import find_exchange
from tests.cases import in_turn
from tests.parallel_tensorflow.own_momentum import (
    DENSE,
    SHAPES,
    SPARSE,
    M,
    fit,
    gradients_of,
    make_model,
    make_variables,
    several_ranks,
    summed,
    velocities_of,
)
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks, total

WAYS = {
    "eager": {},
    "graph": {"traced": True},
    "passes": {"traced": True, "passes": 2},
    "loss scaling": {"traced": True, "scale": 1024.0},
    "eager loss scaling": {"scale": 1024.0},
    "loss scale factor": {"factor": 8.0},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_stepping_gives_the_average_of_smoothed_gradients(way):
    options = {"traced": False, "passes": 1, "scale": None, "factor": None, **WAYS[way]}
    stock = keras.optimizers.Adam(0.01, beta_1=M, loss_scale_factor=options["factor"])
    inner = hvd.DistributedOptimizer(
        stock, compression=DENSE, op=hvd.Sum, backward_passes_per_step=options["passes"]
    )
    optimizer, factor = inner, options["factor"] or 1.0
    if options["scale"]:
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=options["scale"])
        factor = options["scale"]
    variables = make_variables()
    optimizer.build(variables)
    mode = tf.function if options["traced"] else lambda step: step
    step = mode(lambda gradients: optimizer.apply(gradients, variables))
    smoothed = [0.0, 0.0]
    for number in range(4):
        gradients = gradients_of(variables, number)
        for _ in range(options["passes"]):
            step([factor * one for one in gradients])
        smoothed = [
            M * v + (1 - M) * options["passes"] * g
            for v, g in zip(smoothed, summed(gradients), strict=True)
        ]
        assert inner.beta_1 == M
        for slot, expected in zip(inner._momentums, smoothed, strict=True):
            assert np.array_equal(slot, expected)
    assert (set(velocities_of(inner)) == set(SHAPES)) == (hvd.size() > 1)


class Noting(keras.optimizers.Adam):
    """Notes the momentum with which it updates variables."""

    def update_step(self, gradient, variable, learning_rate):
        self.noted = self.beta_1
        super().update_step(gradient, variable, learning_rate)


@pytest.mark.usefixtures("an_elastic_job")
def test_a_rank_that_may_get_peers_applies_the_momentum_itself():
    variables = make_variables()
    optimizer = Noting(0.01, beta_1=M)
    hvd.DistributedOptimizer(optimizer, compression=DENSE, op=hvd.Sum)
    step = tf.function(lambda gradients: optimizer.apply(gradients, variables))
    optimizer.build(variables)
    smoothed = 0.0
    for number in range(3):
        gradients = gradients_of(variables, number)
        step(gradients)
        smoothed = M * smoothed + (1 - M) * summed(gradients)[0]
        assert np.array_equal(optimizer._momentums[0], smoothed)
    assert optimizer.noted == 0.0


@several_ranks
def test_the_moment_of_adam_is_what_it_receives():
    variable = make_variables()[0]
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(0.01, beta_1=M), compression=SPARSE, op=hvd.Sum
    )
    residual, velocity = np.zeros(1200), np.zeros(1200)
    for number in range(4):
        (gradient,) = gradients_of([variable], number)
        optimizer.apply([gradient], [variable])
        given = residual + M * velocity + (1 - M) * np.ravel(gradient)
        residual = find_exchange(optimizer).residuals()["kernel"].numpy()
        velocity = velocities_of(optimizer)["kernel"]
        received = total(given - residual)
        assert 0 < np.count_nonzero(received) < 1200
        assert np.array_equal(np.ravel(optimizer._momentums[0]), received)
    assert_same_on_all_ranks([variable.value, *(one.value for one in optimizer.variables)])


KINDS = {
    "Adam": {"beta_1": 0.9},
    "AdamW": {"beta_1": 0.9, "weight_decay": 0.1},
    "Nadam": {"beta_1": 0.9},
    "Adamax": {"beta_1": 0.9},
    "SGD": {"momentum": 0.9},
    "SGD, decayed": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


def kind_of(name):
    return getattr(keras.optimizers, name.partition(",")[0])


@several_ranks
@pytest.mark.parametrize(("kind", "run_eagerly"), in_turn(KINDS, [False, True]))
def test_a_moved_momentum_leaves_the_optimizer_as_it_is(kind, run_eagerly):
    options = KINDS[kind]
    optimizer = kind_of(kind)(0.01, **options)
    hvd.DistributedOptimizer(optimizer, compression=SPARSE)
    before = optimizer.get_config()
    model = make_model(optimizer, run_eagerly=run_eagerly)
    weights = fit(model)
    assert len(velocities_of(optimizer)) == len(weights)
    assert all(np.any(one) for one in velocities_of(optimizer).values())
    assert_same_on_all_ranks(weights)
    assert_same_on_all_ranks([one.value for one in optimizer.variables])
    assert optimizer.get_config() == before
    assert options.items() <= before.items()


@several_ranks
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_one_without_momentum_on_smoothed_gradients(kind):
    options, kind = KINDS[kind], kind_of(kind)
    ours = hvd.DistributedOptimizer(kind(0.01, **options), compression=DENSE)
    if kind is keras.optimizers.SGD:  # whose weight decay is decoupled, with the same rate
        rate = 0.01 / (1 - options["momentum"])
        decay = options.get("weight_decay", 0.0) * 0.01 / rate
        stock = kind(rate, weight_decay=decay or None)
    else:
        stock = kind(0.01, **{**options, "beta_1": 0.0})
    variables, twins = make_variables(), make_variables()
    smoothed = [0.0, 0.0]
    for number in range(4):
        gradients = gradients_of(variables, number)
        ours.apply(gradients, variables)
        smoothed = [
            0.9 * v + 0.1 * g / hvd.size() for v, g in zip(smoothed, summed(gradients), strict=True)
        ]
        stock.apply([tf.constant(one, tf.float32) for one in smoothed], twins)
    for variable, twin in zip(variables, twins, strict=True):
        assert np.any(variable)
        np.testing.assert_allclose(variable, twin, rtol=1e-4, atol=1e-6)


@several_ranks
def test_velocities_of_sgd_keep_what_was_delivered():
    variable = make_variables()[0]
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.01, momentum=M), compression=SPARSE, op=hvd.Sum
    )
    velocity = 0.0
    for number in range(4):
        (gradient,) = gradients_of([variable], number)
        optimizer.apply([gradient], [variable])
        velocity = M * velocity + (1 - M) * np.ravel(gradient)
        assert np.array_equal(velocities_of(optimizer)["kernel"], velocity)
    assert not np.any(optimizer.momentums[0])
    assert_same_on_all_ranks([variable.value])


@several_ranks
def test_where_all_is_delivered_a_step_is_that_of_the_stock_sgd():
    ours = hvd.DistributedOptimizer(keras.optimizers.SGD(0.125, momentum=M), compression=DENSE)
    stock = keras.optimizers.SGD(0.125, momentum=M)
    variables, twins = make_variables(), make_variables()
    for number in range(6):
        gradients = gradients_of(variables, number)
        ours.apply(gradients, variables)
        averages = [one / hvd.size() for one in summed(gradients)]
        stock.apply([tf.constant(one, tf.float32) for one in averages], twins)
    for variable, twin in zip(variables, twins, strict=True):
        np.testing.assert_allclose(variable, twin, rtol=1e-5, atol=1e-5)


@several_ranks
def test_a_momentum_of_sgd_that_has_changed_is_refused():
    optimizer = keras.optimizers.SGD(0.125, momentum=M)
    hvd.DistributedOptimizer(optimizer, compression=DENSE)
    variables = make_variables()
    optimizer.momentum = 0.9
    with pytest.raises(InvalidArgumentError, match=r"momentum of SGD is 0.9 and was 0.5"):
        optimizer.apply(gradients_of(variables, 1), variables)


def test_a_saved_model_names_the_users_momentum(tmp_path):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=SPARSE)
    model = make_model(optimizer)
    weights = fit(model)
    model.save(tmp_path / "model.keras")
    alone = keras.models.load_model(tmp_path / "model.keras")
    assert type(alone.optimizer) is keras.optimizers.Adam
    assert alone.optimizer.beta_1 == 0.9
    loaded = hvd.load_model(tmp_path / "model.keras", compression=SPARSE)
    for ours, theirs in zip(weights, loaded.trainable_variables, strict=True):
        assert np.array_equal(ours, theirs)
    assert_same_on_all_ranks(fit(loaded))
    assert len(velocities_of(loaded.optimizer)) == (4 if hvd.size() > 1 else 0)
    assert loaded.optimizer.get_config()["beta_1"] == 0.9


@several_ranks
def test_a_checkpoint_goes_on_bit_for_bit(folder):
    compression = LAGS(adaptive=False, density=0.25, layers=Layers(min_numel=64))

    def make():
        adam = keras.optimizers.Adam(0.05)
        return make_model(hvd.DistributedOptimizer(adam, compression=compression))

    model = make()
    fit(model)
    model.optimizer.exchange.save_checkpoint(folder, model)
    kept = velocities_of(model.optimizer)
    expected = fit(model)
    twin = make()
    prepared = prepare(twin.trainable_variables, compression, optimizer=twin.optimizer)
    twin.optimizer.exchange.load_checkpoint(folder, twin)
    assert [id(one) for one in twin.optimizer.exchange.residual_variables] == [
        id(o) for o in prepared
    ]
    for ours, theirs in zip(velocities_of(twin.optimizer).values(), kept.values(), strict=True):
        assert np.any(ours)
        assert np.array_equal(ours, theirs)
    for ours, theirs in zip(fit(twin), expected, strict=True):
        assert np.array_equal(ours, theirs)
