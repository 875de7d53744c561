"""The quality of selection, measured on request, equals the same computed in NumPy."""

from __future__ import annotations

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.tensorflow import TopK
from hvd_sparse.tensorflow.keras import WatchCallback
from tests.framework_laws import laws_in, quality
from tests.parallel_tensorflow.every_place import device, mode

__all__ = ["device", "mode"]

globals().update(laws_in(quality))


pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank leaves nothing behind")
OPTIONS = {"density": 0.1, "layers": Layers(min_numel=64)}


def test_it_is_measured_when_asked_for_and_watched():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(30), keras.layers.Dense(5)])
    compression = TopK(feedback=Feedback(quality_every=2), **OPTIONS)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=compression)
    model.compile(optimizer=optimizer, loss="mse")
    told = []
    rng = np.random.default_rng(hvd.rank())
    model.fit(
        rng.standard_normal((32, 20)), rng.standard_normal((32, 5)), batch_size=8, verbose=0,
        callbacks=[WatchCallback(lambda metrics, step: told.append(metrics))],
    )  # fmt: skip
    assert ["assumption_delta" in metrics for metrics in told] == [True, False, True, False]
    assert 0 < told[0]["compression_error"] < 1
