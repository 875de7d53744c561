"""Horovod's elastic states and callbacks for Keras, with Keras 3, while the ranks stay."""

from __future__ import annotations

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import pytest

from hvd_sparse.compression import Layers, LocalSteps, Outer
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.tensorflow import TopK, registry, saved_state
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks, same

FIXED = TopK(density=0.05, layers=Layers(min_numel=64))
pytestmark = pytest.mark.usefixtures("an_elastic_job")


def make_model(passes=1, compression=FIXED):
    keras.utils.set_random_seed(hvd.rank())
    layers = [
        keras.Input((16,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(4),
    ]
    model = keras.Sequential(layers)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(0.01), compression=compression, backward_passes_per_step=passes
    )
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return model


def fit(model, state, epochs=2):
    rng = np.random.default_rng(hvd.rank())
    values = rng.normal(size=(48, 16)).astype(np.float32)
    elastic = hvd.elastic
    model.fit(
        values,
        values[:, :4],
        batch_size=16,
        epochs=epochs,
        verbose=0,
        callbacks=[
            elastic.CommitStateCallback(state, 2),
            elastic.UpdateBatchStateCallback(state),
            elastic.UpdateEpochStateCallback(state),
        ],
    )


def weights_of(model):
    return [one.value for one in (*model.variables, *model.optimizer.variables)
            if "seed" not in one.path]  # fmt: skip


def test_states_and_callbacks_of_keras_work_with_keras_3():
    model = make_model()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    state.sync()
    assert_same_on_all_ranks(weights_of(model))
    fit(model, state)
    assert (state.epoch, state.batch) == (2, 0)
    assert_same_on_all_ranks(weights_of(model))
    state.commit()
    before = [one.numpy() for one in weights_of(model)]
    held = [saved_state.save(one)["residuals"] for one in registry.live_exchanges()]
    model.train_on_batch(np.ones((4, 16), np.float32), np.ones((4, 4), np.float32))
    assert any(not np.array_equal(*two) for two in zip(weights_of(model), before, strict=True))
    state.restore()
    state.sync()
    assert all(np.array_equal(*two) for two in zip(weights_of(model), before, strict=True))
    after = [saved_state.save(one)["residuals"] for one in registry.live_exchanges()]
    assert all(same(*two) for two in zip(after, held, strict=True))
    fit(model, state)
    assert_same_on_all_ranks(weights_of(model))


def test_amid_passes_nothing_is_committed_and_a_restored_state_begins_with_the_first():
    model = make_model(passes=2)
    state = hvd.elastic.KerasState(model)
    state.sync()
    batch = np.ones((4, 16), np.float32), np.ones((4, 4), np.float32)
    model.train_on_batch(*batch)
    with pytest.raises(InvalidArgumentError, match="committed after an exchange"):
        state.commit()
    state.restore()
    state.sync()
    before = [one.numpy() for one in model.trainable_variables]
    model.train_on_batch(*batch)
    assert all(np.array_equal(*two) for two in zip(model.trainable_variables, before, strict=True))
    model.train_on_batch(*batch)
    state.commit()
    assert_same_on_all_ranks(weights_of(model))


def test_ranks_meet_before_a_commit_and_begin_an_interval_with_it():
    local = TopK(
        density=0.05,
        layers=Layers(min_numel=64),
        local_steps=LocalSteps(every=4, outer=Outer(lr=0.5, momentum=0.5)),
    )
    model = make_model(compression=local)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    state.sync()
    fit(model, state, epochs=3)  # commits amid an interval
    assert_same_on_all_ranks([one.value for one in model.trainable_variables])
    before = [one.numpy() for one in model.trainable_variables]
    after = []
    for _ in range(2):
        for step in range(6):
            inputs = np.full((4, 16), step + hvd.rank(), np.float32)
            model.train_on_batch(inputs, inputs[:, :4])
        model.optimizer.exchange.meet()
        after.append([one.numpy() for one in model.trainable_variables])
        state.restore()
        state.sync()
        now = [one.numpy() for one in model.trainable_variables]
        assert all(np.array_equal(*two) for two in zip(now, before, strict=True))
    assert any(not np.array_equal(*two) for two in zip(after[0], before, strict=True))
    assert_same_on_all_ranks([one.value for one in model.trainable_variables])
