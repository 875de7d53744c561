"""An exchange that is rebuilt, as when ranks join or leave."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.pytorch.attachment import attachment_of
from hvd_sparse.torch import LAGS
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
)
from tests.torch_model import residuals

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")


def test_layers_that_were_frozen_meanwhile_are_exchanged_all_the_same():
    model = Toy()
    compression = LAGS(
        adaptive=False, density=0.1, layers=Layers(min_numel=64), feedback=Feedback(rescale=False)
    )
    optimizer = distribute(model, compression)
    for step in range(6):
        frozen = [model.first, model.bias] if 2 <= step < 4 else []
        for p in model.parameters():
            p.requires_grad_(all(p is not other for other in frozen))
        if step == 2:
            attachment_of(optimizer).renewal.give_up()  # as hvd.shutdown does
        before = residuals(optimizer)
        gradients = integer_gradients(model, step)
        given = {n: g for n, g in gradients.items() if getattr(model, n).requires_grad}
        optimizer.zero_grad()
        model.backward(given)
        optimizer.step()
        zeros = {n: torch.zeros_like(g) for n, g in gradients.items()}
        assert_nothing_is_lost(model, step, before, optimizer, {**zeros, **given})
        assert_same_on_all_ranks(model.parameters())
