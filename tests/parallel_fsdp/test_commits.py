"""All ranks of a mesh commit a step, or none does; and what a program must not do is refused."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.compression import Feedback, Layers, LocalSteps
from hvd_sparse.errors import (
    GradientInFlightError,
    HvdSparseError,
    InvalidArgumentError,
    NonFiniteGradientError,
    UnsupportedError,
)
from hvd_sparse.fsdp import LAGS, Dense, GTopK, attach
from tests.gpus import DEVICE
from tests.parallel_fsdp.nets import (
    SPARSE,
    WIDTH,
    Net,
    adam,
    all_meshes,
    assert_equal_replicas,
    data,
    local,
    loss_of,
    meshes,
    net,
    train,
)

PRESETS = {
    "lags": SPARSE,
    "gtopk": GTopK(density=0.1, warmup=None, layers=Layers(min_numel=16)),
    "dense": Dense(),
}


def replicated():
    """The meshes with several replicas."""
    return [mesh for mesh in meshes() if mesh.size(0) > 1]


def is_last_rank():
    return dist.get_rank() == dist.get_world_size() - 1


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("row", [0, -1])
def test_a_gradient_that_is_not_finite_in_one_shard_is_refused_in_all(preset, row):
    for mesh in replicated():
        model = net(mesh)
        optimizer = adam(model)
        exchange = attach(model, optimizer, PRESETS[preset])
        train(model, optimizer, steps=2)
        before, residuals = local(model), optimizer.state_dict()["hvd_sparse"]["residuals"]
        model.blocks[0].bad_row = row if is_last_rank() else None
        with pytest.raises(NonFiniteGradientError):
            loss_of(model, data(2)).backward()
        assert all(not one.grad.to_local().any() for one in model.parameters())
        after = optimizer.state_dict()["hvd_sparse"]
        # Nothing is lost: what no rank applies waits in the residuals.
        assert any(not torch.equal(one, residuals[n]) for n, one in after["residuals"].items())
        assert all(torch.isfinite(one).all() for one in after["residuals"].values())
        assert all(torch.equal(one, before[name]) for name, one in local(model).items())
        model.blocks[0].bad_row = None
        optimizer.zero_grad()
        train(model, optimizer, steps=2)
        assert exchange.stats.last.step == 4
        assert_equal_replicas(model, mesh)


def test_a_scaler_skips_a_step_on_all_ranks_of_the_mesh():
    for mesh in replicated():
        model = net(mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=8.0)
        attach(model, optimizer, SPARSE, grad_scaler=scaler)
        scales = []
        for step in range(3):
            before = local(model)
            model.blocks[0].bad_row = 0 if step == 1 and is_last_rank() else None
            scaler.scale(loss_of(model, data(step))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            is_skipped = all(torch.equal(one, before[name]) for name, one in local(model).items())
            assert is_skipped == (step == 1)
        assert scales == [8.0, 4.0, 4.0]
        assert_equal_replicas(model, mesh)


@pytest.mark.parametrize("delay", [0, 2])
def test_local_steps_meet_in_all_shards_or_in_none(delay):
    compression = LAGS(
        density=0.2,
        adaptive=False,
        warmup=None,
        layers=Layers(min_numel=16),
        local_steps=LocalSteps(every=4, fragments=2 if delay else 1, delay=delay),
    )
    for mesh in replicated():
        if mesh.size(1) > 5:  # of the odd layer's rows
            continue
        model = net(mesh, odd=12, vocabulary=12)
        optimizer = adam(model)
        exchange = attach(model, optimizer, compression)
        train(model, optimizer, steps=10)
        exchange.meet()
        assert_equal_replicas(model, mesh)
        train(model, optimizer, steps=1)
        with torch.no_grad():
            if is_last_rank():
                model.blocks[0].up.weight.to_local()[0] = float("nan")
        with pytest.raises(NonFiniteGradientError):
            exchange.meet()
        assert all(torch.isfinite(one).all() for one in local(model).values())
        optimizer.zero_grad()
        train(model, optimizer, steps=2)
        exchange.meet()
        assert_equal_replicas(model, mesh)


def test_a_step_whose_averages_are_thrown_away_leaves_no_trace():
    for mesh in replicated():
        model, twin = net(mesh), net(mesh)
        optimizer, other = adam(model), adam(twin)
        attach(model, optimizer, SPARSE)
        attach(twin, other, SPARSE)
        for step in range(4):
            if step % 2:
                loss_of(model, data(7)).backward()
                model.zero_grad(set_to_none=step == 1)
            for one, its in ((model, optimizer), (twin, other)):
                loss_of(one, data(step)).backward()
                its.step()
                its.zero_grad()
        assert all(torch.equal(one, local(twin)[name]) for name, one in local(model).items())


def test_gradients_that_no_exchange_has_averaged_are_refused():
    for mesh in replicated():
        model = net(mesh)
        optimizer = adam(model)
        attach(model, optimizer, SPARSE)
        model.set_requires_all_reduce(False)
        loss_of(model, data(0)).backward()
        with pytest.raises(GradientInFlightError, match="set_requires_all_reduce"):
            optimizer.step()


def test_a_gradient_that_is_added_to_an_average_is_refused():
    for mesh in replicated():
        model = net(mesh)
        optimizer = adam(model)
        attach(model, optimizer, SPARSE)
        loss_of(model, data(0)).backward()
        with pytest.raises(HvdSparseError, match="run all but the last"):
            loss_of(model, data(1)).backward()


def test_a_model_whose_optimizer_is_gone_trains_no_further():
    for mesh in replicated():
        model = net(mesh)
        optimizer = adam(model)
        attach(model, optimizer, SPARSE)
        train(model, optimizer, steps=1)
        del optimizer
        gc.collect()
        with pytest.raises(HvdSparseError, match="attach another one"):
            loss_of(model, data(1)).backward()
        again = net(mesh)
        successor = adam(again)
        attach(again, successor, SPARSE)
        train(again, successor, steps=1)
        assert_equal_replicas(again, mesh)


def test_attaching_again_keeps_the_residuals():
    mesh = meshes()[0]
    model = net(mesh)
    optimizer = adam(model)
    attach(model, optimizer, SPARSE)
    train(model, optimizer, steps=2)
    before = optimizer.state_dict().get("hvd_sparse", {}).get("residuals", {})
    attach(model, optimizer, SPARSE)
    after = optimizer.state_dict().get("hvd_sparse", {}).get("residuals", {})
    assert before.keys() == after.keys()
    assert all(torch.equal(one, after[name]) for name, one in before.items())
    train(model, optimizer, steps=1)
    assert_equal_replicas(model, mesh)


# ---- Refusals ------------------------------------------------------------------------------------


def refused(kind, match, model, optimizer=None, compression=SPARSE):
    optimizer = adam(model) if optimizer is None else optimizer
    with pytest.raises(kind, match=match):
        attach(model, optimizer, compression)


def test_models_that_fsdp2_has_not_sharded_are_refused():
    refused(InvalidArgumentError, "no module of which is", nn.Linear(4, 4))
    refused(InvalidArgumentError, "hvd_sparse.ddp.attach", DistributedDataParallel(nn.Linear(4, 4)))
    fsdp1 = FullyShardedDataParallel(nn.Linear(8, 8), device_id=torch.device(DEVICE))
    refused(UnsupportedError, "FullyShardedDataParallel", fsdp1)
    refused(InvalidArgumentError, "must be a torch.nn.Module", 3, torch.optim.SGD([torch.ones(1)]))


def test_a_mesh_without_replicas_is_refused():
    model = net(meshes()[0]["shard"])
    refused(InvalidArgumentError, r"a mesh with replicas.*mesh_dim_names", model)


def test_two_meshes_in_one_model_are_refused():
    several = all_meshes()
    if len(several) < 2:
        pytest.skip("one rank has one mesh")
    model = Net()
    fully_shard(model.blocks[0], mesh=several[0])
    fully_shard(model, mesh=several[1])
    refused(InvalidArgumentError, "one mesh", model)


def test_an_optimizer_of_other_parameters_or_of_a_part_of_a_group_is_refused():
    mesh = meshes()[0]
    model, other = net(mesh), net(mesh)
    refused(InvalidArgumentError, "is not sharded in this model", model, adam(other))
    part = torch.optim.SGD([model.table.weight], lr=0.1)
    refused(InvalidArgumentError, r"updates 1 of \d+ parameters", model, part)


def test_what_changes_the_reduction_between_replicas_is_refused():
    mesh = meshes()[0]
    if mesh.size(0) == 1:
        pytest.skip("there are no replicas")
    hooked, divided = net(mesh), net(mesh)
    hooked.set_all_reduce_hook(lambda _: None)
    refused(UnsupportedError, "set_all_reduce_hook", hooked)
    divided.set_gradient_divide_factor(3.0)
    refused(UnsupportedError, r"set_gradient_divide_factor\(3.0\)", divided)


def test_clipping_before_the_exchange_needs_whole_gradients():
    for mesh in replicated():
        if mesh.size(1) == 1:
            continue
        clipping = LAGS(feedback=Feedback(clip_norm=1.0))
        refused(UnsupportedError, "clip_norm must be None", net(mesh), compression=clipping)


def test_tensor_parallelism_is_refused():
    if dist.get_world_size() % 4:
        pytest.skip("needs four ranks")
    size = dist.get_world_size()
    mesh = init_device_mesh(DEVICE.type, (size // 2, 1, 2), mesh_dim_names=("rep", "shard", "tp"))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, device=DEVICE))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=mesh["rep", "shard"])
    refused(UnsupportedError, "tensor parallelism", model)


def test_checkpoints_of_a_folder_are_refused(tmp_path):
    model = net(meshes()[0])
    optimizer = adam(model)
    exchange = attach(model, optimizer, SPARSE)
    with pytest.raises(UnsupportedError, match="beside model and optimizer"):
        exchange.save_checkpoint(tmp_path, model)
    with pytest.raises(UnsupportedError, match="beside model and optimizer"):
        exchange.load_checkpoint(tmp_path, model)


def test_ranks_that_ask_for_different_things_are_refused_on_all_of_the_mesh():
    for mesh in replicated():
        model = net(mesh)
        compression = LAGS(density=0.1) if is_last_rank() else LAGS(density=0.2)
        refused(InvalidArgumentError, "density", model, compression=compression)
        assert np.isfinite(float(loss_of(model, data(0))))
