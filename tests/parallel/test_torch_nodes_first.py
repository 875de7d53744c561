"""Sums of nodes first, through the optimizer: all ranks of a test share one machine."""

from __future__ import annotations

import io

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Collective, Feedback, Layers
from hvd_sparse.torch import LAGS
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
)
from tests.torch_model import residuals

COMPRESSION = LAGS(
    adaptive=False,
    collective=Collective(name="gtopk", nodes_first=True),
    density=0.1,
    layers=Layers(min_numel=64, bucket_numel=1500),
    feedback=Feedback(rescale=False),
)
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_lost_and_replicas_are_equal(dtype):
    model = Toy(dtype=dtype)
    optimizer = distribute(model, COMPRESSION)
    before = residuals(optimizer)
    for step in range(5):
        optimizer.zero_grad()
        gradients = integer_gradients(model, step)
        model.backward(gradients)
        optimizer.synchronize()
        assert_nothing_is_lost(model, step, before, optimizer, gradients)
        assert_same_on_all_ranks([p.grad for p in model.parameters()])
        with optimizer.skip_synchronize():
            optimizer.step()
        before = residuals(optimizer)
    assert_same_on_all_ranks(model.parameters())


def test_what_is_left_lies_with_the_owners_of_its_shards():
    model = Toy({"w": (40, 30)})
    optimizer = distribute(model, COMPRESSION)
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    if hvd.size() == 1:
        return
    left = residuals(optimizer)["w"]
    begin, end = (left.numel() * shard // hvd.size() for shard in (hvd.rank(), hvd.rank() + 1))
    assert left[begin:end].any()
    assert not left[:begin].any()
    assert not left[end:].any()


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()


def test_a_resumed_run_goes_on_as_if_nothing_had_happened():
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    train(model, optimizer, range(3))
    weights = {name: p.clone() for name, p in model.state_dict().items()}
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    train(model, optimizer, range(3, 6))

    twin = Toy()
    resumed = distribute(twin, COMPRESSION)
    train(twin, resumed, range(20, 22))
    twin.load_state_dict(weights)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    train(twin, resumed, range(3, 6))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


def test_residuals_of_another_collective_are_taken_up():
    model = Toy()
    optimizer = distribute(
        model,
        LAGS(
            adaptive=False,
            collective="gtopk",
            density=0.1,
            layers=Layers(min_numel=64, bucket_numel=1500),
            feedback=Feedback(rescale=False),
        ),
    )
    train(model, optimizer, range(3))
    state = optimizer.state_dict()
    twin = Toy()
    resumed = distribute(twin, COMPRESSION)
    resumed.load_state_dict(state)
    before = residuals(resumed)
    gradients = integer_gradients(twin, 3)
    twin.backward(gradients)
    resumed.synchronize()
    assert_nothing_is_lost(twin, 3, before, resumed, gradients)
    with resumed.skip_synchronize():
        resumed.step()
