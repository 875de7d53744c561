"""Horovod's own behaviour is unchanged, and all of it is available in hvd_sparse.torch."""

from __future__ import annotations

import horovod.torch as hvd
import horovod.torch.optimizer
import pytest
import torch

import hvd_sparse.torch
from hvd_sparse.compression import Compression, Layers
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError
from hvd_sparse.torch import LAGS, patches
from tests.parallel.torch_ranks import Toy, assert_same_on_all_ranks, integer_gradients

STOCK = hvd.DistributedOptimizer._hvd_sparse_stock


def train(make, compression, **options):
    # Sums of small integers are exact in any order in which Horovod adds and fuses them.
    model = Toy()
    optimizer = make(
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5),
        named_parameters=model.named_parameters(),
        compression=compression,
        **options,
    )
    passes = options.get("backward_passes_per_step", 1)
    for step in range(4):
        optimizer.zero_grad()
        for i in range(passes):
            model.backward(integer_gradients(model, passes * step + i))
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("name", ["none", "fp16"])
@pytest.mark.parametrize("options", [{}, {"backward_passes_per_step": 2}, {"groups": 2}])
def test_stock_compressions_give_the_same_bits_as_unpatched(name, options):
    compression = getattr(hvd.Compression, name)
    expected = train(STOCK, compression, **options)
    for make in (hvd.DistributedOptimizer, hvd_sparse.torch.DistributedOptimizer):
        for mine, theirs in zip(train(make, compression, **options), expected, strict=True):
            assert torch.equal(mine, theirs)


def test_the_default_compression_is_horovods():
    model = torch.nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    assert type(optimizer).__module__ == "horovod.torch.optimizer"
    with pytest.raises(InvalidArgumentError, match="has no sparse compression"):
        _ = optimizer.exchange.stats


def test_the_patched_functions_look_like_horovods():
    assert hvd.DistributedOptimizer is horovod.torch.optimizer.DistributedOptimizer
    assert hvd.DistributedOptimizer.__module__ == "horovod.torch.optimizer"
    assert hvd.DistributedOptimizer.__doc__ == STOCK.__doc__
    before = hvd.DistributedOptimizer, hvd.join, hvd.shutdown, hvd.broadcast_optimizer_state
    patches.install()
    assert before == (
        hvd.DistributedOptimizer,
        hvd.join,
        hvd.shutdown,
        hvd.broadcast_optimizer_state,
    )
    with pytest.raises(TypeError):
        hvd.DistributedOptimizer()


def test_elastic_states_use_the_patched_broadcast():
    assert hvd.elastic.state.broadcast_optimizer_state is hvd.broadcast_optimizer_state


def test_everything_of_horovod_is_handed_on():
    for name in dir(hvd):
        if not name.startswith("_") and name not in ("optimizer", "functions"):
            assert getattr(hvd_sparse.torch, name) is getattr(hvd, name), name
            assert name in hvd_sparse.torch.__all__
            assert name in dir(hvd_sparse.torch)
    with pytest.raises(AttributeError, match=r"hvd_sparse\.torch.*no_such_name"):
        _ = hvd_sparse.torch.no_such_name


def test_sparse_and_stock_optimizers_live_side_by_side():
    models = [torch.nn.Linear(40, 40), torch.nn.Linear(40, 40)]
    optimizers = []
    for model, compression in zip(
        models,
        (LAGS(adaptive=False, layers=Layers(min_numel=64)), hvd.Compression.none),
        strict=True,
    ):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizers.append(
            hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                named_parameters=model.named_parameters(),
                compression=compression,
            )
        )
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.randn(4, 40)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    for model in models:
        assert_same_on_all_ranks(model.parameters())


def test_a_sparse_compression_in_unpatched_horovod_says_what_to_do():
    for compression in (LAGS, LAGS(adaptive=False, density=0.1)):
        assert isinstance(compression, Compression) or issubclass(compression, Compression)
        with pytest.raises(
            HvdSparseError, match="LAGS was given to stock Horovod: import hvd_sparse"
        ):
            compression.compress(torch.zeros(3))
