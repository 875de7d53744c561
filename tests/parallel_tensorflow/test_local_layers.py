"""Horovod's partial functions with Keras 3: gradients of local layers stay on their rank."""

from __future__ import annotations

import horovod.keras
import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow.keras
from hvd_sparse.compression import Layers
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.tensorflow import TopK, prepare
from tests.cases import in_turn
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks, totals

COMPRESSIONS = {
    "none": hvd.Compression.none,
    "topk": TopK(density=0.05, layers=Layers(min_numel=64)),
}


def make_layers():
    """Returns a layer shared by all ranks, and a local one whose size differs by rank."""
    layers = shared, local = keras.layers.Dense(30), keras.layers.Dense(5 + hvd.rank())
    shared.build((None, 20))
    local.build((None, 30))
    for layer in layers:
        layer.set_weights([np.zeros(variable.shape) for variable in layer.weights])
    return layers


def variables_of(shared, local):
    return [*local.trainable_variables, *shared.trainable_variables]


def integers(variables, step):
    rng = np.random.default_rng(10 * step + hvd.rank())
    return [tf.constant(rng.integers(-9, 10, v.shape), tf.float32) for v in variables]


def assert_shared_is_exact(shared, owed, residual):
    """Checks the law for a kernel and a bias: inputs that are not in the residual were applied."""
    kernel, bias = owed
    left = residual.numpy().reshape(kernel.shape) if residual is not None else 0.0
    expected = totals({"kernel": kernel - left, "bias": bias})
    for variable, total in zip(shared.trainable_variables, expected.values(), strict=True):
        assert np.array_equal(-variable.numpy().ravel(), total)


@pytest.mark.parametrize(
    ("compression", "scales", "passes"), in_turn(["none", "topk"], [True, False], [1, 2])
)
def test_an_optimizer_applies_local_gradients_on_their_rank(compression, scales, passes):
    shared, local = make_layers()
    options = {
        "compression": COMPRESSIONS[compression],
        "op": hvd.Sum,
        "scale_local_gradients": scales,
    }
    sgd = keras.optimizers.SGD(1.0)
    if passes == 1:
        optimizer = horovod.keras.PartialDistributedOptimizer(sgd, local_layers=local, **options)
    else:  # Horovod's partial function does not support this
        optimizer = hvd_sparse.tensorflow.keras.DistributedOptimizer(
            sgd, backward_passes_per_step=passes, **options
        )
        for variable in local.trainable_variables:
            optimizer.register_local_var(variable)
    variables = variables_of(shared, local)
    residual = None
    if compression == "topk" and hvd.size() > 1:
        (residual, _) = prepare(variables, options["compression"], optimizer=optimizer, op=hvd.Sum)
    step = tf.function(lambda gradients: optimizer.apply(gradients, variables))
    owed = [0.0] * len(variables)
    for number in range(passes):
        gradients = integers(variables, number)
        step(gradients)
        owed = [so_far + one.numpy() for so_far, one in zip(owed, gradients, strict=True)]
    for variable, gradient in zip(local.trainable_variables, owed[:2], strict=True):
        assert np.array_equal(-variable.numpy(), np.float32(gradient / (hvd.size() ** scales)))
    assert_shared_is_exact(shared, owed[2:], residual)
    if residual is not None:
        assert np.any(residual)
        assert optimizer.exchange.residual_variables[0] is residual


def test_an_optimizer_may_have_local_layers_alone():
    layers = make_layers()
    optimizer = horovod.keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=COMPRESSIONS["topk"], local_layers=layers
    )
    variables = variables_of(*layers)
    optimizer.apply(integers(variables, 0), variables)
    assert optimizer.exchange.stats.last is None


@pytest.mark.parametrize("compression", ["none", "topk"])
@pytest.mark.parametrize("traced", [False, True])
def test_a_tape_gives_local_gradients_of_their_rank(compression, traced):
    shared, local = make_layers()
    variables = variables_of(shared, local)
    gradients = integers(variables, 0)

    def step():
        with tf.GradientTape() as tape:
            products = [v.value * g for v, g in zip(variables, gradients, strict=True)]
            loss = tf.add_n([tf.reduce_sum(one) for one in products])
        tape = hvd.PartialDistributedGradientTape(
            tape, compression=COMPRESSIONS[compression], op=hvd.Sum, local_layers=[local]
        )
        found = tape.get_local_and_global_gradients(loss, variables)
        for layer, pairs in zip((local, shared), found, strict=True):
            assert [id(one) for one, _ in pairs] == [id(one) for one in layer.trainable_variables]
        return [[gradient for _, gradient in pairs] for pairs in found]

    locally, globally = (tf.function(step) if traced else step)()
    for given, gradient in zip(locally, gradients[:2], strict=True):
        assert np.array_equal(given, gradient / hvd.size())
    assert_same_on_all_ranks(globally)


@pytest.mark.parametrize(
    "callbacks",
    [hvd_sparse.tensorflow.keras.callbacks, horovod.keras.callbacks],
    ids=["horovod.tensorflow.keras", "horovod.keras"],
)
@pytest.mark.parametrize(
    "named",
    [
        lambda layer: {"local_variables": layer.variables},
        lambda layer: {"local_variables": [variable.value for variable in layer.variables]},
        lambda layer: {"local_variables": (variable for variable in layer.variables)},
        lambda layer: {"local_variables": layer.kernel},
        lambda layer: {},
    ],
    ids=["keras", "tensorflow", "generator", "one", "registered"],
)
def test_the_broadcast_leaves_out_local_variables(callbacks, named):
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(30), keras.layers.Dense(5)])
    local = model.layers[-1]
    optimizer = horovod.keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), compression=COMPRESSIONS["topk"], local_layers=local
    )
    model.compile(optimizer=optimizer, loss="mse")
    begin = [v.numpy() for v in local.trainable_variables]
    options = named(local)
    callback = callbacks.BroadcastGlobalVariablesCallback(0, **options)
    if not options:
        for variable in local.variables:
            callback.register_local_var(variable)
    callback.set_model(model)
    callback.on_batch_end(0)
    for before, variable in zip(begin, local.trainable_variables, strict=True):
        assert np.array_equal(before, variable)
    assert_same_on_all_ranks([v.value for v in model.layers[0].variables])


def test_what_is_no_variable_is_refused_as_horovod_does():
    broadcast = hvd_sparse.tensorflow.keras.callbacks.BroadcastGlobalVariablesCallback
    with pytest.raises(ValueError, match="All local variables must be of"):
        broadcast(0, local_variables=["kernel"])


def test_slices_of_a_local_table_stay_slices():
    table = keras.layers.Embedding(50, 4)
    table.build(())
    optimizer = horovod.keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=COMPRESSIONS["topk"], local_layers=table
    )
    before = table.get_weights()[0]
    slices = tf.IndexedSlices(tf.ones((2, 4)), tf.constant([3, 7]), (50, 4))
    optimizer.apply([slices], table.trainable_variables)
    after = table.get_weights()[0]
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [3, 7]
    np.testing.assert_allclose((before - after)[[3, 7]], 1 / hvd.size(), rtol=1e-5)


def test_what_local_layers_cannot_go_with_is_refused(tmp_path):
    shared, local = make_layers()
    partial = horovod.keras.PartialDistributedOptimizer
    options = {"compression": COMPRESSIONS["topk"], "local_layers": local}
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(UnsupportedError, match="local_layers must be empty under loss scaling"):
        partial(scaling, **options)
    optimizer = partial(keras.optimizers.SGD(), **options)
    variables = variables_of(shared, local)
    with pytest.raises(UnsupportedError, match="local_layers must be empty under loss scaling"):
        keras.optimizers.LossScaleOptimizer(optimizer).apply(integers(variables, 0), variables)
    with pytest.raises(InvalidArgumentError, match="local_layers must be empty where a checkpoint"):
        optimizer.exchange.save_checkpoint(tmp_path / "last", variables)
