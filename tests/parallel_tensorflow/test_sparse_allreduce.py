"""sparse_allreduce: sums are exact, and values not applied are in the residual."""

from __future__ import annotations

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.tensorflow import GaussianK, GTopK, TopK, sparse_allreduce
from tests.dense_sums import DENSE_SUMS
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks, on_each_device, total


def integers(step, shape=(30, 20)):
    rng = np.random.default_rng(1000 * step + hvd.rank())
    return tf.constant(rng.integers(-9, 10, shape), tf.float32)


@on_each_device
@pytest.mark.parametrize("mode", [lambda f: f, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize(
    "compression",
    [*(preset(density=0.05) for preset in (GTopK, GaussianK, TopK)), *DENSE_SUMS.values()],
    ids=repr,
)
def test_nothing_is_lost(compression, mode, device):
    with tf.device(device):
        residual = tf.Variable(tf.zeros(600))

    @mode
    def exchange(tensor):
        return sparse_allreduce(tensor, residual, compression=compression, op=hvd.Sum)

    before = np.zeros(600)
    for step in range(5):
        tensor = 301 * integers(step)
        result = exchange(tensor)
        assert result.shape == tensor.shape
        assert_same_on_all_ranks([result])
        after = residual.numpy().astype(np.float64)
        assert np.array_equal(total(np.ravel(tensor) + before - after), np.ravel(result))
        before = after
    sums_all = compression.collective_name == SHARD_SUM
    rounds = compression.values != "float32" and hvd.size() > 1
    assert np.any(after) == (rounds or not sums_all)


def test_two_of_one_size_are_told_apart_by_name():
    residuals = [tf.Variable(tf.zeros(600)) for _ in range(2)]

    @tf.function
    def exchange(tensors):  # TensorFlow may run them in any order
        return [
            sparse_allreduce(tensor, residual, compression=TopK(density=1.0), op=hvd.Sum, name=name)
            for tensor, residual, name in zip(tensors, residuals, "ab", strict=True)
        ]

    for step in range(5):
        tensors = [integers(step), integers(step + 100)]
        for tensor, result in zip(tensors, exchange(tensors), strict=True):
            assert np.array_equal(total(tensor), np.ravel(result))


def test_the_average_is_divided():
    residual = tf.Variable(tf.zeros(8))
    result = sparse_allreduce(tf.fill([8], 3.0), residual, compression=TopK(density=1.0))
    assert np.array_equal(result, np.full(8, 3.0))


def test_what_does_not_fit_is_refused():
    residual = tf.Variable(tf.zeros(8))
    with pytest.raises(UnsupportedError, match="tensor is int32"):
        sparse_allreduce(tf.zeros(8, tf.int32), residual)
    with pytest.raises(InvalidArgumentError, match="as many elements as tensor"):
        sparse_allreduce(tf.zeros(9), residual)
    with pytest.raises(InvalidArgumentError, match=r"must be a tf\.Variable"):
        sparse_allreduce(tf.zeros(8), tf.zeros(8))
    with pytest.raises(InvalidArgumentError, match="must be float32"):
        sparse_allreduce(tf.zeros(8), tf.Variable(tf.zeros(8, tf.float64)))
    with pytest.raises(UnsupportedError, match="op=Adasum"):
        sparse_allreduce(tf.zeros(8), residual, op=hvd.Adasum)


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank agrees with itself")
def test_number_types_that_differ_between_ranks_are_refused_by_all():
    tensor = tf.zeros(9, tf.float16 if hvd.rank() == 0 else tf.float32)
    with pytest.raises(InvalidArgumentError, match=r"\(name, numel, dtype, compression\)"):
        sparse_allreduce(tensor, tf.Variable(tf.zeros(9)), name="types")
