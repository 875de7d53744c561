"""Damaged, foreign or dangerous checkpoints are refused by name on every rank."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from collections import OrderedDict
from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from tests.checkpoints import (
    as_before_manifests,
    cut,
    flip_a_bit,
    held_by_another_process,
    seal_again,
)
from tests.parallel.torch_checkpoints import names_beside, new, several_ranks, sparse_verdict, train
from tests.torch_model import residuals

__all__ = ["sparse_verdict"]

LAST = f"rank-{hvd.size() - 1}-of-{hvd.size()}"
DAMAGES = {
    "changed": (flip_a_bit, "does not match its digest"),
    "cut": (lambda path: cut(path, 0.5), "is cut short"),
    "empty": (lambda path: cut(path, 0), "is empty"),
    "missing": (Path.unlink, "is missing"),
}


def saved(folder, steps=3, **extra):
    """Returns the model and the optimizer after saving their checkpoint."""
    model, optimizer = new()
    train(model, optimizer, range(steps))
    optimizer.exchange.save_checkpoint(folder, model, **extra)
    hvd.barrier()
    return model, optimizer


def on_rank_0(action, *args):
    """Runs an action on rank 0 between two barriers."""
    hvd.barrier()
    if hvd.rank() == 0:
        action(*args)
    hvd.barrier()


def assert_refused(folder, match, **options):
    """Checks that loading is refused, and that nothing has changed on any rank."""
    twin, resumed = new()
    train(twin, resumed, [5])
    before = state_of(twin, resumed)
    with pytest.raises(CheckpointMismatchError, match=match):
        resumed.exchange.load_checkpoint(folder, twin, **options)
    for one, other in zip(before, state_of(twin, resumed), strict=True):
        assert torch.equal(one, other)


def state_of(model, optimizer):
    moments = [one for state in optimizer.state_dict()["state"].values() for one in state.values()]
    parts = [torch.get_rng_state(), *model.parameters(), *moments]
    if hvd.size() > 1:
        parts += residuals(optimizer).values()
    return [one.detach().clone() for one in parts]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["shared.pt", f"{LAST}.pt", "shared.manifest", f"{LAST}.manifest"])
def test_a_damaged_file_is_named(name, damage, folder):
    saved(folder)
    spoil, told = DAMAGES[damage]
    if name.endswith("manifest") and damage in ("changed", "cut"):
        told = r"(does not match its digest|is cut short or damaged)"
    on_rank_0(spoil, Path(folder) / name)
    match = rf"{name} {told}"
    assert_refused(folder, match)
    if hvd.size() > 1:
        assert_refused(
            folder, match if damage != "missing" else LAST[5] + "|shared", residuals="spread"
        )


def test_files_of_two_checkpoints_are_not_mixed(folder):
    saved(folder, steps=1)
    on_rank_0(shutil.copytree, folder, f"{folder}.kept")
    saved(folder, steps=2)

    def mix():
        for name in (f"{LAST}.pt", f"{LAST}.manifest"):
            shutil.copy(Path(f"{folder}.kept") / name, Path(folder) / name)

    on_rank_0(mix)
    own, others = (r" \(of step 1\)", r" \(of step 2\)") if hvd.size() > 1 else ("", "")
    match = rf"{LAST}.pt{own} belongs to another checkpoint than .*shared.manifest{others}"
    assert_refused(folder, match)
    if hvd.size() > 1:
        assert_refused(folder, match, residuals="spread")


@pytest.mark.parametrize("content", ["nothing", "notes.txt", "a file"])
def test_what_is_no_checkpoint_is_an_error_and_never_none(content, folder):
    def make():
        if content == "a file":
            Path(folder).write_text("not a folder")
            return
        Path(folder).mkdir()
        if content != "nothing":
            (Path(folder) / content).write_text("the user's")

    on_rank_0(make)
    told = {
        "nothing": "is empty",
        "notes.txt": "shared.manifest is missing",
        "a file": "is not a f",
    }
    assert_refused(folder, rf"last.* {told[content]}" if content != "notes.txt" else told[content])


def test_what_is_no_checkpoint_is_kept_when_one_takes_its_place(folder):
    on_rank_0(lambda: (Path(folder).mkdir(), (Path(folder) / "notes.txt").write_text("mine")))
    model, optimizer = saved(folder, epoch=1)
    (kept,) = Path(folder).parent.glob("last.kept-*")
    assert (kept / "notes.txt").read_text() == "mine"
    assert names_beside(Path(folder)) == ["last", kept.name]
    assert optimizer.exchange.load_checkpoint(folder, model) == {"epoch": 1}


def test_a_damaged_checkpoint_does_not_hide_that_the_former_is_whole(folder):
    saved(folder, epoch=1)
    on_rank_0(lambda: Path(folder).rename(f"{folder}.first"))
    model, optimizer = saved(folder, epoch=2)

    def damage():
        cut(Path(folder) / "shared.manifest", 0)
        Path(f"{folder}.first").rename(f"{folder}.old")

    on_rank_0(damage)
    assert_refused(folder, r"shared.manifest is empty.*former one: move .*last away to load it")
    on_rank_0(shutil.copytree, Path(folder).parent, f"{Path(folder).parent}-copy")
    on_rank_0(lambda: Path(folder).rename(f"{folder}.damaged"))
    twin, resumed = new()
    assert resumed.exchange.load_checkpoint(folder, twin) == {"epoch": 1}

    beside = Path(f"{Path(folder).parent}-copy")  # a copy of the checkpoint, to be overwritten
    optimizer.exchange.save_checkpoint(beside / "last", model, epoch=3)
    twin, resumed = new()
    assert resumed.exchange.load_checkpoint(beside / "last", twin) == {"epoch": 3}
    names = names_beside(beside / "last")
    assert len(names) == 2
    assert names[1].startswith("last.kept-")


def test_a_checkpoint_without_digests_loads_with_a_warning(folder, caplog):
    model, _ = saved(folder, epoch=1)
    on_rank_0(as_before_manifests, Path(folder))
    twin, resumed = new()
    with caplog.at_level(logging.WARNING, logger="hvd_sparse"):
        assert resumed.exchange.load_checkpoint(folder, twin) == {"epoch": 1}
    assert ("kept no digests" in caplog.text) == (hvd.rank() == 0)
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )
    for name, left, told in (
        (f"{LAST}.pt", 0.99, "cannot be loaded"),
        (f"{LAST}.pt", 0, "is empty"),
        ("id", 0, "is empty"),
    ):
        on_rank_0(cut, Path(folder) / name, left)
        assert_refused(folder, rf"{name} {told}")


class Code:
    """An object that runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["shared.pt", f"{LAST}.pt"])
def test_code_in_a_file_is_refused_and_not_run(name, folder, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    saved(folder)
    path = Path(folder) / name

    def infect():
        torch.save({**torch.load(path, weights_only=True), "code": Code(f"{folder}-ran-on")}, path)
        seal_again(path)

    on_rank_0(infect)
    assert_refused(folder, rf"{name} cannot be loaded: UnpicklingError: .*mkdir")
    hvd.barrier()
    assert not Path(f"{folder}-ran-on").exists()


@several_ranks
def test_an_extra_object_that_could_not_be_loaded_is_refused_on_all_ranks(folder):
    model, optimizer = saved(folder, epoch=1)
    thing = Path("/x") if hvd.rank() == hvd.size() - 1 else "/x"
    with pytest.raises(InvalidArgumentError, match=r"extra must be .*pathlib[\w.]*\.PosixPath"):
        optimizer.exchange.save_checkpoint(folder, model, thing=thing)
    assert optimizer.exchange.load_checkpoint(folder, model) == {"epoch": 1}


def test_a_model_whose_state_could_not_be_loaded_is_refused_when_it_is_saved(folder, monkeypatch):
    model, optimizer = saved(folder, epoch=1)
    monkeypatch.setattr(type(model), "get_extra_state", lambda _: Path("/x"), raising=False)
    with pytest.raises(OSError, match=r"shared cannot be written: .*pathlib[\w.]*\.PosixPath"):
        optimizer.exchange.save_checkpoint(folder, model, epoch=2)
    hvd.barrier()
    assert names_beside(Path(folder)) == ["last"]
    monkeypatch.undo()
    assert optimizer.exchange.load_checkpoint(folder, model) == {"epoch": 1}


def test_types_that_are_promised_come_back(folder):
    extra = {
        "numbers": [1, 2.5, True, None],
        "text": {"a": ("b", OrderedDict(c="d"))},
        "torch": (torch.Size([2]), torch.float16, torch.ones(2)),
    }
    model, optimizer = saved(folder, **extra)
    found = optimizer.exchange.load_checkpoint(folder, model)
    assert torch.equal(found["torch"][2], extra["torch"][2])
    assert found["torch"][:2] == extra["torch"][:2]
    assert {k: v for k, v in found.items() if k != "torch"} == {
        k: v for k, v in extra.items() if k != "torch"
    }


@pytest.mark.parametrize("what", ["model", "optimizer", "random"])
def test_what_fails_while_it_is_taken_up_changes_nothing(what, folder, monkeypatch):
    saved(folder)
    kind, method = {
        "model": (type(new()[0]), "load_state_dict"),
        "optimizer": (torch.optim.Adam, "load_state_dict"),
        "random": (torch, "set_rng_state"),
    }[what]
    real, failed = getattr(kind, method), []

    def failing(*args, **options):
        done = real(*args, **options)
        if not failed and hvd.rank() == hvd.size() - 1:
            failed.append(True)
            raise RuntimeError("no memory left")
        return done

    with monkeypatch.context() as here:
        here.setattr(kind, method, failing)
        assert_refused(folder, rf"rank {hvd.size() - 1} could not go on: .*no memory left")
    assert failed or hvd.rank() < hvd.size() - 1


def test_two_jobs_do_not_save_to_one_folder_at_a_time(folder):
    model, optimizer = saved(folder, epoch=1)
    on_rank_0(Path(f"{folder}.making-ofanother").mkdir)
    with held_by_another_process(Path(folder), here=hvd.rank() == 0) as other:
        hvd.barrier()
        match = r"another job is saving a checkpoint there \(host .*, process \d+, since .*UTC\)"
        with pytest.raises(OSError, match=match) as refused:
            optimizer.exchange.save_checkpoint(folder, model, epoch=2)
        assert other is None or f"process {other.pid}," in str(refused.value)
        assert names_beside(Path(folder)) == ["last", "last.lock", "last.making-ofanother"]
        hvd.barrier()
    hvd.barrier()  # the other job was killed: its leftovers are removed, and do not block this job
    assert "last.lock" in names_beside(Path(folder))
    hvd.barrier()
    optimizer.exchange.save_checkpoint(folder, model, epoch=3)
    hvd.barrier()
    assert names_beside(Path(folder)) == ["last"]
    assert optimizer.exchange.load_checkpoint(folder, model) == {"epoch": 3}


def test_a_pickle_in_place_of_a_file_is_refused(folder):
    saved(folder)
    path = Path(folder) / "shared.pt"

    def replace():
        path.write_bytes(pickle.dumps(Code(f"{folder}-ran-on")))
        seal_again(path)

    on_rank_0(replace)
    assert_refused(folder, r"shared.pt cannot be loaded: ")
    hvd.barrier()
    assert not Path(f"{folder}-ran-on").exists()
