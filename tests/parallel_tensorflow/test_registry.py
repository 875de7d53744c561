"""An exchange lives as long as all its variables, whatever each rank's collector does."""

from __future__ import annotations

import gc
from dataclasses import replace

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.tensorflow import TopK
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.registry import find_exchange, live_exchanges
from hvd_sparse.waiting import wait_until
from tests.parallel_tensorflow.ranks import (
    assert_nothing_is_lost,
    integer_gradients,
    loss_of,
    make_variables,
    residuals,
)

SHAPES = {"backbone": (40, 30), "head": (30, 20)}
COMPRESSION = TopK(density=0.05, min_numel=64)

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")


def step(variables, number, compression=COMPRESSION):
    gradients = integer_gradients(variables, number)
    with tf.GradientTape() as tape:
        loss = loss_of(variables, gradients)
    tape = hvd.DistributedGradientTape(tape, compression=compression, op=hvd.Sum)
    return gradients, tape.gradient(loss, variables)


def test_a_head_for_each_task_has_an_exchange_of_its_own():
    (backbone,) = make_variables({"backbone": SHAPES["backbone"]})
    head = None
    for number in range(4):
        if hvd.rank() % 2:  # never where the former one was; on other ranks often there
            head = tf.Variable(tf.zeros(SHAPES["head"]), name="head")
        else:
            del head
            gc.collect()
            head = tf.Variable(tf.zeros(SHAPES["head"]), name="head")
        gc.collect()
        gradients, averages = step([backbone, head], number)
        assert_nothing_is_lost(SHAPES, gradients, averages, {}, residuals())
        assert any(np.any(part) for part in residuals().values())
        assert find_exchange([backbone, head]).steps == 1
        assert len(live_exchanges()) == 1


def test_an_exchange_ends_with_the_first_variable_that_dies():
    variables = make_variables(SHAPES)
    for place in reversed(range(len(SHAPES))):
        step(variables, 0)
        (exchange,) = live_exchanges()
        variables[place] = None
        gc.collect()
        assert live_exchanges() == []
        assert exchange.closed
        variables = make_variables(SHAPES)


def test_an_exchange_may_end_on_the_thread_of_its_own_driver(monkeypatch):
    monkeypatch.setattr(GradientExchange, "_step_ended", lambda self, came, reading: self.close())
    variables = make_variables(SHAPES)
    step(variables, 0, replace(COMPRESSION, bucket_numel=1200))  # their order is learnt there
    wait_until(lambda: not live_exchanges(), lambda: None, "the end of the exchange")
