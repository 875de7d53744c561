"""Steps of TensorFlow's ops in which each allocation fails in turn.

The second op passes, and is "summed by others", so that a step uses all ops. A preloaded library
makes allocations fail.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import TopK
from hvd_sparse.errors import ExchangeFailedError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.tensorflow import ops

NUMEL, PASSING, K = 100, 20, 10
GRADIENT = np.arange(1, NUMEL + 1, dtype=np.float32)
LEFT = np.where(GRADIENT > NUMEL - K, 0, GRADIENT).astype(np.float32)
DENSE = _core.DrivenBucket.DENSE

number = ops.next_number()
residual = tf.Variable(tf.zeros(NUMEL + PASSING))
states = tf.Variable(tf.zeros((2, 4)))
where: dict[str, Any] = {"driver": number, "device": ops.CPU}


@tf.function
def step(gradient: tf.Tensor, passing: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    begun = ops.begin(residual, states, **where)
    (average,), _ = ops.exchange([gradient], begun.token, op=0, **where)
    (moved,), _ = ops.exchange([passing], begun.token, op=1, **where)
    (same,) = ops.summed([moved], begun, **where)
    with tf.control_dependencies([average, same]):
        end = ops.end(residual, states, **where)
    with tf.control_dependencies([end]):
        return tf.identity(average), tf.identity(same)


def told(world: _core.LoopbackWorld) -> str:
    """Returns the error that another rank gets at the end of an exchange."""
    try:
        Exchange.over_loopback(world, 0).check()
    except ExchangeFailedError as error:
        return str(error)
    return "nothing"


def run(allocation: int) -> bool:
    """Runs a step in which that allocation of the ops fails; returns true if there was one."""
    residual.assign(tf.zeros_like(residual))
    states.assign(tf.zeros_like(states))
    world = _core.LoopbackWorld(1)
    exchange = Exchange.over_loopback(world, 0)
    bucket = exchange.add_bucket(
        "a",
        numels=[NUMEL],
        segments=[NUMEL],
        max_ks=[K],
        sparsifier=TopK(),
        collective="gtopk",
    )
    driven = [
        _core.DrivenBucket(bucket, scale=1, output_scale=1, ks=[(0, [K])], ops=1),
        _core.DrivenBucket(DENSE, scale=1, output_scale=1, ks=[], ops=1),
    ]
    driver = ops.Driver(
        exchange, [(NUMEL, 1), (PASSING, 1)], driven, number=number, rules=_core.StepRules()
    )
    given = tf.constant(GRADIENT), tf.ones(PASSING)
    preloaded.fail_allocation(b"/_ops.so", allocation)
    try:
        average, same = step(*given)
        error = None
    except tf.errors.OpError as raised:
        error = raised
    failed = bool(preloaded.stop_failing_allocations())
    driver.close()
    owed = residual.numpy()[:NUMEL]
    if error is None:
        assert not failed, allocation
        assert np.array_equal(average.numpy() + owed, GRADIENT)
        assert np.array_equal(same.numpy(), np.ones(PASSING))
        return False
    assert failed, error
    assert isinstance(error, tf.errors.ResourceExhaustedError | tf.errors.AbortedError), error
    assert "ran out of memory" in str(error), error
    assert "memory" in told(world)
    # Once the step is committed, its end cannot undo it.
    kept = [LEFT] if "HvdSparseEnd" in str(error) else [np.zeros(NUMEL), GRADIENT]
    assert any(np.array_equal(owed, one) for one in kept), owed
    return True


preloaded = ctypes.CDLL(None)
assert not run(1 << 30)  # traces the function
allocations = 0
while run(allocations):
    allocations += 1
print(f"{allocations} allocations have failed")
