"""Manifests: each rank records which checkpoint its files belong to, and their digests.

A manifest describes the files of one stem: `rank-3-of-16.manifest` those named `rank-3-of-16.*`,
and `shared.manifest` those named `shared.*`. It is JSON:

    {"format": 1, "checkpoint": "<id>", "step": 900, "ranks": 16,
     "files": {"rank-3-of-16.pt": {"bytes": 4096, "sha256": "..."}}, "sha256": "..."}

The last digest is that of the manifest itself, of its other entries.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.state.durable import sync

SHARED = "shared"

_FORMAT = 1
_SUFFIX = ".manifest"
_CHUNK = 1 << 20  # bytes that are hashed at a time

_OLD_ID = "id"  # the file by which versions without manifests told checkpoints apart
_OLD_RANKS = re.compile(r"rank-\d+-of-(\d+)\.")


@dataclass(frozen=True)
class Manifest:
    """A record of the files that share one stem.

    Attributes:
        checkpoint: The id of the checkpoint, the same in all its manifests.
        step: Steps that the exchange had made; None where there is no exchange.
        ranks: Number of ranks that saved the checkpoint.
        files: By name: "bytes" and "sha256". None in checkpoints of versions without manifests.
    """

    checkpoint: str
    step: int | None
    ranks: int
    files: Mapping[str, Mapping[str, Any]] | None


def rank_stem(rank: int, size: int) -> str:
    """Returns the stem of one rank's files."""
    return f"rank-{rank}-of-{size}"


def seal(stem: Path, *, checkpoint: str, step: int | None, ranks: int) -> None:
    """Writes the manifest of the files `stem.*`, and syncs these, the manifest and its folder."""
    files = {}
    for path in sorted(stem.parent.glob(f"{stem.name}.*")):
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _digest_of_file(path)}
    entries = {
        "format": _FORMAT,
        "checkpoint": checkpoint,
        "step": step,
        "ranks": ranks,
        "files": files,
    }
    manifest = _manifest_of(stem)
    manifest.write_text(json.dumps({**entries, "sha256": _digest_of(entries)}, indent=1))
    sync(manifest)
    sync(manifest.parent)


def manifest_at(folder: Path) -> Manifest | None:
    """Returns the manifest of the files that all ranks share; None if there is no such folder.

    Raises:
        CheckpointMismatchError: The folder is no whole checkpoint; names the problem.
    """
    try:
        if not folder.is_dir():
            if folder.exists():
                raise CheckpointMismatchError(f"{folder} is not a folder")
            return None
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise CheckpointMismatchError(f"{folder} cannot be read: {error}") from None
    if not names:
        raise CheckpointMismatchError(f"{folder} is empty: it holds no checkpoint")
    if _OLD_ID in names and f"{SHARED}{_SUFFIX}" not in names:
        return _old_manifest(folder, names)
    return _read(folder / SHARED)


def checked(folder: Path, shared: Manifest, stem: str, suffix: str) -> Path:
    """Returns the path of a file, after checking that all files of its stem are intact.

    Args:
        folder: The checkpoint's folder.
        shared: The result of `manifest_at(folder)`.
        stem: The stem of the file: SHARED, or from `rank_stem`.
        suffix: The rest of the file's name.

    Raises:
        CheckpointMismatchError: Names a file and what is wrong with it.
    """
    path = folder / f"{stem}{suffix}"
    if shared.files is None:
        _check_size(path, None)
        return path
    manifest = _read(folder / stem)
    assert manifest.files is not None
    if manifest.checkpoint != shared.checkpoint:
        raise CheckpointMismatchError(
            f"{path}{_age(manifest)} belongs to another checkpoint than "
            f"{_manifest_of(folder / SHARED)}{_age(shared)}"
        )
    for name, record in manifest.files.items():
        file = folder / name
        _check_size(file, record["bytes"])
        if _digest_of_file(file) != record["sha256"]:
            raise CheckpointMismatchError(
                f"{file} does not match its digest: it was changed or damaged"
            )
    if path.name not in manifest.files:
        raise CheckpointMismatchError(f"{path} is missing: {_manifest_of(folder / stem)} lacks it")
    return path


def _age(manifest: Manifest) -> str:
    return "" if manifest.step is None else f" (of step {manifest.step})"


def _manifest_of(stem: Path) -> Path:
    return stem.with_name(f"{stem.name}{_SUFFIX}")


def _read(stem: Path) -> Manifest:
    path = _manifest_of(stem)
    _check_size(path, None)
    try:
        entries = json.loads(path.read_bytes())
        digest = entries.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointMismatchError(f"{path} is cut short or damaged: {error}") from None
    if digest != _digest_of(entries):
        raise CheckpointMismatchError(
            f"{path} does not match its digest: it was changed or damaged"
        )
    if entries["format"] != _FORMAT:
        raise CheckpointMismatchError(
            f"{path} has format {entries['format']} and this version reads format {_FORMAT}"
        )
    return Manifest(entries["checkpoint"], entries["step"], entries["ranks"], entries["files"])


def _old_manifest(folder: Path, names: list[str]) -> Manifest:
    """Makes the manifest of a checkpoint that an older version saved without one."""
    path = folder / _OLD_ID
    _check_size(path, None)
    ranks = max((int(one[1]) for one in map(_OLD_RANKS.match, names) if one), default=0)
    try:
        return Manifest(path.read_text(), None, ranks, None)
    except (OSError, ValueError) as error:
        raise CheckpointMismatchError(f"{path} cannot be read: {error}") from None


def _check_size(path: Path, expected: int | None) -> None:
    """Refuses a file that is missing, empty, or not as long as it was; None: any length but 0."""
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise CheckpointMismatchError(
            f"{path} is missing: it was deleted, or lies on another machine"
        ) from None
    except OSError as error:
        raise CheckpointMismatchError(f"{path} cannot be read: {error}") from None
    if expected is not None and found > expected:
        raise CheckpointMismatchError(
            f"{path} is longer than it was: {found:,} instead of {expected:,} bytes"
        )
    if found == 0 and expected != 0:
        raise CheckpointMismatchError(f"{path} is empty")
    if expected is not None and found < expected:
        raise CheckpointMismatchError(f"{path} is cut short: {found:,} of {expected:,} bytes")


def _digest_of(entries: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise CheckpointMismatchError(f"{path} cannot be read: {error}") from None
    return digest.hexdigest()
