"""PyTorch's default type and device, which a script sets, do not affect an exchange's tensors."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.torch import LAGS
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    distribute,
    integer_gradients,
)
from tests.torch_model import residuals


@contextmanager
def default_type(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# Tensors of the meta device have no memory.
DEFAULTS = {"float64": lambda: default_type(torch.float64), "meta": lambda: torch.device("meta")}


@pytest.mark.parametrize("defaults", DEFAULTS)
@pytest.mark.parametrize("adaptive", [False, True])
def test_nothing_is_lost_whatever_the_defaults_of_torch_are(defaults, adaptive):
    model = Toy()
    steps = [integer_gradients(model, step) for step in range(3)]
    compression = LAGS(
        adaptive=adaptive,
        density=0.1,
        layers=Layers(min_numel=64),
        feedback=Feedback(rescale=False),
    )
    with DEFAULTS[defaults]():
        optimizer = distribute(model, compression)
    for step, gradients in enumerate(steps):
        before = residuals(optimizer)
        with DEFAULTS[defaults]():
            optimizer.zero_grad()
            model.backward(gradients)
            optimizer.step()
        assert_nothing_is_lost(model, step, before, optimizer, gradients)
    with DEFAULTS[defaults]():
        emptied = optimizer.exchange.reset_residual(optimizer.state_dict())
        optimizer.load_state_dict(emptied)
    assert not any(part.any() for part in residuals(optimizer).values())
