"""The op in _ops.so, which hands buckets of gradients to the core."""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_sparse import _core
from hvd_sparse.errors import UnavailableError

_LIBRARY = Path(__file__).with_name("_ops.so")
_BUILD_INFO = Path(__file__).parent.with_name("_build_info.json")

_numbers = itertools.count(1)


class Driver:
    """A step driver of the core that ops know by a number.

    Args:
        driver: From `Exchange.drive`.

    Attributes:
        number: For `exchange`.
    """

    def __init__(self, driver: _core.StepDriver) -> None:
        self.number = next(_numbers)
        self._driver = driver
        _symbols().hvd_sparse_add_driver(ctypes.c_int64(self.number), ctypes.c_void_p(driver.table))

    @property
    def steps(self) -> int:
        """Steps exchanged so far."""
        return self._driver.steps

    def close(self, reason: str) -> None:
        """Ends a step that is under way; ops that come later are refused."""
        _symbols().hvd_sparse_remove_driver(ctypes.c_int64(self.number))
        self._driver.cancel(reason)
        self._driver.close()


def exchange(
    gradients: Sequence[Any], *, residual: tf.Variable, states: tf.Variable, driver: int, place: int
) -> list[Any]:
    """One bucket's part of a step; done once all buckets of the driver's step are.

    Args:
        gradients: float32, float64, float16 or bfloat16 tensors, of any shape.
        residual: float32, as long as all gradients together.
        states: float32, [segments, 4].
        driver: Number of a Driver.
        place: Of the bucket in it.

    Returns:
        Tensors like the gradients.
    """
    averages: list[Any] = _library().hvd_sparse_exchange(
        gradients=gradients,
        residual=residual.handle,
        states=states.handle,
        driver=driver,
        place=place,
    )
    return averages


@functools.cache
def _library() -> Any:
    built_for = _built_for()
    if built_for is None or not _LIBRARY.exists():
        raise UnavailableError(
            "hvd_sparse was built without TensorFlow: install TensorFlow, then build hvd_sparse "
            "with HVD_SPARSE_WITH_TENSORFLOW=1"
        )
    if built_for != tf.__version__:
        raise UnavailableError(
            f"hvd_sparse was built for TensorFlow {built_for} and this is {tf.__version__}: build "
            "it again"
        )
    return tf.load_op_library(str(_LIBRARY))


@functools.cache
def _symbols() -> ctypes.CDLL:
    _library()
    return ctypes.CDLL(str(_LIBRARY))


def _built_for() -> str | None:
    if not _BUILD_INFO.exists():
        return None
    part = json.loads(_BUILD_INFO.read_text())["parts"].get("tensorflow", {})
    return str(part["detail"]) if part.get("built") else None
