"""An adaptive compression: dense steps, a plan, sparse steps, a verdict; nothing is lost."""

from __future__ import annotations

import time
from dataclasses import replace

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression import Layers
from hvd_sparse.tensorflow import (
    LAGS,
    Exchange,
    gradient_exchange,
    ops,
    places,
    prepare,
    step_reading,
)
from hvd_sparse.tuning import tuner
from hvd_sparse.tuning.stages import Stage
from tests.device_time import LateEvent, late_clock
from tests.framework_laws import laws_in, tuned_dense
from tests.framework_laws import tuning as tuning_laws
from tests.marks import long
from tests.parallel_tensorflow.ranks import (
    SHAPES,
    a_name,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    integer_gradients,
    loss_of,
    make_variables,
    residuals,
    total,
)
from tests.plans import mixed_plan
from tests.verdict import CYCLE, DENSE_STEPS

globals().update(laws_in(tuned_dense, tuning_laws))

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank has nothing to tune")
COMPRESSION = LAGS(density=0.1, layers=Layers(min_numel=64))


def averaging(variables):
    """Returns one function for all plans, which change without a new graph."""
    traces = []  # two if the first one makes variables

    @tf.function
    def step(gradients):
        traces.append(1)
        assert len(traces) <= 2
        with tf.GradientTape() as tape:
            loss = loss_of(variables, gradients)
        tape = hvd.DistributedGradientTape(tape, compression=COMPRESSION, op=hvd.Sum)
        return tape.gradient(loss, variables)

    return step


def run(step, variables, numbers):
    """Takes steps and checks the law; yields after each."""
    before = residuals()
    for number in numbers:
        gradients = integer_gradients(variables, number)
        averages = step(gradients)
        after = residuals()
        assert_nothing_is_lost(SHAPES, gradients, averages, before, after)
        assert_same_on_all_ranks(averages)
        before = after
        yield number


def test_a_sparse_bucket_waits_for_sums_of_layers_behind_it(verdict, monkeypatch):
    verdict(sparse=True)

    def last_dense(profile, rules):
        dense, sparse = mixed_plan(profile, rules).buckets
        turned = [replace(sparse, layers=dense.layers + sparse.layers[:-1],
                          numels=dense.numels + sparse.numels[:-1]),
                  replace(dense, layers=sparse.layers[-1:], numels=sparse.numels[-1:])]  # fmt: skip
        return replace(mixed_plan(profile, rules), buckets=tuple(turned))

    monkeypatch.setattr(tuner, "make_plan", last_dense)
    variables = make_variables()
    step = averaging(variables)
    seen = [
        len(Exchange(variables).stats.last.buckets) for _ in run(step, variables, range(CYCLE + 2))
    ]
    assert seen == [0] * DENSE_STEPS + [1] * (DENSE_STEPS + 2)
    graph = step.get_concrete_function(integer_gradients(variables, 0)).graph
    conditions = {one.type for one in graph.get_operations() if one.type.endswith("If")}
    assert conditions == {"StatelessIf"}  # other kinds would run one after the other


def test_several_steps_in_one_graph_are_tuned_like_others(verdict):
    verdict(sparse=True)
    variables = make_variables()
    steps = CYCLE + 2

    @tf.function
    def train(gradients):
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                loss = loss_of(variables, gradients)
            tape = hvd.DistributedGradientTape(tape, compression=COMPRESSION, op=hvd.Sum)
            for variable, average in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_add(average)

    gradients = integer_gradients(variables, 0)
    train(gradients)
    assert Exchange(variables).tuning.stage is Stage.SETTLED
    assert_same_on_all_ranks(variables)
    left = residuals()
    for name, gradient, variable in zip(SHAPES, gradients, variables, strict=True):
        kept = total(left[name]) if name in left else 0.0
        assert np.array_equal(steps * total(gradient), np.ravel(variable) + kept), name


@pytest.mark.parametrize("stop", [long(1), DENSE_STEPS + 3, long(CYCLE + 1)])
def test_residuals_of_any_stage_go_on_in_a_new_job(verdict, stop, tmp_path):
    verdict(sparse=True)
    variables = make_variables()
    for _ in run(averaging(variables), variables, range(stop)):
        pass
    kept = residuals()
    path = tf.train.Checkpoint(residuals=Exchange(variables).residual_variables).save(
        str(tmp_path / f"residuals-{hvd.rank()}")
    )
    resumed = make_variables()
    prepared = prepare(resumed, COMPRESSION, op=hvd.Sum)
    tf.train.Checkpoint(residuals=prepared).restore(path).assert_consumed()
    found = residuals()
    assert all(np.array_equal(found[name], part) for name, part in kept.items())
    for _ in run(averaging(resumed), resumed, range(stop, stop + 3)):
        pass
    assert not any(np.any(part) for part in residuals().values())  # training began with dense steps


class LateStep:
    """Marks of a step on a device that lags some milliseconds behind."""

    asked = 0

    def __init__(self, step):
        self._step = step
        self._passes = time.perf_counter() + LateEvent.DELAY

    @property
    def passed(self):
        LateStep.asked += 1
        return self._step.passed and time.perf_counter() >= self._passes

    def times(self):
        assert self.passed, "read before the device has come to its end"
        return self._step.times()


def test_gradients_of_a_device_are_tuned_by_its_own_time(verdict, monkeypatch):
    verdict(sparse=True)

    def late_place(device, exchange):
        place = places.OnDevice(device, exchange.check)
        place.clock = late_clock(exchange)
        return place

    timed = []

    def reading_of(step, *others):
        timed.append(number)
        return step_reading.reading_of(LateStep(step), *others)

    monkeypatch.setattr(gradient_exchange, "place_of", late_place)
    monkeypatch.setattr(gradient_exchange, "reading_of", reading_of)
    monkeypatch.setattr(LateStep, "asked", 0)
    variables = make_variables()
    read = []
    steps = run(averaging(variables), variables, range(CYCLE + 2))
    for number in range(CYCLE + 2):
        next(steps)
        if LateStep.asked:
            read.append(number)
        LateStep.asked = 0
    last = tuner.SKIPPED_STEPS + tuner.TIMED_STEPS - 1
    first = [*range(tuner.SKIPPED_STEPS, last + 1)]
    assert timed == [*first, *(DENSE_STEPS + number for number in first)]
    assert read == [last, DENSE_STEPS + last]  # and no step waited before
    found = Exchange(variables).tuning
    assert found.stage is Stage.SETTLED
    assert found.select_on == "engine"
    assert found.dense_seconds > 0
    assert found.sparse_seconds > 0
    assert all(theirs == found for theirs in hvd.allgather_object(found, name=a_name()))


def test_nobody_looks_at_sums_where_all_travels_dense_and_nothing_is_owed(monkeypatch):
    host_checked = ops._host_checked
    monkeypatch.setattr(
        ops, "_host_checked", lambda sums, checks, _: host_checked(sums, checks, "GPU:0")
    )
    variables = make_variables()
    step = averaging(variables)
    gradients = integer_gradients(variables, 0)
    bad = [tf.fill(one.shape, np.inf) for one in gradients]
    with pytest.raises(tf.errors.InvalidArgumentError, match="sent dense is not finite"):
        step(bad)  # inspected, as a residual may have been loaded
    step(gradients)
    assert all(np.isinf(average).all() for average in step(bad))
