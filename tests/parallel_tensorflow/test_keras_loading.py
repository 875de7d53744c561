"""Keras 3 models loaded from files, and horovod.keras: their optimizers exchange, too."""

from __future__ import annotations

import horovod.keras
import horovod.tensorflow
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.compression import Layers
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.tensorflow import TopK
from tests.parallel_tensorflow.ranks import a_name, assert_same_on_all_ranks

COMPRESSIONS = {
    "none": hvd.Compression.none,
    "topk": TopK(density=0.05, layers=Layers(min_numel=64)),
}


class OwnSGD(keras.optimizers.SGD):
    """A user-defined optimizer, which must be passed to Keras as a custom object."""


def train(model):
    rng = np.random.default_rng(hvd.rank())
    x, y = rng.standard_normal((16, 20), np.float32), rng.standard_normal((16, 30), np.float32)
    model.fit(x, y, batch_size=4, verbose=0)


@pytest.fixture
def saved(request, tmp_path):
    """The file of a model that was trained on a single rank, the same on all ranks."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(30)])
    model.compile(optimizer=request.param(0.05, momentum=0.5), loss="mse")
    model.train_on_batch(np.ones((4, 20)), np.ones((4, 30)))
    model.save(tmp_path / "model.keras")
    return tmp_path / "model.keras", model


@pytest.mark.parametrize(
    ("saved", "compression", "home"),
    [
        (keras.optimizers.SGD, "topk", hvd),
        (keras.optimizers.SGD, "none", horovod.keras),
        (OwnSGD, "topk", hvd),
    ],
    indirect=["saved"],
)
def test_a_loaded_model_exchanges_what_it_goes_on_with(saved, compression, home):
    path, model = saved
    kind = type(model.optimizer)
    custom = [OwnSGD] if kind is OwnSGD else None
    loaded = home.load_model(path, custom_optimizers=custom, compression=COMPRESSIONS[compression])
    assert isinstance(loaded.optimizer, kind)
    for ours, theirs in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        assert np.array_equal(ours, theirs)
    train(loaded)
    assert_same_on_all_ranks([v.value for v in loaded.trainable_variables])
    if hvd.size() > 1 and compression == "topk":
        assert loaded.optimizer.exchange.stats.last.step == 3


@pytest.mark.parametrize("saved", [keras.optimizers.SGD], indirect=True)
def test_what_keras_3_cannot_load_is_refused(saved):
    with pytest.raises(InvalidArgumentError, match=r"legacy_opts must be False.*got True"):
        hvd.load_model(saved[0], legacy_opts=True)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_optimizer_of_horovod_keras_exchanges(compression):
    variable = keras.Variable(np.zeros((40, 30), np.float32))
    optimizer = horovod.keras.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=COMPRESSIONS[compression], op=hvd.Sum
    )
    rng = np.random.default_rng(hvd.rank())
    gradient = tf.constant(rng.integers(-9, 10, (40, 30)), tf.float32)
    optimizer.apply([gradient], [variable])
    assert_same_on_all_ranks([variable.value])
    if compression == "none":
        total = horovod.tensorflow.allreduce(gradient, op=hvd.Sum, name=a_name())
        assert np.array_equal(variable, -total)
    elif hvd.size() > 1:
        assert optimizer.exchange.stats.last.step == 0
