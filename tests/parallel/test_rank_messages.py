"""Messages between real ranks: code in them does not run, and no rank hangs."""

from __future__ import annotations

import pickle
from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError
from hvd_sparse.ranks import messages
from hvd_sparse.ranks.world import World
from hvd_sparse.torch import TopK
from tests.parallel.torch_ranks import CULPRIT, Toy, distribute

pytestmark = [
    pytest.mark.skipif(hvd.size() == 1, reason="a single rank is told nothing"),
    pytest.mark.timeout(60),
]


class Touches:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("turn", [0, 1])  # the options; the addresses
def test_code_in_the_place_of_a_record_is_refused_by_all_and_does_not_run(
    tmp_path, monkeypatch, turn
):
    ran = tmp_path / f"ran on {hvd.rank()}"
    encode, turns = messages.encode, iter(range(9))

    def spoiled(thing):
        is_its_turn = next(turns) == turn and hvd.rank() == CULPRIT
        return pickle.dumps(Touches(ran)) if is_its_turn else encode(thing)

    monkeypatch.setattr(messages, "encode", spoiled)
    model = Toy()
    sent = f"rank {CULPRIT} of {hvd.size()} has sent a message that cannot be read as "
    with pytest.raises(HvdSparseError, match=sent + ("Report", "Introduction")[turn]):
        distribute(model, TopK(density=0.2, layers=Layers(min_numel=64)))
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())

    optimizer = distribute(model, TopK(density=1.0, layers=Layers(min_numel=64)))
    model.backward({n: torch.ones_like(p) for n, p in model.named_parameters()})
    optimizer.step()
    assert all(torch.equal(p.grad, torch.full_like(p, hvd.size())) for p in model.parameters())


def test_a_rank_that_has_nothing_to_send_leaves_no_other_waiting():
    world = World.from_horovod(hvd, hvd.global_process_set)
    if hvd.rank() == CULPRIT:
        with pytest.raises(InvalidArgumentError, match="cannot tell other ranks <object object"):
            world.allgather_object(object())
    else:
        with pytest.raises(HvdSparseError, match=f"rank {CULPRIT} of .* cannot be read"):
            world.allgather_object("fine")
    ranks = [(rank, str(rank)) for rank in range(hvd.size())]
    assert world.allgather_object((hvd.rank(), str(hvd.rank())), tuple[int, str]) == ranks
    assert world.broadcast_object(f"of rank {hvd.rank()}") == "of rank 0"
