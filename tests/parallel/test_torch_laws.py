"""The laws through the optimizer: exact sums, bitwise equal replicas, nothing lost."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.torch import LAGS, GaussianK, GTopK, TopK
from tests.framework_laws import discards, exactness, laws_in, robust, same_bits
from tests.parallel.torch_ranks import assert_same_on_all_ranks, distribute, gradients_of, total

globals().update(laws_in(exactness, same_bits, discards, robust))

PRESETS = [LAGS, GTopK, GaussianK, TopK]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_trained_network_is_bitwise_equal_on_all_ranks(preset):
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = distribute(
        model,
        preset(adaptive=False, density=0.05, layers=Layers(min_numel=50, bucket_numel=100)),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        op=hvd.Average,
    )
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 1, 8, 8)).logsumexp(1).mean()
        loss.backward()
        optimizer.step()
    assert_same_on_all_ranks(model.parameters())
    assert all(p.detach().abs().max() > 0 for p in model.parameters())


def test_gradients_in_another_memory_format_are_exchanged_in_logical_order():
    torch.manual_seed(0)
    plain = torch.nn.Conv2d(4, 6, 3)
    layouts = [torch.contiguous_format, torch.channels_last]
    model = torch.nn.Conv2d(4, 6, 3).to(memory_format=layouts[hvd.rank() % 2])
    model.load_state_dict(plain.state_dict())
    optimizer = distribute(model, TopK(density=1.0, layers=Layers(min_numel=1)))
    inputs = torch.randint(-3, 4, (2, 4, 5, 5), generator=torch.Generator().manual_seed(hvd.rank()))
    model(inputs.float()).sum().backward()
    plain(inputs.float()).sum().backward()
    optimizer.synchronize()
    assert torch.equal(model.weight.grad.double().flatten(), total(plain.weight.grad))
    assert_same_on_all_ranks(gradients_of(model).values())
