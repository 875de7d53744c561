"""What users of FSDP2 do: Dense() trains as FSDP2 does; with a selection, replicas stay equal."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import Shard

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.fsdp import attach
from tests.marks import long
from tests.parallel_fsdp.nets import (
    KEPT,
    SPARSE,
    WIDTH,
    adam,
    all_meshes,
    assert_close,
    assert_equal_replicas,
    data,
    local,
    loss_of,
    meshes,
    net,
    train,
)

HABITS = {
    "blocks": ({}, {}),
    "the root alone": ({"root_alone": True}, {}),
    "no resharding": ({"policy": {"reshard_after_forward": False}}, {}),
    "resharding": ({"policy": {"reshard_after_forward": True}}, {}),
    "sums in float32": (
        {"policy": {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}}, {}
    ),
    "offloading": ({"policy": {"offload_policy": CPUOffloadPolicy(pin_memory=False)}}, {}),
    "recomputing": ({"recomputes": True}, {}),
    "compiling": ({"compiled": True}, {}),
    "beginning on meta": ({"meta": True}, {}),
    "tied weights": ({"tied": True}, {}),
    "frozen parameters": ({"frozen": "down"}, {}),
    "a frozen block": ({"frozen": "blocks.1"}, {}),
    "accumulation": ({}, {"parts": 3}),
    "accumulation over shards": ({}, {"parts": 3, "sync": "all_reduce"}),
    "clipping": ({}, {"clip": 0.01}),
}  # fmt: skip


@pytest.mark.parametrize("habit", HABITS)
def test_dense_sums_train_as_fsdp2_does(habit):
    shape, habits = HABITS[habit]
    for mesh in meshes():
        theirs, ours = net(mesh, **shape), net(mesh, **shape)
        assert_close(local(ours), local(theirs), rtol=0, atol=0)
        optimizer = adam(ours)
        exchange = attach(ours, optimizer, KEPT)
        train(theirs, adam(theirs), **habits)
        train(ours, optimizer, **habits)
        # Three ranks' sums have another last bit, which a forward pass in bfloat16 enlarges.
        atol = 2e-3 if "mp_policy" in shape.get("policy", {}) else 1e-6
        assert_close(local(ours), local(theirs), atol=atol)
        assert_equal_replicas(ours, mesh)
        if mesh.size(0) > 1:
            assert exchange.stats.last.step == 2


@pytest.mark.parametrize(
    "habit",
    [habit if "accumulation" in habit or habit == "clipping" else long(habit) for habit in HABITS],
)
def test_a_selection_trains_and_replicas_stay_equal(habit):
    shape, habits = HABITS[habit]
    for mesh in meshes():
        model = net(mesh, **shape)
        optimizer = adam(model)
        attach(model, optimizer, SPARSE)
        before = float(loss_of(model, data(0)))
        train(model, optimizer, steps=12, **habits)
        assert_equal_replicas(model, mesh)
        if "clip" not in habits:
            assert float(loss_of(model, data(0))) < before


def compared(run, **shape):
    """Trains with Dense() and without by `run(model, optimizer)`, on each mesh, and compares."""
    for mesh in meshes():
        theirs, ours = net(mesh, **shape), net(mesh, **shape)
        optimizer = adam(ours)
        attach(ours, optimizer, KEPT)
        run(theirs, adam(theirs))
        run(ours, optimizer)
        assert_close(local(ours), local(theirs))
        assert_equal_replicas(ours, mesh)


def test_a_module_may_run_several_times_in_one_forward_pass():
    def run(model, optimizer):
        for step in range(3):
            (loss_of(model, data(step)) + loss_of(model, data(step, 1))).backward()
            optimizer.step()
            optimizer.zero_grad()

    compared(run)


def test_shards_cannot_have_masks():
    for mesh in all_meshes():
        ours = net(mesh)
        optimizer = adam(ours)
        exchange = attach(ours, optimizer, KEPT)
        if mesh.size(0) > 1:
            with pytest.raises(UnsupportedError, match="a sharded model"):
                exchange.set_masks({})
        else:  # there is no exchange
            exchange.set_masks({})


def test_micro_batches_of_a_pipeline_are_exchanged_with_the_last_one():
    def run(model, optimizer):
        for step in range(3):
            losses = [loss_of(model, data(step, part)) for part in range(3)]
            for part, loss in enumerate(losses):
                model.set_is_last_backward(part == 2)
                model.set_requires_gradient_sync(part == 2)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    compared(run, policy={"reshard_after_forward": False})


def test_prefetching_and_other_forward_methods():
    def run(model, optimizer):
        model.set_modules_to_forward_prefetch([model.blocks[0]])
        model.blocks[1].set_modules_to_backward_prefetch([model.blocks[0]])
        register_fsdp_forward_method(model.blocks[0], "inner")
        for step in range(3):
            loss = loss_of(model, data(step))
            rows = model.blocks[0].inner(torch.ones(2, WIDTH))
            (loss + rows.square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()

    compared(run)


def test_parameters_may_be_sharded_along_other_dimensions():
    def placed(param):
        return Shard(1) if param.ndim == 2 and param.shape[1] % 12 == 0 else Shard(0)

    def run(model, optimizer):
        train(model, optimizer)

    compared(run, policy={"shard_placement_fn": placed, "reshard_after_forward": False})


def test_gradients_may_be_summed_in_bfloat16():
    policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)}
    for mesh in meshes():
        theirs, ours = net(mesh, policy=policy), net(mesh, policy=policy)
        optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
        attach(ours, optimizer, KEPT)
        train(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1))
        train(ours, optimizer)
        assert_close(local(ours), local(theirs), rtol=0.02, atol=2e-3)
        assert_equal_replicas(ours, mesh)


def test_each_group_may_have_an_optimizer_of_its_own():
    mesh = meshes()[0]
    theirs, ours = net(mesh), net(mesh)
    for model in (theirs, ours):
        blocks = [list(block.parameters()) for block in model.blocks]
        inner = {id(one) for params in blocks for one in params}
        rest = [one for one in model.parameters() if id(one) not in inner]
        optimizers = [torch.optim.AdamW(params, lr=0.01) for params in (*blocks, rest)]
        if model is ours:
            for optimizer in optimizers:
                attach(model, optimizer, KEPT)
        for step in range(3):
            loss_of(model, data(step)).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert_close(local(ours), local(theirs))
    assert_equal_replicas(ours, mesh)


def test_groups_of_no_optimizer_stay_fsdp2s_own():
    mesh = meshes()[0]
    model = net(mesh)
    optimizer = torch.optim.AdamW(model.blocks.parameters(), lr=0.01)
    attach(model, optimizer, SPARSE)
    loss_of(model, data(0)).backward()
    head = model.head.weight.grad.to_local()
    everywhere = [torch.empty_like(head) for _ in range(mesh.size(0))]
    dist.all_gather(everywhere, head, group=mesh.get_group(0))
    assert all(torch.equal(head, one) for one in everywhere)


def test_several_modules_may_share_an_optimizer():
    for mesh in meshes():
        first, second = net(mesh), net(mesh, root_alone=True)
        both = nn.ModuleList([first, second])
        optimizer = adam(both)
        attach(both, optimizer, SPARSE)
        for step in range(3):
            (loss_of(first, data(step)) + loss_of(second, data(step, 1))).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert_equal_replicas(both, mesh)


def test_a_compiled_model_is_attached_like_any_other():
    mesh = meshes()[0]
    model = net(mesh)
    whole = torch.compile(model, backend="eager")
    optimizer = adam(model)
    attach(whole, optimizer, SPARSE)
    for step in range(3):
        loss_of(whole, data(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_equal_replicas(model, mesh)
