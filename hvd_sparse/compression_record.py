"""A compression in the form that ranks send: its class by name, its options as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import NamedTuple

from hvd_sparse.compression import Compression
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.local_steps import AdaComm, Outer
from hvd_sparse.schedules import Warmup
from hvd_sparse.sparsifiers import SPARSIFIERS

# Options with a form of their own, or none: each rank's loss has a scaler of its own.
_NOT_PLAIN = ("sparsifier", "warmup", "local_steps", "outer", "loss_scale")


class CompressionRecord(NamedTuple):
    """A compression without its loss_scale.

    Attributes:
        preset: Module and name of the class.
        sparsifier: Name and options.
        warmup: Steps and densities.
        local_steps: Number of local steps, "auto", or the options of an AdaComm.
        outer: Options of the outer optimizer.
        options: All other options, by name.
    """

    preset: str
    sparsifier: tuple[str, dict[str, int | float]]
    warmup: tuple[int, tuple[float, ...]] | None
    local_steps: int | str | dict[str, int | float]
    outer: dict[str, bool | float]
    options: dict[str, bool | int | float | str | None]


def record_of(compression: Compression) -> CompressionRecord:
    """Returns the record of a compression, to be sent to other ranks."""
    sparsifier, warmup = compression.sparsifier, compression.warmup
    assert not isinstance(sparsifier, str)
    steps = compression.local_steps
    return CompressionRecord(
        preset=_name_of(type(compression)),
        sparsifier=(sparsifier.name, asdict(sparsifier)),
        warmup=None if warmup is None else (warmup.steps, tuple(warmup.densities)),
        local_steps=asdict(steps) if isinstance(steps, AdaComm) else steps,
        outer=asdict(compression.outer),
        options={
            one.name: getattr(compression, one.name)
            for one in fields(compression)
            if one.name not in _NOT_PLAIN
        },
    )


def compression_of(record: CompressionRecord) -> Compression:
    """Rebuilds another rank's compression from its record; imports nothing.

    Raises:
        InvalidArgumentError: This process has no such class, or an option lies outside its limits.
    """
    presets = {_name_of(one): one for one in _with_subclasses(Compression)}
    name, options = record.sparsifier
    if record.preset not in presets or name not in SPARSIFIERS:
        raise InvalidArgumentError(
            f"another rank uses {record.preset} with the sparsifier '{name}', which this process "
            "does not have"
        )
    warmup = None
    if record.warmup is not None:
        steps, densities = record.warmup
        warmup = Warmup(steps=steps, densities=densities)
    try:
        local = record.local_steps
        return presets[record.preset](
            sparsifier=SPARSIFIERS[name](**options),
            warmup=warmup,
            local_steps=AdaComm(**local) if isinstance(local, dict) else local,  # type: ignore[arg-type]
            outer=Outer(**record.outer),  # type: ignore[arg-type]
            **record.options,  # type: ignore[arg-type]  # the class checks them
        )
    except TypeError as error:
        raise InvalidArgumentError(f"another rank uses {record.preset}: {error}") from None


def _name_of(preset: type[Compression]) -> str:
    return f"{preset.__module__}.{preset.__qualname__}"


def _with_subclasses(preset: type[Compression]) -> Iterator[type[Compression]]:
    yield preset
    for subclass in preset.__subclasses__():
        yield from _with_subclasses(subclass)
