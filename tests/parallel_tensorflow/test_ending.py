"""After an exchange has ended, every later call raises the first cause, on all ranks."""

from __future__ import annotations

import time

import horovod.tensorflow as hvd
import keras
import pytest
import tensorflow as tf

from hvd_sparse.compression import Layers
from hvd_sparse.errors import ExchangeFailedError, UnsupportedError
from hvd_sparse.tensorflow import LAGS, TopK
from hvd_sparse.tensorflow.registry import live_exchanges
from tests.parallel_tensorflow.ranks import integer_gradients, loss_of, make_variables

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")

CULPRIT = hvd.size() - 1
COMPRESSIONS = [
    TopK(density=0.1, layers=Layers(min_numel=64)),
    LAGS(density=0.1, layers=Layers(min_numel=64), adaptive=False),
]


def error_of(call):
    """Returns the error that a call raises, as text; None if it raises none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def with_tape(compression):
    variables = make_variables({"first": (40, 30), "second": (25, 8, 5)})

    def step(number):
        gradients = integer_gradients(variables, number)
        with tf.GradientTape() as tape:
            loss = loss_of(variables, gradients)
        tape = hvd.DistributedGradientTape(tape, compression=compression, op=hvd.Sum)
        return tape.gradient(loss, variables)

    return step


def with_apply(compression):
    variables = [keras.Variable(tf.zeros((40, 30)), name=name) for name in ("first", "second")]
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=compression, op=hvd.Sum
    )

    def step(number):
        optimizer.apply(integer_gradients(variables, number), variables)

    return step


def with_fit(compression):
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(30, use_bias=False)])
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=compression), "mse"
    )

    def step(number):
        model.fit(tf.ones((8, 40)), tf.ones((8, 30)), batch_size=8, verbose=0)

    return step


def end_on_all_ranks():
    """Ends the last exchange by an error of the culprit; returns once this rank knows."""
    hvd.allreduce(tf.zeros(1), name="all ranks have taken the step")
    exchange = live_exchanges()[-1]
    if hvd.rank() == CULPRIT:
        with pytest.raises(UnsupportedError, match=r"hvd.join\(\) cannot be used"):
            hvd.join()
    while exchange._exchange.end() is None:
        time.sleep(0.01)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("way", [with_tape, with_apply, with_fit])
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=["topk", "lags"])
def test_every_step_after_an_end_tells_what_has_ended_the_exchange(way, compression, traced):
    step = way(compression)
    if traced and way is not with_fit:
        step = tf.function(step, autograph=False)
    step(0)
    end_on_all_ranks()
    for _ in range(3):
        assert "hvd.join() cannot be used with sparse compressions" in str(
            error_of(lambda: step(0))
        )


@pytest.mark.parametrize("call", ["save", "replan"])
def test_what_needs_the_other_ranks_tells_the_first_cause(call, tmp_path):
    variables = make_variables({"w": (40, 30)})
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0),
        compression=LAGS(density=0.1, layers=Layers(min_numel=64)),
        op=hvd.Sum,
    )
    optimizer.apply(integer_gradients(variables, 0), variables)
    end_on_all_ranks()
    calls = {
        "save": lambda: optimizer.exchange.save_checkpoint(tmp_path / "saved", variables),
        "replan": lambda: optimizer.exchange.replan(),
    }
    for _ in range(2):
        with pytest.raises(ExchangeFailedError, match=r"hvd.join\(\) cannot be used"):
            calls[call]()
    assert not (tmp_path / "saved").exists()
