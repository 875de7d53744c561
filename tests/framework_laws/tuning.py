"""An adaptive compression: dense steps, a plan, sparse steps, a verdict; nothing is lost."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np
import pytest

from hvd_sparse.compression import LAGS, Dense, Feedback, GTopK, Layers, Warmup
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.tuning import tuner
from hvd_sparse.tuning.stages import Stage
from tests.frameworks import SHAPES, any_entry
from tests.plans import mixed_plan
from tests.verdict import CYCLE, DENSE_STEPS

COMPRESSION = LAGS(
    density=0.1, layers=Layers(min_numel=64), feedback=Feedback(rescale=False), warmup=None
)
BYTES = {"float32": 4, "float16": 2}


def sparse_buckets(framework, model, steps):
    """Takes steps and checks the law; returns the number of sparse buckets of each."""
    seen = []
    for step in steps:
        framework.checked_step(model, framework.integer_gradients(step))
        seen.append(model.sparse_buckets())
    framework.assert_same_on_all_ranks(model.weights())
    return seen


# For False and float16, residuals join gradients that cannot hold all of their bits.
@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize(
    ("sparse", "dtype"), [(True, "float32"), (False, "float32"), (False, "float16")]
)
def test_nothing_is_lost_from_dense_to_sparse_and_back(framework, verdict, sparse, dtype):
    verdict(sparse=sparse)
    model = framework.model(COMPRESSION, dtype=dtype)
    seen = sparse_buckets(framework, model, range(CYCLE + 4))
    assert seen == [0] * DENSE_STEPS + [1] * DENSE_STEPS + [int(sparse)] * 4
    assert model.tuning().stage is Stage.SETTLED
    assert any_entry(model.residuals()) == sparse
    last = model.stats()
    assert last.step == CYCLE + 3
    sizes = {name: math.prod(shape) * BYTES[dtype] for name, shape in SHAPES.items()}
    sparse_bytes = sizes["first"] + sizes["second"]
    assert last.dense_bytes == sum(sizes.values()) - (sparse_bytes if sparse else 0)


# Integers that these types round, and values that they hold.
@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("values", ["float32", "bfloat16"])
def test_nothing_is_lost_in_a_plan_with_a_dense_sum_of_its_own(
    framework, verdict, monkeypatch, values
):
    verdict(sparse=True)

    def make_plan(profile, rules):
        plan = mixed_plan(profile, rules)
        own = replace(plan.buckets[0], collective="shard_sum", values=values)
        return replace(plan, buckets=(own, *plan.buckets[1:]))

    monkeypatch.setattr(tuner, "make_plan", make_plan)
    warmup = Warmup(steps=2 * CYCLE, densities=(0.2,))  # what is summed dense knows no warm-up
    model = framework.model(replace(COMPRESSION, warmup=warmup))
    seen = sparse_buckets(framework, model, range(CYCLE + 4))
    assert seen[-1] == 2
    assert [bucket.collective for bucket in model.tuning().plan.buckets] == ["shard_sum", "gtopk"]


@pytest.mark.usefixtures("several_ranks")
def test_nothing_is_lost_from_one_plan_to_another(framework, verdict, monkeypatch):
    verdict(sparse=True)
    made = []

    def make_plan(profile, rules):  # on rank 0; the steps always exceed the prediction
        first = replace(mixed_plan(profile, rules), step_seconds=1e-9)
        sparse = replace(first.buckets[0], collective="allgather", densities=(0.2,))
        made.append(first if not made else replace(first, buckets=(sparse, *first.buckets[1:])))
        return made[-1]

    monkeypatch.setattr(tuner, "make_plan", make_plan)
    model = framework.model(COMPRESSION)
    seen = sparse_buckets(framework, model, range(CYCLE + DENSE_STEPS + 4))
    assert seen[:-4] == [0] * DENSE_STEPS + [1] * DENSE_STEPS + [2] * DENSE_STEPS
    found = model.tuning()
    assert found.stage is Stage.SETTLED
    assert seen[-1] == sum(not bucket.dense for bucket in found.plan.buckets)
    assert len(made) == (2 if framework.rank == 0 else 0)


@pytest.mark.usefixtures("several_ranks")
def test_a_warm_up_that_ends_is_looked_at_again(framework, verdict):
    verdict(sparse=True)
    warmup = Warmup(steps=CYCLE + 3, densities=(0.5,))
    model = framework.model(replace(COMPRESSION, warmup=warmup))
    seen = sparse_buckets(framework, model, range(2 * CYCLE + 5))
    compared = [0] * DENSE_STEPS + [1] * DENSE_STEPS
    assert seen == [*compared, 1, 1, 1, *compared, 1, 1]


@pytest.mark.usefixtures("several_ranks")
def test_what_was_measured_and_decided_is_the_same_on_all_ranks(framework, verdict):
    verdict(sparse=True)
    model = framework.model(COMPRESSION)
    sparse_buckets(framework, model, range(CYCLE))
    found = model.tuning()
    framework.assert_equal_on_all_ranks(found)
    assert found.sparse
    assert found.dense_seconds > 0
    assert found.sparse_seconds > 0
    assert [layer.name for layer in found.profile.layers] == ["last", "second", "first"]
    assert found.network.size == framework.size
    assert found.network.dense.seconds(1 << 20) > 0
    assert found.network.dense16.seconds(1 << 20) > 0
    assert found.dense16_seconds > 0


@pytest.mark.usefixtures("several_ranks")
def test_the_real_planner_decides_the_same_everywhere(framework):
    shapes = {"a": (300, 200), "b": (200, 100), "c": (100, 30)}
    model = framework.model(COMPRESSION, shapes)
    for step in range(CYCLE + DENSE_STEPS):  # perhaps with a second plan
        framework.assert_same_on_all_ranks(model.step(framework.integer_gradients(step, shapes)))
    found = model.tuning()
    assert found.stage is Stage.SETTLED
    assert found.dense_seconds > 0
    assert [layer.name for layer in found.profile.layers] == ["c", "b", "a"]
    assert found.network.size == framework.size
    framework.assert_equal_on_all_ranks(found)
    framework.assert_same_on_all_ranks(model.weights())


@pytest.mark.usefixtures("several_ranks")
def test_replan_begins_again_and_loses_nothing(framework, verdict):
    verdict(sparse=True)
    model = framework.model(COMPRESSION)
    sparse_buckets(framework, model, range(CYCLE))
    model.replan()
    assert model.tuning().stage is Stage.DENSE
    seen = sparse_buckets(framework, model, range(CYCLE))
    assert seen == [0] * DENSE_STEPS + [1] * DENSE_STEPS


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("compression", [GTopK(layers=Layers(min_numel=64)), Dense()], ids=repr)
def test_only_adaptive_compressions_are_planned_anew(framework, compression):
    model = framework.model(compression)
    assert model.tuning() is None
    model.step(framework.integer_gradients(0))
    assert model.tuning() is None
    with pytest.raises(InvalidArgumentError, match="an adaptive compression"):
        model.replan()


@pytest.mark.usefixtures("several_ranks")
def test_going_dense_is_said_once_by_one_rank(framework, verdict, caplog):
    verdict(sparse=False)
    with caplog.at_level(logging.INFO, logger="hvd_sparse"):
        model = framework.model(COMPRESSION)
        sparse_buckets(framework, model, range(CYCLE + 5))
    said = [record for record in caplog.records if record.name == "hvd_sparse"]
    assert len(said) == (1 if framework.rank == 0 else 0)
    for record in said:
        assert record.levelname == "WARNING"
        assert "gradients are sent dense" in record.message


@pytest.mark.usefixtures("several_ranks")
def test_under_another_compression_residuals_go_on_and_the_plan_does_not(
    framework, verdict, folder, caplog
):
    verdict(sparse=True)
    model = framework.model(COMPRESSION)
    sparse_buckets(framework, model, range(CYCLE + 1))
    model.save(folder)
    assert model.tuning().stage is Stage.SETTLED
    twin = framework.model(replace(COMPRESSION, density=0.2))
    twin.prepare()
    with caplog.at_level(logging.INFO, logger="hvd_sparse"):
        twin.load(folder)
    said = [one.message for one in caplog.records if "found anew" in one.message]
    assert len(said) == (1 if framework.rank == 0 else 0)
    assert all("compression was" in message for message in said)
    assert twin.tuning().stage is Stage.DENSE
    found, kept = twin.residuals(), model.residuals()
    assert any_entry(kept)
    assert all(np.array_equal(found[name], part) for name, part in kept.items())
    seen = sparse_buckets(framework, twin, range(CYCLE + 1, 2 * CYCLE + 2))
    assert seen == [0] * DENSE_STEPS + [1] * DENSE_STEPS + [1]
