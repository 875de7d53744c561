"""Checkpoints survive a power cut and a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

from tests.parallel.torch_checkpoints import names_beside, new, sparse_verdict, train
from tests.parallel.torch_ranks import a_name
from tests.power_cut import Disk, Pulled

__all__ = ["sparse_verdict"]


def test_what_was_renamed_had_been_synced(folder, tmp_path_factory, monkeypatch):
    mine = str(tmp_path_factory.mktemp("notes"))
    notes = hvd.broadcast_object(mine, 0, name=a_name(hvd.global_process_set))
    model, optimizer = new()
    train(model, optimizer, range(2))
    with monkeypatch.context() as here:
        Pulled(here, Path(notes), Path(folder))
        optimizer.exchange.save_checkpoint(folder, model, epoch=2)
    twin, resumed = new()
    assert resumed.exchange.load_checkpoint(folder, twin) == {"epoch": 2}
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )


def on_rank_0(action):
    """Runs an action on rank 0; returns its result or raises its error on all ranks."""
    done, problem = None, None
    if hvd.rank() == 0:
        try:
            done = action()
        except (OSError, subprocess.CalledProcessError) as error:
            problem = f"{error} {getattr(error, 'stderr', '')}"
    problem = hvd.broadcast_object(problem, 0, name=a_name(hvd.global_process_set))
    if problem is not None:
        pytest.skip(f"no file system can be mounted here: {problem}")
    return done


def test_a_power_cut_at_any_moment_leaves_a_whole_checkpoint(folder, monkeypatch):
    beside = Path(folder).parent
    disk = on_rank_0(lambda: Disk(beside))
    place = beside / "disk" / "run" / "last"
    model, optimizer = new()
    weights = {}

    def save(epoch):
        train(model, optimizer, [epoch])
        weights[epoch] = [p.detach().clone() for p in model.parameters()]
        optimizer.exchange.save_checkpoint(place, model, epoch=epoch)

    try:
        save(1)
        with monkeypatch.context() as here:
            if hvd.rank() == 0:
                disk.settle()
                disk.cut_around_renames(here)
            save(2)
        if hvd.rank() == 0:
            disk.cut()
        images = hvd.broadcast_object(
            disk.images if hvd.rank() == 0 else None, 0, name=a_name(hvd.global_process_set)
        )
        assert len(images) > 6
        copy = beside / "copy"
        epochs = []
        for image in images:
            on_rank_0(lambda image=image: Disk.mount(image, copy))
            twin, resumed = new()
            found = resumed.exchange.load_checkpoint(copy / "run" / "last", twin)
            epochs.append(found["epoch"])
            for p, q in zip(twin.parameters(), weights[epochs[-1]], strict=True):
                assert torch.equal(p, q)
            on_rank_0(lambda: Disk.unmount(copy))
        assert epochs == sorted(epochs)
        assert {epochs[0], epochs[-1]} == {1, 2}
        hvd.barrier()
    finally:
        if hvd.rank() == 0:
            Disk.unmount(beside / "copy")
            Disk.unmount(disk.at)


@contextlib.contextmanager
def one_mib(at):
    """A disk of one MiB, which is soon full."""
    on_rank_0(lambda: Disk.mount_small(at))
    try:
        yield at
        hvd.barrier()
    finally:
        if hvd.rank() == 0:
            Disk.unmount(at)


def test_a_full_disk_is_told_as_such_and_keeps_the_former_checkpoint(folder):
    with one_mib(Path(folder).parent / "small") as small_disk:
        save_until_full(small_disk)


def save_until_full(small_disk):
    model, optimizer = new()
    train(model, optimizer, [0])
    optimizer.exchange.save_checkpoint(small_disk / "last", model, epoch=1)
    big = torch.ones(1 << 19)
    with pytest.raises(OSError, match=r"No space left on device.*last\.making-\w+/"):
        optimizer.exchange.save_checkpoint(small_disk / "last", model, epoch=2, big=big)
    hvd.barrier()
    assert names_beside(small_disk / "last") == ["last"]
    assert optimizer.exchange.load_checkpoint(small_disk / "last", model) == {"epoch": 1}
    optimizer.exchange.save_checkpoint(small_disk / "last", model, epoch=2)
    assert optimizer.exchange.load_checkpoint(small_disk / "last", model) == {"epoch": 2}


def test_a_disk_that_is_full_when_files_are_synced_is_told_as_such(folder, monkeypatch):
    model, optimizer = new()
    optimizer.exchange.save_checkpoint(folder, model, epoch=1)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as here:
        if hvd.rank() == hvd.size() - 1:
            here.setattr(os, "fsync", full)
        told = rf"No space left on device.*last\.making-\w+/rank-{hvd.size() - 1}-of-{hvd.size()}"
        if hvd.size() == 1:
            told = "No space left on device"  # rank 0 makes the folder, too
        with pytest.raises(OSError, match=told):
            optimizer.exchange.save_checkpoint(folder, model, epoch=2)
    hvd.barrier()
    assert names_beside(Path(folder)) == ["last"]
    assert optimizer.exchange.load_checkpoint(folder, model) == {"epoch": 1}
