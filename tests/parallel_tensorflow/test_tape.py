"""The laws through DistributedGradientTape, in eager mode and in graphs."""

from __future__ import annotations

import gc
import weakref

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from hvd_sparse.stats.step_stats import Stats
from hvd_sparse.tensorflow import LAGS, Exchange, TopK, ops, prepare
from tests.framework_laws import exactness, laws_in, same_bits
from tests.parallel_tensorflow.every_place import device, mode
from tests.parallel_tensorflow.ranks import (
    SHAPES,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    integer_gradients,
    loss_of,
    make_variables,
    on_each_device,
    residuals,
    total,
)

__all__ = ["device", "mode"]

globals().update(laws_in(exactness, same_bits))


SMALL = {"layers": Layers(min_numel=64, bucket_numel=1500), "adaptive": False}
alone = pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")


def step_of(variables, compression, **options):
    """Returns a function for averages of given gradients; each call makes a new tape."""
    options.setdefault("op", hvd.Sum)

    def step(gradients):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, gradients)
        tape = hvd.DistributedGradientTape(tape, compression=compression, **options)
        return tape.gradient(loss, variables)

    return step


@alone
@on_each_device
def test_functions_that_are_traced_again_share_residuals(device, own_exchanges):
    variables = make_variables(device=device)
    step = tf.function(step_of(variables, TopK(density=0.05, **SMALL)))
    traces = []

    @tf.function(reduce_retracing=False)
    def other(gradients, flag):
        traces.append(flag)
        return step(gradients)

    before = {}
    for number in range(4):
        gradients = integer_gradients(variables, number)
        averages = other(gradients, number % 2) if number % 3 else step(gradients)
        after = residuals()
        assert_nothing_is_lost(SHAPES, gradients, averages, before, after)
        before = after
    assert len(own_exchanges()) == 1
    assert len(traces) == 2


@pytest.mark.parametrize(
    "compression", [TopK(**SMALL), LAGS(layers=Layers(min_numel=64))], ids=["topk", "lags"]
)
def test_functions_that_are_told_to_run_eagerly_exchange(compression):
    variables = make_variables()
    step = tf.function(step_of(variables, compression))
    tf.config.run_functions_eagerly(True)
    try:
        for number in range(6):
            assert_same_on_all_ranks(step(integer_gradients(variables, number)))
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("compression", [TopK(**SMALL), hvd.Compression.none], ids=["topk", "none"])
def test_a_tape_that_is_done_with_is_freed_at_once(compression, persistent):
    variables = make_variables()
    gc.disable()  # which would find cycles
    try:
        with tf.GradientTape(persistent=persistent) as tape:
            loss = loss_of(variables, integer_gradients(variables, 0))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        tape.gradient(loss, variables)
        freed = weakref.ref(tape)
        del tape
        assert freed() is None
    finally:
        gc.enable()


@alone
def test_compiling_with_xla_is_refused_by_name():
    variables = make_variables()
    step = tf.function(step_of(variables, TopK(layers=Layers(min_numel=64))), jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="HvdSparse"):
        step(integer_gradients(variables, 0))


def test_ops_that_were_built_for_another_tensorflow_are_refused(monkeypatch, tmp_path):
    info = tmp_path / "build_info.json"
    monkeypatch.setattr(ops, "_BUILD_INFO", info)
    with pytest.raises(UnavailableError, match="built without TensorFlow"):
        ops._library.__wrapped__()
    info.write_text('{"parts": {"tensorflow": {"built": true, "detail": "2.9.1"}}}')
    with pytest.raises(UnavailableError, match=f"TensorFlow 2.9.1 and this is {tf.__version__}"):
        ops._library.__wrapped__()


@alone
@on_each_device
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path, device):
    compression = LAGS(density=0.05, **SMALL)
    variables = make_variables(device=device)
    step = tf.function(step_of(variables, compression))
    for number in range(3):
        step(integer_gradients(variables, number))
    checkpoint = tf.train.Checkpoint(residuals=Exchange(variables).residual_variables)
    path = checkpoint.save(str(tmp_path / f"residuals-{hvd.rank()}"))
    expected = [step(integer_gradients(variables, number)) for number in range(3, 6)]

    resumed = make_variables(device=device)
    prepared = prepare(resumed, compression, op=hvd.Sum)
    tf.train.Checkpoint(residuals=prepared).restore(path).assert_consumed()
    again = tf.function(step_of(resumed, compression))
    for number, averages in zip(range(3, 6), expected, strict=True):
        gradients, before = integer_gradients(resumed, number), residuals()
        found = again(gradients)
        assert_nothing_is_lost(SHAPES, gradients, found, before, residuals())
        for one, other in zip(found, averages, strict=True):
            assert np.array_equal(one, other)
    assert len(Exchange(resumed).residual_variables) == len(prepared)  # no other exchange was built


@alone
@pytest.mark.parametrize("traced", [False, True])
def test_every_new_tape_finds_the_exchange_of_its_variables(traced, own_exchanges):
    variables, handles = make_variables(), []
    exchange = Exchange(variables)
    assert exchange.stats == Stats()
    assert exchange.summary().startswith("nothing was exchanged")

    def step(gradients):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, gradients)
        tape = hvd.DistributedGradientTape(tape, compression=TopK(density=0.05, **SMALL))
        handles.append(tape.exchange)
        return tape.gradient(loss, variables)

    step, sent = tf.function(step) if traced else step, 0
    for number in range(3):
        step(integer_gradients(variables, number))
        sent += exchange.stats.last.bytes_sent
        for one in (exchange, handles[-1]):
            assert (one.stats.last.step, one.stats.total.steps) == (number, number + 1)
    assert exchange.stats.total.bytes_sent == sent > 0
    assert exchange.summary().startswith("3 steps, 3 of them sparse: ")
    assert "waiting" not in exchange.summary()


def test_residual_variables_of_what_was_never_exchanged_are_refused():
    with pytest.raises(InvalidArgumentError, match="there is none yet"):
        _ = Exchange(make_variables()).residual_variables


def test_what_a_sparse_exchange_cannot_do_is_refused():
    with tf.GradientTape() as tape:
        pass
    with pytest.raises(UnsupportedError, match=r"needs DistributedGradientTape.*learning_rate="):
        hvd.DistributedGradientTape(tape, compression=TopK(feedback=Feedback(rescale=True)))
    with pytest.raises(InvalidArgumentError, match="None where Feedback rescale is False, got 2"):
        compression = TopK(feedback=Feedback(rescale=False))
        hvd.DistributedGradientTape(tape, compression=compression, learning_rate=2)
    with pytest.raises(InvalidArgumentError, match="None with a compression of Horovod's, got 2"):
        hvd.DistributedGradientTape(tape, learning_rate=2)
    with pytest.raises(UnsupportedError, match="op=Adasum"):
        hvd.DistributedGradientTape(tape, compression=TopK, op=hvd.Adasum)
    with pytest.raises(UnsupportedError, match="groups"):
        hvd.DistributedGradientTape(tape, compression=TopK, groups=2)
    with pytest.raises(InvalidArgumentError, match="compression"):
        hvd.DistributedGradientTape(tape, compression="topk")


@alone
def test_ranks_whose_variables_differ_are_told_so():
    shape = (30, 30 + (hvd.rank() == hvd.size() - 1))
    variables = make_variables({"w": shape})
    with pytest.raises(InvalidArgumentError, match="the models differ in parameter 0"):
        step_of(variables, TopK(layers=Layers(min_numel=1)))([tf.ones(shape)])


def test_stock_compressions_go_to_horovod_untouched():
    variables = make_variables()
    gradients = integer_gradients(variables, 0)
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        averages = step_of(variables, compression)(gradients)
        for gradient, average in zip(gradients, averages, strict=True):
            assert np.array_equal(total(gradient), np.ravel(average))


@alone
@pytest.mark.parametrize("compression", [TopK, LAGS], ids=["topk", "lags"])
def test_an_exchange_is_undone_by_giving_its_variables_their_former_values(compression):
    chosen = compression(density=0.05, feedback=Feedback(momentum=0.5), warmup=None, **SMALL)
    variables, twins = make_variables(), make_variables()
    step, twin = (tf.function(step_of(ones, chosen)) for ones in (variables, twins))
    for number in range(3):
        step(integer_gradients(variables, number))
        twin(integer_gradients(twins, number))
    kept = [(one, one.numpy()) for one in Exchange(variables).residual_variables]
    step(integer_gradients(variables, 50))  # its averages are thrown away
    assert any(not np.array_equal(one, before) for one, before in kept)
    for one, before in kept:
        one.assign(before)
    for number in range(3, 5):
        averages = step(integer_gradients(variables, number))
        for one, other in zip(averages, twin(integer_gradients(twins, number)), strict=True):
            assert np.array_equal(one, other)
    for one, other in zip(
        Exchange(variables).residual_variables, Exchange(twins).residual_variables, strict=True
    ):
        assert np.array_equal(one, other)
