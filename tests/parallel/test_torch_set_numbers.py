"""Horovod reuses the number of a removed process set for the next one."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.torch import TopK, sparse_allreduce
from tests.parallel.torch_ranks import (
    Toy,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
)


@pytest.mark.skipif(hvd.size() < 3, reason="needs two sets of different ranks")
def test_a_set_with_the_number_of_one_that_was_removed_is_another():
    numbers = []
    last = hvd.size() - 1
    for ranks in ([0, 1], [0, last], [0, last], [1, last]):
        made = hvd.add_process_set(ranks)
        numbers.append(made.process_set_id)
        if made.included():
            tensor = torch.arange(64.0) * (1 + hvd.rank())
            result = sparse_allreduce(
                tensor,
                torch.zeros(64),
                compression=TopK(density=1.0),
                op=hvd.Sum,
                process_set=made,
            )
            assert torch.equal(result, torch.arange(64.0) * sum(1 + rank for rank in ranks))
            model = Toy()
            optimizer = distribute(model, TopK(density=0.5), process_set=made)
            model.backward(integer_gradients(model, 0))
            optimizer.step()
            assert_same_on_all_ranks(model.parameters(), process_set=made)
        hvd.barrier()
        hvd.remove_process_set(made)
    assert len(set(numbers)) < len(numbers)
