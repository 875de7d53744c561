"""The place of an exchange's gradients: the CPU or a device of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse import _core
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places import place
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.places.device_clock import DeviceClock
from hvd_sparse.tensorflow import devices, ops


class _Memory(NamedTuple):
    """A tensor that may change, because nothing else uses it; its address is looked up once."""

    tensor: tf.Tensor
    buffer: Buffer


class OnDevice(place.OnDevice):
    """The memory and the compute stream of a device of TensorFlow. Not within a graph.

    Args:
        device: TensorFlow's name of the device.
        check: A function that raises the error that has ended the exchange.
    """

    def __init__(self, device: str, check: Callable[[], None]) -> None:
        self.device = devices.core_name(device)
        self._device = device
        self._stream = ops.stream(device=device)  # it never changes within a process
        self.clock = DeviceClock(
            event=lambda: _core.TimedMark(self.device), stream=self.stream, check=check
        )

    def put(self, values: NDArray[np.float32]) -> _Memory:
        """Returns a new tensor on the device, with these values."""
        with tf.device(self._device):
            tensor = tf.constant(values)
        address = ops.address(tensor, device=self._device)
        return _Memory(tensor, Buffer(address, values.size, "float32"))

    def copy(self, into: _Memory, source: _Memory) -> None:
        """Copies on the compute stream."""
        ops.overwrite(into.tensor, source.tensor, device=self._device)

    def buffer(self, memory: _Memory) -> Buffer:
        """Returns the tensor's memory."""
        return memory.buffer

    def free_bytes(self) -> float:
        """Returns 0: TensorFlow takes a device's memory for itself, when it starts or later."""
        return 0.0

    def stream(self) -> int:
        """Returns the compute stream."""
        return self._stream


def place_of(device: str, exchange: Exchange) -> place.Place:
    """Returns the place of gradients on a device that `devices.check_device` accepts.

    Args:
        device: TensorFlow's name of the device of all gradients.
        exchange: The exchange whose end ends every wait for the device.
    """
    return place.OnCpu() if device == ops.CPU else OnDevice(device, exchange.check)
