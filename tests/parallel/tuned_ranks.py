"""Adaptive trainings whose steps are checked by the law."""

from __future__ import annotations

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.torch import LAGS
from tests.parallel.torch_ranks import (
    assert_nothing_is_lost,
    integer_gradients,
)
from tests.torch_model import residuals

COMPRESSION = LAGS(
    density=0.1, layers=Layers(min_numel=64), feedback=Feedback(rescale=False), warmup=None
)


def train(model, optimizer, steps, *, dtype=None):
    """Takes steps and checks the law; yields after each."""
    before = residuals(optimizer)
    for step in steps:
        gradients = integer_gradients(model, step)
        optimizer.zero_grad()
        model.backward(gradients)
        optimizer.step()
        if dtype is None:
            assert_nothing_is_lost(model, step, before, optimizer, gradients)
        before = residuals(optimizer)
        yield step
