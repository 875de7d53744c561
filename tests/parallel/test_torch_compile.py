"""Compiled steps and compiled autograd train like plain ones, and trace none of our code."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.torch import LAGS
from tests.parallel.torch_ranks import assert_same_on_all_ranks, distribute

COMPRESSIONS = {
    "sparse": LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)),
    "adaptive": LAGS(layers=Layers(min_numel=64)),
}
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.5),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3),
}
STEPS = 3


def train(compression, optimizer, *, compiled=lambda step: step, clips=False):
    """Returns losses and weights of a short training with batches of this rank's own."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 4))
    optimizer = distribute(
        model, compression, optimizer=OPTIMIZERS[optimizer](model.parameters()), op=hvd.Average
    )
    optimizer.exchange.watch(lambda *_: None)

    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        if clips:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        return loss.detach()

    step = compiled(step)
    generator = torch.Generator().manual_seed(hvd.rank())
    losses = []
    for number in range(STEPS):
        optimizer.exchange.mark_step(f"step {number}")
        batch = [torch.randn(8, width, generator=generator) for width in (20, 4)]
        losses.append(step(*batch).item())
    weights = [p.detach() for p in model.parameters()]
    assert_same_on_all_ranks(weights)
    return torch.tensor(losses), torch.cat([one.flatten() for one in weights])


@pytest.fixture
def traced(monkeypatch):
    """Returns the files of the frames that torch.compile traces, and its graph breaks."""
    torch.compiler.reset()
    from torch._dynamo import convert_frame

    files, stock = set(), convert_frame._compile

    def compile_frame(code, *args, **kwargs):
        files.add(code.co_filename)
        return stock(code, *args, **kwargs)

    monkeypatch.setattr(convert_frame, "_compile", compile_frame)
    yield files
    torch.compiler.reset()


def check(files):
    from torch._dynamo.utils import counters

    assert any(name == __file__ for name in files)  # the step itself
    assert not [name for name in files if "/hvd_sparse/" in name or "/horovod/" in name]
    assert not counters["recompile_limit"]


@pytest.mark.parametrize(
    ("compression", "optimizer", "clips"),
    [
        pytest.param("sparse", "sgd", False, marks=pytest.mark.long),
        ("sparse", "adam", False),
        ("adaptive", "sgd", True),
    ],
)
def test_a_compiled_step_trains_as_a_plain_one(compression, optimizer, clips, traced):
    compression = COMPRESSIONS[compression]
    plain = train(compression, optimizer, clips=clips)
    compiled = train(
        compression,
        optimizer,
        clips=clips,
        compiled=lambda step: torch.compile(step, backend="aot_eager"),
    )
    check(traced)
    for ours, expected in zip(compiled, plain, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def with_compiled_autograd(step):
    from torch._dynamo import config

    with config.patch(compiled_autograd=True):
        compiled = torch.compile(step, backend="eager")

    def run(*batch):
        with config.patch(compiled_autograd=True):
            return compiled(*batch)

    return run


def test_compiled_autograd_trains_as_a_plain_one(traced):
    from torch._dynamo.utils import counters

    plain = train(COMPRESSIONS["sparse"], "sgd")
    compiled = train(COMPRESSIONS["sparse"], "sgd", compiled=with_compiled_autograd)
    assert counters["compiled_autograd"]["captures"] > 0
    check(traced)
    for ours, expected in zip(compiled, plain, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
