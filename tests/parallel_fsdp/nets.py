"""A small model on meshes of replicas and shards, and its training."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.fsdp import LAGS, Dense
from tests.gpus import DEVICE
from tests.parallel_fsdp.fsdp_framework import mesh_of

WIDTH, ROWS = 24, 4
SPARSE = LAGS(adaptive=False, warmup=None, density=0.1, layers=Layers(min_numel=16))
KEPT = Dense(feedback=Feedback(momentum="keep"))


def all_meshes():
    """The meshes of all ranks of the job, from one shard to one replica."""
    size = int(dist.get_world_size())
    return [mesh_of(size // shards, shards) for shards in range(1, size + 1) if size % shards == 0]


def meshes():
    """Those of several replicas and shards; all, if there is none."""
    every = all_meshes()
    return [mesh for mesh in every if min(mesh.size(0), mesh.size(1)) > 1] or every


class Infinite(torch.autograd.Function):
    """The identity; in backward, one row of the gradient becomes infinite."""

    @staticmethod
    def forward(ctx, weight, row):
        ctx.row = row
        return weight.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        gradient[ctx.row] = float("inf")
        return gradient, None


class Block(nn.Module):
    """A block of a transformer without attention.

    Attributes:
        bad_row: The row of `up` whose gradient is not finite on this rank; None: all are finite.
    """

    def __init__(self, width=WIDTH, recomputes=False):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.recomputes = recomputes
        self.bad_row = None

    def forward(self, rows):
        if self.recomputes:
            return rows + checkpoint(self.inner, rows, use_reentrant=False)
        return rows + self.inner(rows)

    def inner(self, rows):
        weight = self.up.weight
        if self.bad_row is not None:
            weight = Infinite.apply(weight, self.bad_row)
        hidden = nn.functional.linear(self.norm(rows), weight, self.up.bias)
        return self.down(torch.tanh(hidden))


class Net(nn.Module):
    def __init__(self, *, blocks=2, recomputes=False, tied=False, odd=5, vocabulary=11):
        super().__init__()
        self.table = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.ModuleList(Block(recomputes=recomputes) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.odd = nn.Linear(vocabulary, odd)  # whose rows no number of shards divides
        if tied:
            self.head.weight = self.table.weight

    def forward(self, numbers):
        rows = self.table(numbers)
        for block in self.blocks:
            rows = block(rows)
        return self.odd(torch.tanh(self.head(rows)))


def net(
    mesh,
    *,
    root_alone=False,
    compiled=False,
    frozen="",
    meta=False,
    build=Net,
    policy=None,
    **options,
):
    """Returns a model that is the same on all ranks, sharded."""
    sharding = {"mesh": mesh, **(policy or {})}
    torch.manual_seed(3)
    with torch.device("meta") if meta else contextlib.nullcontext():
        model = build(**options)
    for name, param in model.named_parameters():
        param.requires_grad_(not (frozen and frozen in name))
    for block in () if root_alone else model.blocks:
        fully_shard(block, **sharding)
    fully_shard(model, **sharding)
    if meta:
        model.to_empty(device=DEVICE)
        for index, param in enumerate(model.parameters()):
            torch.manual_seed(index)
            nn.init.normal_(param, std=0.1)
    for block in model.blocks if compiled else ():
        block.compile(backend="aot_eager")
    return model


def data(step, part=0):
    generator = torch.Generator().manual_seed(1000 * step + 10 * part + dist.get_rank())
    return torch.randint(0, 11, (ROWS, 6), generator=generator).to(DEVICE)


def loss_of(model, numbers):
    return nn.functional.cross_entropy(model(numbers).flatten(0, 1), numbers.flatten() % 5)


def train(model, optimizer, *, steps=3, parts=1, sync="gradient_sync", clip=None):
    for step in range(steps):
        for part in range(parts):
            is_last = part == parts - 1
            if sync == "gradient_sync":
                model.set_requires_gradient_sync(is_last)
            else:
                model.set_requires_all_reduce(is_last)
            loss_of(model, data(step, part)).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()


def adam(model, **options):
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.01, **options)


def local(model):
    return {name: one.to_local().detach().clone() for name, one in model.named_parameters()}


def assert_close(ours, theirs, *, rtol=1e-5, atol=1e-6):
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        torch.testing.assert_close(one, theirs[name], rtol=rtol, atol=atol, msg=name)


def assert_equal_replicas(model, mesh):
    for name, one in local(model).items():
        everywhere = [torch.empty_like(one) for _ in range(mesh.size(0))]
        if one.numel():
            dist.all_gather(everywhere, one, group=mesh.get_group(0))
        assert all(torch.equal(one, theirs) for theirs in everywhere), name
