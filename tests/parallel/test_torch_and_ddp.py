"""hvd_sparse.ddp gives the bits of hvd_sparse.torch, and takes over its checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch.distributed as dist

from hvd_sparse.compression import LAGS, GaussianK, GTopK, Layers, TopK
from tests.dense_sums import DENSE_SUMS
from tests.docs.ddp_stage import start
from tests.frameworks import same
from tests.parallel_ddp.ddp_framework import Ddp

SMALL = {"density": 0.1, "layers": Layers(min_numel=64, bucket_numel=1500), "adaptive": False}
COMPRESSIONS = [preset(**SMALL) for preset in (LAGS, GTopK, GaussianK, TopK)]
COMPRESSIONS += DENSE_SUMS.values()
# All of it is sparse: the libraries sum dense gradients of more than two ranks in their own orders.
SHAPES = {"first": (40, 30), "second": (25, 8, 5)}


@pytest.fixture(scope="module", autouse=True)
def both():
    """Initialises torch.distributed between Horovod's ranks."""
    start()
    yield
    dist.destroy_process_group()


def models(framework, compression, **options):
    """Returns the same model under Horovod and under torch.distributed."""
    return framework.model(compression, **options), Ddp().model(compression, **options)


@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=repr)
def test_integers_give_the_same_averages_and_residuals(framework, compression, op):
    ours, theirs = models(framework, compression, op=op)
    for step in range(6):
        gradients = framework.integer_gradients(step)
        assert same(ours.step(gradients), theirs.step(gradients))
        assert same(ours.residuals(), theirs.residuals())
    assert same(ours.weights(), theirs.weights())


@pytest.mark.parametrize("optimizer", ["AdamW", "NAdam", "Adamax"])
def test_momentum_before_error_feedback_is_the_same(framework, optimizer):
    compression = TopK(density=0.1, layers=Layers(min_numel=64))
    ours, theirs = models(
        framework, compression, shapes=SHAPES, op="Average", optimizer=optimizer, rate=0.01
    )
    for step in range(4):
        gradients = framework.integer_gradients(step, SHAPES)
        assert same(ours.step(gradients), theirs.step(gradients))
        assert same(ours.velocities(), theirs.velocities())
    assert same(ours.weights(), theirs.weights())


@pytest.mark.parametrize("way", ["to torch.distributed", "to Horovod"])
def test_a_checkpoint_goes_on_with_the_other(framework, folder, way):
    compression = TopK(density=0.1, layers=Layers(min_numel=64))
    first, second = models(
        framework, compression, shapes=SHAPES, op="Average", optimizer="AdamW", rate=0.01
    )
    if way == "to Horovod":
        first, second = second, first
    for step in range(3):
        first.step(framework.integer_gradients(step, SHAPES))
    first.save(folder, epoch=1)
    assert second.load(folder) == {"epoch": 1}
    for step in range(3, 6):
        gradients = framework.integer_gradients(step, SHAPES)
        assert same(first.step(gradients), second.step(gradients))
    assert same(first.weights(), second.weights())
    assert same(first.residuals(), second.residuals())
    for ours, theirs in zip(first.moments(), second.moments(), strict=True):
        assert np.array_equal(ours, theirs)
