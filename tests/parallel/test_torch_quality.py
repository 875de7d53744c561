"""The quality of selection, measured on request, equals the same computed in NumPy."""

from __future__ import annotations

import horovod.torch as hvd
import pytest

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.torch import TopK
from tests.framework_laws import laws_in, quality
from tests.parallel.torch_ranks import Toy, distribute, integer_gradients

globals().update(laws_in(quality))

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank leaves nothing behind")
OPTIONS = {"density": 0.1, "layers": Layers(min_numel=64)}


@several_ranks
def test_it_is_measured_when_asked_for_and_watched():
    model = Toy()
    optimizer = distribute(model, TopK(feedback=Feedback(quality_every=2), **OPTIONS))
    told = []
    optimizer.exchange.watch(lambda metrics, step: told.append(metrics))
    for step in range(4):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()
    assert ["assumption_delta" in metrics for metrics in told] == [True, False, True, False]
