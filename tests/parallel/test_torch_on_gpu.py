"""Training on a GPU; ranks may share one."""

from __future__ import annotations

import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.torch import LAGS, GaussianK, GTopK, TopK
from tests.dense_sums import DENSE_SUMS
from tests.gpus import needs_gpu
from tests.parallel.forward_training import flying, several
from tests.parallel.torch_ranks import (
    SHAPES,
    Toy,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
)
from tests.torch_model import residuals

# All layers are sparse, since a Horovod built for the CPU takes no tensors of a GPU.
LARGE = {name: shape for name, shape in SHAPES.items() if name != "bias"}
SELECTING = [
    preset(adaptive=False, density=0.1, layers=Layers(min_numel=64, bucket_numel=1500))
    for preset in (LAGS, GTopK, GaussianK, TopK)
]


def trained(device, compression, dtype):
    """Returns the parameters and residuals after some steps."""
    model = Toy(LARGE, dtype).to(device)
    optimizer = distribute(model, compression)
    for step in range(6):
        optimizer.zero_grad()
        gradients = integer_gradients(model, step)
        model.backward({name: one.to(device) for name, one in gradients.items()})
        optimizer.step()
    parameters = {name: p.detach().cpu() for name, p in model.named_parameters()}
    return parameters, {name: one.cpu() for name, one in residuals(optimizer).items()}


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compression", [*SELECTING, *DENSE_SUMS.values()], ids=repr)
def test_training_has_the_bits_of_the_cpu(compression, dtype):
    on_cpu, kept_there = trained("cpu", compression, dtype)
    on_gpu, kept = trained("cuda:0", compression, dtype)
    for name in LARGE:
        assert torch.equal(on_gpu[name], on_cpu[name]), name
        assert torch.equal(kept[name], kept_there[name]), name
    assert_same_on_all_ranks(on_gpu.values())


@needs_gpu
@several
@pytest.mark.parametrize("compression", [*SELECTING, *DENSE_SUMS.values()], ids=repr)
def test_a_parameter_in_flight_waits_on_the_stream_that_uses_it(compression):
    """Forward and backward passes take turns on two streams, each behind a long computation."""
    weights = {}
    for waits in (False, True):
        model = Toy(LARGE).to("cuda:0")
        optimizer = distribute(
            model,
            compression,
            wait_in_forward=waits,
        )
        streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
        seen = []
        for step in range(6):
            stream, other = streams[step % 2], streams[(step + 1) % 2]
            stream.wait_stream(other)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                seen += [param.detach().clone() for param in model.parameters()]
                gradients = integer_gradients(model, step)
                model.backward(gradients)
            optimizer.step()
            optimizer.zero_grad()
            assert waits == bool(flying(model))
        optimizer.state_dict()
        torch.cuda.synchronize()
        weights[waits] = [one.cpu() for one in [*seen, *model.parameters()]]
    assert all(map(torch.equal, weights[False], weights[True]))
