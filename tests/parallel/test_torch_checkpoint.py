"""Checkpoints of a whole job: complete or absent; any number of ranks loses nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Feedback
from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.pytorch import checkpoint as checkpoint_of_torch
from hvd_sparse.state import checkpoint_folder
from hvd_sparse.torch import GaussianK
from tests.checkpoints import pretend_twice_as_many_ranks
from tests.framework_laws import checkpoint, laws_in
from tests.parallel.torch_checkpoints import (
    FIXED,
    SIMPLE,
    names_beside,
    new,
    several_ranks,
    sparse_verdict,
    train,
)
from tests.parallel.torch_ranks import (
    ON_ANY_RANK,
    integer_gradients,
)
from tests.torch_model import residuals

globals().update(laws_in(checkpoint))

__all__ = ["sparse_verdict"]


@pytest.fixture
def own_folder(folder, monkeypatch):
    """Returns a folder of this rank's own, as if every rank had a machine and a disk of its own."""
    monkeypatch.setattr(hvd, "local_rank", lambda: 0)
    mine = Path(f"{folder}-of-{hvd.rank()}") / "last"
    mine.parent.mkdir()
    return mine


@several_ranks
def test_machines_of_which_some_have_a_later_one_go_on_from_what_all_have(own_folder, monkeypatch):
    model, optimizer = new(SIMPLE)
    train(model, optimizer, [0])
    optimizer.exchange.save_checkpoint(own_folder, model, epoch=1)
    weights = [p.detach().clone() for p in model.parameters()]

    def full_disk(*_):
        raise OSError("no space left on this machine")

    for epoch in (2, 3):  # at 3, most have the common one in last.old
        train(model, optimizer, [epoch])
        with monkeypatch.context() as here, pytest.raises(OSError, match="no space left"):
            if hvd.rank() == hvd.size() - 1:
                here.setattr(checkpoint_folder, "put_in_place", full_disk)
            optimizer.exchange.save_checkpoint(own_folder, model, epoch=epoch)
        assert ("last.old" in names_beside(own_folder)) == (hvd.rank() < hvd.size() - 1)
        twin, resumed = new(SIMPLE)
        assert resumed.exchange.load_checkpoint(own_folder, twin) == {"epoch": 1}
        assert all(torch.equal(p, q) for p, q in zip(twin.parameters(), weights, strict=True))
    optimizer.exchange.save_checkpoint(own_folder, model, epoch=4)
    assert names_beside(own_folder) == ["last"]
    assert optimizer.exchange.load_checkpoint(own_folder, model) == {"epoch": 4}


@several_ranks
def test_machines_without_a_checkpoint_in_common_are_named_and_nothing_changes(own_folder):
    model, optimizer = new(SIMPLE)
    train(model, optimizer, [0])
    for _ in range(2):
        optimizer.exchange.save_checkpoint(own_folder, model)
        if hvd.rank() == hvd.size() - 1 and not own_folder.with_name("kept").exists():
            shutil.copytree(own_folder, own_folder.with_name("kept"))
    twin, resumed = new(SIMPLE)
    last = hvd.size() - 1
    for left, match in (("another", rf"rank 0.*: \w{{8}}; rank {last}: \w{{8}}$"),
                        ("none", rf"rank 0.*: \w{{8}}; rank {last}: none$")):  # fmt: skip
        if hvd.rank() == last:
            shutil.rmtree(own_folder)
            if left == "another":
                own_folder.with_name("kept").rename(own_folder)
        with pytest.raises(CheckpointMismatchError, match=match):
            resumed.exchange.load_checkpoint(own_folder, twin)
    assert all(not p.any() for p in twin.parameters())


@pytest.mark.parametrize("policy", ["own", "reset", *(["spread"] if hvd.size() > 1 else [])])
def test_what_was_written_from_a_gpu_loads_where_there_is_none(policy, folder, monkeypatch):
    model, optimizer = new(SIMPLE)
    train(model, optimizer, range(3))
    with monkeypatch.context() as there:
        there.setattr(torch.serialization, "location_tag", lambda _: "cuda:3")
        optimizer.exchange.save_checkpoint(folder, model, tensor=torch.ones(2))
    twin, resumed = new(SIMPLE)
    found = resumed.exchange.load_checkpoint(folder, twin, residuals=policy)
    assert found["tensor"].device.type == "cpu"
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_random_numbers_of_a_gpu_go_on(folder, monkeypatch):
    device = torch.device("cuda", 0)
    states = {device: torch.full((16,), hvd.rank(), dtype=torch.uint8)}
    monkeypatch.setattr(checkpoint_of_torch, "_device_of", lambda _: device)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda of: states[of])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, of: states.update({of: state}))
    model, optimizer = new(SIMPLE)
    optimizer.exchange.save_checkpoint(folder, model)
    states[device] = torch.zeros(16, dtype=torch.uint8) + 99
    optimizer.exchange.load_checkpoint(folder, model, residuals="reset")
    assert bool((states[device] == 99).all())
    optimizer.exchange.load_checkpoint(folder, model)
    assert bool((states[device] == hvd.rank()).all())


@several_ranks
def test_the_rates_of_spread_residuals_are_those_of_the_checkpoint(folder):
    compression = GaussianK(feedback=Feedback(rescale=True), **FIXED)
    model, optimizer = new(compression)
    train(model, optimizer, range(3))
    optimizer.exchange.save_checkpoint(folder, model)
    if hvd.rank() == 0:
        pretend_twice_as_many_ranks(Path(folder), hvd.size())
    hvd.barrier()
    twin, resumed = new(compression)
    resumed.param_groups[0]["lr"] = 0.25
    resumed.exchange.load_checkpoint(folder, twin, residuals="spread")
    rates = resumed.state_dict()["hvd_sparse"]["lrs"]
    assert all(rates[name] == 0.5 for name in residuals(optimizer))


@several_ranks
def test_saving_between_backward_and_step_is_refused(folder):
    model, optimizer = new(SIMPLE)
    with pytest.raises(ON_ANY_RANK, match="save_checkpoint"):  # some ranks learn of it in backward
        model.backward(integer_gradients(model, 0))
        optimizer.exchange.save_checkpoint(folder, model)
