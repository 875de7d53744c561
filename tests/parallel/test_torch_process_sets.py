"""Optimizers of process sets, even nested ones, neither mix nor wait for each other."""

from __future__ import annotations

import horovod.torch as hvd
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.torch import LAGS, GTopK, TopK, sparse_allreduce
from tests.framework_laws import laws_in, process_sets
from tests.parallel.torch_ranks import (
    Toy,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
)
from tests.torch_model import residuals

globals().update(laws_in(process_sets))


def test_nested_sets_cannot_deadlock(sets):
    everyone = [hvd.global_process_set, *sets]
    models = [Toy() for _ in everyone]
    optimizers = [
        distribute(
            model,
            preset(adaptive=False, density=0.1, layers=Layers(min_numel=64, bucket_numel=1000)),
            process_set=s,
        )
        for model, preset, s in zip(models, (LAGS, GTopK, TopK), everyone, strict=True)
    ]
    for step in range(5):
        # Every rank computes and waits in a different order.
        order = [(i + hvd.rank() + step) % 3 for i in range(3)]
        for i in order:
            optimizers[i].zero_grad()
            models[i].backward(integer_gradients(models[i], 3 * step + i))
        for i in reversed(order):
            optimizers[i].step()
    for model, process_set in zip(models, everyone, strict=True):
        if process_set.included():
            assert_same_on_all_ranks(model.parameters(), process_set=process_set)


def test_a_state_is_broadcast_to_ranks_outside_the_set(sets):
    model = Toy()
    adam = torch.optim.Adam(model.parameters(), lr=1.0 + hvd.rank())
    optimizer = distribute(
        model,
        LAGS(adaptive=False, layers=Layers(min_numel=64)),
        optimizer=adam,
        process_set=sets[0],
    )
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 1.0
    assert not any(residual.any() for residual in residuals(optimizer).values())


def test_sparse_allreduce_sums_over_the_set(sets):
    for process_set in sets:
        if process_set.included():
            tensor = torch.full((50,), float(1 + hvd.rank()))
            result = sparse_allreduce(
                tensor,
                torch.zeros(50),
                compression=TopK(density=1.0),
                op=hvd.Sum,
                process_set=process_set,
            )
            assert torch.equal(
                result, torch.full((50,), float(sum(process_set.ranks)) + hvd.size() - 1)
            )
