"""A compression in the form that ranks send: its parts by name, their options as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from hvd_sparse.compression.base import Compression
from hvd_sparse.compression.parts import Part
from hvd_sparse.compression.sparsifiers import SPARSIFIERS, Sparsifier
from hvd_sparse.errors import InvalidArgumentError

# The option of a record that names a part's class, or a sparsifier.
_PART, _SPARSIFIER = "part", "sparsifier"


def record_of(value: Any) -> Any:
    """Returns a compression, a part or an option as plain values, to be sent to other ranks."""
    if isinstance(value, Sparsifier):
        return {_SPARSIFIER: value.name, **asdict(value)}
    if not isinstance(value, Part):
        return value
    options = {
        one.name: record_of(getattr(value, one.name))
        for one in fields(value)  # type: ignore[arg-type]
    }
    return {_PART: _name_of(type(value)), **options}


def compression_of(record: Any) -> Compression:
    """Rebuilds another rank's compression from its record; imports nothing.

    Raises:
        InvalidArgumentError: This process has no such class, or an option lies outside its limits.
    """
    made = _made(record)
    if not isinstance(made, Compression):
        raise InvalidArgumentError(f"another rank uses {made!r}, which is no compression")
    return made


def _made(record: Any) -> Any:
    if isinstance(record, list):
        return tuple(record)
    if not isinstance(record, dict):
        return record
    options = {str(name): _made(value) for name, value in record.items()}
    parts: dict[str, type] = {_name_of(one): one for one in _with_subclasses(Part)}
    kinds, name = parts, options.pop(_PART, None)
    if name is None:
        kinds, name = dict(SPARSIFIERS), options.pop(_SPARSIFIER, None)
    if not isinstance(name, str) or name not in kinds:
        raise InvalidArgumentError(f"another rank uses {name}, which this process does not have")
    try:
        return kinds[name](**options)
    except TypeError as error:
        raise InvalidArgumentError(f"another rank uses {name}: {error}") from None


def _name_of(part: type[Part]) -> str:
    return f"{part.__module__}.{part.__qualname__}"


def _with_subclasses(part: type[Part]) -> Iterator[type[Part]]:
    yield part
    for subclass in part.__subclasses__():
        yield from _with_subclasses(subclass)
