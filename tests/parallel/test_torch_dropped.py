"""An unreferenced optimizer is freed with all its resources, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import HvdSparseError
from hvd_sparse.pytorch.attachment import attachment_of
from hvd_sparse.torch import LAGS, TopK
from tests.parallel.torch_ranks import ON_ANY_RANK, Toy, distribute, integer_gradients

COMPRESSIONS = {
    "fixed": TopK(density=0.1, layers=Layers(min_numel=64)),
    "momentum": TopK(density=0.1, layers=Layers(min_numel=64), feedback=Feedback(momentum=0.9)),
    "adaptive": LAGS(layers=Layers(min_numel=64)),
}


@pytest.fixture
def without_collector():
    # PyTorch's own first step imports its compiler, and leaves a cycle behind.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]).step()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held():
    """Returns the numbers of descriptors and threads of this process."""
    return [len(list(Path(folder).iterdir())) for folder in ("/proc/self/fd", "/proc/self/task")]


def train(compression, *, steps, fails=False, around=lambda optimizer: None):
    """Returns weak references to the objects of a training, which are no longer referenced."""
    model = Toy()
    optimizer = distribute(model, compression)
    user = around(optimizer)
    for step in range(steps):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    if fails and hvd.size() > 1:
        with pytest.raises(ON_ANY_RANK):
            model.backward(integer_gradients(model, steps))
            optimizer.zero_grad()
    del user
    attachment = attachment_of(optimizer)
    used = (model, optimizer, model.last, model.last.grad, attachment, attachment.exchange)
    return [weakref.ref(one) for one in used if one is not None]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_descriptors_threads_and_gradients_go_with_the_optimizer(
    compression, fails, without_collector
):
    compression, steps = COMPRESSIONS[compression], 12 if compression == "adaptive" else 2
    before = None
    for _ in range(4):
        assert not any(one() is not None for one in train(compression, steps=steps, fails=fails))
        hvd.barrier()
        before = before or held()  # Horovod and the core keep some for the process
        assert all(now <= then for now, then in zip(held(), before, strict=True))


def with_watch(optimizer):
    optimizer.exchange.watch(lambda *_: None)


def with_scheduler(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)


@pytest.mark.parametrize("around", [with_watch, with_scheduler])
def test_what_lives_around_an_optimizer_does_not_keep_it(around, without_collector):
    freed = train(COMPRESSIONS["fixed"], steps=2, around=around)
    assert not any(one() is not None for one in freed)


def test_ranks_may_drop_their_optimizers_around_other_work(without_collector):
    model = Toy()
    optimizer = distribute(model, COMPRESSIONS["fixed"])
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    if hvd.rank() == 0:
        del optimizer
    hvd.barrier()
    optimizer = None
    hvd.barrier()
    assert optimizer is None


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")
def test_a_method_that_was_kept_says_that_the_optimizer_is_gone():
    model = Toy()
    synchronize = distribute(model, COMPRESSIONS["fixed"]).synchronize
    with pytest.raises(HvdSparseError, match="optimizer of these gradients no longer exists"):
        synchronize()
