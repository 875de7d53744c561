"""Where the gradients of an exchange lie: on the CPU or on a device, which is chosen here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse import _core
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.places.device_clock import DeviceClock
from hvd_sparse.places.place import BesideCpu, OnCpu, Place
from hvd_sparse.tensorflow import devices, ops


class _Memory(NamedTuple):
    """A tensor that nobody else uses, so that it may change; its address is asked for once."""

    tensor: tf.Tensor
    buffer: Buffer


class OnDevice(BesideCpu):
    """The memory of a device of TensorFlow, and its stream that computes. Not within a graph.

    Args:
        device: As TensorFlow calls it.
        check: Raises what has ended the exchange.
    """

    def __init__(self, device: str, check: Callable[[], None]) -> None:
        self.device = devices.core_name(device)
        self._device = device
        self._stream = ops.stream(device=device)  # the same as long as this process lives
        self.clock = DeviceClock(
            event=lambda: _core.TimedMark(self.device), stream=self.stream, check=check
        )

    def put(self, values: NDArray[np.float32]) -> _Memory:
        """A tensor there."""
        with tf.device(self._device):
            tensor = tf.constant(values)
        address = ops.address(tensor, device=self._device)
        return _Memory(tensor, Buffer(address, values.size, "float32"))

    def copy(self, into: _Memory, source: _Memory) -> None:
        """On the stream that computes."""
        ops.overwrite(into.tensor, source.tensor, device=self._device)

    def buffer(self, memory: _Memory) -> Buffer:
        """Of the tensor."""
        return memory.buffer

    def stream(self) -> int:
        """The one that computes."""
        return self._stream


def place_of(device: str, exchange: Exchange) -> Place:
    """The place of gradients on a device that `devices.check_device` lets pass.

    Args:
        device: Of all gradients, as TensorFlow calls it.
        exchange: Whose end ends every wait for the device.
    """
    return OnCpu() if device == ops.CPU else OnDevice(device, exchange.check)
