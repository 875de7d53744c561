"""The laws through DistributedGradientTape, in eager mode and in graphs."""

from __future__ import annotations

import gc
import types
import weakref

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.collectives import COLLECTIVES
from hvd_sparse.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.ranks.world import World
from hvd_sparse.sparsifiers import as_sparsifier
from hvd_sparse.tensorflow import (
    LAGS,
    GaussianK,
    GTopK,
    TopK,
    Warmup,
    ops,
    prepare,
    residual_variables,
    stats,
)
from hvd_sparse.tensorflow.registry import live_exchanges
from tests.cases import in_turn
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

PRESETS = [LAGS, GTopK, GaussianK, TopK]
SMALL = {"min_numel": 64, "bucket_numel": 1500, "adaptive": False}
DTYPES = [tf.float64, tf.float32, tf.float16, tf.bfloat16]
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


@on_each_device
@pytest.mark.parametrize("mode", [lambda step: step, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("density", [0.01, 1.0])
def test_nothing_is_lost_over_several_steps(preset, density, mode, device):
    variables = make_variables(device=device)
    step = mode(step_of(variables, preset(density=density, **SMALL)))
    before = {}
    for number in range(4):
        gradients = integer_gradients(variables, number)
        averages = step(gradients)
        after = residuals() if hvd.size() > 1 else {}
        assert_nothing_is_lost(SHAPES, gradients, averages, before, after)
        assert_same_on_all_ranks(averages)
        before = after
    if hvd.size() > 1:
        assert residual_variables(variables)[0].device.endswith(device)
    if hvd.size() > 1 and density < 1:
        assert any(np.any(part) for part in after.values())


@on_each_device
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_nothing_is_lost_in_any_number_type(dtype, device):
    variables = make_variables(dtype=dtype, device=device)
    step = tf.function(step_of(variables, LAGS(density=0.1, **SMALL)))
    before = {}
    for number in range(3):
        gradients = integer_gradients(variables, number)
        averages = step(gradients)
        assert all(average.dtype == dtype for average in averages)
        after = residuals() if hvd.size() > 1 else {}
        assert_nothing_is_lost(SHAPES, gradients, averages, before, after)
        before = after


@alone
@on_each_device
@pytest.mark.parametrize(
    ("collective", "sparsifier"),
    in_turn(
        [name for name in COLLECTIVES if name != "hierarchical"],
        ["top_k", "gaussian", "sampled", "sidco"],
    ),
)
def test_the_op_gives_what_the_core_gives_on_the_cpu_bit_for_bit(collective, sparsifier, device):
    numel, steps = 3000, 4
    compression = LAGS(
        density=0.02, sparsifier=sparsifier, collective=collective, adaptive=False, min_numel=1
    )
    variables = make_variables({"w": (60, 50)}, device=device)
    step = tf.function(step_of(variables, compression))
    world = World.from_horovod(hvd, hvd.global_process_set)
    core = Exchange.between_ranks(world, name="the core alone")
    bucket = core.add_bucket(
        "w", numels=[numel], segments=[numel], max_ks=[60],
        sparsifier=as_sparsifier(sparsifier), collective=collective,
    )  # fmt: skip
    residual, states = np.zeros(numel, np.float32), np.zeros(4, np.float32)
    for number in range(steps):
        rng = np.random.default_rng(10 * number + hvd.rank())
        gradient = rng.standard_normal((60, 50), np.float32)
        (average,) = step([tf.constant(gradient)])
        expected = gradient.ravel().copy()
        core.start(
            bucket, [Buffer.of(expected)], residual=Buffer.of(residual), states=Buffer.of(states),
            ks=[60], decays=[1.0],
        )  # fmt: skip
        core.wait(bucket)
        core.commit()
        assert np.array_equal(average.numpy().ravel().view(np.int32), expected.view(np.int32))
        kept = np.array(live_exchanges()[-1].residuals()["w"])
        assert np.array_equal(kept.view(np.int32), residual.view(np.int32))


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


@pytest.mark.parametrize("compression", [TopK(**SMALL), LAGS(min_numel=64)], ids=["topk", "lags"])
def test_functions_that_are_told_to_run_eagerly_exchange(compression):
    variables = make_variables()
    step = tf.function(step_of(variables, compression))
    tf.config.run_functions_eagerly(True)
    try:
        for number in range(6):
            assert_same_on_all_ranks(step(integer_gradients(variables, number)))
    finally:
        tf.config.run_functions_eagerly(False)


@alone
def test_a_missing_gradient_counts_as_zero():
    variables = make_variables()

    @tf.function
    def step(gradients):
        with tf.GradientTape() as tape:
            loss = loss_of(variables[:2], gradients[:2])
        tape = hvd.DistributedGradientTape(tape, compression=TopK(density=1.0, **SMALL), op=hvd.Sum)
        return tape.gradient(loss, variables)

    averages = step(integer_gradients(variables, 0))
    assert [np.any(average) for average in averages] == [True, True, False, False]


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
    step = tf.function(step_of(variables, TopK(min_numel=64)), jit_compile=True)
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
def test_the_average_is_the_sum_over_the_ranks_divided():
    variables = make_variables({"w": (16, 16)})
    step = tf.function(
        step_of(variables, TopK(density=1.0, min_numel=1), op=hvd.Average,
                gradient_predivide_factor=2.0)
    )  # fmt: skip
    (average,) = step([4.0 * hvd.size() * tf.ones((16, 16))])
    assert np.array_equal(average, np.full((16, 16), 4.0 * hvd.size()))


@alone
@on_each_device
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path, device):
    compression = LAGS(density=0.05, **SMALL)
    variables = make_variables(device=device)
    step = tf.function(step_of(variables, compression))
    for number in range(3):
        step(integer_gradients(variables, number))
    checkpoint = tf.train.Checkpoint(residuals=residual_variables(variables))
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
    assert len(residual_variables(resumed)) == len(prepared)  # no other exchange was built


def test_residual_variables_of_what_was_never_exchanged_are_refused():
    with pytest.raises(InvalidArgumentError, match="there is none yet"):
        residual_variables(make_variables())


@alone
def test_a_warmup_sends_more_at_first():
    variables = make_variables({"w": (50, 40)})
    warmup = Warmup(steps=2, densities=(0.5, 0.1))
    step = tf.function(step_of(variables, TopK(density=0.01, min_numel=1, warmup=warmup)))
    asked = []
    for number in range(6):
        step(integer_gradients(variables, number))
        asked.append(stats(variables).buckets[0].asked)
    assert asked == [1000, 1000, 200, 200, 20, 20]


@alone
@on_each_device
@pytest.mark.parametrize("mode", [lambda step: step, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize("preset", [LAGS, TopK])
def test_the_residual_follows_the_learning_rate_that_a_tape_is_told(preset, mode, device):
    compression = preset(density=0.01, min_numel=1, adaptive=False)
    variables = make_variables({"w": (40, 30)}, device=device)
    rate = tf.Variable(0.5)
    prepared = prepare(variables, compression, op=hvd.Sum, learning_rate=rate)
    step = mode(step_of(variables, compression, learning_rate=rate))
    owed = 0.0
    for number, new_rate in enumerate((0.5, 0.5, 0.25, 1.0)):
        rate.assign(new_rate)
        gradients = integer_gradients(variables, number)
        (average,) = step(gradients)
        variables[0].assign_sub(new_rate * average)
        owed = owed + new_rate * gradients[0].numpy().ravel()
    # With rates that are powers of two, sums of applied values and residuals are exact.
    assert residual_variables(variables)[0] is prepared[0]
    left = residuals()["w"]
    assert np.array_equal(-variables[0].numpy().ravel(), total(owed - left))
    assert np.any(left)


@alone
def test_a_finite_gradient_beyond_float32_is_refused_as_such_on_all():
    variables = make_variables(dtype=tf.float64)
    gradients = integer_gradients(variables, 0)
    if hvd.rank() == hvd.size() - 1:
        gradients[2] = tf.tensor_scatter_nd_update(gradients[2], [[0, 0, 0]], [1e300])
    match = f"rank {hvd.size() - 1} .* exceeds float32's range"
    with pytest.raises(tf.errors.InvalidArgumentError, match=match) as caught:
        step_of(variables, TopK(density=0.1, **SMALL))(gradients)
    assert "NaN" not in caught.value.message
    assert all(np.isfinite(part).all() for part in residuals().values())


@alone
@on_each_device
def test_a_bad_gradient_of_one_rank_is_refused_on_all_and_changes_nothing(device):
    variables = make_variables(device=device)
    step = step_of(variables, TopK(density=0.1, **SMALL))

    @tf.function
    def train(gradients):
        for variable, average in zip(variables, step(gradients), strict=True):
            variable.assign_sub(average)

    train(integer_gradients(variables, 0))
    weights, before = [v.numpy() for v in variables], residuals()
    bad = integer_gradients(variables, 1)
    if hvd.rank() == hvd.size() - 1:
        bad[2] = tf.tensor_scatter_nd_update(bad[2], [[0, 0, 0]], [np.nan])
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {hvd.size() - 1}.*NaN or Inf"):
        train(bad)
    assert all(np.array_equal(v, w) for v, w in zip(variables, weights, strict=True))
    owed = {
        n: total(before[n]) + total(np.nan_to_num(bad[i]))
        for i, n in enumerate(SHAPES)
        if n in before
    }
    after = residuals()
    assert all(np.array_equal(total(after[name]), owed[name]) for name in owed)
    train(integer_gradients(variables, 2))
    assert_same_on_all_ranks(variables)


def test_what_a_sparse_exchange_cannot_do_is_refused():
    with tf.GradientTape() as tape:
        pass
    with pytest.raises(UnsupportedError, match=r"needs DistributedGradientTape.*learning_rate="):
        hvd.DistributedGradientTape(tape, compression=TopK(rescale_residual=True))
    with pytest.raises(InvalidArgumentError, match="None where rescale_residual is False, got 2"):
        compression = TopK(rescale_residual=False)
        hvd.DistributedGradientTape(tape, compression=compression, learning_rate=2)
    with pytest.raises(InvalidArgumentError, match="None with a compression of Horovod's, got 2"):
        hvd.DistributedGradientTape(tape, learning_rate=2)
    with pytest.raises(UnsupportedError, match="loss_scale must be None in TensorFlow"):
        scaler = types.SimpleNamespace(get_scale=lambda: 2.0)
        hvd.DistributedGradientTape(tape, compression=TopK(loss_scale=scaler))
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
        step_of(variables, TopK(min_numel=1))([tf.ones(shape)])


def test_stock_compressions_go_to_horovod_untouched():
    variables = make_variables()
    gradients = integer_gradients(variables, 0)
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        averages = step_of(variables, compression)(gradients)
        for gradient, average in zip(gradients, averages, strict=True):
            assert np.array_equal(total(gradient), np.ravel(average))
