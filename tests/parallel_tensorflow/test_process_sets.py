"""Gradients of overlapping process sets do not mix; ranks outside exchange nothing."""

from __future__ import annotations

import horovod.tensorflow as hvd
import keras
import numpy as np

from hvd_sparse.compression import Layers
from hvd_sparse.tensorflow import TopK
from tests.framework_laws import laws_in, process_sets
from tests.parallel_tensorflow.ranks import integer_gradients, total

globals().update(laws_in(process_sets))

EVERYTHING = TopK(density=1.0, layers=Layers(min_numel=64))


def test_keras_exchanges_within_its_set(sets):
    for process_set in sets:
        variable = keras.Variable(np.zeros((40, 30), np.float32), name="w")
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), compression=EVERYTHING, op=hvd.Sum, process_set=process_set
        )
        gradient = integer_gradients([variable.value], 1)[0]
        optimizer.apply([gradient], [variable])
        expected = np.ravel(gradient)
        if process_set.included():
            expected = total(gradient, process_set)
        assert np.array_equal(-np.ravel(variable), expected)
