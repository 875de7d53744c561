"""The description from which an exchange is built.

Ranks send it to each other, because a rank that joins has no gradients yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

from hvd_sparse.compression.record import compression_of, record_of
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.ranks.agreement import agree, kind_of_device
from hvd_sparse.ranks.world import World
from hvd_sparse.tensorflow import compat, devices
from hvd_sparse.tensorflow.names import unique_names, unnumbered_names
from hvd_sparse.tensorflow.settings import Settings, check_variable


class Template(NamedTuple):
    """The properties of a variable that an exchange needs.

    Attributes:
        name: The variable's name, including its layer's where Keras provides it.
        shape: The shape; None for a dimension that is not fixed.
        dtype: TensorFlow's name of the type.
        device: TensorFlow's name of the device, whose number may differ between ranks.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    device: str


class BlueprintRecord(NamedTuple):
    """A blueprint in the form in which it is sent; see `Blueprint` and `Settings`."""

    variables: tuple[Template, ...]
    sliced: tuple[bool | None, ...]
    serial: int
    compression: dict[str, Any]
    reduction: Reduction
    sparse_as_dense: bool
    follows_rate: bool
    marks_non_finite: bool
    momentum: float
    dampening: float
    masks_velocity: bool


@dataclass(frozen=True)
class Blueprint:
    """The description from which an exchange is built.

    Attributes:
        variables: The variables, in the order of their gradients.
        sliced: For each variable, True if its gradients are IndexedSlices that Horovod gathers.
            None where this rank had no gradient, until the ranks have agreed.
        settings: The user's settings.
        serial: The exchange's number, unique and the same on all ranks; 0 until they have agreed.
    """

    variables: tuple[Template, ...]
    sliced: tuple[bool | None, ...]
    settings: Settings
    serial: int = 0

    @classmethod
    def of(
        cls, variables: Sequence[Any], sliced: Sequence[bool | None], settings: Settings
    ) -> Blueprint:
        """Describes TensorFlow or Keras variables; for `sliced` see the attribute."""
        return cls(
            tuple(
                Template(
                    compat.name_of(one),
                    tuple(one.shape),
                    compat.dtype_of(one).name,
                    devices.short_name(compat.tensor_of(one).device),
                )
                for one in variables
            ),
            (False,) * len(sliced) if settings.sparse_as_dense else tuple(sliced),
            settings,
        )

    @classmethod
    def of_record(cls, record: BlueprintRecord) -> Blueprint:
        """Rebuilds the blueprint that another rank has sent.

        Raises:
            InvalidArgumentError: Raised by `compression_of`.
        """
        settings = Settings(
            compression=compression_of(record.compression),
            reduction=record.reduction,
            sparse_as_dense=record.sparse_as_dense,
            follows_rate=record.follows_rate,
            marks_non_finite=record.marks_non_finite,
            momentum=record.momentum,
            dampening=record.dampening,
            masks_velocity=record.masks_velocity,
        )
        return cls(record.variables, record.sliced, settings, record.serial)

    @property
    def record(self) -> BlueprintRecord:
        """This blueprint in the form in which it is sent to other ranks."""
        return BlueprintRecord(
            variables=self.variables,
            sliced=self.sliced,
            serial=self.serial,
            compression=record_of(self.settings.compression),
            reduction=self.settings.reduction,
            sparse_as_dense=self.settings.sparse_as_dense,
            follows_rate=self.settings.follows_rate,
            marks_non_finite=self.settings.marks_non_finite,
            momentum=self.settings.momentum,
            dampening=self.settings.dampening,
            masks_velocity=self.settings.masks_velocity,
        )

    @property
    def prefix(self) -> str:
        """The prefix of the names of the exchange's operations."""
        return f"hvd_sparse.tensorflow.{self.serial}"

    @property
    def device(self) -> str:
        """The device of all variables except those whose gradients Horovod gathers.

        Raises:
            UnsupportedError: The variables lie on several devices.
        """
        pairs = zip(self.variables, self.sliced, strict=True)
        return devices.common_device((one.name, one.device) for one, slices in pairs if not slices)

    def agreed(self, world: World, ranks: Sequence[int], serial: int) -> Blueprint:
        """Checks that all ranks have the same blueprint; returns it with its serial. Collective.

        A gradient that this rank lacked has the kind that it has on the other ranks; it is a tensor
        if no rank had it.

        Args:
            world: The ranks.
            ranks: Their Horovod ranks, for messages.
            serial: The last serial that this rank knows.

        Raises:
            InvalidArgumentError: On all ranks, if their variables or options differ.
            UnsupportedError: On a rank whose variables cannot be exchanged.
        """
        everywhere = world.allgather_object(self.sliced, tuple[bool | None, ...])
        known = replace(self, sliced=_filled_in(self.sliced, everywhere))
        problem = known._problem()
        options = self.settings.describe()
        if problem is None:
            kind = known.device.partition(":")[0]
            options |= kind_of_device(kind, self.settings.compression)
        agreed = agree(
            world,
            ranks,
            problem=problem,
            parameters=[
                f"'{name}' {one.shape} {one.dtype}{' IndexedSlices' if slices else ''}"
                for name, one, slices in zip(
                    unique_names(self.variables), self.variables, known.sliced, strict=True
                )
            ],
            options=options,
            serial=serial,
        )
        return replace(known, serial=1 + agreed)

    def is_for(self, other: Blueprint) -> bool:
        """Returns true if `other`, made of this rank's own variables, describes the same model.

        Keras keeps counting layers when a process makes a model again, so the numbers in names are
        ignored.

        Raises:
            InvalidArgumentError: The model is the same but the options differ.
        """
        if self._model() != other._model() or not self._slices_as(other):
            return False
        for name, value in self.settings.describe().items():
            here = other.settings.describe()[name]
            if here != value:
                raise InvalidArgumentError(f"{name} is {here} on this rank and {value} on others")
        return True

    def _model(self) -> tuple[Any, ...]:
        names = unnumbered_names(unique_names(self.variables))
        return names, [(one.shape, one.dtype) for one in self.variables]

    def _slices_as(self, other: Blueprint) -> bool:
        pairs = zip(self.sliced, other.sliced, strict=True)
        return all(None in pair or pair[0] == pair[1] for pair in pairs)

    def _problem(self) -> UnsupportedError | None:
        try:
            for variable, slices in zip(self.variables, self.sliced, strict=True):
                check_variable(variable, sliced=bool(slices), compression=self.settings.compression)
            devices.check_device(self.device)
            devices.check_options(self.device, self.settings.compression)
        except UnsupportedError as error:
            return error
        return None


def _filled_in(
    ours: Sequence[bool | None], everywhere: Sequence[Sequence[bool | None]]
) -> tuple[bool, ...]:
    """Returns `ours` with unknown values taken from the other ranks."""
    anywhere = [any(known) for known in zip_longest(*everywhere)]
    return tuple(
        any_rank if own is None else own for own, any_rank in zip(ours, anywhere, strict=False)
    )
