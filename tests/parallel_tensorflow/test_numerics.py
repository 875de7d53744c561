"""All features that change gradients, combined: the law holds exactly in every combination.

Gradients are plus or minus one at 256 indices, momentum is 1/2, clipping factors and loss scales
are powers of two, so all sums are exact, in bfloat16 too.
"""

from __future__ import annotations

import math

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.tensorflow import LAGS
from hvd_sparse.tensorflow.registry import find_exchange
from tests.cases import in_turn
from tests.parallel_tensorflow.ranks import (
    SHAPES,
    assert_same_on_all_ranks,
    loss_of,
    make_variables,
    signs,
    totals,
)

BAD_STEP = 1
SCALE = 1024.0
RANKS = ["all ranks", "two ranks"]  # parameters of the fixture


def new_compression(*, ranks, clips, momentum, passes=1):
    """Makes a compression; clipping quarters each gradient that has all its 256 entries."""
    return LAGS(
        adaptive=False,
        density=0.1,
        min_numel=64,
        bucket_numel=1500,
        rescale_residual=False,
        momentum_correction=momentum,
        clip_norm=passes * 16 / 4 * math.sqrt(ranks.size()) if clips else None,
    )


def mode_of(*others):
    """Returns eager or graph mode, so that each meets each choice of all other options."""
    return tf.function if sum(others) % 2 else lambda step: step


def memory_of(target):
    """Returns residuals and velocities, by variable."""
    exchange = find_exchange(target)
    if exchange is None:
        return {}, {}
    return tuple(
        {name: np.array(part, np.float64) for name, part in found.items()}
        for found in (exchange.residuals(), exchange.velocities())
    )


def check_law(before, after, gradients, applied, *, ranks, refused, momentum, passes, clips):
    """Checks that gradients, residuals and velocities in equal sums applied and residuals out."""
    (residual, velocity), (left, _) = before, after
    given = {}
    for name, gradient in zip(SHAPES, gradients, strict=True):
        gradient = np.nan_to_num(np.asarray(gradient, np.float64).ravel())
        factor = 0.25 if clips and gradient.size >= 256 else 1.0
        grown = passes * factor * gradient + momentum * velocity.get(name, 0.0)
        if name in left:
            given[name] = residual.get(name, 0.0) + grown - left[name]
        elif not refused:
            given[name] = grown
    if not given:
        return
    results = dict(zip(SHAPES, applied, strict=True))
    for name, summed in totals(given, ranks).items():
        result = np.zeros_like(summed) if refused else np.asarray(results[name], np.float64)
        assert np.array_equal(summed, result.ravel()), name


@pytest.mark.parametrize(
    ("dtype", "clips", "momentum", "ranks"),
    in_turn(["float32", "bfloat16"], [False, True], [0.0, 0.5], RANKS),
    indirect=["ranks"],
)
def test_nothing_is_lost_through_a_tape(dtype, clips, momentum, ranks):
    if not ranks.included():
        return
    mode = mode_of(clips, momentum > 0)
    variables = make_variables(dtype=tf.as_dtype(dtype))
    compression = new_compression(ranks=ranks, clips=clips, momentum=momentum)

    @mode
    def step(gradients):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, gradients)
        tape = hvd.DistributedGradientTape(
            tape, compression=compression, op=hvd.Sum, process_set=ranks
        )
        return tape.gradient(loss, variables)

    for number in range(3):
        gradients = signs(variables, number)
        before = memory_of(variables)
        applied = step(gradients)
        check_law(
            before, memory_of(variables), gradients, applied,
            ranks=ranks, refused=False, momentum=momentum, passes=1, clips=clips,
        )  # fmt: skip
        assert_same_on_all_ranks(applied, ranks)


@pytest.mark.parametrize(
    ("how", "clips", "momentum", "ranks"),
    in_turn(
        ["plain", "two passes", "scaled, bad weights", "scaled, bad bias"],
        [False, True],
        [0.0, 0.5],
        RANKS,
    ),
    indirect=["ranks"],
)
def test_nothing_is_lost_through_an_optimizer(how, clips, momentum, ranks):
    if not ranks.included():
        return
    mode = mode_of(clips, momentum > 0)
    passes = 2 if how == "two passes" else 1
    variables = [keras.Variable(np.zeros(s, np.float32), name=n) for n, s in SHAPES.items()]
    optimizer = inner = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0),
        compression=new_compression(ranks=ranks, clips=clips, momentum=momentum, passes=passes),
        op=hvd.Sum,
        backward_passes_per_step=passes,
        process_set=ranks,
    )
    scaled = how.startswith("scaled")
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=SCALE)
        optimizer.build(variables)
    step = mode(lambda gradients: optimizer.apply(gradients, variables))
    for number in range(3):
        gradients = signs(variables, number)
        refused = scaled and number == BAD_STEP
        if refused and hvd.rank() == ranks.ranks[-1]:
            index = list(SHAPES).index("bias" if how.endswith("bias") else "second")
            flat = gradients[index].numpy().ravel()
            flat[np.flatnonzero(flat == 0)[0] if index != 1 else 0] = np.nan  # keeps the norm exact
            gradients[index] = tf.constant(flat.reshape(gradients[index].shape))
        before, weights = memory_of(inner), [v.numpy() for v in variables]
        scale = float(optimizer.dynamic_scale) if scaled else 1.0
        for _ in range(passes):
            step([scale * gradient for gradient in gradients])
        applied = [old - v.numpy() for old, v in zip(weights, variables, strict=True)]
        after = memory_of(inner)
        check_law(
            before, after, gradients, applied,
            ranks=ranks, refused=refused, momentum=momentum, passes=passes, clips=clips,
        )  # fmt: skip
        if refused:
            assert not any(np.any(one) for one in applied)
            assert float(optimizer.dynamic_scale) == SCALE / 2
        if refused and momentum:
            assert np.array_equal(before[1]["bias"], after[1]["bias"])  # dense: skipped
        if refused and momentum and after[0]:  # sparse: goes on, and nothing is masked
            assert not np.array_equal(before[1]["second"], after[1]["second"])
            grown = after[0]["second"] - before[0]["second"]
            assert np.array_equal(grown, after[1]["second"])
    assert_same_on_all_ranks([v.value for v in variables], ranks)
    assert all(np.any(v.numpy()) for v in variables)
