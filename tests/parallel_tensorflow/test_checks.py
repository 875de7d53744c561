"""With HVD_SPARSE_CHECK=1, ranks at different steps are found before they exchange anything."""

from __future__ import annotations

import time

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf

from hvd_sparse.compression import Layers
from hvd_sparse.tensorflow import LAGS, Exchange
from tests.parallel_tensorflow.ranks import a_name, integer_gradients, loss_of, make_variables

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank disagrees with nobody")

COMPRESSION = LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64))
LAST = hvd.size() - 1


@pytest.mark.parametrize("mode", [lambda step: step, tf.function], ids=["eager", "graph"])
def test_a_rank_at_another_batch_is_found_by_its_mark(monkeypatch, mode):
    monkeypatch.setenv("HVD_SPARSE_CHECK", "1")
    variables = make_variables()

    @mode
    def step(gradients):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, gradients)
        tape = hvd.DistributedGradientTape(tape, compression=COMPRESSION, op=hvd.Sum)
        return tape.gradient(loss, variables)

    for number in range(3):
        Exchange(variables).mark_step(f"batch {number}")
        step(integer_gradients(variables, number))
    hvd.allgather_object("all have ended these steps", name=a_name())
    if hvd.rank() == 0:
        time.sleep(0.5)  # it finds the exchange ended before it begins, and gets the same error
    Exchange(variables).mark_step("batch 4" if hvd.rank() == LAST else "batch 3")
    with pytest.raises(
        tf.errors.AbortedError, match=r"the ranks disagree: .*'batch [34]'"
    ) as error:
        step(integer_gradients(variables, 3))
    assert f"rank {LAST} " in str(error.value)
    assert "step 3, bucket " in str(error.value)
