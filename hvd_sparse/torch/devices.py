"""Devices and streams as the core identifies them, and checks that it supports a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.places.gpus import require_gpus


def check_device(name: str, tensor: torch.Tensor) -> None:
    """Raises UnsupportedError unless gradients on the device of `tensor` can be exchanged.

    Args:
        name: Description of the tensor, for the error.
        tensor: A tensor on any device.
    """
    device = tensor.device
    if device.type == "cpu":
        return
    if device.type != "cuda" or torch.version.hip is not None:
        raise UnsupportedError(
            f"{name} is on device '{device}'; a sparse exchange takes gradients on the CPU, and on "
            "NVIDIA GPUs"
        )
    require_gpus(f"{name} is on device '{device}'")


def common_device(tensors: Iterable[tuple[str, torch.Tensor]]) -> torch.device:
    """Returns the device that holds all of these tensors; the CPU if there are none.

    Args:
        tensors: Pairs of name and tensor.

    Raises:
        UnsupportedError: They are not all on the same device.
    """
    first: tuple[str, torch.device] | None = None
    for name, tensor in tensors:
        if first is None:
            first = name, tensor.device
        elif tensor.device != first[1]:
            raise UnsupportedError(
                f"'{first[0]}' is on device '{first[1]}' and '{name}' on '{tensor.device}': a "
                "sparse exchange takes parameters of one device"
            )
    return torch.device("cpu") if first is None else first[1]


def current_stream(device: torch.device) -> int:
    """Returns a device's current stream, as a number; 0 for the CPU."""
    return 0 if device.type == "cpu" else int(torch.cuda.current_stream(device).cuda_stream)


class Arrivals:
    """The streams on which gradients become ready; the exchange may start on another one.

    Backward computes each gradient on the stream of the parameter's forward, and makes its caller's
    stream wait for all of them only at its end, which is too late here.

    Args:
        stream: Returns the current stream; None for the CPU, which has no streams.
    """

    def __init__(self, stream: Callable[[], Any] | None) -> None:
        self._stream = stream
        self._noted: list[Any] = []

    @classmethod
    def on(cls, device: torch.device) -> Arrivals:
        """Returns the arrivals of gradients on a device."""
        if device.type == "cpu":
            return cls(None)
        return cls(lambda: torch.cuda.current_stream(device))

    def note(self) -> None:
        """Records a gradient, which is ready after the work queued on the current stream."""
        if self._stream is not None and (stream := self._stream()) not in self._noted:
            self._noted.append(stream)

    def join(self) -> None:
        """Makes the current stream wait for all recorded gradients."""
        if self._stream is None:
            return
        current = self._stream()
        for stream in self._noted:
            if stream != current:
                current.wait_stream(stream)
        self._noted.clear()
