"""CUB's compaction and top-k, called through ctypes from the compiled cub_pieces.cu.

It is compiled for the device in use when a benchmark asks for it, into build/benchmarks, once for
each nvcc and device: CUB is a header library, and the one of the installed nvcc is compared.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch

from hvd_sparse.errors import UnavailableError

SOURCE = Path(__file__).with_suffix(".cu")
FOLDER = Path(__file__).parents[1] / "build" / "benchmarks"
COMPILING_S = 900


class Cub:
    """CUB, as compiled for one device.

    Args:
        library: Result of `compile_for`.

    Attributes:
        version: Version of CUB, such as "3.0.1".
    """

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        number = self._library.cub_version()
        self.version = f"{number // 100_000}.{number // 100 % 1000}.{number % 100}"

    @classmethod
    def on(cls, device: str) -> Cub:
        """Compiles for a device; raises UnavailableError, with the reason, if that fails."""
        major, minor = torch.cuda.get_device_capability(device)
        return cls(compile_for(f"sm_{major}{minor}"))

    @property
    def has_top_k(self) -> bool:
        """True if this CUB has DeviceTopK."""
        return bool(self._library.cub_has_top_k())

    def select(self, u: torch.Tensor, threshold: float) -> Select:
        """Prepares finding the positions of all entries that exceed a threshold."""
        return Select(self._library, u, threshold)

    def top_k(self, u: torch.Tensor, k: int) -> TopK:
        """Prepares finding the positions of the k largest magnitudes."""
        return TopK(self._library, u, k)


class Piece(ABC):
    """A call of CUB, with the temporary memory whose size a first call returned.

    Attributes:
        indices: Positions of the selected entries, int32.
    """

    def __init__(self, function: Any, u: torch.Tensor, most: int) -> None:
        self._function = function
        self._u = u
        self.indices = torch.empty(most, dtype=torch.int32, device=u.device)

    def _allocate(self) -> None:
        self._bytes = ctypes.c_size_t(0)
        self._temporary: torch.Tensor | None = None
        self.enqueue(0)
        self._temporary = torch.empty(
            max(1, self._bytes.value), dtype=torch.uint8, device=self._u.device
        )

    @abstractmethod
    def enqueue(self, stream: int) -> None:
        """Launches the work on a stream."""

    def _call(self, *arguments: object) -> None:
        temporary = None if self._temporary is None else _pointer(self._temporary)
        error = self._function(temporary, ctypes.byref(self._bytes), _pointer(self._u), *arguments)
        if error != 0:
            raise RuntimeError(f"CUB ended with CUDA's error {error}")


class Select(Piece):
    """cub::DeviceSelect::If over all positions of u; the first `count` of `indices`, in order."""

    def __init__(self, library: ctypes.CDLL, u: torch.Tensor, threshold: float) -> None:
        super().__init__(library.cub_select, u, u.numel())
        self.count = torch.zeros(1, dtype=torch.int32, device=u.device)
        self._threshold = ctypes.c_float(threshold)
        self._allocate()

    def enqueue(self, stream: int) -> None:
        """Launches the work on a stream."""
        numel = ctypes.c_int(self._u.numel())
        indices, count = _pointer(self.indices), _pointer(self.count)
        self._call(self._threshold, indices, count, numel, ctypes.c_void_p(stream))

    def taken(self) -> torch.Tensor:
        """Returns the positions that the last call has found: int64, in order."""
        return self.indices[: int(self.count)].long()


class TopK(Piece):
    """cub::DeviceTopK::MaxPairs of the magnitudes of u and their positions, in no order."""

    def __init__(self, library: ctypes.CDLL, u: torch.Tensor, k: int) -> None:
        super().__init__(library.cub_top_k, u, k)
        self.magnitudes = torch.empty(k, device=u.device)
        self._allocate()

    def enqueue(self, stream: int) -> None:
        """Launches the work on a stream."""
        numel, k = ctypes.c_int(self._u.numel()), ctypes.c_int(len(self.indices))
        indices, magnitudes = _pointer(self.indices), _pointer(self.magnitudes)
        self._call(indices, magnitudes, numel, k, ctypes.c_void_p(stream))

    def taken(self) -> torch.Tensor:
        """Returns the positions that the last call has found: int64, in order."""
        return self.indices.long().sort().values


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def compile_for(architecture: str) -> Path:
    """Returns the library for "sm_90" and the like; compiles it if there is none yet.

    Raises:
        UnavailableError: There is no nvcc, or it cannot compile it.
    """
    compiler = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if compiler is None:
        raise UnavailableError("no nvcc on PATH, and CUDACXX is not set")
    try:
        version = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        digest = hashlib.sha256(SOURCE.read_bytes() + version.encode()).hexdigest()[:12]
        library = FOLDER / f"cub_{architecture}_{digest}.so"
        if not library.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            part = library.with_suffix(f".{os.getpid()}")
            options = ["-std=c++17", "-O3", "-shared", "-Xcompiler", "-fPIC"]
            subprocess.run(
                [compiler, *options, f"-arch={architecture}", "-o", str(part), str(SOURCE)],
                capture_output=True, text=True, timeout=COMPILING_S, check=True,
            )  # fmt: skip
            part.replace(library)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise UnavailableError(f"{compiler} cannot compile {SOURCE.name}: {said[0]}") from None
    return library
