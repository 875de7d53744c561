"""Clipping and weight decay before error feedback: the law holds for the changed gradient."""

from __future__ import annotations

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.tensorflow import TopK
from tests.framework_laws import laws_in, local_gradient
from tests.parallel_tensorflow.every_place import device, mode
from tests.parallel_tensorflow.ranks import loss_of, make_variables

__all__ = ["device", "mode"]

globals().update(laws_in(local_gradient))


def test_weights_decay_as_they_are_in_each_step_of_a_graph():
    variables = make_variables({"w": (16, 16)})
    variables[0].assign(tf.fill((16, 16), 16.0))
    compression = TopK(density=1.0, layers=Layers(min_numel=1), feedback=Feedback(weight_decay=0.5))

    @tf.function
    def loop():
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                loss = loss_of(variables, [tf.zeros((16, 16))])
            tape = hvd.DistributedGradientTape(tape, compression=compression, op=hvd.Sum)
            variables[0].assign_sub(tape.gradient(loss, variables)[0])

    loop()
    np.testing.assert_allclose(variables[0].numpy(), 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"feedback": Feedback(clip_norm=1.0)},
        {"feedback": Feedback(weight_decay=0.5)},
        {"feedback": Feedback(momentum=0.5)},
    ],
)
def test_slices_must_be_made_dense(options):
    table = tf.Variable(tf.ones((20, 8)), name="table")

    def step(as_dense):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [3, 3]))
        tape = hvd.DistributedGradientTape(
            tape, compression=TopK(**options), op=hvd.Sum, sparse_as_dense=as_dense
        )
        return tape.gradient(loss, [table])[0]

    with pytest.raises(UnsupportedError, match=r"'table:0' is IndexedSlices.*sparse_as_dense=True"):
        step(False)
    assert step(True).shape == (20, 8)
