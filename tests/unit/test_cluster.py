"""Clusters: a bench's measurements, which a plan can use instead of the profile's own."""

from __future__ import annotations

import pytest

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.cluster import Cluster
from tests.profiles import IDLE, MACHINE, deep_profile, gigabits

HERE = Cluster(network=gigabits(3, 8, latency=7e-5), machine=MACHINE)


def test_a_cluster_is_saved_and_loaded_bit_for_bit(tmp_path):
    HERE.save(tmp_path / "cluster.json")
    assert Cluster.load(tmp_path / "cluster.json") == HERE
    assert Cluster.from_json(HERE.to_json()).to_json() == HERE.to_json()


def test_a_cluster_replaces_network_and_machine_and_keeps_the_model():
    model = deep_profile(5)
    moved = Cluster(network=HERE.network, machine=IDLE).with_model_of(model)
    assert (moved.network, moved.machine) == (HERE.network, IDLE)
    assert (moved.layers, moved.forward) == (model.layers, model.forward)


def test_what_is_no_cluster_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cannot read a cluster from"):
        Cluster.load(tmp_path / "none")
    deep_profile(5).save(tmp_path / "profile.json")
    with pytest.raises(InvalidArgumentError, match=r"profile\.json: this is no hvd_sparse cluster"):
        Cluster.load(tmp_path / "profile.json")
