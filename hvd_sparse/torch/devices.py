"""Devices and their streams, as the core knows them; and which of them it can serve."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch

from hvd_sparse import _core
from hvd_sparse.errors import UnavailableError, UnsupportedError


def check_device(name: str, tensor: torch.Tensor) -> None:
    """Raises UnsupportedError unless gradients on the device of `tensor` can be exchanged.

    Args:
        name: What the tensor is, for the error.
        tensor: On any device.
    """
    device = tensor.device
    if device.type == "cpu":
        return
    if device.type != "cuda" or torch.version.hip is not None:
        raise UnsupportedError(
            f"{name} is on device '{device}'; a sparse exchange takes gradients on the CPU, and on "
            "NVIDIA GPUs"
        )
    if not _core.with_cuda:
        raise UnsupportedError(
            f"{name} is on device '{device}', and this build exchanges gradients on the CPU only: "
            "build hvd_sparse with HVD_SPARSE_WITH_CUDA=1"
        )
    problem = _problem_of_cuda()
    if problem is not None:
        raise UnsupportedError(
            f"{name} is on device '{device}', which this build cannot use: {problem}"
        )


@functools.cache
def _problem_of_cuda() -> str | None:
    """Why the core sees no device, or None."""
    try:
        _core.cuda_devices()
    except UnavailableError as error:
        return str(error)
    return None


def common_device(tensors: Iterable[tuple[str, torch.Tensor]]) -> torch.device:
    """The device on which all of these lie; the CPU if there are none.

    Args:
        tensors: With their names.

    Raises:
        UnsupportedError: They do not lie on one device.
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
    """The stream that is given work on a device now, as a number; 0 for the CPU."""
    return 0 if device.type == "cpu" else int(torch.cuda.current_stream(device).cuda_stream)
