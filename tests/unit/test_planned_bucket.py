"""Buckets as an exchange gets them: of a training's layers, and of a single tensor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_sparse.compression import LAGS, Dense, ThreeLC, TopK, Warmup
from hvd_sparse.compression.buckets import Bucket, Layer
from hvd_sparse.exchange.planned_bucket import add_planned_bucket, add_tensor_bucket
from hvd_sparse.planning import plan
from hvd_sparse.planning.routes import CALLS, ROUNDS


class Asked:
    """An exchange that only remembers what it is asked for."""

    def add_bucket(self, name, **options):
        self.name, self.options = name, options
        return 7


@pytest.mark.parametrize(
    ("compression", "k"),
    [
        (LAGS(), 10),
        (LAGS(density=0.05), 50),
        (TopK(warmup=Warmup(steps=9)), 1),
    ],
)
def test_a_single_tensor_has_no_warm_up_nor_memory_for_one(compression, k):
    exchange = Asked()
    assert add_tensor_bucket(exchange, "a", 1000, compression) == 7
    assert exchange.name == "a"
    assert exchange.options["max_ks"] == [k]
    assert exchange.options["collective"] == "allgather"


def test_a_trainings_bucket_has_memory_for_the_warm_up():
    exchange, layout = Asked(), Bucket((Layer("a", 1000),), layer_wise=True)
    compression = LAGS(adaptive=False)
    (choice,) = plan.fixed_choices(layout.layers, compression)
    add_planned_bucket(exchange, layout, choice, compression)
    assert exchange.options["max_ks"] == [250]


@pytest.mark.parametrize(
    ("compression", "values", "scale"),
    [(Dense(values="bfloat16"), "bfloat16", 1.0), (ThreeLC(scale=1.5), "ternary", 1.5)],
)
def test_a_dense_sum_is_asked_for_every_entry_in_its_values(compression, values, scale):
    exchange = Asked()
    assert add_tensor_bucket(exchange, "a", 1000, compression) == 7
    assert exchange.options["collective"] == "shard_sum"
    assert exchange.options["values"] == values
    assert exchange.options["collective_options"].get("scale", 1.0) == scale


def test_the_route_of_a_plan_is_asked_for():
    exchange, layout = Asked(), Bucket((Layer("a", 1000),), layer_wise=True)
    (choice,) = plan.fixed_choices(layout.layers, LAGS(adaptive=False))
    for route, by_devices in ((CALLS, False), (ROUNDS, True)):
        add_planned_bucket(exchange, layout, replace(choice, route=route), LAGS())
        assert exchange.options["by_devices"] == by_devices
    assert choice.route == ROUNDS  # without a plan, devices are used where they are connected
