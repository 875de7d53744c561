"""Residuals in torch.distributed.checkpoint: on the same mesh, other shards, and other replicas."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from hvd_sparse.compression import Layers
from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.fsdp import LAGS, attach
from tests.gpus import DEVICE
from tests.parallel_ddp.groups import Group
from tests.parallel_fsdp.fsdp_framework import App, mesh_of, mesh_of_some
from tests.parallel_fsdp.nets import (
    adam,
    all_meshes,
    assert_close,
    assert_equal_replicas,
    local,
    meshes,
    net,
    train,
)

# Every shard can be sparse, however small.
SPARSE = LAGS(adaptive=False, warmup=None, density=0.1, layers=Layers(min_numel=1))


@pytest.fixture
def folder(tmp_path):
    paths = [tmp_path]
    dist.broadcast_object_list(paths)
    return paths[0] / "last"


class Job:
    """A model with its attached optimizer, and what is saved of them."""

    def __init__(self, mesh, compression=SPARSE, **options):
        self.mesh, self.model = mesh, net(mesh, **options)
        self.optimizer = adam(self.model)
        self.exchange = attach(self.model, self.optimizer, compression)

    def state(self):
        return {"app": App(self.model, self.optimizer), "residuals": self.exchange}

    def residuals(self):
        """Returns the sum over all replicas of the whole residuals, float64."""
        own = self.optimizer.state_dict().get("hvd_sparse", {}).get("residuals", {})
        whole = {}
        for name, param in self.model.named_parameters():
            shard = own.get(name, torch.zeros(param.to_local().numel())).double()
            rows = [None] * self.mesh.size()
            group = dist.group.WORLD if self.mesh.size() == dist.get_world_size() else GROUPS[0]
            place = (self.mesh.get_local_rank(0), self.mesh.get_local_rank(1))
            dist.all_gather_object(rows, (place, shard), group=group)
            parts = {}
            for (_, index), part in rows:
                parts[index] = parts.get(index, 0) + part
            whole[name] = torch.cat([parts[index] for index in sorted(parts)])
        return whole


GROUPS = []


@pytest.mark.parametrize("amid", [False, True])
def test_training_goes_on_bit_for_bit(folder, amid):
    compression = LAGS(
        density=0.1, adaptive=False, warmup=None, layers=Layers(min_numel=16), local_steps=4
    )
    for mesh in meshes():
        if amid and mesh.size(1) > 3:
            continue
        options = {"odd": 12, "vocabulary": 12} if amid else {}
        job = Job(mesh, compression if amid else SPARSE, **options)
        train(job.model, job.optimizer, steps=6)
        path = folder / f"{mesh.size(0)}"
        if amid:
            with job.exchange.common_weights():
                dcp.save(job.state(), checkpoint_id=path)
        else:
            dcp.save(job.state(), checkpoint_id=path)
        twin = Job(mesh, compression if amid else SPARSE, **options)
        dcp.load(twin.state(), checkpoint_id=path)
        for one in (job, twin):
            train(one.model, one.optimizer, steps=5)
        theirs = local(job.model)
        assert all(torch.equal(one, theirs[name]) for name, one in local(twin.model).items())
        ours, kept = (one.optimizer.state_dict().get("hvd_sparse") for one in (twin, job))
        for part in ("residuals", "velocities", "states") if mesh.size(0) > 1 else ():
            assert ours[part].keys() == kept[part].keys()
            assert all(torch.equal(one, kept[part][name]) for name, one in ours[part].items())


def test_residuals_move_with_their_shards(folder):
    if dist.get_world_size() != 4:
        pytest.skip("needs four ranks")
    job = Job(mesh_of(2, 2))
    train(job.model, job.optimizer, steps=4)
    whole = job.residuals()
    dcp.save(job.state(), checkpoint_id=folder)
    some = Group((0, 1), dist.new_group([0, 1]))
    GROUPS[:] = [some.group]
    if dist.get_rank() < 2:
        few = Job(mesh_of_some(some))
        dcp.load(few.state(), checkpoint_id=folder, process_group=some.group)
        assert all(torch.equal(one, whole[name]) for name, one in few.residuals().items())
        train(few.model, few.optimizer, steps=1)
        assert_equal_replicas(few.model, few.mesh)
        dcp.save(few.state(), checkpoint_id=f"{folder}-of-few", process_group=some.group)
        left = [few.residuals()]
    else:
        left = [None]
    dist.broadcast_object_list(left)  # which also waits for the two
    many = Job(mesh_of(2, 2))
    dcp.load(many.state(), checkpoint_id=f"{folder}-of-few")
    assert all(torch.equal(one, left[0][name]) for name, one in many.residuals().items())
    train(many.model, many.optimizer, steps=1)
    assert_equal_replicas(many.model, many.mesh)


@pytest.mark.usefixtures("several_ranks")
def test_the_sum_of_residuals_is_shared_out_to_other_replicas(folder):
    several = [mesh for mesh in all_meshes() if mesh.size(0) > 1]
    for saved in several:
        job = Job(saved)
        train(job.model, job.optimizer, steps=4)
        whole, path = job.residuals(), folder / str(saved.size(0))
        dcp.save(job.state(), checkpoint_id=path)
        for mesh in several:
            other = Job(mesh)
            state = {**other.state(), "residuals": other.exchange.spread_from(path)}
            dcp.load(state, checkpoint_id=path)
            found = other.residuals()
            assert any(one.any() for one in found.values())
            for name, one in found.items():
                torch.testing.assert_close(one, whole[name], rtol=1e-13, atol=1e-14)
            train(other.model, other.optimizer, steps=2)
            assert_equal_replicas(other.model, mesh)
            if mesh.size(0) != saved.size(0):
                with pytest.raises(dcp.api.CheckpointException, match=r"[Ss]ize"):
                    dcp.load(Job(mesh).state(), checkpoint_id=path)


@pytest.mark.usefixtures("several_ranks")
def test_a_residual_that_has_no_place_is_refused_on_all_ranks(folder):
    mesh = meshes()[0]
    job = Job(mesh)
    train(job.model, job.optimizer, steps=4)
    dcp.save(job.state(), checkpoint_id=folder)
    large = LAGS(adaptive=False, warmup=None, density=0.1, layers=Layers(min_numel=10**6))
    other = Job(mesh, large)
    with pytest.raises(CheckpointMismatchError, match=r"no place in a shard of \d+ entries"):
        dcp.load(other.state(), checkpoint_id=folder)
    train(other.model, other.optimizer, steps=1)


def test_the_optimizers_state_may_be_loaded_after_the_residuals(folder):
    for mesh in meshes():
        job, path = Job(mesh), folder / str(mesh.size(0))
        train(job.model, job.optimizer, steps=4)
        state = {"a": job.exchange, "b": App(job.model, job.optimizer)}
        dcp.save(state, checkpoint_id=path)
        twin = Job(mesh)
        dcp.load({"a": twin.exchange, "b": App(twin.model, twin.optimizer)}, checkpoint_id=path)
        for one in (job, twin):
            train(one.model, one.optimizer, steps=3)
        assert_close(local(twin.model), local(job.model), rtol=0, atol=0)


@pytest.mark.usefixtures("several_ranks")
def test_state_that_is_saved_without_residuals_is_told_of_once(caplog):
    caplog.set_level(logging.WARNING, "hvd_sparse")
    job = Job(meshes()[0])
    train(job.model, job.optimizer, steps=1)
    get_optimizer_state_dict(job.model, job.optimizer)
    job.exchange.state_dict()
    train(job.model, job.optimizer, steps=1)
    assert "leave out" not in caplog.text
    for _ in range(2):
        get_optimizer_state_dict(job.model, job.optimizer)
        train(job.model, job.optimizer, steps=1)
    assert caplog.text.count("leave out") == 1
    assert '"residuals": optimizer.exchange' in caplog.text


def test_a_mesh_of_one_replica_has_nothing_to_save():
    size = dist.get_world_size()
    if size == 1:
        pytest.skip("needs two ranks")
    job = Job(mesh_of(1, size))
    train(job.model, job.optimizer, steps=1)
    assert job.exchange.state_dict() == {}
    assert job.exchange.summary() == "one rank has nobody to exchange gradients with"
    assert DEVICE.type in str(next(job.model.parameters()).device)
