"""The ops in _ops.so, which hand gradients to the core."""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse import _core
from hvd_sparse.errors import UnavailableError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks import lifecycle

_LIBRARY = Path(__file__).with_name("_ops.so")
_BUILD_INFO = Path(__file__).parent.with_name("_build_info.json")

_numbers = itertools.count(1)

CPU = "CPU:0"  # as TensorFlow calls it


class Driver:
    """Runs the steps of an exchange, whose ops know it by a number; closed before MPI ends.

    Args:
        exchange: With all its buckets.
        pieces: Elements, and units of selection, of what an op hands over.
        buckets: Of all pieces, in the order in which they start; the same on all ranks.
        number: For the ops: a new one, or that of a driver that has ended, whose graphs then know
            this one.
        **options: As of `Exchange.drive`.

    Attributes:
        number: For the ops.
    """

    def __init__(
        self,
        exchange: Exchange,
        pieces: Sequence[tuple[int, int]],
        buckets: Sequence[_core.DrivenBucket],
        number: int | None = None,
        **options: Any,
    ) -> None:
        self.number = next_number() if number is None else number
        self._steps = 0  # when this ended
        self._exchange = exchange
        self._driver: _core.StepDriver | None = exchange.drive(pieces, buckets, **options)
        _symbols().hvd_sparse_add_driver(
            ctypes.c_int64(self.number), ctypes.c_void_p(self._driver.table)
        )
        lifecycle.register(self)

    @property
    def steps(self) -> int:
        """Steps exchanged so far."""
        return self._steps if self._driver is None else self._driver.steps

    @property
    def closed(self) -> bool:
        """Whether this has ended, because of an error or because Horovod was shut down."""
        return self._driver is None

    def replace(self, buckets: Sequence[_core.DrivenBucket]) -> None:
        """Other buckets from the next step on, on all ranks alike; between two steps."""
        if self._driver is not None:
            self._driver.replace(buckets)

    def reorder(self, order: Sequence[int]) -> None:
        """Another order of the same buckets from the next step on, on all ranks alike."""
        if self._driver is not None:
            self._driver.reorder(order)

    def go_on_after(self, steps: int) -> None:
        """Counts from so many steps on, on all ranks alike, with residuals that are others now."""
        if self._driver is not None:
            self._driver.go_on_after(steps)

    def time_steps(self, wanted: bool) -> None:
        """Whether steps are timed from the next one on; between two steps."""
        if self._driver is not None:
            self._driver.time_steps(wanted)

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks. This stays open, and tells whoever begins a step why."""
        self._exchange.fail(reason)
        if self._driver is not None:
            self._elsewhere(self._driver.cancel, reason)

    def close(self) -> None:
        """Ends this rank's part; a step that is under way ends on all ranks."""
        self._elsewhere(self._close)

    def _elsewhere(self, call: Callable[..., None], *args: Any) -> None:
        """Calls it on a thread that can wait for the driver's, and for ops amid a call.

        Python's collector may let go of a model on that very thread, while a step ends; or, where
        TensorFlow goes on within a call of an op, on the thread of that.
        """
        if self._exchange.inherited:
            return
        driver = self._driver
        if driver is not None and (driver.on_its_thread or _symbols().hvd_sparse_amid_op()):
            threading.Thread(target=call, args=args, name="hvd_sparse end").start()
        else:
            call(*args)

    def _close(self) -> None:
        self._end("it was closed")
        self._exchange.close()

    def _end(self, reason: str) -> None:
        if self._driver is not None:
            driver, self._driver = self._driver, None
            number = ctypes.c_int64(self.number)
            _symbols().hvd_sparse_close_driver(number)
            driver.cancel(reason)
            _symbols().hvd_sparse_await_ops(number)
            driver.cancel(reason)  # pieces of ops that had found it before
            self._steps = driver.steps
            driver.close()
            _symbols().hvd_sparse_remove_driver(number)  # nobody writes to its memory any more


def next_number() -> int:
    """A number that no driver has had."""
    return next(_numbers)


class Begun(NamedTuple):
    """What the operations of a step know of it.

    Attributes:
        token: Keeps them behind its begin.
        looks: Whether it matters that dense sums are finite, a bool.
    """

    token: Any
    looks: Any


def begin(
    residual: tf.Variable,
    states: tf.Variable,
    velocity: tf.Variable | None = None,
    decay: Any = 1.0,
    *,
    driver: int,
    device: str,
) -> Begun:
    """Begins a step.

    Args:
        residual: float32, as long as all gradients of the driver's pieces with units of selection.
        states: float32, [units of selection, 4]; on the CPU.
        velocity: float32, as long as all gradients of the driver's pieces; None without momentum.
        decay: float32, a scalar: what the residual is multiplied by before gradients join it.
        driver: Number of a Driver.
        device: Of the residual, the velocity and the gradients.
    """
    before = states.read_value()
    with tf.device(device):
        token, looks = _library().hvd_sparse_begin(
            residual=residual.handle,
            states=before,
            velocity=_handles(velocity),
            decay=decay,
            driver=driver,
        )
    return Begun(token, looks)


def exchange(
    gradients: Sequence[Any], token: Any, *, driver: int, piece: int, device: str
) -> tuple[list[Any], Any]:
    """A piece of a step that was begun; done once all are that do not pass.

    Args:
        gradients: float32, float64, float16 or bfloat16 tensors, of any shape.
        token: From `begin`.
        driver: Number of a Driver.
        piece: Number of the piece in it.
        device: As in `begin`.

    Returns:
        Tensors like the gradients: averages; or the gradients and what their residual held, to be
        averaged by somebody else. And a bool, whether it is the latter.
    """
    with tf.device(device):
        averages, passes = _library().hvd_sparse_exchange(
            gradients=gradients, token=token, driver=driver, piece=piece
        )
    return averages, passes


def summed(sums: Sequence[Any], begun: Begun, *, driver: int, device: str) -> list[Any]:
    """Tells of sums that Horovod has formed; a step in which one is not finite is refused.

    Args:
        sums: Averages or sums: of a piece that passes and has units of selection; or of all that
            always travels dense.
        begun: From `begin`.
        driver: Number of a Driver.
        device: As in `begin`.

    Returns:
        The same tensors.
    """
    with tf.device(device):
        same: list[Any] = _library().hvd_sparse_summed(
            sums=sums, finite=_told(sums, begun.looks, device), token=begun.token, driver=driver
        )
    return same


def end(
    residual: tf.Variable,
    states: tf.Variable,
    velocity: tf.Variable | None = None,
    *,
    driver: int,
    device: str,
) -> Any:
    """Ends a step, once what it is made to wait for is there: all gradients.

    Args:
        residual: As in `begin`.
        states: As in `begin`; now of the next step. A step that fails leaves them as they are.
        velocity: As in `begin`.
        driver: Number of a Driver.
        device: As in `begin`.

    Returns:
        The operation; None in eager mode.
    """
    with tf.device(device):
        after = _library().hvd_sparse_end(
            residual=residual.handle, velocity=_handles(velocity), driver=driver
        )
    with tf.device(states.device):
        return states.assign(after, read_value=False)


def address(memory: tf.Tensor, *, device: str) -> int:
    """Where a tensor of that device lies. In eager mode."""
    with tf.device(device):
        return int(_library().hvd_sparse_address(memory=memory))


def stream(*, device: str) -> int:
    """The stream that computes on a device, as a number; 0 for the CPU. In eager mode."""
    with tf.device(device):
        return int(_library().hvd_sparse_stream())


def overwrite(into: tf.Tensor, source: tf.Tensor, *, device: str) -> None:
    """Copies between tensors of that device, in the order of its stream. In eager mode.

    Args:
        into: float32; nobody else may use it.
        source: Of the same shape.
        device: Of both.
    """
    with tf.device(device):
        _library().hvd_sparse_overwrite(into=into, source=source)


def _told(sums: Sequence[Any], looks: Any, device: str) -> list[Any]:
    """What the core is told of sums where it cannot look itself: whether all are finite."""
    if device == CPU:
        return []

    def seen() -> tf.Tensor:
        with tf.device(device):
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(one)) for one in sums])
        with tf.device(CPU):
            return tf.identity(finite)

    def unseen() -> tf.Tensor:
        with tf.device(CPU):
            return tf.constant(True)

    with tf.device(CPU):  # where nobody looks, nobody waits for the device
        return [tf.cond(looks, seen, unseen)]


def _handles(velocity: tf.Variable | None) -> list[Any]:
    return [] if velocity is None else [velocity.handle]


@functools.cache
def _library() -> Any:
    built_for = _built_for()
    if built_for is None or not _LIBRARY.exists():
        raise UnavailableError(
            "hvd_sparse was built without TensorFlow: install TensorFlow, then build hvd_sparse "
            "with HVD_SPARSE_WITH_TENSORFLOW=1"
        )
    if built_for != tf.__version__:
        raise UnavailableError(
            f"hvd_sparse was built for TensorFlow {built_for} and this is {tf.__version__}: build "
            "it again"
        )
    return tf.load_op_library(str(_LIBRARY))


@functools.cache
def _symbols() -> ctypes.CDLL:
    _library()
    return ctypes.CDLL(str(_LIBRARY))


def _built_for() -> str | None:
    if not _BUILD_INFO.exists():
        return None
    part = json.loads(_BUILD_INFO.read_text())["parts"].get("tensorflow", {})
    return str(part["detail"]) if part.get("built") else None
