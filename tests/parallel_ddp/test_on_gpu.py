"""DistributedDataParallel on a GPU, which ranks may share."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.ddp import LAGS, Dense, GaussianK, GTopK, TopK, attach
from hvd_sparse.errors import UnsupportedError
from tests.dense_sums import DENSE_SUMS
from tests.gpus import DEVICE, reason_to_skip
from tests.parallel_ddp.ddp_framework import BUCKET_MB, Toy
from tests.torch_model import array_of, residuals

_WHY_NOT = reason_to_skip()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT),
    pytest.mark.usefixtures("several_ranks"),
]

GPU = DEVICE if DEVICE.type == "cuda" else torch.device("cuda:0")
SELECTING = [
    preset(adaptive=False, density=0.1, layers=Layers(min_numel=64, bucket_numel=1500))
    for preset in (LAGS, GTopK, GaussianK, TopK)
]
EVERYTHING = TopK(density=1.0, layers=Layers(min_numel=1), feedback=Feedback(momentum="keep"))


def integers(framework, step, device, dtype=torch.float32):
    given = framework.integer_gradients(step).items()
    return {name: torch.from_numpy(one).to(device, dtype) for name, one in given}


def trained(framework, device, compression, dtype):
    """Returns the parameters and residuals after some steps."""
    ddp = DistributedDataParallel(Toy(dtype=dtype).to(device), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=2.0**-6)
    attach(ddp, optimizer, compression)
    for step in range(6):
        optimizer.zero_grad()
        ddp(integers(framework, step, device, dtype)).backward()
        optimizer.step()
    weights = {name: array_of(one) for name, one in ddp.module.named_parameters()}
    return weights, residuals(optimizer), optimizer.exchange.stats.last


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("compression", [*SELECTING, *DENSE_SUMS.values()], ids=repr)
def test_training_has_the_bits_of_the_cpu(framework, compression, dtype):
    on_cpu, kept_there, _ = trained(framework, torch.device("cpu"), compression, dtype)
    on_gpu, kept, _ = trained(framework, GPU, compression, dtype)
    for name, weights in on_cpu.items():
        assert np.array_equal(on_gpu[name], weights), name
    assert kept.keys() == kept_there.keys()
    for name, residual in kept_there.items():
        assert torch.equal(kept[name], residual), name
    framework.assert_same_on_all_ranks(on_gpu)


@pytest.mark.skipif(os.environ.get("HVD_SPARSE_NCCL") != "1", reason="HVD_SPARSE_NCCL is not 1")
def test_blocks_over_nccl_go_from_device_to_device(framework):
    _, _, step = trained(framework, GPU, SELECTING[1], torch.float32)
    assert step.buckets
    assert {bucket.route for bucket in step.buckets} == {"device rounds"}


def network(seed=0, *, norm=False):
    """Returns a network on the GPU, and a batch of rows of this rank."""
    torch.manual_seed(seed)
    middle = [torch.nn.BatchNorm1d(40)] if norm else []
    layers = torch.nn.Linear(20, 40), *middle, torch.nn.ReLU(), torch.nn.Linear(40, 10)
    return torch.nn.Sequential(*layers).to(GPU)


def batch(framework, step):
    generator = torch.Generator().manual_seed(100 * step + framework.rank)
    return torch.randn(8, 20, generator=generator).to(GPU)


def assert_as_stock(framework, ours, theirs, make, *, rtol=1e-4, atol=1e-5):
    """Trains two equal modules, the first with everything sent; their weights stay close."""
    optimizers = [make(one.parameters()) for one in (ours, theirs)]
    attach(ours, optimizers[0], EVERYTHING)
    for step in range(6):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(batch(framework, step)).square().mean().backward()
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(array_of(one), array_of(other), rtol=rtol, atol=atol)
    framework.assert_same_on_all_ranks(
        {name: array_of(one) for name, one in ours.named_parameters()}
    )


def test_synchronised_batch_norm(framework):
    ours, theirs = (
        DistributedDataParallel(
            torch.nn.SyncBatchNorm.convert_sync_batchnorm(network(norm=True)),
            bucket_cap_mb=BUCKET_MB,
        )
        for _ in range(2)
    )
    assert_as_stock(framework, ours, theirs, lambda params: torch.optim.SGD(params, lr=0.01))


@pytest.mark.parametrize("form", ["foreach", "fused", "capturable"])
def test_every_form_of_adamw(framework, form):
    ours, theirs = (DistributedDataParallel(network()) for _ in range(2))
    assert_as_stock(
        framework,
        ours,
        theirs,
        lambda params: torch.optim.AdamW(params, lr=0.01, **{form: True}),
    )


def test_a_model_compiled_for_the_gpu(framework):
    ours, theirs = (DistributedDataParallel(torch.compile(network())) for _ in range(2))
    assert_as_stock(framework, ours, theirs, lambda params: torch.optim.SGD(params, lr=0.01))


@pytest.mark.parametrize(
    "compression", [LAGS(layers=Layers(min_numel=1)), Dense(values="int8")], ids=repr
)
def test_automatic_mixed_precision_with_a_scaler(framework, compression):
    ddp = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    attach(ddp, optimizer, compression, grad_scaler=scaler)
    losses = []
    for step in range(30):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = ddp(batch(framework, step)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    framework.assert_same_on_all_ranks(
        {name: array_of(one) for name, one in ddp.named_parameters()}
    )


def test_mixed_precision_of_the_module_is_refused():
    from torch.nn.parallel.distributed import _MixedPrecision

    precision = _MixedPrecision(param_dtype=torch.float16)
    ddp = DistributedDataParallel(network(), mixed_precision=precision)
    with pytest.raises(UnsupportedError, match="mixed_precision"):
        attach(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), LAGS)
