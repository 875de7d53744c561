"""The library that runs the ranks, such as Horovod, as an exchange uses it."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from hvd_sparse.places.place import Place
from hvd_sparse.ranks.world import World

_Result = TypeVar("_Result", covariant=True)


class Pending(Protocol[_Result]):
    """An operation between the ranks that is in flight."""

    @property
    def name(self) -> str:
        """Name of the operation, as the library registers it."""

    def done(self) -> bool:
        """Returns true once the operation has ended; does not wait."""

    def result(self) -> _Result:
        """Returns the result of an operation that has ended; raises its error."""


class Host(Protocol):
    """The library that runs the ranks of one exchange.

    Operations start at once and are waited for later. All ranks start those of one name in the same
    order, with arrays of the same type and, for sums, length.

    Attributes:
        name: Name of the library, for messages to the user.
        failure: Class of the errors that its operations raise when a rank is gone.
    """

    name: str
    failure: type[Exception]

    @property
    def timeout(self) -> float | None:
        """The deadline of waits for a rank in seconds, see `limits_of_waits`."""

    def world(self) -> World:
        """Returns the ranks.

        Raises:
            UnavailableError: The library is not initialised.
        """

    def allgather(self, array: NDArray[Any], name: str) -> Pending[NDArray[Any]]:
        """Joins the arrays of all ranks along the first axis, in the order of the ranks."""

    def add_up(self, array: NDArray[Any], name: str) -> Pending[NDArray[Any]]:
        """Sums arrays over the ranks."""

    def timed_sum(self, nbytes: int, values: str, name: str, place: Place) -> Pending[float]:
        """Sums so many bytes at a place, dense; the result is the time in seconds.

        Args:
            nbytes: Bytes of each rank's tensor.
            values: Type of its elements, "float32" or "float16". The time of float16 includes the
                casts from float32 and back.
            name: Name of the operation.
            place: Device of the tensor.
        """
