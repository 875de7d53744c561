"""Records: frozen dataclasses as JSON, restored bit for bit, with errors that say where."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from hvd_sparse.errors import InvalidArgumentError

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
        fields = msgspec.to_builtins(self)
        content = {"kind": self.KIND, "version": self.VERSION, **fields}
        return json.dumps(content, allow_nan=False)

    @classmethod
    def from_json(cls: type[S], text: str) -> S:
        """Reads a record that `to_json` wrote.

        Raises:
            InvalidArgumentError: The text is not JSON, is of another kind or version, lacks a
                field, has one too many, or a value of a wrong type; the message names the field.
        """
        kind, version = cls.KIND, cls.VERSION
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:  # numbers and nesting have limits, too
            raise InvalidArgumentError(f"a {kind} must be JSON: {error}") from None
        if not isinstance(content, dict) or content.pop("kind", None) != kind:
            raise InvalidArgumentError(f'this is no {kind}: it has no "kind": "{kind}"')
        found = content.pop("version", None)
        if isinstance(found, bool) or found != version:
            raise InvalidArgumentError(f"the version of a {kind} must be {version}, got {found!r}")
        try:
            record = msgspec.convert(content, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidArgumentError(f"{kind}: {error}") from None
        unknown = list(_unknown(content, msgspec.to_builtins(record), "$"))
        if unknown:
            raise InvalidArgumentError(f"{kind} has unknown fields {unknown}")
        return record

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


def _unknown(given: Any, kept: Any, where: str) -> Iterator[str]:
    """Yields the places of fields that were read and not kept."""
    if isinstance(given, dict):
        for name, value in given.items():
            if name not in kept:
                yield f"{where}.{name}"
            else:
                yield from _unknown(value, kept[name], f"{where}.{name}")
    elif isinstance(given, list):
        for index, pair in enumerate(zip(given, kept, strict=True)):
            yield from _unknown(*pair, f"{where}[{index}]")


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
