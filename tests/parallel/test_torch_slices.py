"""Dense sums take large layers in slices; what is needed first does not wait for all of them."""

from __future__ import annotations

from dataclasses import replace

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.errors import NonFiniteGradientError
from hvd_sparse.torch import Dense
from tests.gpus import DEVICE
from tests.parallel.forward_training import several
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
)
from tests.torch_model import residuals

SHAPES = {"first": (40, 30), "large": (301, 400), "bias": (7,), "last": (150, 400)}
SLICED = Dense(layers=Layers(bucket_numel=50_000))
NAMES = [
    *("last[0:30000]", "last[30000:60000]", "bias"),
    *("large[0:40133]", "large[40133:80266]", "large[80266:120400]", "first"),
]


def train(compression, *, steps=5, dtype=torch.float32, **options):
    """Returns weights and residuals after some steps of Adam with gradients of few digits."""
    model = Toy(SHAPES, dtype=dtype).to(DEVICE)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = distribute(model, compression, optimizer=adam, **options)
    for step in range(steps):
        model.backward(integer_gradients(model, step))
        optimizer.step()
        optimizer.zero_grad()
    kept = residuals(optimizer)
    assert_same_on_all_ranks(model.parameters())
    return [p.detach().clone() for p in model.parameters()], kept, optimizer.exchange.stats.last


@several
def test_each_slice_of_a_large_layer_is_a_bucket():
    _, _, last = train(SLICED)
    assert [bucket.bucket for bucket in last.buckets] == NAMES


@several
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_give_the_sums_of_whole_layers(dtype):
    weights, _, _ = train(SLICED, dtype=dtype)
    whole, _, last = train(Dense(), dtype=dtype)
    assert len(last.buckets) == 1
    assert all(map(torch.equal, weights, whole))


@several
@pytest.mark.parametrize("values", ["float32", "int4"])
def test_steps_that_do_not_wait_have_the_same_bits(values):
    compression = replace(SLICED, values=values)
    weights, kept, _ = train(compression)
    forward, kept_forward, last = train(compression, wait_in_forward=True)
    assert all(map(torch.equal, weights, forward))
    assert all(map(torch.equal, kept.values(), kept_forward.values()))
    assert {bucket.bucket for bucket in last.buckets} == set(NAMES)


@several
def test_nothing_is_lost_and_residuals_go_on_in_other_slices():
    compression = replace(SLICED, values="int4")
    model, twin = Toy(SHAPES).to(DEVICE), Toy(SHAPES).to(DEVICE)
    optimizer = distribute(model, compression)
    for step in range(3):
        before, gradients = residuals(optimizer), integer_gradients(model, step)
        optimizer.zero_grad()
        model.backward(gradients)
        optimizer.step()
        assert_nothing_is_lost(model, step, before, optimizer, gradients)
    kept = residuals(optimizer)
    assert set(kept) == set(SHAPES)
    assert any(bool(one.any()) for one in kept.values())
    for other in (
        replace(compression, layers=replace(compression.layers, bucket_numel=4 << 20)),
        compression,
    ):
        resumed = distribute(twin, other)
        resumed.load_state_dict(optimizer.state_dict())
        assert all(map(torch.equal, residuals(resumed).values(), kept.values()))
        gradients = integer_gradients(twin, 3)
        resumed.zero_grad()
        twin.backward(gradients)
        resumed.step()
        assert_nothing_is_lost(twin, 3, kept, resumed, gradients)


@several
def test_a_slice_that_is_not_finite_refuses_its_whole_layer_and_no_other():
    model = Toy(SHAPES).to(DEVICE)
    optimizer = distribute(
        model,
        replace(SLICED, values="int4"),
        wait_in_forward=True,
    )
    gradients = integer_gradients(model, 0)
    if hvd.rank() == hvd.size() - 1:
        gradients["large"].view(-1)[50_000] = float("nan")
    model.backward(gradients)
    optimizer.step()
    assert bool(model.last.any())
    with pytest.raises(NonFiniteGradientError):
        model.large.sum()
    assert not model.large.any()
    assert bool(model.first.any())
    finite = gradients["large"].cpu().nan_to_num().flatten().double()
    assert torch.equal(residuals(optimizer)["large"], finite)
    assert_same_on_all_ranks(model.parameters())
    model.backward(integer_gradients(model, 1))
    optimizer.step()
    assert bool(model.large.any())
    assert_same_on_all_ranks(model.parameters())


@several
def test_several_passes_add_up_in_slices():
    model = Toy(SHAPES).to(DEVICE)
    optimizer = distribute(model, SLICED, backward_passes_per_step=2, wait_in_forward=True)
    given = [integer_gradients(model, step) for step in range(2)]
    for gradients in given:
        model.backward(gradients)
    optimizer.step()
    expected = given[0]["large"] + given[1]["large"]
    summed = hvd.allreduce(expected, op=hvd.Sum, name="test.slices")
    assert torch.equal(model.large.detach(), -summed)
