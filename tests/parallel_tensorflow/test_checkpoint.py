"""Checkpoints of a whole job: complete or absent; any number of ranks loses nothing."""

from __future__ import annotations

from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.tensorflow import LAGS, TopK, prepare
from hvd_sparse.tensorflow.registry import find_exchange
from tests.checkpoints import seal_again
from tests.framework_laws import checkpoint, laws_in
from tests.marks import long
from tests.parallel_tensorflow.checkpoints import (
    FIXED,
    SIMPLE,
    Loop,
    assert_equal,
    several_ranks,
    sparse_verdict,
)
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks
from tests.verdict import CYCLE

globals().update(laws_in(checkpoint))

__all__ = ["sparse_verdict"]

COMPRESSIONS = {
    "adaptive": LAGS(**FIXED),
    "momentum": TopK(feedback=Feedback(momentum=0.5, clip_norm=20.0, weight_decay=0.01), **FIXED),
}


def make_model(compression):
    """Makes a model with dropout; layers of no two models of a process share a name."""
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential(
        [keras.Input((20,)), keras.layers.Dense(30), keras.layers.Dropout(0.5),
         keras.layers.Dense(30), keras.layers.Dense(5)]
    )  # fmt: skip
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.001, momentum=0.0 if compression.feedback.own_momentum else 0.9),
        compression=compression,
    )
    model.compile(optimizer=optimizer, loss="mse")
    hvd.broadcast_variables(model.variables, root_rank=0)
    return model


def fit(model, epochs):
    for epoch in epochs:
        rng = np.random.default_rng(10 * epoch + hvd.rank())
        x, y = rng.standard_normal((32, 20)), rng.standard_normal((32, 5))
        model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)


# Custom loops cover the state of compressions; this test covers Keras's state beside it.
@pytest.mark.parametrize("name", [long("momentum"), "adaptive"])
def test_keras_goes_on_bit_for_bit(name, folder):
    before = 6 if COMPRESSIONS[name].adaptive else 1  # epochs of 4 steps each
    assert CYCLE < 4 * 6
    model = make_model(COMPRESSIONS[name])
    fit(model, range(before))
    model.optimizer.exchange.save_checkpoint(folder, model, epoch=before)
    fit(model, range(before, before + 2))

    twin = make_model(COMPRESSIONS[name])
    if hvd.size() > 1 or COMPRESSIONS[name].feedback.changes_gradients:
        prepare(twin.trainable_variables, COMPRESSIONS[name], optimizer=twin.optimizer)
    assert twin.optimizer.exchange.load_checkpoint(folder, twin) == {"epoch": before}
    fit(twin, range(before, before + 2))
    assert_equal(model.variables, twin.variables)
    assert_equal(model.optimizer.variables, twin.optimizer.variables)
    assert_same_on_all_ranks([one.value for one in twin.trainable_variables])
    if "momentum" in name:
        ours, theirs = (find_exchange(one.optimizer).velocities() for one in (model, twin))
        assert_equal(ours.values(), theirs.values())
        assert all(np.any(part) for part in theirs.values())
    if hvd.size() > 1:
        ours, theirs = (find_exchange(one.optimizer) for one in (model, twin))
        assert list(ours.saved_names.values()) == list(theirs.saved_names.values())
        assert_equal(ours.residuals().values(), theirs.residuals().values())
        assert any(np.any(part) for part in theirs.residuals().values())


@several_ranks
def test_random_numbers_stay_each_ranks_own(folder):
    model = make_model(TopK(**FIXED))
    model.optimizer.exchange.save_checkpoint(folder, model)
    for policy in ("own", "reset"):
        twin = make_model(TopK(**FIXED))
        seeds = [v.numpy() for v in twin.variables if "seed" in v.path]
        twin.optimizer.exchange.load_checkpoint(folder, twin, residuals=policy)
        assert_equal(seeds, [v for v in twin.variables if "seed" in v.path])


def test_what_is_shared_is_a_checkpoint_of_tensorflow(folder):
    model = make_model(TopK(**FIXED))
    fit(model, range(1))
    model.optimizer.exchange.save_checkpoint(folder, model)
    twin = make_model(TopK(**FIXED))
    path = f"{folder}/shared"
    tf.train.Checkpoint(model=twin).read(path).assert_existing_objects_matched()
    assert_equal(model.trainable_variables, twin.trainable_variables)


@several_ranks
def test_what_does_not_fit_is_refused_and_changes_nothing(folder):
    loop = Loop(SIMPLE)
    loop.train(range(2))
    loop.save(folder)
    with pytest.raises(CheckpointMismatchError, match=r"call prepare\(\) before"):
        Loop(SIMPLE).load(folder)
    with pytest.raises(CheckpointMismatchError, match=r"call prepare\(\) before"):
        Loop(SIMPLE).load(folder, residuals="spread")
    other = Loop(SIMPLE, {"first": (40, 30), "bias": (7,)})
    other.prepare()
    with pytest.raises(CheckpointMismatchError, match="the model that was saved has 4 variables"):
        other.load(folder)
    fewer = Loop(TopK(layers=Layers(min_numel=1100)))
    fewer.prepare()
    with pytest.raises(CheckpointMismatchError, match="saved are 'last' \\(600\\), 'second'"):
        fewer.load(folder)
    path = Path(folder) / f"rank-{hvd.rank()}-of-{hvd.size()}.npz"
    if hvd.rank() == hvd.size() - 1:  # another rank's residuals
        path.write_bytes((Path(folder) / f"rank-0-of-{hvd.size()}.npz").read_bytes())
        seal_again(path)
    twin = Loop(SIMPLE)
    twin.prepare()
    with pytest.raises(CheckpointMismatchError, match="saved by rank 0 and this is rank"):
        twin.load(folder)
    for untouched in (other, fewer, twin):
        assert not any(np.any(v) for v in untouched.variables)


def test_extras_that_json_has_not_are_refused(folder):
    loop = Loop(SIMPLE)
    with pytest.raises(InvalidArgumentError, match="of types that JSON has"):
        loop.save(folder, epoch=object())


def test_saving_amid_several_passes_is_refused(folder):
    variable = keras.Variable(np.zeros((40, 30), np.float32), name="w")
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=SIMPLE, backward_passes_per_step=2
    )
    for passes in (1, 2):
        optimizer.apply([tf.ones((40, 30))], [variable])
        if passes == 1:
            with pytest.raises(InvalidArgumentError, match="not exchanged yet"):
                optimizer.exchange.save_checkpoint(folder, [variable])
    optimizer.exchange.save_checkpoint(folder, [variable])
