"""Records: frozen dataclasses as JSON, restored bit for bit, with errors that say where."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from hvd_sparse.errors import InvalidArgumentError

T = TypeVar("T")
S = TypeVar("S", bound="Saved")


class Saved:
    """Base of frozen dataclasses that are written to files.

    Attributes:
        KIND: Kind of the record, stored in the text; errors quote its last word.
        VERSION: Version of the fields, stored in the text.
    """

    KIND: ClassVar[str]
    VERSION: ClassVar[int]

    def to_json(self) -> str:
        """Returns the record as JSON that reads back bit for bit."""
        return to_json(self, kind=self.KIND, version=self.VERSION)

    @classmethod
    def from_json(cls: type[S], text: str) -> S:
        """Reads a record that `to_json` wrote.

        Raises:
            InvalidArgumentError: The text is not such a record; the message says what is wrong.
        """
        return from_json(cls, text, kind=cls.KIND, version=cls.VERSION)

    def save(self, path: Path | str) -> None:
        """Writes the record to a file.

        Raises:
            OSError: The file cannot be written, for instance because it is a FIFO without a reader.
        """
        with open(path, "w", opener=_open_at_once) as file:
            file.write(self.to_json() + "\n")

    @classmethod
    def load(cls: type[S], path: Path | str) -> S:
        """Reads a file that `save` wrote.

        Raises:
            InvalidArgumentError: There is no such file, or it holds something else.
        """
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            what = cls.KIND.split()[-1]
            raise InvalidArgumentError(f"cannot read a {what} from {path}: {error}") from None
        try:
            return cls.from_json(text)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path}: {error}") from None


def _open_at_once(path: str, flags: int) -> int:
    """Opens a file like open(), but fails where open() would wait for the reader of a FIFO."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def to_json(record: Any, *, kind: str, version: int) -> str:
    """Returns a record as JSON. Floats are written so that they read back as the same bits.

    Args:
        record: A dataclass of numbers, strings, tuples and further such dataclasses.
        kind: Kind of the record, stored in the text.
        version: Version of its fields, stored in the text.
    """
    content = {"kind": kind, "version": version, **dataclasses.asdict(record)}
    return json.dumps(content, allow_nan=False)


def from_json(cls: type[T], text: str, *, kind: str, version: int) -> T:
    """Reads a record that `to_json` wrote.

    Raises:
        InvalidArgumentError: The text is not JSON, is of another kind or version, lacks a field,
            has one too many, or a value of a wrong type; the message names the field.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # numbers and nesting have limits, too
        raise InvalidArgumentError(f"a {kind} must be JSON: {error}") from None
    if not isinstance(content, dict) or content.pop("kind", None) != kind:
        raise InvalidArgumentError(f'this is no {kind}: it has no "kind": "{kind}"')
    found = content.pop("version", None)
    if isinstance(found, bool) or found != version:
        raise InvalidArgumentError(f"the version of a {kind} must be {version}, got {found!r}")
    decoded: T = _decoded(cls, content, kind)
    return decoded


def check_finite(record: object, *, low: float = 0.0) -> None:
    """Checks the float and int fields of a dataclass, but not of dataclasses inside it.

    Raises:
        InvalidArgumentError: A field is below `low`, or is not a finite number.
    """
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not math.isfinite(value) or value < low:
            raise InvalidArgumentError(
                f"{field.name} of {type(record).__name__} must be at least {low:g}, got {value}"
            )


def _decoded(kind: Any, value: Any, where: str) -> Any:
    """Converts `value`, a result of json.loads, to the type `kind`."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decoded_dataclass(kind, value, where)
    origin = get_origin(kind)
    if origin is tuple:
        return _decoded_tuple(get_args(kind), value, where)
    if origin in (Union, types.UnionType):
        (inner,) = (one for one in get_args(kind) if one is not type(None))
        return None if value is None else _decoded(inner, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise InvalidArgumentError(f"{where} must be {kind.__name__}, got {value!r}")
    if kind is float and not math.isfinite(value):
        raise InvalidArgumentError(f"{where} must be finite, got {value}")
    return value


def _decoded_dataclass(cls: type[Any], value: object, where: str) -> Any:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{where} must be an object, got {value!r}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    missing = [
        name
        for name, field in fields.items()
        if name not in value and field.default is dataclasses.MISSING
    ]
    unknown = sorted(set(value) - set(fields))
    if missing or unknown:
        what = f"lacks {missing}" if missing else f"has unknown fields {unknown}"
        raise InvalidArgumentError(f"{where} {what}")
    hints = get_type_hints(cls)
    read = {name: _decoded(hints[name], one, f"{where}.{name}") for name, one in value.items()}
    return cls(**read)


def _decoded_tuple(inner: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise InvalidArgumentError(f"{where} must be a list, got {value!r}")
    kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
    if len(kinds) != len(value):
        raise InvalidArgumentError(f"{where} must have {len(kinds)} elements, got {len(value)}")
    return tuple(
        _decoded(kind, one, f"{where}[{i}]")
        for i, (kind, one) in enumerate(zip(kinds, value, strict=True))
    )
