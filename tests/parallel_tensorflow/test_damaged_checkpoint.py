"""Damaged or unwritable checkpoints: named on every rank, and nothing is lost."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.tensorflow import checkpoint
from tests.checkpoints import as_before_manifests, cut, flip_a_bit
from tests.parallel_tensorflow.checkpoints import SIMPLE, Loop, assert_equal, sparse_verdict
from tests.parallel_tensorflow.ranks import a_name
from tests.power_cut import Disk, Pulled

__all__ = ["sparse_verdict"]

LAST = f"rank-{hvd.size() - 1}-of-{hvd.size()}"


def barrier():
    hvd.allgather_object(None, name=a_name())


def on_rank_0(action, *args):
    """Runs an action on rank 0 between two barriers."""
    barrier()
    if hvd.rank() == 0:
        action(*args)
    barrier()


def saved(folder, **extra):
    """Returns the loop after saving its checkpoint."""
    loop = Loop(SIMPLE)
    loop.train(range(2))
    loop.save(folder, **extra)
    return loop


def assert_refused(folder, match, **options):
    """Checks that loading is refused, and that nothing has changed on any rank."""
    twin = Loop(SIMPLE)
    twin.train([5])
    before = state_of(twin)
    with pytest.raises(CheckpointMismatchError, match=match):
        twin.load(folder, **options)
    assert_equal(before, state_of(twin))


def state_of(loop):
    generator = tf.random.get_global_generator().state
    parts = [*loop.variables, *loop.optimizer.variables, generator, *loop.residuals().values()]
    return [np.array(np.asarray(one)) for one in parts]


@pytest.mark.parametrize(
    ("name", "spoil", "told"),
    [
        *(
            (name, flip_a_bit, "does not match its digest")
            for name in ("shared.json", "shared.index", "shared.data-00000-of-00001", f"{LAST}.npz")
        ),
        ("shared.data-00000-of-00001", lambda path: cut(path, 0.5), "is cut short: "),
        ("shared.index", Path.unlink, "is missing"),
        (f"{LAST}.npz", lambda path: cut(path, 0), "is empty"),
        ("shared.manifest", lambda path: cut(path, 0), "is empty"),
    ],
)
def test_a_damaged_file_is_named(name, spoil, told, folder):
    saved(folder)
    on_rank_0(spoil, Path(folder) / name)
    assert_refused(folder, f"{name} {told}")
    if hvd.size() > 1 and name.startswith("rank"):
        assert_refused(folder, f"{name} {told}", residuals="spread")


def test_a_folder_without_a_checkpoint_is_an_error_and_never_none(folder):
    on_rank_0(Path(folder).mkdir)
    assert_refused(folder, "last is empty")


def test_a_checkpoint_without_digests_loads_with_a_warning(folder, caplog):
    loop = saved(folder, epoch=1)
    on_rank_0(as_before_manifests, Path(folder))
    twin = Loop(SIMPLE)
    twin.prepare()
    with caplog.at_level(logging.WARNING, logger="hvd_sparse"):
        assert twin.load(folder) == {"epoch": 1}
    assert ("kept no digests" in caplog.text) == (hvd.rank() == 0)
    assert_equal(loop.variables, twin.variables)
    for name in (f"{LAST}.npz", "shared.json"):
        on_rank_0(cut, Path(folder) / name, 0.9)
        assert_refused(folder, f"{name} is damaged")


@pytest.mark.parametrize("what", ["shared", "random", "residuals"])
def test_what_fails_while_it_is_taken_up_changes_nothing(what, folder, monkeypatch):
    saved(folder)
    kind, method = {
        "shared": (tf.train.Checkpoint, "read"),
        "random": (checkpoint._Parts, "set_random"),
        "residuals": (checkpoint.saved_state, "load"),
    }[what]
    if what == "residuals" and hvd.size() == 1:
        pytest.skip("a single rank has no residuals")
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


def test_what_was_renamed_had_been_synced(folder, tmp_path_factory, monkeypatch):
    mine = str(tmp_path_factory.mktemp("notes"))
    notes = hvd.allgather_object(mine, name=a_name())[0]
    with monkeypatch.context() as here:
        Pulled(here, Path(notes), Path(folder))
        loop = saved(folder, epoch=2)
    twin = Loop(SIMPLE)
    twin.prepare()
    assert twin.load(folder) == {"epoch": 2}
    assert_equal(loop.variables, twin.variables)


def test_a_full_disk_is_told_as_such_and_keeps_the_former_checkpoint(folder):
    at = Path(folder).parent / "small"
    problem = None
    if hvd.rank() == 0:
        try:
            Disk.mount_small(at)
        except (OSError, subprocess.CalledProcessError) as error:
            problem = f"{error} {getattr(error, 'stderr', '')}"
    problem = hvd.allgather_object(problem, name=a_name())[0]
    if problem is not None:
        pytest.skip(f"no file system can be mounted here: {problem}")
    try:
        loop = saved(at / "last", epoch=1)
        big = Loop(SIMPLE, {"big": (1 << 19,)})
        with pytest.raises(OSError, match=r"last\.making-\w+/.*[Nn]o space left on device"):
            big.save(at / "last")
        barrier()
        assert [path.name for path in at.iterdir()] == ["last"]
        assert loop.load(at / "last") == {"epoch": 1}
        barrier()
    finally:
        if hvd.rank() == 0:
            Disk.unmount(at)
