"""Freeing a driver and its ops: memory that the core may write to is freed last."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace

import pytest
import tensorflow as tf

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import TopK
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.tensorflow import ops

NUMEL, OPS = 100_000, 4


def test_memory_of_a_step_is_freed_when_its_driver_has_ended(monkeypatch):
    calls = []

    def noting(call):
        return lambda *_: calls.append(call)

    symbols = SimpleNamespace(
        hvd_sparse_add_driver=noting("add"),
        hvd_sparse_amid_op=lambda: 0,
        hvd_sparse_close_driver=noting("hide from ops"),
        hvd_sparse_await_ops=noting("wait for ops"),
        hvd_sparse_remove_driver=noting("free memory"),
    )
    monkeypatch.setattr(ops, "_symbols", lambda: symbols)
    core = SimpleNamespace(
        table=0,
        steps=3,
        pending=False,
        on_its_thread=False,
        cancel=noting("cancel"),
        close=noting("end"),
    )
    exchange = SimpleNamespace(drive=lambda *_: core, close=noting("close"), inherited=False)
    driver = ops.Driver(exchange, [], [])
    exchange.inherited = True  # as in a forked child, which does not own it
    driver.close()
    assert calls == ["add"]
    exchange.inherited = False
    driver.close()
    driver.close()
    hidden = ["hide from ops", "cancel", "wait for ops", "cancel"]
    assert calls == ["add", *hidden, "end", "free memory", "close", "close"]
    assert (driver.steps, driver.pending) == (3, False)


@pytest.mark.parametrize("ends_on", ["the thread of the op", "the thread of the driver"])
def test_a_driver_that_is_closed_amid_steps_outlives_the_calls_of_their_ops(ends_on):
    number = ops.next_number()
    step = make_step(number)
    gradient = tf.random.normal([NUMEL])
    step_ended = None if ends_on == "the thread of the op" else lambda *_: None
    draw = random.Random(0)
    told = []

    def train():
        try:
            while True:
                step(gradient)
        except tf.errors.OpError as error:
            told.append(error)

    driver = make_driver(number, step_ended)
    step(gradient)
    begin = time.perf_counter()
    step(gradient)
    seconds = time.perf_counter() - begin
    driver.close()
    rounds = 0
    while time.perf_counter() - begin < 3:
        driver = make_driver(number, step_ended)
        thread = threading.Thread(target=train)
        thread.start()
        time.sleep(draw.random() * 3 * seconds)
        driver.close()
        thread.join()
        rounds += 1
    assert len(told) == rounds
    closed = (tf.errors.AbortedError, tf.errors.FailedPreconditionError)
    assert all(isinstance(error, closed) for error in told), told


def make_driver(number, step_ended):
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    buckets = [
        exchange.add_bucket(
            f"bucket.{op}",
            numels=[NUMEL],
            segments=[NUMEL],
            max_ks=[1000],
            sparsifier=TopK(),
            collective="gtopk",
        )
        for op in range(OPS)
    ]
    driven = [
        _core.DrivenBucket(one, scale=1.0, output_scale=1.0, ks=[(0, [1000])], ops=1)
        for one in buckets
    ]
    rules = _core.StepRules()
    return ops.Driver(
        exchange, [(NUMEL, 1)] * OPS, driven, number, rules=rules, step_ended=step_ended
    )


def make_step(number):
    residual = tf.Variable(tf.zeros([NUMEL * OPS]))
    states = tf.Variable(tf.zeros([OPS, 4]))
    where = {"driver": number, "device": ops.CPU}

    @tf.function(autograph=False)
    def step(gradient):
        begun = ops.begin(residual, states, **where)
        averages = []
        for op in range(OPS):
            (average,), _ = ops.exchange([gradient + op], begun.token, op=op, **where)
            averages.append(average)
        with tf.control_dependencies(averages):
            end = ops.end(residual, states, **where)
        with tf.control_dependencies([end]):
            return tf.add_n([tf.reduce_sum(one) for one in averages])

    return step
