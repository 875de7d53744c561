"""Types of csrc/bindings/python_testing.cc; only builds for development have this module."""

from collections.abc import Mapping

from hvd_sparse._core import Block

_Buffer = tuple[int, int, str]  # address, numel, dtype: a hvd_sparse.places.buffer.Buffer

class Selector:
    def __init__(
        self,
        sparsifier: str,
        options: Mapping[str, float],
        *,
        numel: int,
        k: int,
        device: str = "cpu",
    ) -> None: ...
    def select(
        self,
        gradient: _Buffer,
        *,
        decay: float,
        scale: float,
        residual: _Buffer,
        state: _Buffer,
        velocity: _Buffer | None = None,
        momentum: float = 0.0,
    ) -> int: ...
    @property
    def block(self) -> Block: ...

def scatter(
    block: Block, scale: float, gradient: _Buffer, residual: _Buffer, *, device: str = "cpu"
) -> int: ...
def settle(selected: Block, reduced: Block, residual: _Buffer, *, device: str = "cpu") -> None: ...

class DenseCoder:
    def __init__(self, values: str, *, scale: float = 1.0, numel: int, chunk: int) -> None: ...
    def take(self, gradient: _Buffer, residual: _Buffer) -> int: ...
    def decode(self, out: _Buffer) -> None: ...
    def add(self, total: _Buffer) -> None: ...

class MergeWork:
    def enqueue(self, stream: int) -> None: ...
    def wait(self) -> Block: ...

def merge_work(own: Block, theirs: Block, *, k: int, device: str) -> MergeWork: ...
