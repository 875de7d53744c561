"""Devices and streams as the core identifies them, and checks that it supports a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
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


class StepStream:
    """The stream of a step on a device; on the CPU, which has none, all of this does nothing.

    Backward computes each gradient on the stream of the parameter's forward, and makes its caller's
    stream wait for all of them only at its end, which is too late for an exchange. So a step has
    one stream: the current one when its first gradient arrives.

    Args:
        current: Returns the current stream; None on the CPU.
        switch: Returns a context in which a stream is the current one.

    Attributes:
        number: The stream as the core takes it.
    """

    def __init__(
        self,
        current: Callable[[], Any] | None = None,
        switch: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.number = 0
        self._current = current
        self._switch = switch
        self._stream: Any = None

    @classmethod
    def on(cls, device: torch.device) -> StepStream:
        """Returns the stream of steps on a device."""
        if device.type == "cpu":
            return cls()
        return cls(lambda: torch.cuda.current_stream(device), torch.cuda.stream)

    def begin(self) -> None:
        """Begins a step, whose stream waits for that of the last one, which wrote residuals."""
        if self._current is not None:
            last, self._stream = self._stream, self._current()
            self.number = int(self._stream.cuda_stream)
            if last is not None and last != self._stream:
                self._stream.wait_stream(last)

    def follow(self) -> AbstractContextManager[Any]:
        """Makes the step's stream wait for the work that the current one has been given so far.

        Returns:
            A context in which the step's stream is the current one.
        """
        if self._current is None:
            return nullcontext()
        if self._current() != self._stream:
            self._stream.wait_stream(self._current())
        return self._switch(self._stream)

    def hand_back(self) -> None:
        """Makes the current stream wait for the step's, which writes the results."""
        if self._current is not None and self._current() != self._stream:
            self._current().wait_stream(self._stream)
