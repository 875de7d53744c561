"""Checkpoints of a whole job: complete or absent; any number of ranks loses nothing."""

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
    GaussianK,
    TopK,
    Warmup,
    load_checkpoint,
    prepare,
    save_checkpoint,
    stats,
    tuning,
)
from hvd_sparse.tensorflow.registry import find_exchange
from hvd_sparse.tuning.tuner import Stage
from tests.checkpoints import pretend_twice_as_many_ranks, seal_again
from tests.parallel_tensorflow.checkpoints import (
    FIXED,
    SIMPLE,
    Loop,
    assert_equal,
    folder,
    several_ranks,
    sparse_verdict,
)
from tests.parallel_tensorflow.ranks import (
    a_name,
    assert_same_on_all_ranks,
    total,
)
from tests.verdict import CYCLE

__all__ = ["folder", "sparse_verdict"]

COMPRESSIONS = {
    "lags": SIMPLE,
    "gaussiank": GaussianK(warmup=Warmup(steps=2, densities=(0.5, 0.25)), **FIXED),
    "adaptive": LAGS(**FIXED),
    "momentum": TopK(momentum_correction=0.5, clip_norm=20.0, weight_decay=0.01, **FIXED),
    "adaptive momentum": LAGS(momentum_correction=0.5, **FIXED),
}


# A single rank exchanges nothing: there, only features that change gradients differ.
@pytest.mark.parametrize(
    "name",
    ["lags", "momentum", *(["gaussiank", "adaptive momentum"] if hvd.size() > 1 else [])],
)
def test_a_loop_of_ones_own_goes_on_bit_for_bit(name, folder):
    before = CYCLE + 1 if COMPRESSIONS[name].adaptive else 3
    loop = Loop(COMPRESSIONS[name], mode=tf.function)
    tf.random.set_global_generator(tf.random.Generator.from_seed(hvd.rank()))
    loop.train(range(before))
    loop.save(folder, epoch=7)
    loop.train(range(before, before + 4))

    twin = Loop(COMPRESSIONS[name], mode=tf.function)
    twin.train(range(20, 22))
    assert twin.load(folder) == {"epoch": 7}
    twin.train(range(before, before + 4))
    assert_equal(loop.variables, twin.variables)
    assert_equal(loop.optimizer.variables, twin.optimizer.variables)
    assert_equal(loop.residuals().values(), twin.residuals().values())
    assert_equal(loop.velocities().values(), twin.velocities().values())
    assert any(np.any(part) for part in twin.velocities().values()) == ("momentum" in name)
    if COMPRESSIONS[name].adaptive and hvd.size() > 1:
        assert tuning(twin.variables).stage is Stage.SETTLED
        assert tuning(twin.variables) == tuning(loop.variables)
        assert len(stats(twin.variables).buckets) == 1
    if hvd.size() > 1:
        assert stats(twin.variables).step == before + 3
        assert any(np.any(part) for part in twin.residuals().values())


@several_ranks
def test_with_other_options_residuals_go_on_and_the_plan_does_not(folder):
    loop = Loop(COMPRESSIONS["adaptive"])
    loop.train(range(CYCLE + 1))
    loop.save(folder)
    assert tuning(loop.variables).stage is Stage.SETTLED
    twin = Loop(LAGS(**{**FIXED, "density": 0.2}))
    twin.prepare()
    twin.load(folder)
    assert tuning(twin.variables).stage is Stage.DENSE
    assert_equal(loop.residuals().values(), twin.residuals().values())
    assert any(np.any(part) for part in twin.residuals().values())
    twin.train(range(CYCLE + 1, 2 * CYCLE + 2))
    assert len(stats(twin.variables).buckets) == 1
    assert_same_on_all_ranks(twin.variables)


def make_model(compression):
    """Makes a model with dropout; layers of no two models of a process share a name."""
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential(
        [keras.Input((20,)), keras.layers.Dense(30), keras.layers.Dropout(0.5),
         keras.layers.Dense(30), keras.layers.Dense(5)]
    )  # fmt: skip
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.001, momentum=0.0 if compression.momentum_correction else 0.9),
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
@pytest.mark.parametrize("name", ["momentum", "adaptive"])
def test_keras_goes_on_bit_for_bit(name, folder):
    before = 6 if COMPRESSIONS[name].adaptive else 1  # epochs of 4 steps each
    assert CYCLE < 4 * 6
    model = make_model(COMPRESSIONS[name])
    fit(model, range(before))
    save_checkpoint(folder, model, model.optimizer, epoch=before)
    fit(model, range(before, before + 2))

    twin = make_model(COMPRESSIONS[name])
    if hvd.size() > 1 or COMPRESSIONS[name].acts_on_gradients:
        prepare(twin.trainable_variables, COMPRESSIONS[name], optimizer=twin.optimizer)
    assert load_checkpoint(folder, twin, twin.optimizer) == {"epoch": before}
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
    save_checkpoint(folder, model, model.optimizer)
    for policy in ("own", "reset"):
        twin = make_model(TopK(**FIXED))
        seeds = [v.numpy() for v in twin.variables if "seed" in v.path]
        load_checkpoint(folder, twin, twin.optimizer, residuals=policy)
        assert_equal(seeds, [v for v in twin.variables if "seed" in v.path])


def test_what_is_shared_is_a_checkpoint_of_tensorflow(folder):
    model = make_model(TopK(**FIXED))
    fit(model, range(1))
    save_checkpoint(folder, model, model.optimizer)
    twin = make_model(TopK(**FIXED))
    path = f"{folder}/shared"
    tf.train.Checkpoint(model=twin).read(path).assert_existing_objects_matched()
    assert_equal(model.trainable_variables, twin.trainable_variables)


def test_a_later_checkpoint_replaces_the_former_and_leaves_nothing_behind(folder):
    loop = Loop(COMPRESSIONS["lags"])
    for epoch in range(3):
        loop.save(folder, epoch=epoch)
        loop.train([epoch])
    assert loop.load(folder) == {"epoch": 2}
    assert [path.name for path in Path(folder).parent.iterdir()] == ["last"]


def test_where_there_is_none_none_is_loaded(folder):
    assert Loop(COMPRESSIONS["lags"]).load(folder) is None


@several_ranks
def test_the_sum_of_residuals_of_more_ranks_is_spread_and_nothing_is_lost(folder):
    loop = Loop(COMPRESSIONS["gaussiank"])
    loop.train(range(5))
    loop.save(folder)
    owed = {name: total(part) for name, part in loop.residuals().items()}
    if hvd.rank() == 0:
        pretend_twice_as_many_ranks(Path(folder), hvd.size())
    hvd.allgather_object(None, name=a_name())

    twin = Loop(COMPRESSIONS["gaussiank"])
    twin.prepare()
    with pytest.raises(CheckpointMismatchError, match='residuals="spread"'):
        twin.load(folder)
    twin.load(folder, residuals="spread")
    for name, part in twin.residuals().items():
        assert np.array_equal(total(part), 2 * owed[name])
        (indices,) = np.nonzero(part)
        assert np.all(indices % hvd.size() == hvd.rank())
    assert_equal(loop.variables, twin.variables)
    twin.train([9])
    assert stats(twin.variables).density_asked < 0.2  # the warm-up is over
    assert_same_on_all_ranks(twin.variables)


@several_ranks
def test_residuals_can_be_given_up(folder):
    loop = Loop(COMPRESSIONS["lags"])
    loop.train(range(3))
    loop.save(folder)
    assert any(np.any(part) for part in loop.residuals().values())
    loop.load(folder, residuals="reset")
    assert not any(np.any(part) for part in loop.residuals().values())


@several_ranks
@pytest.mark.parametrize("policy", ["own", "spread"])
def test_a_file_that_is_missing_is_an_error_on_every_rank_and_changes_nothing(policy, folder):
    loop = Loop(COMPRESSIONS["lags"])
    loop.train(range(3))
    loop.save(folder)
    if hvd.rank() == 0:
        (Path(folder) / f"rank-{hvd.size() - 1}-of-{hvd.size()}.npz").unlink()
    hvd.allgather_object(None, name=a_name())
    twin = Loop(COMPRESSIONS["lags"])
    twin.prepare()
    with pytest.raises(CheckpointMismatchError, match=f"rank-?s? ?\\[?{hvd.size() - 1}"):
        twin.load(folder, residuals=policy)
    assert not any(np.any(v) for v in twin.variables)


@several_ranks
def test_what_does_not_fit_is_refused_and_changes_nothing(folder):
    loop = Loop(COMPRESSIONS["lags"])
    loop.train(range(2))
    loop.save(folder)
    with pytest.raises(CheckpointMismatchError, match=r"call prepare\(\) before"):
        Loop(COMPRESSIONS["lags"]).load(folder)
    with pytest.raises(CheckpointMismatchError, match=r"call prepare\(\) before"):
        Loop(COMPRESSIONS["lags"]).load(folder, residuals="spread")
    other = Loop(COMPRESSIONS["lags"], {"first": (40, 30), "bias": (7,)})
    other.prepare()
    with pytest.raises(CheckpointMismatchError, match="the model that was saved has 4 variables"):
        other.load(folder)
    fewer = Loop(TopK(min_numel=1100))
    fewer.prepare()
    with pytest.raises(CheckpointMismatchError, match="saved are 'last' \\(600\\), 'second'"):
        fewer.load(folder)
    path = Path(folder) / f"rank-{hvd.rank()}-of-{hvd.size()}.npz"
    if hvd.rank() == hvd.size() - 1:  # another rank's residuals
        path.write_bytes((Path(folder) / f"rank-0-of-{hvd.size()}.npz").read_bytes())
        seal_again(path)
    twin = Loop(COMPRESSIONS["lags"])
    twin.prepare()
    with pytest.raises(CheckpointMismatchError, match="saved by rank 0 and this is rank"):
        twin.load(folder)
    for untouched in (other, fewer, twin):
        assert not any(np.any(v) for v in untouched.variables)


@several_ranks
def test_a_folder_that_one_rank_cannot_write_is_an_error_on_every_rank(folder):
    with pytest.raises(OSError, match="nowhere"):
        Loop(COMPRESSIONS["lags"]).save("/proc/nowhere/last" if hvd.rank() == 0 else folder)


def test_bad_arguments_are_refused(folder):
    loop = Loop(COMPRESSIONS["lags"])
    with pytest.raises(InvalidArgumentError, match="own, spread, reset, got 'half'"):
        loop.load(folder, residuals="half")
    with pytest.raises(InvalidArgumentError, match="of types that JSON has"):
        loop.save(folder, epoch=object())


def test_saving_amid_several_passes_is_refused(folder):
    variable = keras.Variable(np.zeros((40, 30), np.float32), name="w")
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=COMPRESSIONS["lags"], backward_passes_per_step=2
    )
    for passes in (1, 2):
        optimizer.apply([tf.ones((40, 30))], [variable])
        if passes == 1:
            with pytest.raises(InvalidArgumentError, match="not exchanged yet"):
                save_checkpoint(folder, [variable], optimizer)
    save_checkpoint(folder, [variable], optimizer)


def test_an_optimizer_without_sparse_gradients_is_saved_as_well(folder):
    loop = Loop(hvd.Compression.none)
    loop.train(range(2))
    loop.save(folder, epoch=2)
    weights = [v.numpy() for v in loop.variables]
    loop.train(range(2, 3))
    assert loop.load(folder) == {"epoch": 2}
    assert_equal(loop.variables, weights)
