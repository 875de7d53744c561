"""An exchange lives as long as all its variables, whatever each rank's collector does."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression import Layers
from hvd_sparse.tensorflow import TopK, registry
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.registry import find_exchange, live_exchanges
from hvd_sparse.tensorflow.settings import Settings
from hvd_sparse.waiting import wait_until
from tests.parallel_tensorflow.ranks import (
    assert_nothing_is_lost,
    integer_gradients,
    loss_of,
    make_variables,
    residuals,
)

SHAPES = {"backbone": (40, 30), "head": (30, 20)}
COMPRESSION = TopK(density=0.05, layers=Layers(min_numel=64))

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")


def step(variables, number, compression=COMPRESSION):
    gradients = integer_gradients(variables, number)
    with tf.GradientTape() as tape:
        loss = loss_of(variables, gradients)
    tape = hvd.DistributedGradientTape(tape, compression=compression, op=hvd.Sum)
    return gradients, tape.gradient(loss, variables)


def owed_by(exchange):
    return {name: np.array(part) for name, part in exchange.residuals().items()}


def test_what_a_backbone_owes_goes_along_to_each_new_head(own_exchanges):
    (backbone,) = make_variables({"backbone": SHAPES["backbone"]})
    head, before = None, {}
    for number in range(4):
        if hvd.rank() % 2:  # a new object, which other ranks often allocate at the old address
            head = tf.Variable(tf.zeros(SHAPES["head"]), name="head")
        else:
            del head
            gc.collect()
            head = tf.Variable(tf.zeros(SHAPES["head"]), name="head")
        gc.collect()
        gradients, averages = step([backbone, head], number)
        after = residuals()
        assert_nothing_is_lost(SHAPES, gradients, averages, before, after)
        assert np.any(after["backbone"])
        before = {"backbone": after["backbone"]}
        assert find_exchange([backbone, head]).steps == 1
        assert len(own_exchanges()) == 1
        assert not registry._ended  # nothing is kept twice


def test_what_a_backbone_owes_goes_along_while_its_former_head_lives():
    first, second, backbone = make_variables(
        {"first": SHAPES["head"], "second": SHAPES["head"], "backbone": SHAPES["backbone"]}
    )
    step([first, backbone], 0)
    former = find_exchange([first, backbone])
    before = owed_by(former)
    names = {"second": SHAPES["head"], "backbone": SHAPES["backbone"]}
    gradients, averages = step([second, backbone], 1)
    next_one = find_exchange([second, backbone])
    left = {"backbone": before["backbone"]}
    assert_nothing_is_lost(names, gradients, averages, left, owed_by(next_one))
    kept = owed_by(former)
    assert np.array_equal(kept["first"], before["first"])
    assert not np.any(kept["backbone"])
    step([first, backbone], 2)  # both continue
    owed = owed_by(former)["backbone"]
    del first
    gc.collect()
    assert former.closed
    third = tf.Variable(tf.zeros(SHAPES["head"]), name="third")
    left = {"backbone": owed + owed_by(next_one)["backbone"]}
    gradients, averages = step([third, backbone], 3)
    after = owed_by(find_exchange([third, backbone]))
    names = {"third": SHAPES["head"], "backbone": SHAPES["backbone"]}
    assert_nothing_is_lost(names, gradients, averages, left, after)


def test_a_velocity_goes_along_with_its_variable():
    compression = replace(COMPRESSION, feedback=replace(COMPRESSION.feedback, momentum=0.5))
    head, backbone = make_variables({"head": SHAPES["head"], "backbone": SHAPES["backbone"]})
    step([head, backbone], 0, compression)
    before = {name: part.numpy() for name, part in live_exchanges()[-1].velocities().items()}
    assert np.any(before["backbone"])
    del head
    gc.collect()
    head = tf.Variable(tf.zeros(SHAPES["head"]), name="head")
    settled = registry.exchange_of(
        [head, backbone],
        [False, False],
        Settings.checked(compression, op=hvd.Sum),
        process_set=hvd.global_process_set,
    )
    after = {name: part.numpy() for name, part in settled.velocities().items()}
    assert np.array_equal(after["backbone"], before["backbone"])
    assert not np.any(after["head"])


def test_nothing_goes_along_to_other_options_or_once_all_variables_are_gone():
    head, backbone = make_variables({"head": SHAPES["head"], "backbone": SHAPES["backbone"]})
    step([head, backbone], 0)
    del head
    gc.collect()
    assert len(registry._ended) == 1
    head = tf.Variable(tf.zeros(SHAPES["head"]), name="head")
    other = replace(COMPRESSION, density=0.1)
    gradients, averages = step([head, backbone], 1, other)
    names = {"head": SHAPES["head"], "backbone": SHAPES["backbone"]}
    assert_nothing_is_lost(names, gradients, averages, {}, residuals())
    del head, backbone
    gc.collect()
    assert not registry._ended


def test_an_exchange_ends_with_the_first_variable_that_dies(own_exchanges):
    variables = make_variables(SHAPES)
    for index in reversed(range(len(SHAPES))):
        step(variables, 0)
        (exchange,) = own_exchanges()
        variables[index] = None
        gc.collect()
        assert own_exchanges() == []
        assert exchange.closed
        variables = make_variables(SHAPES)


def test_an_exchange_may_end_on_the_thread_of_its_own_driver(monkeypatch, own_exchanges):
    monkeypatch.setattr(GradientExchange, "_step_ended", lambda self, came, reading: self.close())
    variables = make_variables(SHAPES)
    step(
        variables, 0, replace(COMPRESSION, layers=replace(COMPRESSION.layers, bucket_numel=1200))
    )  # here their order is learnt
    wait_until(lambda: not own_exchanges(), lambda: None, "the end of the exchange")


def test_of_several_exchanges_the_one_that_was_last_used_is_found():
    head, backbone = make_variables({"head": SHAPES["head"], "backbone": SHAPES["backbone"]})
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.5), compression=COMPRESSION, op=hvd.Sum
    )
    both = [head, backbone]
    optimizer.build(both)
    for trained in ([head], both, [head]):
        for number in range(2):
            optimizer.apply(integer_gradients(trained, number), trained)
        numels = [math.prod(variable.shape) for variable in trained]
        found = find_exchange(optimizer)
        assert sorted(layer.numel for layer in found.layers) == sorted(numels)
        assert found.steps >= 2


@pytest.fixture
def without_collector():
    """Disables the garbage collector except for explicit calls, which skip earlier objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def descriptors_and_threads():
    return [len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task")]


def train_an_optimizer(variables, *, passes=1, scales=False, traced=False):
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.5), compression=COMPRESSION, backward_passes_per_step=passes
    )
    if scales:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    optimizer.build(variables)

    def step(gradients):
        optimizer.apply(gradients, variables)

    step = tf.function(step) if traced else step
    for number in range(2 * passes):
        step(integer_gradients(variables, number))
    assert find_exchange(optimizer).steps == 2


@pytest.mark.parametrize(
    "options",
    [{}, {"passes": 2}, {"scales": True}, {"traced": True}],
    ids=["plain", "passes", "scales", "traced"],
)
def test_a_dropped_optimizer_ends_its_exchange_at_once(own_exchanges, without_collector, options):
    variables = make_variables(SHAPES)
    held = []
    for _ in range(4):
        train_an_optimizer(variables, **options)
        assert own_exchanges() == []
        held.append(descriptors_and_threads())
    # The first may leave threads of TensorFlow's own; what an earlier test had may end meanwhile.
    assert all(now <= then for now, then in zip(held[-1], held[0], strict=True))


def test_dropped_models_leave_one_exchange_until_the_next_is_built(
    own_exchanges, without_collector
):
    for _ in range(4):
        model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(30)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), compression=COMPRESSION)
        model.compile(optimizer, loss="mse", jit_compile=False)
        model.fit(np.ones((8, 40)), np.ones((8, 30)), verbose=0)
        del model, optimizer
        assert len(own_exchanges()) == 1
    gc.collect()
    assert own_exchanges() == []
