"""Times error feedback with the coding of all values for the wire, and reading the code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from contenders import buffer
from reporting import Row, Timing

from hvd_sparse import _core_testing

CHUNK = 65536  # entries that are coded together
UNTIMED = 3  # steps, in which errors come to be what they are in a long run
FORMATS = {
    "bfloat16": ("bfloat16", 1.0),
    "float16": ("float16", 1.0),
    "int8": ("int8", 1.0),
    "int4": ("int4", 1.0),
    "ternary": ("ternary", 1.0),
    "ternary, scale 1.75": ("ternary", 1.75),
}
FEEDBACK, FILL = "residual.add_(gradient)", "out.fill_(1)"


class DenseCodes:
    """All that is timed for one type, in turns.

    Attributes:
        verified: True if value = decoded value + error has held for every entry so far.
        bytes: Bytes of the last step's code.
    """

    def __init__(self, values: str, scale: float, numel: int) -> None:
        self._coder = _core_testing.DenseCoder(values, scale=scale, numel=numel, chunk=CHUNK)
        self._residual, self._plain, self._out = (torch.zeros(numel) for _ in range(3))
        self.verified = True
        self.bytes = 0

    def step(self, gradient: torch.Tensor) -> Mapping[str, float]:
        """Returns the seconds that each call took."""
        out, residual, expected = self._out, self._residual, self._plain
        seconds = {}
        expected.copy_(residual)
        seconds[FEEDBACK] = _took(partial(expected.add_, gradient))
        seconds["feedback and code"] = _took(lambda: self._take(gradient))
        seconds[FILL] = _took(partial(out.fill_, 1))
        seconds["add"] = _took(partial(self._coder.add, buffer(out)))
        added = out.clone()
        seconds["decode"] = _took(partial(self._coder.decode, buffer(out)))
        self.verified &= torch.equal(added, 1 + out) and torch.equal(out + residual, expected)
        return seconds

    def _take(self, gradient: torch.Tensor) -> None:
        self.bytes = self._coder.take(buffer(gradient), buffer(self._residual))


def measure_dense_codes(numel: int, *, steps: int) -> tuple[list[Row], bool]:
    """Returns rows of all types, and true if all that was sent and kept is what there was.

    Args:
        numel: Number of entries of each gradient; they are Laplace distributed.
        steps: Number of timed steps of each type, after a few untimed ones.
    """
    gradients = [torch.distributions.Laplace(0.0, 1.0).sample((numel,)) for _ in range(2)]
    rows, verified = [], True
    for name, (values, scale) in FORMATS.items():
        codes = DenseCodes(values, scale, numel)
        every = [codes.step(gradients[step % 2]) for step in range(UNTIMED + steps)]
        timings = {call: Timing.of([one[call] for one in every[UNTIMED:]]) for call in every[0]}
        verified &= codes.verified
        for call, floor in (("feedback and code", FEEDBACK), ("add", FEEDBACK), ("decode", FILL)):
            facts: dict[str, float | int | str] = {
                "floor": floor,
                "x floor": timings[call].median / timings[floor].median,
                "bytes per entry": codes.bytes / numel,
            }
            rows.append(Row(f"{name}: {call}", timings[call], facts))
    return rows, verified


def _took(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
