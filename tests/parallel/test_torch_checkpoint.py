"""Checkpoints of a whole job: complete or absent; any number of ranks loses nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.state import checkpoint_folder
from hvd_sparse.torch import (
    LAGS,
    GaussianK,
    GTopK,
    Warmup,
    load_checkpoint,
    save_checkpoint,
    stats,
    tuning,
)
from hvd_sparse.torch import checkpoint as checkpoint_of_torch
from hvd_sparse.tuning.tuner import Stage
from tests.checkpoints import pretend_twice_as_many_ranks
from tests.parallel.torch_checkpoints import (
    FIXED,
    SIMPLE,
    folder,
    names_beside,
    new,
    several_ranks,
    sparse_verdict,
    train,
)
from tests.parallel.torch_ranks import (
    ON_ANY_RANK,
    assert_same_on_all_ranks,
    integer_gradients,
    residuals,
    total,
)
from tests.verdict import CYCLE

__all__ = ["folder", "sparse_verdict"]

COMPRESSIONS = {
    "lags": SIMPLE,
    "gtopk": GTopK(**FIXED),
    "gaussiank": GaussianK(
        warmup=Warmup(steps=2, densities=(0.5, 0.25)), rescale_residual=True, **FIXED
    ),
    "adaptive": LAGS(**FIXED),
}


def assert_equal_residuals(one, other):
    for name, residual in residuals(one).items():
        assert torch.equal(residual, residuals(other)[name]), name


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_resumed_run_goes_on_bit_for_bit(name, folder):
    before = CYCLE + 1 if name == "adaptive" else 3
    model, optimizer = new(COMPRESSIONS[name])
    train(model, optimizer, range(before))
    save_checkpoint(folder, model, optimizer, epoch=7)
    train(model, optimizer, range(before, before + 4))

    twin, resumed = new(COMPRESSIONS[name])
    train(twin, resumed, range(20, 22))
    assert load_checkpoint(folder, twin, resumed) == {"epoch": 7}
    train(twin, resumed, range(before, before + 4))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
    assert_equal_residuals(optimizer, resumed)
    if name == "adaptive" and hvd.size() > 1:
        assert tuning(resumed).stage is Stage.SETTLED
        assert tuning(resumed) == tuning(optimizer)
        assert len(stats(resumed).last.buckets) == 1


def test_a_later_checkpoint_replaces_the_former_and_leaves_nothing_behind(folder):
    model, optimizer = new(COMPRESSIONS["lags"])
    for epoch in range(3):
        save_checkpoint(folder, model, optimizer, epoch=epoch)
        train(model, optimizer, [epoch])
    assert load_checkpoint(folder, model, optimizer) == {"epoch": 2}
    assert [path.name for path in Path(folder).parent.iterdir()] == ["last"]


def test_a_job_that_died_between_two_renames_finds_the_former(folder):
    model, optimizer = new(COMPRESSIONS["lags"])
    save_checkpoint(folder, model, optimizer, epoch=1)
    hvd.barrier()
    if hvd.rank() == 0:
        Path(folder).rename(f"{folder}.old")
    hvd.barrier()
    assert load_checkpoint(folder, model, optimizer) == {"epoch": 1}


@pytest.fixture
def own_folder(folder, monkeypatch):
    """Returns a folder of this rank's own, as if every rank had a machine and a disk of its own."""
    monkeypatch.setattr(hvd, "local_rank", lambda: 0)
    mine = Path(f"{folder}-of-{hvd.rank()}") / "last"
    mine.parent.mkdir()
    return mine


@several_ranks
def test_machines_of_which_some_have_a_later_one_go_on_from_what_all_have(own_folder, monkeypatch):
    model, optimizer = new(COMPRESSIONS["lags"])
    train(model, optimizer, [0])
    save_checkpoint(own_folder, model, optimizer, epoch=1)
    weights = [p.detach().clone() for p in model.parameters()]

    def full_disk(*_):
        raise OSError("no space left on this machine")

    for epoch in (2, 3):  # at 3, most have the common one in last.old
        train(model, optimizer, [epoch])
        with monkeypatch.context() as here, pytest.raises(OSError, match="no space left"):
            if hvd.rank() == hvd.size() - 1:
                here.setattr(checkpoint_folder, "put_in_place", full_disk)
            save_checkpoint(own_folder, model, optimizer, epoch=epoch)
        assert ("last.old" in names_beside(own_folder)) == (hvd.rank() < hvd.size() - 1)
        twin, resumed = new(COMPRESSIONS["lags"])
        assert load_checkpoint(own_folder, twin, resumed) == {"epoch": 1}
        assert all(torch.equal(p, q) for p, q in zip(twin.parameters(), weights, strict=True))
    save_checkpoint(own_folder, model, optimizer, epoch=4)
    assert names_beside(own_folder) == ["last"]
    assert load_checkpoint(own_folder, model, optimizer) == {"epoch": 4}


@several_ranks
def test_machines_without_a_checkpoint_in_common_are_named_and_nothing_changes(own_folder):
    model, optimizer = new(COMPRESSIONS["lags"])
    train(model, optimizer, [0])
    for _ in range(2):
        save_checkpoint(own_folder, model, optimizer)
        if hvd.rank() == hvd.size() - 1 and not own_folder.with_name("kept").exists():
            shutil.copytree(own_folder, own_folder.with_name("kept"))
    twin, resumed = new(COMPRESSIONS["lags"])
    last = hvd.size() - 1
    for left, match in (("another", rf"rank 0.*: \w{{8}}; rank {last}: \w{{8}}$"),
                        ("none", rf"rank 0.*: \w{{8}}; rank {last}: none$")):  # fmt: skip
        if hvd.rank() == last:
            shutil.rmtree(own_folder)
            if left == "another":
                own_folder.with_name("kept").rename(own_folder)
        with pytest.raises(CheckpointMismatchError, match=match):
            load_checkpoint(own_folder, twin, resumed)
    assert all(not p.any() for p in twin.parameters())


def test_where_there_is_none_none_is_loaded(folder):
    model, optimizer = new(COMPRESSIONS["lags"])
    assert load_checkpoint(folder, model, optimizer) is None


@pytest.mark.parametrize("policy", ["own", "reset", *(["spread"] if hvd.size() > 1 else [])])
def test_what_was_written_from_a_gpu_loads_where_there_is_none(policy, folder, monkeypatch):
    model, optimizer = new(COMPRESSIONS["lags"])
    train(model, optimizer, range(3))
    with monkeypatch.context() as there:
        there.setattr(torch.serialization, "location_tag", lambda _: "cuda:3")
        save_checkpoint(folder, model, optimizer, tensor=torch.ones(2))
    twin, resumed = new(COMPRESSIONS["lags"])
    found = load_checkpoint(folder, twin, resumed, residuals=policy)
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
    model, optimizer = new(COMPRESSIONS["lags"])
    save_checkpoint(folder, model, optimizer)
    states[device] = torch.zeros(16, dtype=torch.uint8) + 99
    load_checkpoint(folder, model, optimizer, residuals="reset")
    assert bool((states[device] == 99).all())
    load_checkpoint(folder, model, optimizer)
    assert bool((states[device] == hvd.rank()).all())


@several_ranks
def test_the_sum_of_residuals_of_more_ranks_is_spread_and_nothing_is_lost(folder):
    model, optimizer = new(COMPRESSIONS["gaussiank"])
    train(model, optimizer, range(5))
    save_checkpoint(folder, model, optimizer)
    owed = {name: total(part) for name, part in residuals(optimizer).items()}
    if hvd.rank() == 0:
        pretend_twice_as_many_ranks(Path(folder), hvd.size())
    hvd.barrier()

    twin, resumed = new(COMPRESSIONS["gaussiank"])
    with pytest.raises(CheckpointMismatchError, match='residuals="spread"'):
        load_checkpoint(folder, twin, resumed)
    load_checkpoint(folder, twin, resumed, residuals="spread")
    for name, part in residuals(resumed).items():
        assert torch.equal(total(part), 2 * owed[name])
        indices = torch.arange(part.numel())[part != 0]
        assert bool((indices % hvd.size() == hvd.rank()).all())
    rates = resumed.state_dict()["hvd_sparse"]["lrs"]
    assert rates == dict.fromkeys(residuals(optimizer), 0.5)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
    train(twin, resumed, [9])
    assert stats(resumed).last.density_asked < 0.2  # the warm-up is over
    assert_same_on_all_ranks(twin.parameters())


@several_ranks
def test_residuals_can_be_given_up(folder):
    model, optimizer = new(COMPRESSIONS["lags"])
    train(model, optimizer, range(3))
    save_checkpoint(folder, model, optimizer)
    twin, resumed = new(COMPRESSIONS["lags"])
    load_checkpoint(folder, twin, resumed, residuals="reset")
    assert not any(part.any() for part in residuals(resumed).values())
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


@several_ranks
@pytest.mark.parametrize("policy", ["own", "spread"])
def test_a_file_that_is_missing_is_an_error_on_every_rank_and_changes_nothing(policy, folder):
    model, optimizer = new(COMPRESSIONS["lags"])
    train(model, optimizer, range(3))
    save_checkpoint(folder, model, optimizer)
    if hvd.rank() == 0:
        (Path(folder) / f"rank-{hvd.size() - 1}-of-{hvd.size()}.pt").unlink()
    hvd.barrier()
    twin, resumed = new(COMPRESSIONS["lags"])
    with pytest.raises(CheckpointMismatchError, match=f"rank-?s? ?\\[?{hvd.size() - 1}"):
        load_checkpoint(folder, twin, resumed, residuals=policy)
    assert all(not p.any() for p in twin.parameters())


@several_ranks
def test_a_folder_that_one_rank_cannot_write_is_an_error_on_every_rank(folder):
    model, optimizer = new(COMPRESSIONS["lags"])
    mine = "/proc/nowhere/last" if hvd.rank() == 0 else folder
    with pytest.raises(OSError, match="nowhere"):
        save_checkpoint(mine, model, optimizer)


@several_ranks
def test_saving_between_backward_and_step_is_refused(folder):
    model, optimizer = new(COMPRESSIONS["lags"])
    with pytest.raises(ON_ANY_RANK, match="save_checkpoint"):  # some ranks learn of it in backward
        model.backward(integer_gradients(model, 0))
        save_checkpoint(folder, model, optimizer)


def test_bad_arguments_are_refused(folder):
    model, optimizer = new(COMPRESSIONS["lags"])
    with pytest.raises(InvalidArgumentError, match="own, spread, reset, got 'half'"):
        load_checkpoint(folder, model, optimizer, residuals="half")


def test_an_optimizer_without_sparse_gradients_is_saved_as_well(folder):
    model, optimizer = new(hvd.Compression.none)
    train(model, optimizer, range(2))
    save_checkpoint(folder, model, optimizer, epoch=2)
    weights = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, range(2, 3))
    assert load_checkpoint(folder, model, optimizer) == {"epoch": 2}
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))
