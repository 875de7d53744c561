"""The device of an exchange, which is that of the variables; and the devices that are supported.

TensorFlow numbers GPUs in an order of its own ("GPU:0" is the first that is visible to it), so the
core gets CUDA's number of the GPU in whose memory a tensor of TensorFlow lies.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import tensorflow as tf

from hvd_sparse import _core
from hvd_sparse.compression import Compression
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.places.gpus import require_gpus
from hvd_sparse.places.place import OnDevice
from hvd_sparse.tensorflow import ops
from hvd_sparse.tensorflow.ops import CPU


def short_name(device: str) -> str:
    """Shortens any of TensorFlow's names of a device of this process to "CPU:0", "GPU:1", ..."""
    spec = tf.DeviceSpec.from_string(device)
    return f"{spec.device_type or 'CPU'}:{spec.device_index or 0}"


def common_device(variables: Iterable[tuple[str, str]]) -> str:
    """Returns the device on which all variables lie; the CPU if there are none.

    Args:
        variables: Names of the variables, each with the name of its device.

    Raises:
        UnsupportedError: The variables do not lie on one device.
    """
    first: tuple[str, str] | None = None
    for name, device in variables:
        if first is None:
            first = name, device
        elif device != first[1]:
            raise UnsupportedError(
                f"variable '{first[0]}' is on {first[1]} and '{name}' on {device}: a sparse "
                "exchange takes variables of one device"
            )
    return CPU if first is None else first[1]


def check_device(device: str) -> None:
    """Raises UnsupportedError unless gradients there can be exchanged."""
    kind = device.partition(":")[0]
    if kind == "CPU":
        return
    if kind != "GPU" or tf.test.is_built_with_rocm():
        raise UnsupportedError(
            f"variables lie on {device}; a sparse exchange takes gradients on the CPU, and on "
            "NVIDIA GPUs"
        )
    require_gpus(f"variables lie on {device}")


def check_options(device: str, compression: Compression) -> None:
    """Raises UnsupportedError if a compression has an option that the device does not support."""
    if device == CPU:
        return
    if compression.nodes_first is True and not OnDevice.adds_up_nodes:
        raise UnsupportedError(
            f"nodes_first=True takes no gradients of {device}: residuals are added up on the CPU"
        )


@functools.cache
def core_name(device: str) -> str:
    """Returns the core's name of a device, such as "cpu" or "cuda:1". Not within a graph."""
    if device == CPU:
        return "cpu"
    with tf.device(device):
        somewhere = tf.zeros(1)
    return f"cuda:{_core.cuda_device_of(ops.address(somewhere, device=device))}"
