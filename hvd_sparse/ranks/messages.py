"""Messages between ranks through the host, as MessagePack, which runs no code.

A message is checked against its type on arrival, so that one of another version, or from a process
that is no rank, ends in an error here and not in an unexpected value.
"""

from __future__ import annotations

import math
from typing import Any, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

from hvd_sparse.errors import InvalidArgumentError

# MessagePack never uses this byte.
UNREADABLE = b"\xc1"

_ARRAY = 1  # code of an extension of MessagePack
# Number types that an array may have; object arrays are refused.
_DTYPES = frozenset(
    {"bool", "int8", "uint8"}
    | {f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (16, 32, 64)}
)


def encode(value: Any) -> bytes:
    """Encodes a value as a message.

    Args:
        value: None, a bool, number or string, a list, tuple, set or dict of such, a NamedTuple,
            a dataclass, or a NumPy array of numbers.

    Raises:
        InvalidArgumentError: `value` holds something else, or an integer of more than 64 bits.
    """
    try:
        return msgspec.msgpack.encode(value, enc_hook=_plain)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"cannot tell other ranks {value!r}: {error}") from None


def decode(message: bytes, kind: Any) -> Any:
    """Decodes the value of a message.

    Args:
        message: The message, which is not trusted.
        kind: Type of the value. `Any` accepts every value, with tuples and sets as lists, and
            NamedTuples and dataclasses as lists and dicts.

    Raises:
        ValueError: The message holds no value of that type.
    """
    try:
        return msgspec.msgpack.decode(message, type=kind, dec_hook=_checked, ext_hook=_extended)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _plain(value: Any) -> Any:
    """Encodes a value of a type that MessagePack does not have."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.name in _DTYPES:
        parts = (value.dtype.name, value.shape, value.tobytes())
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(parts))
    raise TypeError(f"there is no message for {type(value).__name__}")


def _extended(code: int, data: memoryview) -> NDArray[Any]:
    if code != _ARRAY:
        raise ValueError(f"there is no extension {code}")
    dtype, shape, memory = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], bytes])
    if dtype not in _DTYPES:
        raise ValueError(f"an array of {dtype!r} is not one of numbers")
    if min(shape, default=0) < 0 or math.prod(shape) * np.dtype(dtype).itemsize != len(memory):
        raise ValueError(f"an array of {dtype}, {shape}, does not have {len(memory)} bytes")
    return np.frombuffer(memory, dtype).reshape(shape).copy()


def _checked(kind: type[Any], value: Any) -> Any:
    """Checks a value of a type that only `_extended` makes."""
    plain = get_origin(kind) or kind  # of NDArray[...], for example
    if not isinstance(value, plain):
        raise ValueError(f"Expected `{plain.__name__}`, got `{type(value).__name__}`")
    return value
