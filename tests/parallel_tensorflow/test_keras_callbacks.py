"""Horovod's callbacks for the learning rate work with Keras 3, and correct momentum."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import hvd_sparse.tensorflow.keras as hvd
from tests.marks import long
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks
from tests.parallel_tensorflow.test_keras import COMPRESSIONS

BATCHES = 4


class Watcher(keras.callbacks.Callback):
    """Records learning rate and velocities at the beginning of every batch."""

    def __init__(self):
        super().__init__()
        self.rates, self.velocities = [], []

    def on_train_batch_begin(self, batch, logs=None):
        optimizer = self.model.optimizer
        self.rates.append(float(optimizer.learning_rate))
        stepping = getattr(optimizer, "inner_optimizer", optimizer)
        held = getattr(stepping, "momentums", None) or getattr(stepping, "_momentums", [])
        self.velocities.append([velocity.numpy() for velocity in held])


def fit(optimizer, *callbacks, compression="lags", epochs=3, **compiled):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(40), keras.layers.Dense(3)])
    optimizer = hvd.DistributedOptimizer(optimizer, compression=COMPRESSIONS[compression])
    model.compile(optimizer=optimizer, loss="mse", **compiled)
    rng = np.random.default_rng(hvd.rank())
    images, labels = rng.standard_normal((16, 6)), rng.standard_normal((16, 3))
    options = {"batch_size": 16 // BATCHES, "epochs": epochs, "verbose": 0}
    history = model.fit(images, labels, callbacks=list(callbacks), **options)
    assert_same_on_all_ranks([variable.value for variable in model.trainable_variables])
    return history.history


# The callback sets a rate, whatever the compression: Horovod's and a sparse one are enough.
@pytest.mark.parametrize(
    "compression", [one if one in ("none", "lags") else long(one) for one in COMPRESSIONS]
)
def test_a_warmup_reaches_the_rate_of_all_ranks(compression, capsys):
    rate = 0.1 * hvd.size()
    watcher = Watcher()
    warmup = hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2, verbose=1)
    optimizer = keras.optimizers.Adam(rate)
    history = fit(optimizer, warmup, watcher, compression=compression)
    share = np.minimum(np.arange(1, 3 * BATCHES + 1) / (2 * BATCHES), 1)
    expected = 0.1 * (1 + share * (hvd.size() - 1))
    np.testing.assert_allclose(watcher.rates, expected, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], expected[BATCHES - 1 :: BATCHES], rtol=1e-6)
    assert ("finished gradual learning rate warmup" in capsys.readouterr().out) == (hvd.rank() == 0)


@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("SGD", {"nesterov": True}), ("SGD", {"clipnorm": 1.0}), ("RMSprop", {})],
)
def test_velocities_follow_the_rate(kind, options, corrects):
    before, after = Watcher(), Watcher()
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        0.1, lambda epoch: 0.25**epoch, momentum_correction=corrects
    )
    optimizer = getattr(keras.optimizers, kind)(0.1, momentum=0.9, **options)
    # With a sparse compression the exchange has the velocities of SGD, without the learning rate.
    fit(optimizer, before, schedule, after, compression="none" if kind == "SGD" else "lags")
    assert after.rates == pytest.approx([0.1] * BATCHES + [0.025] * BATCHES + [0.00625] * BATCHES)
    for batch in range(1, 3 * BATCHES):
        factor = 0.25 if corrects and batch % BATCHES == 0 else 1.0
        assert after.velocities[batch], "there are velocities"
        for was, became in zip(before.velocities[batch], after.velocities[batch], strict=True):
            assert np.any(was != 0)
            np.testing.assert_allclose(became, factor * was, rtol=1e-6)


def test_an_optimizer_without_velocities_and_one_of_scaled_losses_work():
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    history = fit(optimizer, schedule)
    assert history["lr"] == pytest.approx([0.1, 0.05, 0.025])
    fit(keras.optimizers.SGD(0.1), hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5))


def test_a_schedule_of_the_optimizer_is_not_replaced():
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
    with pytest.raises(TypeError, match="LearningRateSchedule"):
        fit(keras.optimizers.SGD(rate), schedule)
