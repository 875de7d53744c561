"""Compares residuals before and after the ranks of an elastic job changed.

It does not use the package, and works for any framework. It follows one layer, whose gradients are
integers times UNIT, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

UNIT = 2.0**-10  # so small that gTop-k prefers the other gradients
COUNTED = (50, 40)  # shape of the layer


def a_count(draw: np.random.Generator) -> np.ndarray:
    """Returns a gradient of the layer."""
    return draw.integers(-9, 10, COUNTED).astype(np.float32) * np.float32(UNIT)


class Witness:
    """The witness of one rank.

    Args:
        hvd: Horovod's module.
        residual: Returns this rank's residual of the layer: float64, flat; zeros if it holds none.
        summed: Sums such an array over the ranks; takes a name.
        gathered: Gathers an object from every rank; takes a name.
        tolerance: Relative error of a sum of residuals: 0 where they are integers times UNIT.

    Attributes:
        why: Cause of the last change of ranks: "new", "failure" or "update".
    """

    def __init__(
        self,
        hvd: Any,
        *,
        residual: Callable[[], np.ndarray],
        summed: Callable[[np.ndarray, str], np.ndarray],
        gathered: Callable[[Any, str], list[Any]],
        tolerance: float = 0.0,
    ) -> None:
        self.why = "new"
        self._hvd = hvd
        self._residual, self._summed, self._gathered = residual, summed, gathered
        self._tolerance = tolerance
        self._own = np.zeros(np.prod(COUNTED))  # this rank's residual at the last commit
        self._total = np.zeros_like(self._own)  # the sum over all ranks then
        self._steps = 0
        self._place = (-1, 0)  # rank and size then

    def before_commit(self, steps: int) -> None:
        own = self._residual()
        self._total = self._summed(own, "witness.total")
        self._own, self._steps = own, steps
        self._place = (self._hvd.rank(), self._hvd.size())

    def check(self, policy: str) -> None:
        """Checks, after the ranks have changed, that they hold the remaining ranks' residuals."""
        rank, size = self._hvd.rank(), self._hvd.size()
        everybody = self._gathered((self.why, self._steps), "witness.why")
        reasons = {why for why, _ in everybody}
        # Ranks that leave in order hand over their residuals; those of a dead rank are lost. A rank
        # that had not finished the step that rank 0 has committed counts as dead.
        if "failure" in reasons:
            kept = self._own * (self._steps == everybody[0][1])
        else:
            kept = self._total * (rank == 0)
        expected = self._summed(kept, "witness.expected")
        if policy == "reset":
            expected = np.zeros_like(expected)
        if self.why == "failure" and self._place == (rank, size):
            assert np.array_equal(self._residual(), self._own), "not its own residual"
        found = self._summed(self._residual(), "witness.found")
        error = np.abs(found - expected)
        assert np.all(error <= self._tolerance * np.abs(expected).max()), error.sum()
        shares = self._gathered(int(np.count_nonzero(self._residual())), "witness.shares")
        total = int(np.abs(expected).sum() / UNIT)
        self.tell(f"reasons {sorted(reasons)} size {size} total {total} shares {shares}")

    def tell(self, text: str) -> None:
        """Prints the text on rank 0."""
        if self._hvd.rank() == 0:
            print(text, flush=True)
