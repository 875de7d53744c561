"""Local steps of a Keras 3 optimizer: what ranks do between two meetings is not lost."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.compression import AdaComm, Layers, LocalSteps, Outer
from hvd_sparse.errors import (
    CheckpointMismatchError,
    ExchangeFailedError,
    InvalidArgumentError,
    RanksDisagreeError,
    UnsupportedError,
)
from hvd_sparse.tensorflow import (
    Dense,
    DistributedGradientTape,
    TopK,
    prepare,
)
from tests.framework_laws import local_steps as laws

SHAPE = (40, 30)
EVERY = 3
SPARSE = TopK(density=0.1, layers=Layers(min_numel=64), local_steps=EVERY)

globals().update(
    (law.__name__, law)
    for law in (
        laws.test_narrow_weights_move_by_less_than_their_last_place,
        laws.test_ranks_that_have_taken_other_steps_are_named,
        laws.test_ranks_that_began_with_other_weights_are_named,
        laws.test_weights_may_be_loaded_between_two_intervals,
        laws.test_a_rank_whose_weights_are_not_finite_stops_no_other,
    )
)

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")


def made(compression, *, traced, passes=1, optimizer=None):
    """Returns a variable, its optimizer, and a function that takes a step with a gradient."""
    variable = keras.Variable(np.zeros(SHAPE, np.float32), name="w")
    optimizer = hvd.DistributedOptimizer(
        optimizer or keras.optimizers.SGD(1.0),
        compression=compression,
        backward_passes_per_step=passes,
    )
    mode = tf.function if traced else lambda step: step
    return variable, optimizer, mode(lambda gradient: optimizer.apply([gradient], [variable]))


def gradient(step):
    """Returns integers of which averages over the ranks are integers, too."""
    rng = np.random.default_rng([step, hvd.rank()])
    return hvd.size() * rng.integers(-9, 10, SHAPE).astype(np.float32)


def total(array):
    return hvd.allreduce(tf.constant(array, tf.float64), op=hvd.Sum, name="owed").numpy()


def assert_same_on_all_ranks(variable):
    rows = hvd.allgather(variable.numpy()[None], name="rows").numpy()
    assert all(np.array_equal(rows[0], row) for row in rows)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("compression", [SPARSE, Dense(local_steps=EVERY)], ids=["topk", "dense"])
def test_a_meeting_loses_nothing_and_makes_all_ranks_equal(compression, traced):
    variable, optimizer, step = made(compression, traced=traced)
    kept = np.zeros(SHAPE)
    for meeting in range(4):
        before, difference = variable.numpy(), np.zeros(SHAPE)
        for number in range(EVERY):
            given = gradient(10 * meeting + number)
            difference += given
            step(tf.constant(given))
            if number < EVERY - 1:
                assert np.array_equal(variable.numpy(), before - difference)
        left = optimizer.exchange.residual_variables[0].numpy().reshape(SHAPE).astype(np.float64)
        moved = hvd.size() * (before - variable.numpy()).astype(np.float64)
        assert np.array_equal(total(difference + kept - left), moved)
        assert_same_on_all_ranks(variable)
        assert optimizer.exchange.stats.last.step == meeting
        kept = left


def test_the_outer_optimizer_takes_the_average_as_its_gradient():
    outer = Outer(lr=0.5, momentum=0.5, nesterov=True)
    variable, _, step = made(Dense(local_steps=LocalSteps(every=EVERY, outer=outer)), traced=True)
    expected, momentum = np.zeros(SHAPE), np.zeros(SHAPE)
    for meeting in range(3):
        given = [gradient(10 * meeting + number) for number in range(EVERY)]
        for one in given:
            step(tf.constant(one))
        average = total(sum(given)) / hvd.size()
        momentum = 0.5 * momentum + average
        expected -= 0.5 * (average + 0.5 * momentum)
        assert np.array_equal(variable.numpy(), expected)


def test_passes_add_up_to_local_steps():
    variable, optimizer, step = made(Dense(local_steps=2), traced=True, passes=2)
    given = [gradient(number) for number in range(4)]
    for one in given:
        step(tf.constant(one))
    assert int(optimizer.iterations) == 2
    assert np.array_equal(-hvd.size() * variable.numpy(), total(sum(given)))


def test_ranks_meet_early_and_lend_the_common_weights():
    variable, optimizer, step = made(SPARSE, traced=True)
    given = gradient(0)
    step(tf.constant(given))
    with optimizer.exchange.common_weights():
        assert not np.any(variable.numpy())
    assert np.array_equal(variable.numpy(), -given)
    with pytest.raises(InvalidArgumentError, match=r"call optimizer.exchange.meet\(\) first"):
        optimizer.exchange.save_checkpoint("/nowhere", [variable])
    optimizer.exchange.meet()
    assert_same_on_all_ranks(variable)
    assert optimizer.exchange.stats.last.step == 0
    optimizer.exchange.meet()
    assert optimizer.exchange.stats.last.step == 0


def test_weights_that_a_callback_broadcasts_begin_an_interval():
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.layers.Input((20,)), keras.layers.Dense(50)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=SPARSE)
    model.compile(optimizer, "mse")
    rng = np.random.default_rng(hvd.rank())
    inputs, targets = (
        rng.standard_normal((8 * (1 + 2 * EVERY), width)).astype(np.float32) for width in (20, 50)
    )
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(inputs, targets, batch_size=8, shuffle=False, verbose=0, callbacks=[broadcast])
    assert optimizer.exchange.stats.last.step == 1  # the first batch belongs to no interval
    for variable in model.trainable_variables:
        assert_same_on_all_ranks(variable)


def test_a_rank_that_steps_where_others_have_met_is_named():
    variable, optimizer, step = made(SPARSE, traced=True)
    for number in range(EVERY + (hvd.rank() == 0)):
        step(tf.constant(gradient(number)))
    with pytest.raises(RanksDisagreeError, match=r"rank 0 has taken 1 local steps .* rank 1 0"):
        optimizer.exchange.meet()
    with pytest.raises(ExchangeFailedError):
        optimizer.exchange.meet()
    step(tf.constant(gradient(5)))
    before = variable.numpy()
    with pytest.raises(tf.errors.AbortedError, match="has taken 1 local steps"):
        for number in range(6, 6 + EVERY):
            step(tf.constant(gradient(number)))
            before = before - gradient(number)
    assert np.array_equal(variable.numpy(), before - gradient(6 + EVERY - 2 - (hvd.rank() == 0)))


def test_a_job_resumes_between_two_intervals(folder):
    variable, optimizer, step = made(SPARSE, traced=True)
    for number in range(EVERY):
        step(tf.constant(gradient(number)))
    optimizer.exchange.save_checkpoint(folder, [variable])
    twin, resumed, twin_step = made(SPARSE, traced=True)
    prepare([twin], SPARSE, optimizer=resumed)
    for number in range(EVERY + 1):  # up to the first step of an interval
        twin_step(tf.constant(gradient(50 + number)))
    resumed.exchange.load_checkpoint(folder, [twin])
    for number in range(EVERY):
        for one in (step, twin_step):
            one(tf.constant(gradient(10 + number)))
    assert np.array_equal(variable.numpy(), twin.numpy())
    kept, taken_up = (
        optimizer.exchange.residual_variables[0],
        resumed.exchange.residual_variables[0],
    )
    assert np.any(kept)
    assert np.array_equal(kept, taken_up)
    resumed.exchange.save_checkpoint(folder, [twin])  # prepare() and the steps have one exchange


def test_losses_that_are_not_finite_are_left_out():
    _, optimizer, step = made(Dense(local_steps=AdaComm(first=8, seconds=1e-9)), traced=True)
    for number in range(8):
        optimizer.exchange.report_loss(float("nan") if number == 2 else 8.0)
        step(tf.constant(gradient(number)))
    first = optimizer.exchange.local_steps
    for number in range(first):
        optimizer.exchange.report_loss(0.5)
        step(tf.constant(gradient(number)))
    assert optimizer.exchange.local_steps == 2  # 8 * sqrt(0.5 / 8)


@pytest.mark.parametrize("traced", [False, True])
def test_all_ranks_choose_the_next_interval_alike(traced):
    variable, optimizer, step = made(
        Dense(local_steps=AdaComm(first=4, seconds=1e-9)), traced=traced
    )
    lengths = []
    for number in range(12):
        optimizer.exchange.report_loss(tf.constant(8.0 if number == 0 else 2.0 + hvd.rank()))
        step(tf.constant(gradient(number)))
        lengths.append(optimizer.exchange.local_steps)
    rows = hvd.allgather(tf.constant([lengths]), name="lengths").numpy()
    assert all(np.array_equal(rows[0], row) for row in rows)
    assert lengths[:4] == [4, 4, 4, lengths[3]]
    assert lengths[-1] == 1
    assert_same_on_all_ranks(variable)


def test_a_loss_may_be_reported_within_a_traced_step():
    variable = keras.Variable(np.zeros(SHAPE, np.float32))
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=Dense(local_steps=AdaComm(first=2, seconds=1e-9))
    )

    @tf.function
    def step(given):
        optimizer.exchange.report_loss(tf.reduce_sum(given))
        optimizer.apply([given], [variable])

    for _ in range(4):
        step(tf.ones(SHAPE))
    assert optimizer.exchange.local_steps == 1
    assert_same_on_all_ranks(variable)


def test_adacomm_asks_for_the_loss_on_all_ranks():
    _, _, step = made(Dense(local_steps=AdaComm(first=2, seconds=1e-9)), traced=False)
    step(tf.constant(gradient(0)))
    with pytest.raises(InvalidArgumentError, match="report_loss"):
        step(tf.constant(gradient(1)))


def test_the_number_of_steps_may_follow_the_time_that_meetings_take():
    variable, optimizer, step = made(replace(SPARSE, local_steps="auto"), traced=True)
    assert optimizer.exchange.local_steps == 4
    for number in range(64):
        step(tf.constant(gradient(number)))
    lengths = hvd.allgather(tf.constant([optimizer.exchange.local_steps]), name="auto").numpy()
    assert len(set(lengths)) == 1
    assert 4 < lengths[0] <= 32  # next to nothing is computed between meetings here
    optimizer.exchange.meet()
    assert_same_on_all_ranks(variable)


def test_statistics_are_averaged_at_a_meeting_where_a_model_is_given():
    model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    model.build((None, 4))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=SPARSE)
    optimizer.build(model.trainable_variables)
    mean, variance = model.layers[0].moving_mean, model.layers[0].moving_variance
    mean.assign(np.full(4, hvd.rank()))
    variance.assign(np.full(4, 2.0 * hvd.rank()))
    optimizer.exchange.meet()
    assert np.array_equal(mean.numpy(), np.full(4, hvd.rank()))
    optimizer.exchange.meet(model)
    middle = (hvd.size() - 1) / 2
    assert np.array_equal(mean.numpy(), np.full(4, middle, np.float32))
    assert np.array_equal(variance.numpy(), np.full(4, 2 * middle, np.float32))


CONSTANTS = {
    "float32": [np.finfo(np.float32).min, 3e38, -3e38, -np.inf, np.nan, -0.0, 0.456, 1 / 3],
    "float64": [np.finfo(np.float64).min, 1e300, 1 / 3],
    "bfloat16": [3e38, 0.456],
}


def test_what_is_equal_on_all_ranks_stays_as_it_is_where_statistics_are_averaged():
    constants = {name: keras.Variable(ones, dtype=name) for name, ones in CONSTANTS.items()}
    own = keras.Variable([3e38, -np.inf, float(hvd.rank())])
    model = SimpleNamespace(non_trainable_variables=[*constants.values(), own])
    variable, optimizer, _ = made(SPARSE, traced=True)
    optimizer.build([variable])
    before = {name: one.numpy().tobytes() for name, one in constants.items()}
    for _ in range(2):
        optimizer.exchange.meet(model)
    assert {name: one.numpy().tobytes() for name, one in constants.items()} == before
    middle = (hvd.size() - 1) / 2
    np.testing.assert_allclose(own.numpy(), [3e38, -np.inf, middle], rtol=1e-6)
    assert_same_on_all_ranks(own)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("kind", [keras.optimizers.Adam, keras.optimizers.RMSprop])
def test_moments_are_averaged_at_a_meeting_where_asked(kind, traced):
    def moments(averaged, steps):
        compression = replace(
            SPARSE,
            local_steps=replace(SPARSE.local_steps, moments="averaged" if averaged else "local"),
        )
        _, optimizer, step = made(compression, traced=traced, optimizer=kind(0.01))
        for number in range(steps):
            step(tf.constant(gradient(number)))
        assert float(optimizer.learning_rate) == pytest.approx(0.01)
        return [one.numpy() for one in optimizer.variables if tuple(one.shape) == SHAPE]

    for own, average in zip(moments(False, EVERY), moments(True, EVERY), strict=True):
        expected = hvd.allreduce(tf.constant(own), op=hvd.Average, name="moments").numpy()
        np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-6)
        assert not np.allclose(own, expected)
    amid = EVERY - 1
    assert all(map(np.array_equal, moments(False, amid), moments(True, amid)))


def test_what_cannot_take_local_steps_is_refused():
    with pytest.raises(UnsupportedError, match="averages"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=SPARSE, op=hvd.Sum)
    with pytest.raises(UnsupportedError, match="a tape"):
        DistributedGradientTape(tf.GradientTape(), compression=SPARSE)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=SPARSE)
    scaling = keras.optimizers.LossScaleOptimizer(optimizer)
    variable = keras.Variable(np.zeros(SHAPE, np.float32))
    with pytest.raises(UnsupportedError, match="loss scaling"):
        scaling.apply([tf.ones(SHAPE)], [variable])
    plain = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=TopK)
    with pytest.raises(InvalidArgumentError, match=r"meet\(\) needs"):
        plain.exchange.meet()
    streaming = TopK(local_steps=LocalSteps(every=4, fragments=2, delay=1))
    with pytest.raises(UnsupportedError, match="fragments must be 1 and delay 0 in TensorFlow"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=streaming)


def test_residuals_of_the_other_unit_are_refused(folder):
    alone, together = SPARSE, TopK(density=0.1, layers=Layers(min_numel=64))
    for theirs, ours in ((alone, together), (together, alone)):
        variable, optimizer, step = made(theirs, traced=False)
        for number in range(EVERY):
            step(tf.constant(gradient(number)))
        optimizer.exchange.save_checkpoint(folder, [variable])
        twin, other, _ = made(ours, traced=False)
        prepare([twin], ours, optimizer=other)
        with pytest.raises(CheckpointMismatchError, match=r'another scale.*residuals="reset"'):
            other.exchange.load_checkpoint(folder, [twin])
        with pytest.raises(CheckpointMismatchError, match=r'another scale.*residuals="reset"'):
            other.exchange.load_checkpoint(folder, [twin], residuals="spread")
        other.exchange.load_checkpoint(folder, [twin], residuals="reset")
        assert np.array_equal(twin.numpy(), variable.numpy())


def test_a_model_that_one_rank_lacks_is_an_error_on_every_rank(folder):
    variable, optimizer, _ = made(SPARSE, traced=False)
    is_last = hvd.rank() == hvd.size() - 1
    with pytest.raises(InvalidArgumentError, match=r"model must be a Keras model.*got NoneType"):
        optimizer.exchange.save_checkpoint(folder, None if is_last else [variable])
