"""Helpers that damage or change the files of a checkpoint."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hvd_sparse.state.manifest import SHARED, manifest_at, rank_stem, seal


def flip_a_bit(path: Path) -> None:
    """Flips a bit in the middle of a file, where tensors lie."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path, left: float) -> None:
    """Truncates a file to the share `left` of its length."""
    path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size)])


def stem_of(path: Path) -> Path:
    """Returns the stem of a rank's file, or of the file shared by all ranks."""
    return path.with_name(path.name.split(".")[0])


def seal_again(path: Path) -> None:
    """Updates a checkpoint's manifest to match a changed file."""
    manifest = manifest_at(path.parent)
    assert manifest is not None
    stem = stem_of(path)
    stem.with_name(f"{stem.name}.manifest").unlink(missing_ok=True)
    seal(stem, checkpoint=manifest.checkpoint, step=manifest.step, ranks=manifest.ranks)


def pretend_twice_as_many_ranks(folder: Path, size: int) -> None:
    """Turns a checkpoint of `size` ranks into one of twice as many: each file is there twice."""
    manifest = manifest_at(folder)
    assert manifest is not None
    stems = [folder / SHARED]
    for rank in range(size):
        (file,) = [
            path for path in folder.glob(f"{rank_stem(rank, size)}.*") if path.suffix != ".manifest"
        ]
        for twice in (rank, rank + size):
            stem = folder / rank_stem(twice, 2 * size)
            stem.with_name(f"{stem.name}{file.suffix}").write_bytes(file.read_bytes())
            stems.append(stem)
        for path in folder.glob(f"{rank_stem(rank, size)}.*"):
            path.unlink()
    (folder / f"{SHARED}.manifest").unlink()
    for stem in stems:
        seal(stem, checkpoint=manifest.checkpoint, step=manifest.step, ranks=2 * size)


def as_before_manifests(folder: Path) -> None:
    """Turns a checkpoint into one of a version without manifests."""
    manifest = manifest_at(folder)
    assert manifest is not None
    (folder / "id").write_text(manifest.checkpoint)
    for path in folder.glob("*.manifest"):
        path.unlink()


_HOLD = """
import sys, time
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from hvd_sparse.state.folder_lock import saving
with saving(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(1000)
"""


@contextlib.contextmanager
def held_by_another_process(
    folder: Path, *, here: bool = True
) -> Iterator[subprocess.Popen[bytes] | None]:
    """Starts another job that saves to a folder and is killed midway; starts none unless `here`."""
    if not here:
        yield None
        return
    command = [sys.executable, "-c", _HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"held\n"
        yield job
        job.kill()
