"""The rules that a user's compression sets for a plan."""

from __future__ import annotations

import pytest

from hvd_sparse.collectives import COLLECTIVES
from hvd_sparse.compression import LAGS
from hvd_sparse.places.place import OnDevice
from hvd_sparse.planning.planner import Rules, rules_of


@pytest.mark.parametrize(
    ("compression", "changes"),
    [
        (LAGS(), {}),
        (LAGS(density=0.01), {"density": 0.01}),
        (LAGS(plan="paper"), {"rule": "paper"}),
        (
            LAGS(collective="gtopk", slack=2.0),
            {"collectives": ("gtopk",), "collective_options": {"slack": 2.0}},
        ),
        (LAGS(indices="packed"), {"wires": ("packed",)}),
        (LAGS(indices="plain"), {"wires": ("plain",)}),
        (LAGS(values="bfloat16"), {"values": "bfloat16"}),
        (LAGS(sparsifier="top_k"), {"sparsifier": "top_k"}),
    ],
)
def test_every_option_that_a_plan_depends_on_is_a_rule(compression, changes):
    bare = {
        "density": 0.001,
        "collectives": tuple(COLLECTIVES),
        "wires": ("plain", "packed"),
        "collective_options": {"slack": 1.0},
        "values": "float32",
        "select_on": "caller",
        "reserve": 0.5,
    }
    assert rules_of(compression) == Rules(**{**bare, **changes})


def test_a_device_selects_beside_and_takes_no_sums_of_a_node():
    rules = rules_of(LAGS(), OnDevice)
    assert rules.select_on == "engine"
    assert set(COLLECTIVES) - set(rules.allowed) == {"hierarchical"}
