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

CPU = "CPU:0"  # TensorFlow's name


class Driver:
    """Runs the steps of an exchange; its ops find it by its number. Closed before MPI ends.

    Args:
        exchange: The exchange, with all its buckets.
        op_sizes: Elements and units of selection of the gradients that each op hands over.
        buckets: The buckets of all ops, in starting order; the same on all ranks.
        number: The number of a driver that has ended, which this one replaces in its graphs; None
            for a new number.
        **options: Further arguments of `Exchange.drive`.

    Attributes:
        number: The number by which ops find the driver.
    """

    def __init__(
        self,
        exchange: Exchange,
        op_sizes: Sequence[tuple[int, int]],
        buckets: Sequence[_core.DrivenBucket],
        number: int | None = None,
        **options: Any,
    ) -> None:
        self.number = next_number() if number is None else number
        self._exchange = exchange
        self._core = exchange.drive(op_sizes, buckets, **options)
        self._driver: _core.StepDriver | None = self._core  # until it is closed
        _symbols().hvd_sparse_add_driver(
            ctypes.c_int64(self.number), ctypes.c_void_p(self._core.table)
        )
        lifecycle.register(self)

    @property
    def steps(self) -> int:
        """Steps exchanged so far."""
        return self._core.steps

    @property
    def closed(self) -> bool:
        """True once the driver has ended, by an error or because Horovod was shut down."""
        return self._driver is None

    def replace(self, buckets: Sequence[_core.DrivenBucket]) -> None:
        """Replaces the buckets from the next step on; between two steps, on all ranks alike."""
        if self._driver is not None:
            self._driver.replace(buckets)

    def reorder(self, order: Sequence[int]) -> None:
        """Changes the order of the buckets from the next step on, on all ranks alike."""
        if self._driver is not None:
            self._driver.reorder(order)

    @property
    def pending(self) -> bool:
        """True if residuals may be added to dense gradients of the next step."""
        return self._core.pending

    @property
    def residual_norms(self) -> list[tuple[int, float]]:
        """Norms of this rank's residual, with the steps after which each was noted."""
        return [] if self._driver is None else self._driver.residual_norms

    @property
    def stats(self) -> list[_core.BucketStats]:
        """Statistics of the last step of each bucket that is exchanged."""
        self._exchange.require_open()
        return self._core.stats

    def continue_after(self, steps: int, *, pending: bool = True) -> None:
        """Continues after `steps` steps, with replaced residuals; see `Steps.continue_after`."""
        if self._driver is not None:
            self._driver.continue_after(steps, pending)

    def time_steps(self, wanted: bool) -> None:
        """Turns the timing of steps on or off from the next one on; between two steps."""
        if self._driver is not None:
            self._driver.time_steps(wanted)

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks. The driver stays open: the next step raises `reason`."""
        self._exchange.fail(reason)
        if self._driver is not None:
            self._call_off_thread(self._driver.cancel, reason)

    def close(self) -> None:
        """Ends this rank's part; a step in flight ends on all ranks."""
        self._call_off_thread(self._close)

    def _call_off_thread(self, call: Callable[..., None], *args: Any) -> None:
        """Calls `call` on a thread that can wait for the driver's thread and for running ops.

        The garbage collector may release a model on the driver's thread while a step ends, or on
        the thread of an op while TensorFlow continues within the op's call.
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
            driver.cancel(reason)  # for gradients of ops that had found the driver before
            driver.close()
            _symbols().hvd_sparse_remove_driver(number)  # nothing writes to its memory any more


def next_number() -> int:
    """Returns a number that no driver has had."""
    return next(_numbers)


class Begun(NamedTuple):
    """The outputs of a step's begin, which its other operations take.

    Attributes:
        token: A tensor that keeps them behind the begin.
        check_finite: A bool tensor: true if dense sums must be checked for values that are not
            finite.
    """

    token: Any
    check_finite: Any


def begin(
    residual: tf.Variable,
    states: tf.Variable,
    velocity: tf.Variable | None = None,
    *,
    decay: Any = 1.0,
    momentum: Any = 0.0,
    dampening: Any = 0.0,
    driver: int,
    device: str,
) -> Begun:
    """Begins a step.

    Args:
        residual: The residual, float32, as long as all gradients of the driver's ops that have
            units of selection.
        states: The sparsifier's states, float32, [units of selection, 4], on the CPU.
        velocity: The velocity, float32, as long as all gradients of the driver's ops; None without
            momentum.
        decay: The factor of the residual before gradients are added to it, a float32 scalar.
        momentum: The factor of the velocity before gradients are added to it, a float32 scalar.
        dampening: The gradients are multiplied by 1 - dampening before they are added to the
            velocity; a float32 scalar.
        driver: Number of the Driver.
        device: Device of the residual, the velocity and the gradients.
    """
    before = states.read_value()
    with tf.device(CPU):
        factors = tf.stack([tf.cast(one, tf.float32) for one in (decay, momentum, dampening)])
    with tf.device(device):
        token, check_finite = _library().hvd_sparse_begin(
            residual=residual.handle,
            states=before,
            velocity=_handles(velocity),
            factors=factors,
            driver=driver,
        )
    return Begun(token, check_finite)


def exchange(
    gradients: Sequence[Any], token: Any, *, driver: int, op: int, device: str
) -> tuple[list[Any], Any]:
    """Exchanges gradients of the step; all of a step that do not pass complete together.

    Args:
        gradients: float32, float64, float16 or bfloat16 tensors, of any shape.
        token: The token from `begin`.
        driver: Number of the Driver.
        op: Number of the op in it.
        device: The device given to `begin`.

    Returns:
        Tensors like the gradients, and a bool. If it is false, they are the averages. If it is
        true, the op is sent dense: they are the gradients plus their residual, for Horovod to
        average.
    """
    with tf.device(device):
        averages, is_dense = _library().hvd_sparse_exchange(
            gradients=gradients, token=token, driver=driver, op=op
        )
    return averages, is_dense


def summed(sums: Sequence[Any], begun: Begun, *, driver: int, device: str) -> list[Any]:
    """Reports Horovod's sums to the core, which refuses a step if one is not finite.

    Args:
        sums: Averages or sums, of an op that is sent dense and has units of selection, or of all
            gradients that are always sent dense.
        begun: The result of `begin`.
        driver: Number of the Driver.
        device: The device given to `begin`.

    Returns:
        Tensors equal to `sums`, available once the core has them.
    """
    with tf.device(device):
        same: list[Any] = _library().hvd_sparse_summed(
            sums=sums,
            finite=_host_checked(sums, begun.check_finite, device),
            token=begun.token,
            driver=driver,
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
    """Ends a step; the caller's control dependencies make it wait for all gradients.

    Args:
        residual: The residual given to `begin`.
        states: The states given to `begin`; assigned those for the next step, unless the step
            fails.
        velocity: The velocity given to `begin`.
        driver: Number of the Driver.
        device: The device given to `begin`.

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
    """Returns the address of a tensor's memory on a device. In eager mode only."""
    with tf.device(device):
        return int(_library().hvd_sparse_address(memory=memory))


def stream(*, device: str) -> int:
    """Returns a device's compute stream, as a number; 0 for the CPU. In eager mode only."""
    with tf.device(device):
        return int(_library().hvd_sparse_stream())


def overwrite(into: tf.Tensor, source: tf.Tensor, *, device: str) -> None:
    """Copies between tensors on a device, in the order of its stream. In eager mode only.

    Args:
        into: The destination, float32; nothing else may use it.
        source: The source, of the same shape.
        device: The device of both.
    """
    with tf.device(device):
        _library().hvd_sparse_overwrite(into=into, source=source)


def _host_checked(sums: Sequence[Any], check_finite: Any, device: str) -> list[Any]:
    """Returns a bool tensor for sums that the core cannot read itself: true if all are finite."""
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

    with tf.device(CPU):  # without a check nothing waits for the device
        return [tf.cond(check_finite, seen, unseen)]


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
