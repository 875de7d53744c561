"""The files left by a power cut: simulated, or on an ext4 disk if one can be mounted."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

_MIB = 1 << 20


class Pulled:
    """Simulates a power cut at the first rename to `folder`: all unsynced data is lost.

    Args:
        monkeypatch: The pytest fixture.
        notes: Folder shared by all ranks, in which they note the files synced.
        folder: The checkpoint's folder.
    """

    def __init__(self, monkeypatch, notes: Path, folder: Path) -> None:
        self._notes = notes
        fsync, rename = os.fsync, Path.rename

        def noting(descriptor: int) -> None:
            fsync(descriptor)
            self._note(descriptor)

        def losing(path: Path, target: Path) -> Path:
            if Path(target) == folder:
                self._lose(path)
            return rename(path, target)

        monkeypatch.setattr(os, "fsync", noting)
        monkeypatch.setattr(Path, "rename", losing)

    def _note(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        is_folder = stat.S_ISDIR(found.st_mode)
        content = os.listdir(descriptor) if is_folder else found.st_size
        with (self._notes / f"synced-by-{os.getpid()}").open("a") as notes:
            notes.write(json.dumps([found.st_ino, content]) + "\n")

    def _lose(self, made: Path) -> None:
        lines = "".join(one.read_text() for one in self._notes.iterdir()).splitlines()
        synced = [json.loads(line) for line in lines]
        names = [set(content) for ino, content in synced if ino == made.stat().st_ino]
        for path in made.iterdir():
            if [path.stat().st_ino, path.stat().st_size] not in synced:
                os.truncate(path, 0)
            if path.name not in set().union(*names):
                path.unlink()


class Disk:
    """An ext4 disk in an image file, whose copies show the state after a power cut.

    Args:
        folder: Folder for images and mount points.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._image = folder / "disk.img"
        self.at = folder / "disk"
        with self._image.open("wb") as image:
            image.truncate(32 * _MIB)
        subprocess.run(["mkfs.ext4", "-q", self._image], check=True, capture_output=True)
        self.mount(self._image, self.at)
        self.images: list[Path] = []

    @staticmethod
    def mount(image: Path, at: Path) -> None:
        """Mounts an image; raises CalledProcessError if that is impossible."""
        at.mkdir(exist_ok=True)
        subprocess.run(["mount", "-o", "loop", image, at], check=True, capture_output=True)

    @staticmethod
    def mount_small(at: Path) -> None:
        """Mounts a disk of one MiB, which is soon full."""
        at.mkdir()
        options = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(at)]
        subprocess.run(options, check=True, capture_output=True)

    @staticmethod
    def unmount(at: Path) -> None:
        """Unmounts a disk, even if files on it are open; does nothing if none is mounted."""
        subprocess.run(["umount", "-l", at], check=False, capture_output=True)

    def settle(self) -> None:
        """Writes all pending data to the disk."""
        subprocess.run(["sync", "-f", self.at], check=True)

    def cut(self) -> None:
        """Adds a copy of the disk's current state, with its journal committed, to `images`.

        The kernel commits the journal every five seconds, but writes file contents later.
        """
        with (self.at / "tick").open("w") as tick:
            tick.write("tick")
            tick.flush()
            os.fsync(tick.fileno())
        image = self._folder / f"cut-{len(self.images)}.img"
        subprocess.run(["cp", "--sparse=always", self._image, image], check=True)
        self.images.append(image)

    def cut_around_renames(self, monkeypatch) -> None:
        """Cuts the power before and after each rename and each removal of a folder."""
        for owner, name in ((Path, "rename"), (shutil, "rmtree")):
            real = getattr(owner, name)

            def cutting(*args, _real=real, **options):
                self.cut()
                done = _real(*args, **options)
                self.cut()
                return done

            monkeypatch.setattr(owner, name, cutting)
