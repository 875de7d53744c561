"""Helpers for the tests of hvd_sparse.tensorflow: known gradients, and checks across ranks."""

from __future__ import annotations

import itertools

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import _core
from hvd_sparse.tensorflow.registry import live_exchanges

SHAPES = {"first": (40, 30), "bias": (7,), "second": (25, 8, 5), "last": (30, 20)}

_serials = itertools.count()


def _no_gpu():
    if not _core.with_cuda:
        return "this build has no CUDA"
    if not tf.config.list_physical_devices("GPU"):
        return "TensorFlow sees no GPU"
    return ""


def devices():
    """Returns TensorFlow's names of the devices that can hold a test's variables, as parameters."""
    without_gpu = pytest.mark.skipif(bool(_no_gpu()), reason=_no_gpu())
    return [pytest.param("CPU:0", id="cpu"), pytest.param("GPU:0", id="gpu", marks=without_gpu)]


# Sets a test's argument `device`, which holds its variables.
on_each_device = pytest.mark.parametrize("device", devices())


def a_name():
    """Returns a new name for a Horovod operation, the same on all ranks."""
    return f"test.{next(_serials)}"


def make_variables(shapes=SHAPES, dtype=tf.float32, device="CPU:0"):
    with tf.device(device):
        return [tf.Variable(tf.zeros(shape, dtype), name=name) for name, shape in shapes.items()]


def integer_gradients(variables, step, *, rank=None, low=-9, high=10):
    """Returns small integers with exact sums; different on every rank and in every step."""
    rank = hvd.rank() if rank is None else rank
    rng = np.random.default_rng(1000 * step + rank)
    return [tf.cast(tf.constant(rng.integers(low, high, v.shape)), v.dtype) for v in variables]


def loss_of(variables, gradients):
    """Returns a loss that has these gradients."""
    return tf.add_n(
        [
            tf.reduce_sum(tf.cast(v * g, tf.float32))
            for v, g in zip(variables, gradients, strict=True)
        ]
    )


def residuals():
    """Returns this rank's residuals by variable, in the newest exchange."""
    exchanges = live_exchanges()
    return (
        {}
        if not exchanges
        else {name: np.array(part, np.float64) for name, part in exchanges[-1].residuals().items()}
    )


def velocities():
    """Returns this rank's velocities by variable, in the newest exchange."""
    exchanges = live_exchanges()
    found = exchanges[-1].velocities() if exchanges else {}
    return {name: np.array(part, np.float64) for name, part in found.items()}


def same(ours, theirs):
    """Returns true if arrays by name are equal bit for bit, except for the sign of zero."""
    assert ours.keys() == theirs.keys()
    return all(np.array_equal(ours[name], theirs[name]) for name in ours)


def total(array, process_set=hvd.global_process_set):
    """Returns the sum over the ranks; exact for small integers or halves of them."""
    flat = tf.constant(np.asarray(array, np.float64).ravel())
    return hvd.allreduce(flat, op=hvd.Sum, name=a_name(), process_set=process_set).numpy()


def totals(arrays, process_set=hvd.global_process_set):
    """Returns `total` of each array, by name; uses one message, since messages are expensive."""
    flat = {name: np.asarray(array, np.float64).ravel() for name, array in arrays.items()}
    summed = total(np.concatenate(list(flat.values())), process_set)
    ends = np.cumsum([one.size for one in flat.values()])
    return dict(zip(flat, np.split(summed, ends[:-1]), strict=True))


def assert_same_on_all_ranks(tensors, process_set=hvd.global_process_set):
    """Compares bits: NaN equals NaN and -0 does not equal 0."""
    flat = np.concatenate([np.asarray(tf.cast(t, tf.float32)).ravel() for t in tensors])
    bits = tf.constant(flat.view(np.int32)[None])
    gathered = hvd.allgather(bits, name=a_name(), process_set=process_set).numpy()
    assert all(np.array_equal(gathered[0], theirs) for theirs in gathered)


def assert_nothing_is_lost(names, gradients, averages, before, after):
    """Checks the law for op=Sum: every input that is not in a residual was applied, exactly."""
    given = {
        name: np.asarray(gradient, np.float64).ravel()
        for name, gradient in zip(names, gradients, strict=True)
    }
    for name, kept in after.items():
        given[name] = given[name] + before.get(name, 0.0) - kept
    summed = totals(given)
    for name, applied in zip(names, averages, strict=True):
        assert np.array_equal(summed[name], np.asarray(applied, np.float64).ravel()), name
